"""How the CPU of an idle service grows with its shards: from 1 to 500, each polled once a second.

A fresh process for each run, with everything at its defaults and leases in memory. The clock starts
when every shard was polled at least twice: opening hundreds of shards is not what is measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from benches.canned import ROOT, calls, serving
from benches.pages import Order, Spec
from benches.raw_loop import REGION, STREAM
from benches.report import Check, Table
from benches.service import serve_until
from benches.tally import WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisStream, MemoryLeaseStore, RustStream

if TYPE_CHECKING:
    from benches.sections import Context

SHARDS = (1, 10, 50, 200, 500)
# Of one core, with the most shards.
PERCENT = 20.0
# Seconds until connections and the polls' own pace have settled.
_SETTLE = 5.0


class Task(msgspec.Struct):
    """What a process is to do; it travels as JSON."""

    url: str
    shards: int
    seconds: float


@dataclass(frozen=True)
class Polled:
    """A service that has nothing to do but poll."""

    shards: int
    cpu: float
    wall: float
    polls: int

    @property
    def percent(self) -> float:
        """Of one core."""
        return 100 * self.cpu / self.wall


async def poll(task: Task) -> Polled:
    """Polls for a while.

    Raises:
        WrongResultError: The shards were not polled about once a second each.
    """
    broker = KinesisBroker(
        endpoint_url=task.url,
        region=REGION,
        test_credentials=True,
        lease_store=MemoryLeaseStore(),
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")

    async def handle(order: Order) -> None:
        raise WrongResultError(f"an idle stream has a record: {order!r}")

    app.subscriber(KinesisStream(STREAM))(handle)
    found: list[Polled] = []
    done = asyncio.Event()

    async def watch() -> None:
        # The server counts, and tells nobody.
        while await asyncio.to_thread(_polls, task.url) < 2 * task.shards:  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.1)
        await asyncio.sleep(_SETTLE)
        before = await asyncio.to_thread(_polls, task.url)
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(task.seconds)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        polls = await asyncio.to_thread(_polls, task.url) - before
        found.append(Polled(task.shards, cpu, wall, polls))
        done.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await serve_until(app, done)
    expected = task.shards * found[0].wall
    if not 0.8 * expected - task.shards <= found[0].polls <= 1.1 * expected + task.shards:
        raise WrongResultError(f"{found[0].polls} polls, where {expected:.0f} were due")
    return found[0]


def _polls(url: str) -> int:
    return calls(url)["GetRecords"]


def _run(task: Task) -> Polled:
    answer = subprocess.run(
        [sys.executable, "-m", "benches.shards", msgspec.json.encode(task).decode()],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        text=True,
    )
    return Polled(**json.loads(answer.stdout))


def run_shards_section(context: Context) -> None:
    """CPU of an idle service with 1 to 500 shards."""
    seconds = 1.0 if context.size.quick else 20.0
    table = Table(
        "An idle service, each shard polled once a second, leases in memory",
        ["shards", "of a core, %", "polls/s", "CPU µs a poll"],
        note="The first rows are mostly what a process does that polls nothing: its timers.",
    )
    for shards in SHARDS[:2] if context.size.quick else SHARDS:
        context.say(f"  {shards} shard(s)")
        with serving(Spec(pages=0, shards=shards)) as server:
            found = _run(Task(server.url, shards, seconds))
        table.rows.append(
            [
                str(shards),
                f"{found.percent:.2f}",
                f"{found.polls / found.wall:.0f}",
                f"{found.cpu / found.polls * 1e6:.0f}",
            ]
        )
        context.report.data[f"idle with {shards} shards"] = asdict(found)
        if shards == SHARDS[-1]:
            what = f"{shards} idle shards, of a core"
            context.report.checks.append(Check(what, found.percent, PERCENT, "%"))
    context.report.tables.append(table)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(poll(msgspec.json.decode(sys.argv[1], type=Task))))))
