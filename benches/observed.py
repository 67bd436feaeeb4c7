"""What being looked at costs: a service that is scraped and shown, beside one that is not.

Who looks is a process of its own: each second it asks for the metrics and, as the dashboard does
every other second, for the state. Every run checks what it saw before its time counts: counters that
grow, up to what the service handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from benches.canned import ROOT, serving
from benches.cpu import interleave, ratio
from benches.raw_loop import REGION, STREAM
from benches.report import Check, Table
from benches.service import check_checkpoint, serve_until
from benches.tally import Plan, Tally, WrongResultError
from ruststream_kinesis import (
    KinesisBroker,
    KinesisStream,
    LeaseKey,
    LeaseState,
    MemoryLeaseStore,
    Probe,
    RustStream,
    app_metrics,
)
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.counters import Counters, ReadCounters
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.prometheus import AppCollector
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.state import AppState, SourceState, SubscriptionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.canned import Server
    from benches.cpu import Sample
    from benches.sections import Context

# A second between two looks, Prometheus' shortest sensible interval; 15 s is usual.
EVERY = 1.0
# What may be lost by being looked at every second, and by timing handlers.
OBSERVED = 1.05
_HANDLED = re.compile(
    r"^ruststream_kinesis_records_handled_total\{[^}]*\} ([\d.e+]+)$", re.MULTILINE
)
# How many shards a look is measured with.
_SHARDS = 500
_LOOKS = 20


@contextlib.contextmanager
def _watcher(url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benches.observed", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def watch(url: str) -> list[float]:
    """Looks until nobody answers; returns the counts of handled records that it saw."""
    seen: list[float] = []
    while True:
        began = time.monotonic()
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                found = _HANDLED.search(answer.read().decode())
            with urllib.request.urlopen(f"{url}/state", timeout=5) as answer:
                answer.read()
        except OSError:
            return seen
        if found is not None:
            seen.append(float(found[1]))
        time.sleep(max(0.0, EVERY - (time.monotonic() - began)))


def run(server: Server, plan: Plan, *, watched: bool = False, timed: bool = False) -> Sample:
    """One checked run of the service."""
    return plan.run(_run(server.url, plan, watched=watched, timed=timed))


async def _run(url: str, plan: Plan, *, watched: bool, timed: bool) -> Sample:
    store, tally = MemoryLeaseStore(), Tally(plan)
    broker = KinesisBroker(
        endpoint_url=url, region=REGION, test_credentials=True, lease_store=store
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")
    app.subscriber(KinesisStream(STREAM, read_interval=0.0))(tally.handler())
    if timed:
        app_metrics(app, handler_durations=True)
    probe = Probe("127.0.0.1:0") if watched else None
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []

        async def look() -> None:
            if probe is not None and probe.url is not None:
                processes.append(stack.enter_context(_watcher(probe.url)))

        app.on_startup(look)
        await serve_until(app, tally.done, probe=probe)
        for process in processes:
            printed, _ = await asyncio.to_thread(process.communicate)
            _check_seen(msgspec.json.decode(printed, type=list[float]), len(tally.ids))
    await check_checkpoint(store, plan.spec)
    if timed:
        _check_timed(app, len(tally.ids))
    return tally.checked()


def _check_seen(seen: list[float], handled: int) -> None:
    if not seen or seen != sorted(seen) or not 0 < seen[-1] <= handled:
        raise WrongResultError(f"the watcher saw {seen} of {handled} records")


def _check_timed(app: RustStream, handled: int) -> None:
    assert app.handler_times is not None
    (histogram,) = app.handler_times.histograms.values()
    if sum(histogram.counts) != handled:
        raise WrongResultError(f"{sum(histogram.counts)} calls timed of {handled}")


class _Holder:
    """What a collector needs of an application that holds many shards."""

    handler_times = None

    def __init__(self) -> None:
        clock = SystemClock()
        self._shards = [
            HeldShard(
                LeaseState(LeaseKey(STREAM, f"shardId-{n:012}"), "me", 1, None),
                KinesisPosition.horizon(),
                after=False,
                clock=clock,
                moved=lambda _: None,
            )
            for n in range(_SHARDS)
        ]

    def state(self) -> AppState:
        """As `RustStream.state`, as far as shards go."""
        shards = tuple(shard.state for shard in self._shards)
        source = SourceState(ReadCounters())
        each = SubscriptionState(STREAM, None, shards, 0, 0, (), Counters(), True, source)
        return AppState("t", "1", True, (each,), "me", "running", 1.0)


def _looks(context: Context) -> None:
    """CPU of one look at a service of 500 shards."""
    holder = _Holder()
    registry = CollectorRegistry()
    registry.register(AppCollector(cast("RustStream", holder)))
    text = generate_latest(registry).decode()
    if text.count("\nruststream_kinesis_shard_open_records{") != _SHARDS:
        raise WrongResultError("a scrape does not name every shard")
    encoded = msgspec.json.encode(holder.state())
    if encoded.count(b'"shard_id"') != _SHARDS:
        raise WrongResultError("the state does not name every shard")
    table = Table(
        f"CPU of a look at {_SHARDS} shards, ms", ["", "ms a look", "of a core, one a second"]
    )
    looks: dict[str, Any] = {
        "app.state()": holder.state,
        "/state, as the dashboard asks": lambda: msgspec.json.encode(holder.state()),
        "/metrics": partial(generate_latest, registry),
    }
    for name, look in looks.items():
        began = time.process_time()
        for _ in range(_LOOKS):
            look()
        took = (time.process_time() - began) / _LOOKS
        table.rows.append([name, f"{took * 1e3:.2f}", f"{took * 100:.1f} %"])
    context.report.tables.append(table)


def run_observed_section(context: Context) -> None:
    """A service that is scraped and shown every second, and one whose handlers are timed."""
    quick = context.size.quick
    plan = Plan(pages=300 if quick else 1_500)
    with serving(plan.spec) as server:
        contenders = {
            "service": partial(run, server, plan),
            "scraped and shown every second": partial(run, server, plan, watched=True),
            "handlers timed": partial(run, server, plan, timed=True),
        }
        series = interleave(contenders, min(context.size.rounds, 5), context.progress)
    base = series["service"]
    table = Table(
        "CPU µs a record of a service that is looked at",
        ["", "median", "range", "of the service"],
        note="The watcher is another process; what it costs is not in this.",
    )
    for one in series.values():
        over = 1 / ratio(base, one).median
        table.rows.append([one.name, *one.cells, "1" if one is base else f"{over:.3f} x"])
    context.report.tables.append(table)
    context.record("observed", series)
    watched = series["scraped and shown every second"]
    context.report.checks.append(
        Check("service, scraped and shown ÷ alone", 1 / ratio(base, watched).median, OBSERVED, "x")
    )
    _looks(context)


if __name__ == "__main__":
    print(msgspec.json.encode(watch(sys.argv[1])).decode())
