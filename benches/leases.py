"""What leases in DynamoDB cost: requests of an idle service, writes of a busy one, CPU a record.

The table is a canned one in its own process (`canned_table.py`), which counts requests and looks at
conditions as DynamoDB does. Leases live and are renewed as in production: nothing is made shorter.

Each run is checked: shards are shared evenly and none changes hands while requests are counted, every
record was handled once and in order, and the checkpoint in the table is the last record.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benches.canned import Server, calls, serving
from benches.canned_table import tables
from benches.cpu import Sample, interleave, ratio
from benches.pages import Spec
from benches.raw_loop import REGION, STREAM
from benches.report import Check, Table
from benches.service import DEADLINE, READ_INTERVAL, run_app
from benches.tally import Plan, Tally, WrongResultError
from ruststream_kinesis import DynamoLeaseStore, KinesisBroker, MemoryLeaseStore, RustStream
from ruststream_kinesis.heartbeat import PASS_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.sections import Context

# A renewal a shard and pass, a scan and a member's row an instance and pass; a tenth for what
# straddles the edge of the time in which requests are counted.
IDLE_RATIO = 1.1
# A write each 0.2 s at most, and a renewal each 3 s.
BUSY_WRITES = 6.0
# DynamoDB's share in the CPU of a record.
STORE_RATIO = 1.15

INSTANCES = 2
SHARDS = 40
# Ten pages of a thousand records a second.
_PACE = 0.1
# Pages at that pace until the thread that renews leases has made its own client, after its first
# pause of three seconds. That costs some 20 ms of CPU, once in the life of a service.
_FIRST_RENEWAL = 45
# Nobody has used a table of such a name.
_names = (f"leases-{number}" for number in itertools.count())


def _store(table: str, url: str) -> DynamoLeaseStore:
    return DynamoLeaseStore(table, endpoint_url=url, region=REGION, test_credentials=True)


# -- idle ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requests:
    """What an idle service asked of the table."""

    instances: int
    shards: int
    passes: float
    renewals: int
    beats: int
    scans: int
    others: int

    @property
    def a_shard(self) -> float:
        """Renewals a shard and pass."""
        return self.renewals / self.shards / self.passes


def run_idle(server: Server, table_url: str, passes: int) -> Requests:
    """Counts what instances that share caught-up shards ask of the table.

    Raises:
        WrongResultError: Shares are not even, or a shard changed hands.
    """
    return asyncio.run(_idle(server, table_url, passes))


async def _idle(server: Server, table_url: str, passes: int) -> Requests:
    name, shards = next(_names), server.spec.shards
    apps = [_idle_app(server.url, table_url, name) for _ in range(INSTANCES)]
    async with asyncio.timeout(DEADLINE), _all_running(apps):
        even = sorted(shards // INSTANCES for _ in apps)
        # Nobody says when a share changes.
        while sorted(map(len, map(_held, apps))) != even:  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.1)
        # Everything of the hand-overs is written by then.
        await asyncio.sleep(PASS_INTERVAL)
        held = [_held(app) for app in apps]
        before, began = await asyncio.to_thread(calls, table_url), time.monotonic()
        await asyncio.sleep(passes * PASS_INTERVAL)
        counted, took = await asyncio.to_thread(calls, table_url), time.monotonic() - began
        counted.subtract(before)
        if [_held(app) for app in apps] != held:
            raise WrongResultError("shards changed hands while requests were counted")
    renewals, beats = counted["UpdateItem lease"], counted["UpdateItem member"]
    whole = sum(many for what, many in counted.items() if " " not in what)
    return Requests(
        INSTANCES,
        shards,
        took / PASS_INTERVAL,
        renewals,
        beats,
        counted["Scan"],
        whole - renewals - beats - counted["Scan"],
    )


def _idle_app(url: str, table_url: str, table: str) -> RustStream:
    store = _store(table, table_url)
    broker = KinesisBroker(
        endpoint_url=url, region=REGION, test_credentials=True, lease_store=store
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")

    @app.subscriber(STREAM)
    async def handle(payload: bytes) -> None:
        raise WrongResultError(f"an idle stream has a record: {payload!r}")

    return app


def _held(app: RustStream) -> set[str]:
    return {shard.shard_id for each in app.state().subscriptions for shard in each.shards}


@contextlib.asynccontextmanager
async def _all_running(apps: Sequence[RustStream]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for app in apps:
            group.create_task(app.run(signals=False))
        try:
            yield
        finally:
            for app in apps:
                app.stop()


# -- busy ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Busy:
    """One run of a service that acks at a steady pace, or as fast as it can."""

    sample: Sample
    acks: float
    """A second."""
    writes: float
    """A second, all to the one row; 0 with leases in memory."""


def run_busy(server: Server, table_url: str | None, plan: Plan, read_interval: float) -> Busy:
    """One checked run on one shard; `table_url=None` keeps the leases in memory."""
    before = _row_writes(table_url)
    sample = plan.run(_busy(server.url, table_url, plan, read_interval))
    # Of the whole run, taking and releasing included, over the time that all its records take.
    writes, acks = _row_writes(table_url) - before, sample.units / sample.wall
    return Busy(sample, acks, writes * acks / (plan.spec.records * plan.spec.pages))


async def _busy(url: str, table_url: str | None, plan: Plan, read_interval: float) -> Sample:
    tally = Tally(plan)
    store = MemoryLeaseStore() if table_url is None else _store(next(_names), table_url)
    await run_app(url, tally, tally.handler(), store=store, read_interval=read_interval)
    return tally.checked()


def _row_writes(table_url: str | None) -> int:
    return 0 if table_url is None else calls(table_url)["UpdateItem lease"]


# -- the section -----------------------------------------------------------------------------------


def run_leases_section(context: Context) -> None:
    """Leases in DynamoDB: requests when idle, writes when busy, CPU a record."""
    quick = context.size.quick
    with tables() as table_url:
        with serving(Spec(pages=0, shards=SHARDS)) as server:
            context.say("  idle")
            idle = run_idle(server, table_url, 1 if quick else 10)
        _show_idle(context, idle)
        # At ten pages a second: some seconds until the clock starts, and ten on it.
        plan = Plan(pages=10) if quick else Plan(pages=100, warmup=_FIRST_RENEWAL)
        _compare(context, table_url, "10,000 records/s", plan, _PACE, 1 if quick else 5)
        # As fast as it goes, which takes a second or two.
        plan = Plan(pages=10 if quick else 400)
        _compare(context, table_url, "full speed", plan, READ_INTERVAL, 1 if quick else 5)


def _show_idle(context: Context, idle: Requests) -> None:
    context.report.tables.append(
        Table(
            f"Requests to the lease table, {idle.instances} idle instances on {idle.shards} shards",
            ["", "in all", "a pass", "expected"],
            [
                ["renewals", *_counted(idle, idle.renewals), "1 a shard"],
                ["beats", *_counted(idle, idle.beats), "1 an instance"],
                ["scans", *_counted(idle, idle.scans), "1 an instance"],
                ["others", *_counted(idle, idle.others), "none"],
            ],
            note=f"{idle.passes:.1f} passes of {PASS_INTERVAL:g} s.",
        )
    )
    instances = idle.instances
    context.report.checks += [
        Check("idle: renewals a shard and pass", idle.a_shard, IDLE_RATIO, ""),
        Check(
            "idle: scans an instance and pass", idle.scans / instances / idle.passes, IDLE_RATIO, ""
        ),
        Check(
            "idle: beats an instance and pass", idle.beats / instances / idle.passes, IDLE_RATIO, ""
        ),
        Check("idle: other requests", idle.others, 0, ""),
    ]
    context.report.data["leases idle"] = asdict(idle)


def _counted(idle: Requests, many: int) -> list[str]:
    return [str(many), f"{many / idle.passes:.1f}"]


def _compare(
    context: Context, table_url: str, pace: str, plan: Plan, read_interval: float, rounds: int
) -> None:
    runs: list[Busy] = []

    def dynamo() -> Sample:
        runs.append(run_busy(server, table_url, plan, read_interval))
        return runs[-1].sample

    def memory() -> Sample:
        return run_busy(server, None, plan, read_interval).sample

    with serving(plan.spec) as server:
        contenders = {f"{pace}, in memory": memory, f"{pace}, DynamoDB": dynamo}
        series = interleave(contenders, rounds, context.progress)
    one, other = series.values()
    # The first run of all is thrown away with its sample.
    writes = statistics.median(run.writes for run in runs[1:])
    acks = statistics.median(run.acks for run in runs[1:])
    costs = 1 / ratio(one, other).median
    table = Table(
        f"Leases in DynamoDB, one shard, {pace}",
        ["", "CPU µs a record", "range", "of memory's", "acks/s", "writes/s"],
        note="CPU of the whole process, all threads: the one that renews leases, too.",
    )
    for each in (one, other):
        low, high = each.spread
        table.rows.append(
            [
                each.name,
                f"{each.median:.3f}",
                f"{low:.3f} to {high:.3f}",
                "1" if each is one else f"{costs:.3f} x",
                f"{each.rate:,.0f}",
                "0" if each is one else f"{writes:.2f}",
            ]
        )
    context.report.tables.append(table)
    context.report.checks.append(
        Check(f"DynamoDB ÷ memory, CPU a record, {pace}", costs, STORE_RATIO, "x")
    )
    if read_interval == _PACE:
        # In a run of two seconds the first write and the last would be most of them.
        what = f"writes a second to one row at {acks:,.0f} acks/s"
        context.report.checks.append(Check(what, writes, BUSY_WRITES, ""))
    context.record(f"leases at {pace}", series)
    context.report.data[f"leases at {pace}, writes a second"] = [run.writes for run in runs[1:]]
