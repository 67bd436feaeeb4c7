"""Copies at work: published now, or kept until they are due.

Invariants:

* An original is settled only after its copy (or dead letter) is in its stream; `deferred="settle"`
  is the one exception, and asked for.
* A copy of a shard that was lost or rewound is never published.
* All that wait are in one heap with one task, whatever their number.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Callable

from ruststream_kinesis.channel import DeliveryShard
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import InvalidRecord, KinesisError
from ruststream_kinesis.records import outgoing, send, spread_key
from ruststream_kinesis.retry import Copy, RetryPolicy, dead_letter_blobs
from ruststream_kinesis.stream import StreamRef

__all__ = ["Copies"]

logger = logging.getLogger("ruststream_kinesis")

# Above this, copies are published early: a service must not keep a stream's worth in memory.
MAX_WAITING = 100_000
# Copies that come due together, or go out at a stop, are published so many at once.
_AT_ONCE = 32

_Waiting = tuple[float, int, Copy]
"""When it is due (monotonic), a number that breaks ties, the copy."""


class Copies:
    """The copies of one subscription.

    Args:
        policy: Further attempts, dead letter, when originals of waiting copies are settled.
        stream: Where copies go: the subscription's own stream, by its own name or ARN.
        connection: Transport and clock.
    """

    def __init__(self, policy: RetryPolicy, stream: StreamRef, connection: Connection) -> None:
        self.policy = policy
        self._stream = stream
        self._connection = connection
        self._clock = connection.clock
        self._heap: list[_Waiting] = []
        self._numbers = itertools.count()
        self._earlier = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Copies that are kept until they are due."""
        return len(self._heap)

    async def publish(self, copy: Copy, *, early: bool = False) -> None:
        """Puts a copy into the stream, then settles its original; a void copy is dropped.

        A passing failure is tried again until the shard is lost or this is cancelled. A copy that
        the service will never take (our header made it too large) goes to the dead letter stream
        if there is one; else the original stays open, logged.
        """
        try:
            record = outgoing(
                self._stream, copy.blob(early=early), copy.partition_key or spread_key()
            )
            result = await send(self._connection, record, wanted=lambda: not copy.is_void())
        except InvalidRecord as error:
            if self.policy.dead_letter is None:
                self._stays_open(copy, "its copy", error)
            else:
                await self.dead_letter(copy, error)
        except KinesisError as error:
            self._stays_open(copy, "its copy", error)
        else:
            if result is not None:
                self._settle(copy)

    async def dead_letter(self, copy: Copy, error: BaseException | None) -> None:
        """Puts a record into the dead letter stream, then settles it.

        Near the record limit our own headers give way one by one; payload and received headers
        always stay.
        """
        stream = self.policy.dead_letter
        if stream is None:
            raise RuntimeError("asked for a dead letter where none is declared")
        refused: KinesisError | None = None
        for blob in dead_letter_blobs(copy, error):
            try:
                record = outgoing(stream, blob, copy.partition_key or spread_key())
                result = await send(self._connection, record, wanted=lambda: not copy.is_void())
            except InvalidRecord as too_large:
                refused = too_large
                continue
            except KinesisError as failure:
                refused = failure
                break
            if result is not None:
                self._settle(copy)
                logger.warning(
                    "record %s of shard %s, stream %s, went to the dead letter stream %s after %d "
                    "attempt(s)",
                    copy.sequence_number,
                    copy.shard.shard_id,
                    copy.shard.stream,
                    stream.name,
                    copy.attempts,
                    extra=copy.log_fields(),
                )
            return
        if refused is not None:
            self._stays_open(copy, "its dead letter", refused)

    async def later(self, copy: Copy, delay: float) -> None:
        """Keeps a copy until its delay has passed.

        Where waiting would block others (the shard has ended, too many wait), it is published at
        once, marked with the time it is due.
        """
        if delay <= 0:
            await self.publish(copy)
        elif copy.shard.ended or len(self._heap) >= MAX_WAITING:
            await self.publish(copy, early=True)
        else:
            self._keep(copy, delay)

    def _keep(self, copy: Copy, delay: float) -> None:
        entry = (self._clock.monotonic() + delay, next(self._numbers), copy)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._earlier.set()
        if self.policy.deferred == "settle":
            copy.shard.ack(copy.place)
        else:
            copy.shard.defer(copy.place)

    async def run(self) -> None:
        """Publishes what comes due, until cancelled; a crowd of them some at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                self._earlier.clear()
                rest = self._heap[0][0] - self._clock.monotonic() if self._heap else math.inf
                if rest > 0:
                    await wait(self._clock, rest, self._earlier)
                    continue
                await gate.acquire()
                # Looked at again: the first one may have been discarded meanwhile.
                if self._heap and self._heap[0][0] <= self._clock.monotonic():
                    copy = heapq.heappop(self._heap)[2]
                    task = group.create_task(self.publish(copy), name=f"copy[{copy.shard.stream}]")
                    task.add_done_callback(lambda _: gate.release())
                else:
                    gate.release()

    async def flush(self, shard: DeliveryShard | None = None) -> None:
        """Publishes early what waits, of one shard or of all; before a shard can end, or the stop."""
        leaving = self._take(lambda copy: shard is None or copy.shard is shard)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def publish(copy: Copy) -> None:
            async with gate:
                await self.publish(copy, early=True)

        async with asyncio.TaskGroup() as group:
            for copy in leaving:
                group.create_task(publish(copy))

    def discard(self, shard: DeliveryShard) -> None:
        """Drops the copies of a shard that became void: its records are read again, or skipped."""
        self._take(lambda copy: copy.shard is shard and copy.is_void())

    def _take(self, chosen: Callable[[Copy], bool]) -> list[Copy]:
        taken = [entry[2] for entry in self._heap if chosen(entry[2])]
        if taken:
            self._heap = [entry for entry in self._heap if not chosen(entry[2])]
            heapq.heapify(self._heap)
        return taken

    @staticmethod
    def _settle(copy: Copy) -> None:
        if not copy.is_void():
            copy.shard.ack(copy.place)

    def _stays_open(self, copy: Copy, what: str, error: KinesisError) -> None:
        if copy.is_void():
            return
        logger.error(
            "%s of record %s, shard %s, stream %s, was not published; the record stays open: %s",
            what,
            copy.sequence_number,
            copy.shard.shard_id,
            copy.shard.stream,
            error,
            extra=copy.log_fields(),
        )
        copy.shard.hold(copy.place)
