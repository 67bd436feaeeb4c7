"""Lease stores for tests: those that can be slowed down, broken and listened to, of either kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState, MemoryLeaseStore
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.leases.rows import acquired
from ruststream_kinesis.leases.tabled import TableLeaseStore
from tests.support.tables import MemoryTable

__all__ = ["KINDS", "MemorySpyStore", "SpyStore", "TableSpyStore", "Write", "spy_store"]

KINDS = ["memory"]
"""The last of these is the kind of store that worlds have: `memory`, or rows of a `table`."""


@dataclass(frozen=True)
class Write:
    """One call that changes a row."""

    kind: str
    """`renew`, `checkpoint` or `release`."""
    shard_id: str
    checkpoint: str | None = None
    number: int = 0
    resume_from: KinesisPosition | None = None


if TYPE_CHECKING:
    # What it stands before; both kinds of store have the methods that it calls.
    _Base = MemoryLeaseStore
else:
    _Base = object


class SpyStore(_Base):
    """Leases with every write recorded before and after it takes effect."""

    def listen(self) -> None:
        """Begin to record."""
        self.asked: list[Write] = []
        """Writes that were asked for, in order."""
        self.done: list[Write] = []
        """Those that took effect."""
        self.before: Callable[[Write], Awaitable[None]] | None = None
        """Awaited before a write takes effect; what it raises is the store's failure."""

    def checkpoints(self, shard_id: str | None = None) -> list[str | None]:
        """Return the checkpoints that took effect, in order."""
        return [
            write.checkpoint
            for write in self.done
            if write.checkpoint is not None and shard_id in {None, write.shard_id}
        ]

    async def renew(self, held: LeaseState) -> None:
        """Record and pass on."""
        write = await self._ask(Write("renew", held.key.shard_id))
        await super().renew(held)
        self.done.append(write)

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Record and pass on."""
        write = Write("checkpoint", held.key.shard_id, checkpoint, number, resume_from)
        await self._ask(write)
        await super().checkpoint(held, checkpoint, number=number, resume_from=resume_from)
        self.done.append(write)

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """Record and pass on."""
        write = Write("release", held.key.shard_id, checkpoint, number, resume_from)
        await self._ask(write)
        await super().release(
            held,
            checkpoint=checkpoint,
            number=number,
            resume_from=resume_from,
            successor=successor,
        )
        self.done.append(write)

    async def steal(self, key: LeaseKey, clock: Clock, owner_id: str = "thief") -> LeaseState:
        """Take a held shard as if its lease had run out."""
        raise NotImplementedError

    async def _ask(self, write: Write) -> Write:
        self.asked.append(write)
        if self.before is not None:
            await self.before(write)
        return write


class MemorySpyStore(SpyStore, MemoryLeaseStore):
    """Leases in memory."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.listen()

    async def steal(self, key: LeaseKey, clock: Clock, owner_id: str = "thief") -> LeaseState:
        """Take a held shard as if its lease had run out."""
        row = self._rows[key]
        row.renewed = clock.monotonic() - row.duration
        lease = await self.acquire(key, owner_id, duration=row.duration)
        assert lease is not None
        return lease


class TableSpyStore(SpyStore, TableLeaseStore):
    """Leases in rows of a table."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.table = MemoryTable()
        TableLeaseStore.__init__(self, self.table, clock=clock)
        self.listen()

    async def steal(self, key: LeaseKey, clock: Clock, owner_id: str = "thief") -> LeaseState:
        """Take a held shard as if its lease had run out."""
        await self.table.update(key.row, acquired(f"{owner_id}#1", 10.0, clock.time()), [])
        lease = await self.read(key)
        assert lease is not None
        return lease

    def renewer(self) -> None:
        """Return none: another thread would not follow the clock of a test."""


def spy_store(clock: Clock | None = None) -> MemorySpyStore | TableSpyStore:
    """Return a store of the kind that is tested."""
    return (MemorySpyStore if KINDS[-1] == "memory" else TableSpyStore)(clock=clock)
