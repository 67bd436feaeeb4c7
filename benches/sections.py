"""What `python -m benches` runs: each section fills a part of the report.

A section that needs a part of the package that cannot be imported is reported as not run, by name;
it never disappears quietly.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benches.calls import run_calls_section
from benches.canned import ROOT, serving
from benches.cpu import Sample, Series, interleave, ratio
from benches.endurance import run_endurance_section
from benches.leases import run_leases_section
from benches.middlewares import run_middlewares_section
from benches.observed import run_observed_section
from benches.pages import ORDINARY, Spec
from benches.publishing import run_publishing_section
from benches.report import Check, Report, Table
from benches.service_section import run_service_section
from benches.shards import run_shards_section

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = ROOT / ".benchmarks"

# What the package promises of itself; a miss is shown, and fails only with --strict.
MEMORY_MIB = 1.0
WAITING_MIB = 150.0
WAITING_PERCENT = 1.0
TESTKIT_RATIO = 5.0


@dataclass(frozen=True)
class Size:
    """How long a run takes."""

    rounds: int
    pages: int
    full_pages: int
    settled: int
    waiting_pages: int
    """A shard, of ten: 1,000 records each."""
    idle: float
    idle_rounds: int
    publishes: int
    quick: bool


FULL_SIZE = Size(
    rounds=9,
    pages=40,
    full_pages=50,
    settled=10_000_000,
    waiting_pages=10,
    idle=10.0,
    idle_rounds=3,
    publishes=2_000,
    quick=False,
)
# Enough to run every line and every check; the numbers mean nothing.
QUICK_SIZE = Size(
    rounds=1,
    pages=10,
    full_pages=2,
    settled=200_000,
    waiting_pages=1,
    idle=0.5,
    idle_rounds=1,
    publishes=300,
    quick=True,
)


@dataclass(frozen=True)
class Context:
    """What a section gets."""

    size: Size
    loops: tuple[str, ...]
    report: Report
    say: Callable[[str], None]

    def progress(self, name: str, sample: Sample) -> None:
        """Tell of one sample."""
        self.say(f"  {name:<34} {sample.per_unit_us:8.3f} µs")

    def record(self, section: str, series: Mapping[str, Series]) -> None:
        """Keep the raw values."""
        self.report.data[section] = {
            name: [asdict(sample) for sample in one.samples] for name, one in series.items()
        }


def run_core_section(context: Context) -> None:
    """The native core against the payload decode, interleaved."""
    try:
        from benches import core  # noqa: PLC0415 (absent from early builds)
    except ImportError as error:
        context.report.missing.append(f"core: {error}")
        return
    yardstick = core.payload_decode(ORDINARY)
    enveloped = core.envelope_and_watermark(ORDINARY, headers=True)
    works = [
        yardstick,
        core.envelope_and_watermark(ORDINARY, headers=False),
        enveloped,
        core.watermark_calls(ORDINARY),
        core.page_parse(ORDINARY),
        core.page_payload_list(ORDINARY),
    ]
    samplers = {work.name: core.sampler(work) for work in works}
    series = interleave(samplers, context.size.rounds, context.progress)
    base = series[yardstick.name]
    table = Table(
        "Native core, CPU µs a record",
        ["", "median", "range", "of the payload decode"],
        note="Called one by one from a Python loop, whose own cost is in every row.",
    )
    for one in series.values():
        compared = "1" if one is base else str(ratio(base, one))
        table.rows.append([one.name, *one.cells, compared])
    context.report.tables.append(table)
    context.record("core", series)
    context.report.checks.append(
        Check(
            "envelope (two headers) + both watermark calls ÷ payload decode",
            1 / ratio(base, series[enveloped.name]).median,
            1.0,
            "x",
        )
    )


def run_micro_section(context: Context) -> None:
    """`bench_core.py` through pytest-benchmark; its results are a JSON file of their own."""
    if importlib.util.find_spec("pytest_benchmark") is None:
        context.report.missing.append("micro: pytest-benchmark is not installed")
        return
    try:
        from benches import core  # noqa: F401, PLC0415 (absent from early builds)
    except ImportError as error:
        context.report.missing.append(f"micro: {error}")
        return
    RESULTS.mkdir(exist_ok=True)
    # Once through without timing, or timed: either way every result is checked first.
    how = ["--benchmark-disable"]
    if not context.size.quick:
        how = ["--benchmark-only", f"--benchmark-json={RESULTS / 'core.json'}"]
        how += ["--benchmark-columns=min,median,iqr,rounds", "--benchmark-disable-gc"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run([*command, "benches/bench_core.py", *how], cwd=ROOT, check=True)


def run_stall_section(context: Context) -> None:
    """How long full pages hold the event loop."""
    from benches import stall  # noqa: PLC0415 (only here: it patches nothing until it runs)

    plan = stall.full_pages(context.size.full_pages)
    reference = stall.full_pages(min(5, context.size.full_pages))
    found: dict[str, list[stall.PageStall]] = {}
    noise = stall.idle_lateness_ms(0.1 if context.size.quick else 2.0)
    with serving(reference.spec, any_limit=True) as server:
        context.say("  aiobotocore loop")
        found["aiobotocore loop"] = stall.stall_stock(server, reference)
    with serving(plan.spec, any_limit=True) as server:
        context.say("  service")
        try:
            found["service"] = stall.stall_service(server, plan)
        except ImportError as error:
            context.report.missing.append(f"stall: {error}")
    table = Table(
        "Event loop held by a full page (10,000 records, 10 MiB), ms",
        ["", "pages", "median", "p95", "max"],
        note=f"On an idle loop the heartbeat is {noise:.2f} ms late (99th percentile).",
    )
    names = {
        "longest hold": "longest_hold",
        "ours, one hold": "ours_one_hold",
        "ours, to first record": "ours_to_first",
        "reading": "reading",
        "heartbeat late": "heartbeat_late",
    }
    for who, pages in found.items():
        for title, name in names.items():
            values = [float(getattr(page, name)) for page in pages]
            p95 = stall.percentile(values, 95)
            figures = [statistics.median(values), p95, max(values)]
            cells = [f"{figure:.2f}" for figure in figures]
            table.rows.append([f"{who}: {title}", str(len(values)), *cells])
            bounds = {"longest hold": stall.TARGET_HOLD_MS, "ours, one hold": stall.TARGET_OURS_MS}
            if who == "service" and title in bounds:
                what = f"full page, {title}, p95 of {len(values)} pages"
                context.report.checks.append(Check(what, p95, bounds[title], "ms"))
    context.report.tables.append(table)
    context.report.data["stall"] = {
        who: [asdict(page) for page in pages] for who, pages in found.items()
    } | {"idle heartbeat late, p99": noise}


def run_memory_section(context: Context) -> None:
    """Growth of the watermark behind a held record."""
    try:
        from ruststream_kinesis._core import (  # noqa: PLC0415 (absent from early builds)
            Watermark,  # noqa: F401 (only whether it is there)
        )
    except ImportError as error:
        context.report.missing.append(f"memory: {error}")
        return
    from benches.memory import run_memory  # noqa: PLC0415 (after the check above)

    grown = run_memory(context.size.settled)
    table = Table(
        "Resident memory: one record held, the rest settled",
        ["order of settling", "settled", "growth, KiB"],
    )
    for one in grown:
        growth = f"{one.resident_bytes / 1024:,.0f}"
        table.rows.append([one.order, f"{one.records:,}", growth])
        context.report.checks.append(
            Check(f"held record, {one.order}", one.resident_bytes / 2**20, MEMORY_MIB, "MiB")
        )
    context.report.tables.append(table)
    context.report.data["memory"] = [asdict(one) for one in grown]


def run_waiting_section(context: Context) -> None:
    """Copies that wait for an hour: memory, and CPU of the idle service."""
    from benches import waiting  # noqa: PLC0415 (needs the finished package)

    size = context.size
    spec = Spec(pages=size.waiting_pages, shards=10)
    runs: dict[str, list[waiting.Idle]] = {"put off for an hour": [], "acked": []}
    context.say("  a few, to the end: every copy leaves at the stop")
    with serving(Spec(records=100, pages=1, shards=10)) as server:
        waiting.run_idle(server, put_off=True, idle=0.1, stop=True)
    with serving(spec) as server:
        for _ in range(size.idle_rounds):
            for name, found in runs.items():
                one = waiting.run_idle(server, put_off=name != "acked", idle=size.idle)
                context.say(f"  {name:<34} {one.percent:8.3f} %")
                found.append(one)
    records = spec.records * spec.pages * spec.shards
    table = Table(
        f"Idle service, {records:,} records of {spec.record_bytes} B from {spec.shards} shards",
        ["records were", "waiting", "growth, MiB", "of a core, %", "range"],
        note="Both services poll their shards once a second; what differs is the copies' own.",
    )
    for name, found in runs.items():
        growth = statistics.median(one.resident_bytes / 2**20 for one in found)
        shares = [one.percent for one in found]
        table.rows.append(
            [
                name,
                f"{found[0].waiting:,}",
                f"{growth:.1f}",
                f"{statistics.median(shares):.2f}",
                f"{min(shares):.2f} to {max(shares):.2f}",
            ]
        )
    put_off, acked = runs.values()
    differences = [a.percent - b.percent for a, b in zip(put_off, acked, strict=True)]
    largest = max(one.resident_bytes for one in put_off) / 2**20
    what = f"{records:,} waiting copies"
    context.report.tables.append(table)
    context.report.checks += [
        Check(f"{what}, growth", largest, WAITING_MIB, "MiB"),
        Check(f"{what}, idle: their own CPU", statistics.median(differences), WAITING_PERCENT, "%"),
    ]
    context.report.data["waiting"] = {
        name: [asdict(one) for one in found] for name, found in runs.items()
    }


def run_testkit_section(context: Context) -> None:
    """A publish through `TestApp`, handler included, and through FastStream's test broker."""
    from benches import testkit  # noqa: PLC0415 (needs the finished package)

    count = context.size.publishes
    contenders: dict[str, Callable[[], Sample]] = {"TestApp": lambda: testkit.run_ours(count)}
    compared = testkit.has_faststream()
    if compared:
        from benches import peer_faststream  # noqa: PLC0415 (optional peer)

        contenders["FastStream test broker, pydantic"] = lambda: peer_faststream.run_pydantic(count)
        contenders["FastStream test broker, msgspec"] = lambda: peer_faststream.run_msgspec(count)
    series = interleave(contenders, context.size.rounds, context.progress)
    ours = series["TestApp"]
    table = Table(
        "A publish in a test that waits for its handler, CPU µs",
        ["", "median", "range", "TestApp costs"],
    )
    for one in series.values():
        cell = "1" if one is ours else str(ratio(one, ours))
        table.rows.append([one.name, *one.cells, cell])
        if one is not ours:
            context.report.checks.append(
                Check(
                    f"{one.name} ÷ TestApp, CPU a publish",
                    ratio(one, ours).median,
                    TESTKIT_RATIO,
                    "x",
                    at_least=True,
                )
            )
    if not compared:
        table.rows.append(["FastStream test broker", "not installed", "", ""])
        context.report.absent.append(
            "TestApp with FastStream's test broker: pip install 'faststream[nats]'"
        )
    context.report.tables.append(table)
    context.record("testkit", series)


# In the order in which they run.
SECTIONS: dict[str, Callable[[Context], None]] = {
    "core": run_core_section,
    "micro": run_micro_section,
    "service": run_service_section,
    "calls": run_calls_section,
    "leases": run_leases_section,
    "publishing": run_publishing_section,
    "middlewares": run_middlewares_section,
    "stall": run_stall_section,
    "memory": run_memory_section,
    "endurance": run_endurance_section,
    "shards": run_shards_section,
    "waiting": run_waiting_section,
    "testkit": run_testkit_section,
    "observed": run_observed_section,
}
