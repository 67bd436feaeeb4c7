"""The lease store of one process, on storage that every process shares, through the weather.

Every change of a row is shown to the monitor at the moment it takes effect, with who made it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import LeaseKey, LeaseState, LeaseStore, MemoryLeaseStore
from ruststream_kinesis.leases.base import Member, Opening, Survey
from ruststream_kinesis.position import KinesisPosition
from tests.sim.invariants import NO_ROW, Monitor, RowView
from tests.sim.loop import Scheduler
from tests.sim.network import Link
from tests.sim.process import Process

try:
    from tests.sim import tables
except ImportError:  # the store over a table is not built yet
    tables = None  # type: ignore[assignment]  # asked for below

__all__ = ["Ear", "Memory", "MemoryOverNetwork", "Storage", "StoreDown"]

T = TypeVar("T")


class StoreDown(Exception):  # noqa: N818 - what it says
    """The storage did not do what it was asked."""


class Memory(MemoryLeaseStore):
    """The shared storage, without a network; it judges by its own clock who is alive."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(clock=self)
        self._scheduler = scheduler
        self.caller: Process | None = None
        """Whose request takes effect now."""

    def monotonic(self) -> float:
        """Return the time of the storage itself."""
        return self._scheduler.now

    def time(self) -> float:
        """Return the same: nothing here needs a date."""
        return self._scheduler.now

    async def sleep(self, seconds: float) -> None:
        """Refuse: a storage waits for nothing."""
        raise NotImplementedError

    def view(self, key: LeaseKey) -> RowView:
        """Return a row as it is."""
        row = self._rows.get(key)
        if row is None:
            return NO_ROW
        rewound = row.resume_from is not None
        return RowView(row.owner, row.counter, row.checkpoint, rewound, row.renewed)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the storage waited for something")


class MemoryOverNetwork:
    """`Memory` as one process reaches it."""

    def __init__(self, memory: Memory, link: Link, monitor: Monitor, process: Process) -> None:
        self._memory = memory
        self._link = link
        self._monitor = monitor
        self._process = process

    async def _write(self, key: LeaseKey, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        def effect() -> T:
            self._memory.caller = self._process
            before = self._memory.view(key)
            try:
                return _run(work())
            finally:
                self._monitor.row(self._process, key.shard_id, before, self._memory.view(key))

        return await self._link.call(effect)

    async def _read(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        def effect() -> T:
            self._memory.caller = self._process
            return _run(work())

        return await self._link.call(effect)

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        return await self._write(
            key, lambda: self._memory.acquire(key, owner_id, duration=duration, member=member)
        )

    async def renew(self, held: LeaseState) -> None:
        await self._write(held.key, lambda: self._memory.renew(held))

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        await self._write(
            held.key,
            lambda: self._memory.checkpoint(
                held, checkpoint, number=number, resume_from=resume_from
            ),
        )

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        await self._write(
            held.key,
            lambda: self._memory.release(
                held,
                checkpoint=checkpoint,
                number=number,
                resume_from=resume_from,
                successor=successor,
            ),
        )

    async def read(self, key: LeaseKey) -> LeaseState | None:
        return await self._read(lambda: self._memory.read(key))

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        return await self._read(lambda: self._memory.leases(stream, group))

    async def survey(
        self, stream: str, group: str | None = None, *, max_age: float = 0.0
    ) -> Survey:
        return await self._read(lambda: self._memory.survey(stream, group, max_age=max_age))

    async def beat(self, member: Member, *, duration: float) -> None:
        await self._read(lambda: self._memory.beat(member, duration=duration))

    async def leave(self, nonce: str) -> None:
        await self._read(lambda: self._memory.leave(nonce))

    def renewer(self) -> LeaseStore | None:
        """Renewals have a loop of their own."""
        return MemoryOverNetwork(self._memory, self._link, self._monitor, self._process)

    async def close(self) -> None:
        """Nothing is open."""

    async def delete(self, key: LeaseKey) -> None:
        await self._write(key, lambda: self._memory.delete(key))

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        return await self._read(lambda: self._memory.opening(stream, group, first))


class Storage:
    """What all processes share, and the store of each.

    Args:
        scheduler: Time.
        rng: The way to it.
        monitor: Watches it.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, monitor: Monitor) -> None:
        self.memory = Memory(scheduler)
        self.rows: dict[str, Any] = {}
        self.monitor = monitor
        # The real table gives a call up by itself; for the store in memory, its caller does.
        self.link = (
            Link(scheduler, rng, StoreDown)
            if tables is None
            else Link(scheduler, rng, tables.failed, patience=5.0)
        )

    def store(self, process: Process) -> Any:
        """Return the store of a process."""
        store: Any = (
            MemoryOverNetwork(self.memory, self.link, self.monitor, process)
            if tables is None
            else tables.table_store(self.rows, self.link, self.monitor, process)
        )
        return Ear(store, process, self.monitor)


class Ear:
    """A store that hears what its process is told: from then on the process knows.

    Everything else goes through as it is.
    """

    def __init__(self, store: Any, process: Process, monitor: Monitor) -> None:
        self._store = store
        self._process = process
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def renewer(self) -> Any:
        """Return the renewing store, which hears as much."""
        inner = self._store.renewer()
        return None if inner is None else Ear(inner, self._process, self._monitor)

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        stored: Opening = await self._store.opening(stream, group, first)
        if stored is first:
            self._monitor.opening(self._process)
        return stored

    async def acquire(self, key: LeaseKey, owner_id: str, **more: Any) -> LeaseState | None:
        lease: LeaseState | None = await self._store.acquire(key, owner_id, **more)
        if lease is not None:
            self._process.known.add(lease.owner)
        return lease

    async def renew(self, held: LeaseState) -> None:
        try:
            await self._store.renew(held)
        except LeaseLost:
            self._process.told.add(held.owner)
            raise

    async def checkpoint(self, held: LeaseState, checkpoint: str | None, **more: Any) -> None:
        try:
            await self._store.checkpoint(held, checkpoint, **more)
        except LeaseLost:
            self._process.told.add(held.owner)
            raise

    async def release(self, held: LeaseState, **more: Any) -> None:
        await self._store.release(held, **more)
        self._process.told.add(held.owner)
