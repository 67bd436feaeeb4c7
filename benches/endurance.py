"""Memory of a whole service over ten million records: what it holds must not grow with them.

A fresh process for each run. Pages are small records in full pages, so that ten million take
minutes; keys, checkpoints, leases and polling are as in any run, and every id is checked as it
comes, since keeping them would be the growth itself. The resident set is read after the first
500,000 records, when caches and allocators have reached their size, and after every further part.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from benches.canned import ROOT, serving
from benches.memory import resident_bytes
from benches.pages import Order, Spec
from benches.raw_loop import REGION, STREAM
from benches.report import Check, Table
from benches.service import check_checkpoint, serve_until
from benches.tally import WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisStream, MemoryLeaseStore, RustStream

if TYPE_CHECKING:
    from benches.sections import Context

# After so many records the service has its size.
SETTLED = 500_000
# How much larger it may be at any later look.
GROWTH = 1.05
_LOOKS = 20


class Task(msgspec.Struct):
    """What a process is to do; it travels as JSON."""

    url: str
    spec: Spec
    workers: int
    settled: int


@dataclass(frozen=True)
class Endured:
    """A service that has read everything."""

    records: int
    first: int
    """Resident bytes after the first part."""
    looks: tuple[int, ...]
    """Resident bytes at each later look."""

    @property
    def growth(self) -> float:
        """The largest of the later looks against the first."""
        return max(self.looks) / self.first


class _Seen:
    """Every id once; with one worker in order, with more only counted and summed."""

    def __init__(self, task: Task) -> None:
        spec = task.spec
        self._records, self._total = spec.records, spec.records * spec.pages
        self._first = spec.record_id(0, 0, 0)
        self._sum = sum(sum(spec.ids(page, 1)) for page in range(spec.pages))
        self._step = (self._total - task.settled) // _LOOKS
        self._next = task.settled
        self.count = 0
        self.sizes: list[int] = []
        self.done = asyncio.Event()

    async def handle(self, order: Order) -> None:
        """Counts."""
        self.count += 1
        self._sum -= order.id
        if self.count == self._next:
            self.sizes.append(resident_bytes())
            self._next += self._step
        if self.count == self._total:
            self.done.set()

    def checked(self) -> Endured:
        """What was found.

        Raises:
            WrongResultError: Records are missing, or came twice.
        """
        if self.count != self._total or self._sum:
            raise WrongResultError(f"{self.count} of {self._total} records, ids off by {self._sum}")
        return Endured(self._total, self.sizes[0], tuple(self.sizes[1:]))


async def endure(task: Task) -> Endured:
    """Reads everything."""
    store, seen = MemoryLeaseStore(), _Seen(task)
    broker = KinesisBroker(
        endpoint_url=task.url, region=REGION, test_credentials=True, lease_store=store
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")
    app.subscriber(KinesisStream(STREAM, read_interval=0.0), workers=task.workers)(seen.handle)
    await serve_until(app, seen.done)
    await check_checkpoint(store, task.spec)
    return seen.checked()


def _run(task: Task) -> Endured:
    answer = subprocess.run(
        [sys.executable, "-m", "benches.endurance", msgspec.json.encode(task).decode()],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        text=True,
    )
    found = json.loads(answer.stdout)
    return Endured(found["records"], found["first"], tuple(found["looks"]))


def run_endurance_section(context: Context) -> None:
    """Memory of a service over 10,000,000 records."""
    quick = context.size.quick
    pages, settled = (40, 20_000) if quick else (10_000, SETTLED)
    spec = Spec(pages=pages)
    total = spec.records * pages
    table = Table(
        f"Memory of a service over {total:,} records of {spec.record_bytes} B",
        ["", f"MiB after {settled:,}", "at the end", "largest", "growth"],
    )
    for workers in (1, 8):
        context.say(f"  workers={workers}")
        with serving(spec) as server:
            found = _run(Task(server.url, spec, workers, settled))
        sizes = [size / 2**20 for size in (found.first, found.looks[-1], max(found.looks))]
        name = f"workers={workers}"
        table.rows.append([name, *(f"{size:.1f}" for size in sizes), f"{found.growth:.3f} x"])
        context.report.checks.append(
            Check(f"memory over {total:,} records, {name}", found.growth, GROWTH, "x")
        )
        context.report.data[f"endurance, {name}"] = asdict(found)
    context.report.tables.append(table)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(endure(msgspec.json.decode(sys.argv[1], type=Task))))))
