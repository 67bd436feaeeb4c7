"""Writes of how far a shard is: single-flight per shard, newest wins.

Invariant: at most one write per shard is on its way; what is written is read from the shard at the
moment of writing, so moves that come meanwhile go out as one; the last move is always written, or
the lease is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.clock import Clock, wait
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases.base import SHARD_END, LeaseStore
from ruststream_kinesis.shard import HeldShard, Mark
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.wording import fields, shown

__all__ = ["CHECKPOINT_INTERVAL", "Checkpointer"]

logger = logging.getLogger("ruststream_kinesis")

# A busy shard is written at most five times a second: that bounds both the cost of the store and
# what a crash repeats.
CHECKPOINT_INTERVAL = 0.2


class Checkpointer:
    """Writes the checkpoint of one held shard.

    Args:
        shard: Whose checkpoint.
        store: Where it goes.
        clock: Time.
        supervisor: Owns the writing task.
        done: Called with the shard when it is finished (`SHARD_END` is stored) or lost.
    """

    def __init__(
        self,
        shard: HeldShard,
        store: LeaseStore,
        clock: Clock,
        supervisor: Supervisor,
        done: Callable[[HeldShard], None],
    ) -> None:
        self._shard = shard
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._stored: Mark | None = None
        """What the row says; `None` where that is not known, or is what it said when taken."""
        self._stored_of = -1
        """Generation of the last write that took effect."""
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()
        self._log = MinuteLog(clock)

    def moved(self) -> None:
        """There is something new to store: written at once when quiet, soon when busy."""
        if self._task is None:
            shard = self._shard
            shard.writing = True
            name = f"checkpoint[{shard.stream}/{shard.shard_id}]"
            self._task = self._supervisor.spawn(name, self._write())

    def rewound(self) -> None:
        """The shard was moved: that is written next, and waits for no pause."""
        self._hurry.set()
        self.moved()

    async def stored(self) -> None:
        """Waits until something of the shard's present generation is stored, or nothing will be."""
        generation = self._shard.generation
        while self._task is not None and self._stored_of < generation:
            await self._progress.wait()

    def next_number(self) -> int:
        """The number of the next write; it grows within the acquisition."""
        self._number += 1
        return self._number

    async def stop(self) -> None:
        """Ends the write on its way and starts none after it; what is due goes with `release`.

        The write may still arrive, with a lower number than the release's.
        """
        if self._task is not None:
            await self._supervisor.cancel([self._task])

    async def _write(self) -> None:
        try:
            backoff = Backoff()
            while (mark := self._due()) is not None:
                if not await self._attempt(mark):
                    await self._pause(backoff.next())
                    continue
                if self._over:
                    break
                backoff.reset()
                if mark.checkpoint is not None:
                    # A position is written once in a while: it makes no shard a busy one.
                    await self._pause(CHECKPOINT_INTERVAL)
        finally:
            self._task = None
            self._shard.writing = False
            self._note_progress()
        if self._over:
            self._done(self._shard)

    async def _pause(self, seconds: float) -> None:
        await wait(self._clock, seconds, self._hurry)

    def _note_progress(self) -> None:
        # Wakes everybody who waits now; the next to wait gets a new event.
        self._progress.set()
        self._progress = asyncio.Event()

    @property
    def _over(self) -> bool:
        shard = self._shard
        # Finished still: it may have been rewound while its end was on its way to the store.
        return shard.lost or (self._stored == Mark(SHARD_END, None) and self._due() is None)

    def _due(self) -> Mark | None:
        mark = None if self._shard.lost else self._shard.mark
        return None if mark == self._stored else mark

    async def _attempt(self, mark: Mark) -> bool:
        shard, generation = self._shard, self._shard.generation
        self._hurry.clear()
        # Until the answer is there, the row may say the one or the other.
        self._stored = None
        try:
            # The connection's store gives it up in time. It may still arrive then, with a number
            # lower than that of the next.
            await self._store.checkpoint(
                shard.lease,
                mark.checkpoint,
                number=self.next_number(),
                resume_from=mark.resume_from,
            )
        except LeaseLost as error:
            logger.warning(
                "%s: its deliveries are void, another owner reads them again",
                error,
                extra=fields(shard.stream, shard.shard_id),
            )
            shard.counters.leases_lost += 1
            shard.lose()
            return True
        except Exception as error:  # noqa: BLE001 - a store's failures are its own; none ends us
            shard.counters.checkpoint_errors += 1
            count = self._log.due()
            if count is not None:
                logger.warning(
                    "cannot store checkpoint %s of shard %s, stream %s (%d failure(s)): %s; "
                    "trying again",
                    mark.checkpoint or mark.resume_from,
                    shard.shard_id,
                    shard.stream,
                    count,
                    shown(error),
                    extra=fields(
                        shard.stream,
                        shard.shard_id,
                        mark.checkpoint if mark.checkpoint != SHARD_END else None,
                    ),
                )
            return False
        shard.counters.checkpoints += 1
        self._stored, self._stored_of = mark, generation
        self._note_progress()
        return True
