"""A lease store that a test can slow down, break and listen to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState, MemoryLeaseStore
from ruststream_kinesis.clock import Clock

__all__ = ["SpyStore", "Write"]


@dataclass(frozen=True)
class Write:
    """One call that changes a row."""

    kind: str
    """`renew`, `checkpoint` or `release`."""
    shard_id: str
    checkpoint: str | None = None
    number: int = 0
    resume_from: KinesisPosition | None = None


class SpyStore(MemoryLeaseStore):
    """Leases in memory, with every write recorded before and after it takes effect."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
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
        row = self._rows[key]
        row.renewed = clock.monotonic() - row.duration
        lease = await self.acquire(key, owner_id, duration=row.duration)
        assert lease is not None
        return lease

    async def _ask(self, write: Write) -> Write:
        self.asked.append(write)
        if self.before is not None:
            await self.before(write)
        return write
