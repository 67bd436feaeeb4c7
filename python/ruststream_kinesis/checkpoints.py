"""Checkpoint writes: single-flight per shard, newest wins.

Invariant: at most one write per shard is on its way; what is written is read from the shard at the
moment of writing, so moves that come meanwhile go out as one; the last move is always written, or
the lease is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases.base import SHARD_END, LeaseStore
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.supervisor import Supervisor

__all__ = ["CHECKPOINT_INTERVAL", "Checkpointer"]

logger = logging.getLogger("ruststream_kinesis")

# A busy shard is written at most five times a second: that bounds both the cost of the store and
# what a crash repeats.
CHECKPOINT_INTERVAL = 0.2
# A write that never returns would be the last of its shard. Given up, it may still arrive: its
# number is lower than that of the next.
_WRITE_DEADLINE = 10.0


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
        self._stored: str | None = None
        self._log = MinuteLog(clock)

    def moved(self) -> None:
        """There is something new to store: written at once when quiet, soon when busy."""
        if self._task is None:
            shard = self._shard
            shard.writing = True
            name = f"checkpoint[{shard.stream}/{shard.shard_id}]"
            self._task = self._supervisor.spawn(name, self._write())

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
            while (checkpoint := self._due()) is not None:
                if not await self._attempt(checkpoint):
                    await self._clock.sleep(backoff.next())
                    continue
                if self._over:
                    break
                backoff.reset()
                await self._clock.sleep(CHECKPOINT_INTERVAL)
        finally:
            self._task = None
            self._shard.writing = False
        if self._over:
            self._done(self._shard)

    @property
    def _over(self) -> bool:
        return self._shard.lost or self._stored == SHARD_END

    def _due(self) -> str | None:
        checkpoint = None if self._shard.lost else self._shard.checkpoint
        return None if checkpoint == self._stored else checkpoint

    async def _attempt(self, checkpoint: str) -> bool:
        shard = self._shard
        try:
            async with asyncio.timeout(_WRITE_DEADLINE):
                await self._store.checkpoint(shard.lease, checkpoint, number=self.next_number())
        except LeaseLost as error:
            logger.warning("%s: its deliveries are void, another owner reads them again", error)
            shard.lose()
            return True
        except Exception as error:  # noqa: BLE001 - a store's failures are its own; none ends us
            count = self._log.due()
            if count is not None:
                logger.warning(
                    "cannot store checkpoint %s of shard %s, stream %s (%d failure(s)): %r; "
                    "trying again",
                    checkpoint,
                    shard.shard_id,
                    shard.stream,
                    count,
                    error,
                )
            return False
        self._stored = checkpoint
        return True
