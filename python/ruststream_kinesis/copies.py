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
import secrets
from collections.abc import Iterable

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.channel import DeliveryShard, Run
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import InvalidRecord, KinesisError, RequestError
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.retry import Copy, RetryPolicy, dead_letter_blobs
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, judge

__all__ = ["Copies"]

logger = logging.getLogger("ruststream_kinesis")

# Above this, copies are published early: a service must not keep a stream's worth in memory.
MAX_WAITING = 100_000
# Copies that come due together, or go out at a stop, are published so many at once.
_AT_ONCE = 32


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
        self._heap: list[tuple[float, int, Copy]] = []
        self._numbers = itertools.count()
        self._earlier = asyncio.Event()
        self._log = MinuteLog(self._clock)

    @property
    def waiting(self) -> int:
        """Copies that are kept until they are due."""
        return len(self._heap)

    async def publish(self, copy: Copy, *, early: bool = False) -> None:
        """Puts a copy into the stream and settles its original; void copies are dropped.

        A failure that is passing is tried again until the shard is lost or we are cancelled. What
        the service will never take (our header made it too large) goes to the dead letter stream if
        there is one; else the original stays open, logged.
        """
        record = outgoing(self._stream, copy.blob(early=early), copy.partition_key)
        try:
            sent = await send(self._connection, record, until=lambda: copy.void)
        except KinesisError as error:
            if isinstance(error, InvalidRecord) and self.policy.dead_letter is not None:
                await self._bury(copy, copy.attempt - 1, error)
            else:
                self._stays_open(copy, "its copy was not published", error)
            return
        if sent is not None:
            self._settle(copy)

    async def dead_letter(self, copy: Copy, attempts: int, error: BaseException | None) -> None:
        """Puts a record into the dead letter stream and settles it."""
        await self._bury(copy, attempts, error)

    def later(self, copy: Copy, delay: float) -> bool:
        """Keeps a copy until its delay has passed.

        Returns:
            Whether it is kept; `False` where waiting would block others, and the caller publishes
            it early: the shard has ended, or too many wait already.
        """
        if copy.shard.ended or len(self._heap) >= MAX_WAITING:
            return False
        heapq.heappush(self._heap, (self._clock.monotonic() + delay, next(self._numbers), copy))
        if self._heap[0][2] is copy:
            self._earlier.set()
        if self.policy.deferred == "settle":
            copy.shard.ack(copy.place)
        else:
            copy.shard.defer(copy.place)
        return True
