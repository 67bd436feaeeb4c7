"""Copies at work: published now, or kept until they are due.

Invariants:

* An original is settled only after its copy (or dead letter) is in its stream; `deferred="settle"`
  is the one exception, and asked for.
* A copy of a shard that was lost or rewound is never published.
* All that wait are in one heap with one task, whatever their number. When one is due is a moment of
  the injected clock, whose sleeps follow it through a suspension of the machine.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from ruststream_kinesis.attempts import Copy, RetryPolicy, dead_letter_blobs
from ruststream_kinesis.channel import DeliveryShard
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.counters import Counters
from ruststream_kinesis.errors import InvalidRecord, KinesisError
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.records import outgoing
from ruststream_kinesis.stream import StreamRef

__all__ = ["Copies"]

logger = logging.getLogger("ruststream_kinesis")

# Above this, copies are published early: a service must not keep a stream's worth in memory.
MAX_WAITING = 100_000
# Copies that come due together, or go out at a stop, are published so many at once.
_AT_ONCE = 32
# How often a delivery that waits for room looks again; a stop waits at most as long for it.
_ROOM_INTERVAL = 0.5

_Waiting = tuple[float, int, Copy]
"""When it is due (monotonic), a number that breaks ties, the copy."""
_Work = Callable[[], Coroutine[Any, Any, None]]


class Copies:
    """The copies of one subscription.

    Args:
        policy: Further attempts, dead letter, when originals of waiting copies are settled.
        stream: Where copies go: the subscription's own stream, by its own name or ARN.
        connection: Transport and clock.
        counters: What becomes of the copies is counted here.
        publisher: Puts them; one that collects makes workers wait for none of them.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        stream: StreamRef,
        connection: Connection,
        counters: Counters | None = None,
        publisher: KinesisPublisher | None = None,
    ) -> None:
        self.policy = policy
        self._stream = stream
        self._publisher = publisher or KinesisPublisher(connection)
        self._clock = connection.clock
        self.counters = counters or Counters()
        self._heap: list[_Waiting] = []
        self._numbers = itertools.count()
        self._early: deque[Copy] = deque()
        self._at_once: deque[tuple[_Work, Context]] = deque()
        """What is to be published now, together with others: nobody waits for it here."""
        self._of: Counter[DeliveryShard] = Counter()
        """How many wait of each shard: most have none, and must not cost a look at all others."""
        self._changed = asyncio.Event()
        self._finishing = False

    @property
    def waiting(self) -> int:
        """Copies that are kept until they are due."""
        return len(self._heap) + len(self._early)

    def _collects(self) -> bool:
        """Whether what is to be published now waits for others, and its worker does not.

        Not at the end, when `run` has all that it will publish, nor without bounds.
        """
        collecting = self._publisher.batching is not None and not self._finishing
        return collecting and len(self._at_once) < MAX_WAITING

    def _now(self, work: _Work) -> None:
        # In the context of who asked for it, as if it had waited.
        self._at_once.append((work, copy_context()))
        self._changed.set()

    async def publish(self, copy: Copy, *, early: bool = False) -> None:
        """Puts a copy into the stream, then settles its original; a void copy is dropped.

        A passing failure is tried again until the shard is lost or this is cancelled. A copy that
        the service will never take (our header made it too large) goes to the dead letter stream
        if there is one; else the original stays open, logged.
        """
        try:
            record = outgoing(
                self._stream,
                copy.blob(early=early),
                copy.partition_key or None,
                copy.explicit_hash_key,
            )
            result = await self._publisher.put_while(record, lambda: not copy.is_void())
        except InvalidRecord as error:
            if self.policy.dead_letter is None:
                self._stays_open(copy, "its copy", error)
            else:
                await self._bury(copy, error)
        except KinesisError as error:
            self._stays_open(copy, "its copy", error)
        else:
            if result is not None:
                self._settle(copy)

    async def dead_letter(self, copy: Copy, error: BaseException | None) -> None:
        """Puts a record into the dead letter stream, then settles it.

        Where the publisher collects, it returns before that.
        """
        if self._collects():
            self._now(partial(self._bury, copy, error))
        else:
            await self._bury(copy, error)

    async def _bury(self, copy: Copy, error: BaseException | None) -> None:
        """Puts it there.

        Near the record limit our own headers give way one by one; payload and received headers
        always stay.
        """
        stream = self.policy.dead_letter
        if stream is None:
            raise RuntimeError("asked for a dead letter where none is declared")
        refused: KinesisError | None = None
        for blob in dead_letter_blobs(copy, error):
            try:
                record = outgoing(stream, blob, copy.partition_key or None)
                result = await self._publisher.put_while(record, lambda: not copy.is_void())
            except InvalidRecord as too_large:
                refused = too_large
                continue
            except KinesisError as failure:
                refused = failure
                break
            if result is not None:
                self._settle(copy)
                self.counters.dead_lettered += 1
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

        Where waiting would block others (the shard is not read any more, too many wait), it is
        published at once, marked with the time it is due. Where the publisher collects, what is
        published at once is so after this returns.
        """
        if delay <= 0:
            if self._collects():
                self._now(partial(self.publish, copy))
            else:
                await self.publish(copy)
        elif copy.shard.unread or self.waiting >= MAX_WAITING:
            await self.publish(copy, early=True)
        else:
            self._keep(copy, delay)

    async def wait_out(self, copy: Copy) -> None:
        """Keeps a delivery that came early; without room its worker waits, and so does reading.

        It is not put into the stream once more for want of room: it would come again at once, and
        so on until it is due.
        """
        shard = copy.shard
        # A stop, or the end of reading the shard, waits for nobody: there it goes out early after all.
        while (
            self.waiting >= MAX_WAITING
            and not shard.unread
            and math.isinf(shard.ceiling)
            and not copy.is_void()
        ):
            await self._clock.sleep(_ROOM_INTERVAL)
        if not copy.is_void():
            await self.later(copy, copy.due - self._clock.time())

    def _keep(self, copy: Copy, delay: float) -> None:
        entry = (self._clock.monotonic() + delay, next(self._numbers), copy)
        heapq.heappush(self._heap, entry)
        self._of[copy.shard] += 1
        if self._heap[0] is entry:
            self._changed.set()
        if self.policy.deferred == "settle":
            copy.settled = True
            copy.shard.ack(copy.place)
        else:
            copy.shard.defer(copy.place)

    async def run(self) -> None:
        """Publishes what comes due, some at a time, until `finish`.

        Cancelled, it leaves the originals of what is on its way open: they come again.
        """
        batching = self._publisher.batching
        gate = asyncio.Semaphore(_AT_ONCE if batching is None else max(_AT_ONCE, batching.batch))
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                rest = self._rest()
                if rest == math.inf and self._finishing:
                    return  # the group waits for what is on its way
                if rest > 0:
                    await wait(self._clock, rest, self._changed)
                    continue
                await gate.acquire()
                # Looked at again: the first one may have been discarded meanwhile.
                if self._rest() > 0:
                    gate.release()
                    continue
                work, context = self._next()
                task = group.create_task(work(), name=f"copy[{self._stream.name}]", context=context)
                task.add_done_callback(lambda _: gate.release())

    def _next(self) -> tuple[_Work, Context | None]:
        if self._at_once:
            return self._at_once.popleft()
        if self._early:
            return partial(self.publish, self._early.popleft(), early=True), None
        return partial(self.publish, self._pop()), None

    def _pop(self) -> Copy:
        copy = heapq.heappop(self._heap)[2]
        self._leaves(copy)
        return copy

    def _leaves(self, copy: Copy) -> None:
        self._of[copy.shard] -= 1
        if not self._of[copy.shard]:
            del self._of[copy.shard]

    def _rest(self) -> float:
        """Seconds until there is something to publish."""
        if self._early or self._at_once:
            return 0.0
        return self._heap[0][0] - self._clock.monotonic() if self._heap else math.inf

    def flush(self, shard: DeliveryShard | None = None) -> None:
        """Lets what waits, of one shard or of all, go out now, marked with the time it is due."""
        self._early.extend(self._take(lambda copy: shard is None or copy.shard is shard))
        self._changed.set()

    def finish(self) -> None:
        """Nothing waits any more: `run` ends when all that is there is published."""
        self._finishing = True
        self.flush()

    def discard(self, shard: DeliveryShard) -> None:
        """Drops the copies of a shard that became void: its records are read again, or skipped."""

        def void(copy: Copy) -> bool:
            return copy.shard is shard and copy.is_void()

        if self._of[shard]:
            self._sweep()
        if any(map(void, self._early)):
            self._early = deque(copy for copy in self._early if not void(copy))

    def _sweep(self) -> None:
        """Drops all that is void, of whatever shard: a rewind of many shards is one look."""
        self._take(Copy.is_void)

    def _take(self, chosen: Callable[[Copy], bool]) -> list[Copy]:
        taken = [entry[2] for entry in self._heap if chosen(entry[2])]
        if taken:
            for copy in taken:
                self._leaves(copy)
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
            "%s of record %s, shard %s, stream %s, was not published; %s: %s",
            what,
            copy.sequence_number,
            copy.shard.shard_id,
            copy.shard.stream,
            "it is lost" if copy.settled else "the record stays open",
            error,
            extra=copy.log_fields(),
        )
        self.counters.held += not copy.settled
        copy.shard.hold(copy.place)
