"""Waiting copies: records that `retry_after(3600)` puts off, held by the real service while idle.

A fresh process for each run, since a heap that other benchmarks have grown would hide growth. The
same service with a handler that acks is its counterpart: what reading the records and polling ten
caught-up shards once a second cost without any copy, so that the difference is what waiting costs.
Everything is at its defaults, the pace of reading included.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from benches.canned import ROOT, calls
from benches.memory import resident_bytes
from benches.pages import Order, Spec
from benches.raw_loop import REGION, STREAM
from benches.service import serve_until
from benches.tally import WrongResultError
from ruststream_kinesis import (
    KinesisBroker,
    KinesisStream,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    retry_after,
)
from ruststream_kinesis.service import Service

if TYPE_CHECKING:
    from benches.canned import Server

DELAY = 3600.0

# Until polling has settled and what reading left behind is freed.
_SETTLE = 2.0


class Task(msgspec.Struct):
    """What a process is to do; it travels as JSON."""

    url: str
    spec: Spec
    put_off: bool
    """Put every record off, or ack it."""
    idle: float
    """Seconds to be watched."""
    stop: bool
    """Stop as a signal would, and check that every copy went out; else the process just ends."""


@dataclass(frozen=True)
class Idle:
    """One service that has nothing to do but wait and poll."""

    waiting: int
    resident_bytes: int
    """Growth of the resident set since the first record reached the handler."""
    cpu: float
    """CPU seconds while watched."""
    wall: float
    """Seconds watched."""

    @property
    def percent(self) -> float:
        """Of one core."""
        return 100 * self.cpu / self.wall


class _Seen:
    """The ids, in memory that is there from the start: only the service may grow."""

    def __init__(self, spec: Spec, *, put_off: bool) -> None:
        self.done = asyncio.Event()
        self.before = 0
        self._outcome = retry_after(DELAY) if put_off else None
        self._expected = spec.records * spec.pages * spec.shards
        self._ids = array("q", bytes(8 * self._expected))
        self._count = 0

    async def handle(self, order: Order) -> Outcome | None:
        """Notes the id."""
        if not self._count:
            self.before = resident_bytes()
        # One more than there are is an error here, and leaves `done` unset.
        self._ids[self._count] = order.id
        self._count += 1
        if self._count == self._expected:
            self.done.set()
        return self._outcome

    def check(self, spec: Spec) -> None:
        """Every id of every shard, once."""
        expected = [i for shard in range(spec.shards) for i in spec.ids(0, spec.pages, shard)]
        if sorted(self._ids) != expected:
            raise WrongResultError("records are missing, or came twice")


async def watch(task: Task) -> Idle:
    """Runs the service until every record was handled, and watches it being idle.

    Raises:
        WrongResultError: Records are missing or repeated, a copy does not wait or was published
            before its time, or a checkpoint is not where it must be.
    """
    spec, store = task.spec, MemoryLeaseStore()
    broker = KinesisBroker(
        endpoint_url=task.url, region=REGION, test_credentials=True, lease_store=store
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")
    seen = _Seen(spec, put_off=task.put_off)
    app.subscriber(KinesisStream(STREAM))(seen.handle)
    services: list[Service] = []

    def make(*parts: Any) -> Service:
        services.append(Service(*parts))
        return services[0]

    found: list[Idle] = []
    watched = asyncio.Event()

    async def watching() -> None:
        await seen.done.wait()
        await asyncio.sleep(_SETTLE)
        growth = resident_bytes() - seen.before
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(task.idle)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        waiting = services[0].subscriptions[0].copies.waiting
        found.append(Idle(waiting, growth, cpu, wall))
        seen.check(spec)
        records = spec.records * spec.pages * spec.shards
        if waiting != (records if task.put_off else 0):
            raise WrongResultError(f"{waiting} copies wait, of {records} records")
        if (published := await asyncio.to_thread(_published, task.url)) != 0:
            raise WrongResultError(f"{published} copies were published before their time")
        if task.put_off and any(lease.checkpoint for lease in await store.leases(STREAM)):
            raise WrongResultError("a checkpoint moved although its records wait")
        if not task.stop:
            # Publishing the copies is not what is measured, and takes longer than all of it.
            print(json.dumps(asdict(found[0])), flush=True)
            os._exit(0)
        watched.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(watching())
        await serve_until(app, watched, service=make)
    published = await asyncio.to_thread(_published, task.url)
    if published != found[0].waiting:
        raise WrongResultError(f"{published} copies left at the stop, of {found[0].waiting}")
    last = {
        spec.sequence_number(shard, spec.pages - 1, spec.records - 1)
        for shard in range(spec.shards)
    }
    stored = {lease.checkpoint for lease in await store.leases(STREAM)}
    if stored != last:
        raise WrongResultError(f"checkpoints {stored}, not the last records")
    return found[0]


def _published(url: str) -> int:
    return calls(url)["PutRecord"]


def run_idle(server: Server, *, put_off: bool, idle: float, stop: bool = False) -> Idle:
    """One checked run, in a process of its own.

    Raises:
        subprocess.CalledProcessError: A check failed there; its traceback is on stderr.
    """
    task = Task(server.url, server.spec, put_off, idle, stop)
    answer = subprocess.run(
        [sys.executable, "-m", "benches.waiting", msgspec.json.encode(task).decode()],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        text=True,
    )
    return Idle(**json.loads(answer.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(watch(msgspec.json.decode(sys.argv[1], type=Task))))))
