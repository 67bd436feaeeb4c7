"""One held shard with what works on it, and how it is let go.

Invariant: once the end of a holding began, nothing that is settled counts any more, and what its
release has to store is fixed; a release that fails can be tried again with the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.checkpoints import Checkpointer
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import NotConnected
from ruststream_kinesis.heartbeat import Tenure
from ruststream_kinesis.leases.base import SHARD_END, LeaseStore
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.shard import HeldShard, Mark

__all__ = ["Absences", "Holding"]

# A shard that was held this long was well: its next failure starts the back-off anew.
_HEALTHY = 300.0


@dataclass(slots=True)
class Holding:
    """A held shard with what works on it."""

    shard: HeldShard
    checkpointer: Checkpointer
    reading: Reader
    taken: float
    """When the lease was asked for, on the monotonic clock."""
    tenure: Tenure
    """How long it is ours."""
    reader: asyncio.Task[None] | None = None
    """Runs `reading`."""
    concluded: bool = False
    """Its end began: its deliveries are void, `final` is what its release has to store."""
    final: Mark | None = None
    successor: str | None = None
    """Nonce of the member that it is handed over to."""
    successor_name: str = ""
    """That member's owner id, for the log."""
    waits: bool = False
    """It has no reader yet: others may have to be read before it, or what goes back to it is held."""
    replays: bool = False
    """It had ended, and is read again."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It was released, or the service stopped without having managed to."""
    released: bool = False

    @property
    def live(self) -> bool:
        """Whether what is settled still counts."""
        return not self.concluded and not self.shard.lost

    @property
    def finished(self) -> bool:
        """Whether the shard ended here, everything settled."""
        return self.shard.finished or (self.final is not None and self.final[0] == SHARD_END)

    def conclude(self) -> None:
        """Settled places count until here; what is settled from now on is void."""
        if not self.concluded:
            self.concluded, self.final = True, self.shard.mark
            self.shard.lose()

    async def release(self, store: LeaseStore) -> None:
        """Gives up the lease, with what is due in the same write."""
        checkpoint, resume_from = self.final or (None, None)
        await self.checkpointer.stop()
        await store.release(
            self.shard.lease,
            checkpoint=checkpoint,
            number=self.checkpointer.next_number(),
            resume_from=resume_from,
            successor=self.successor,
        )
        self.released = True
        self.over.set()

    def rewind(self, position: KinesisPosition, *, at_tip: bool = False) -> None:
        """Moves the shard: wakes its reader, and writes the position next."""
        self.shard.rewind(position, at_tip=at_tip)
        self.reading.interrupt()
        self.checkpointer.rewound()

    async def rewound(self, asked: KinesisPosition) -> None:
        """Waits until the position is stored and, where the tip was asked for, that is found.

        Raises:
            NotConnected: The service stopped, and could not store it.
        """
        if self.live:
            await self.checkpointer.stored()
        if not self.live:
            # Lost unwritten, its row may be ours still: then the position goes with the release.
            await self.over.wait()
            if not self.released:
                raise NotConnected(
                    f"the service stopped before it could store that the shard was moved to {asked}; "
                    "seek again when it runs",
                    stream=self.shard.stream,
                    shard_id=self.shard.shard_id,
                )
        elif asked.kind == "latest":
            # An iterator that could not be had is built at the instant: nothing is missed either way.
            await self.shard.opened.wait()


class Absences:
    """Shards that are between owners here: let go of unfinished, and not taken again.

    One that was given up has a back-off of its own until it may be taken again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}
        self._until: dict[str, float] = {}
        self.left: set[str] = set()
        """All of them, with back-off or without."""
        self.handed: set[str] = set()
        """Those that were let go of to a successor; its taking them shows in the row alone."""
        self._doubts: dict[str, float] = {}
        self.why: dict[str, str] = {}
        """What reading them failed with, by class and code, where that is why they were given up."""

    def add(self, holding: Holding) -> None:
        """Its shard is given up."""
        shard_id, now = holding.shard.shard_id, self._clock.monotonic()
        backoff = self._backoffs.setdefault(shard_id, Backoff(first=2.0, cap=60.0))
        if now - holding.taken > _HEALTHY:
            backoff.reset()
        self._until[shard_id] = now + backoff.next()
        if holding.shard.read_error is not None:
            self.why[shard_id] = holding.shard.read_error

    def has(self, shard_id: str) -> bool:
        """Whether it is too early to take the shard again."""
        return shard_id in self._until and self._until[shard_id] > self._clock.monotonic()

    def doubt(self, shard_id: str) -> None:
        """Notes that the lease was asked for, and may be held for nobody: an answer was lost."""
        self._doubts[shard_id] = self._clock.monotonic()

    def in_doubt(self, duration: float) -> set[str]:
        """Shards of which such a lease, which lives `duration` seconds, may be alive."""
        since = self._clock.monotonic() - duration
        return {shard_id for shard_id, when in self._doubts.items() if when > since}

    def taken(self, shard_id: str) -> None:
        """A shard is held again."""
        self.left.discard(shard_id)
        self.handed.discard(shard_id)
        self._doubts.pop(shard_id, None)
        self.why.pop(shard_id, None)

    def taken_elsewhere(self, shard_ids: Iterable[str]) -> None:
        """Other instances hold these."""
        self.left.difference_update(shard_ids)
        for shard_id in self.why.keys() & set(shard_ids):
            del self.why[shard_id]

    def recall(self) -> None:
        """Ends every back-off: whatever a shard was given up for, it opens elsewhere now."""
        self._until.clear()
        self._backoffs.clear()

    def keep(self, listed: Container[str]) -> None:
        """Forgets shards that are not listed any more."""
        self.left = {each for each in self.left if each in listed}
        self.handed = {each for each in self.handed if each in listed}
        self._doubts = {each: when for each, when in self._doubts.items() if each in listed}
        self.why = {each: why for each, why in self.why.items() if each in listed}
        for shard_id in [each for each in self._until if each not in listed]:
            del self._until[shard_id], self._backoffs[shard_id]
