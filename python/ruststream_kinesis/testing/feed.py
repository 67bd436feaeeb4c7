"""From the log into a subscription's channel: what a coordinator and its readers do elsewhere."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import CAPACITY, Channel, Fence
from ruststream_kinesis.counters import ReadCounters
from ruststream_kinesis.errors import NotConnected
from ruststream_kinesis.seek import not_held, unknown_record
from ruststream_kinesis.state import ShardState, SourceState
from ruststream_kinesis.testing.delivery import CAUSES, Cause, Delivery, OneRun, Watched
from ruststream_kinesis.testing.log import SHARD_ID, Log
from ruststream_kinesis.wording import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.copies import Copies
    from ruststream_kinesis.position import KinesisPosition
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.supervisor import Supervisor
    from ruststream_kinesis.testing.record import LogRecord
    from ruststream_kinesis.testing.tracking import Tracker
    from ruststream_kinesis.transport import StreamInfo

__all__ = ["LogShard", "LogSource"]

logger = logging.getLogger("ruststream_kinesis")


class LogShard:
    """A `DeliveryShard` without lease, checkpoint and watermark: it only learns what is decided.

    Args:
        watched: The subscription; its tracker is told.
        log: Keeps the warning of held records rare.
    """

    def __init__(self, watched: Watched, log: MinuteLog) -> None:
        self.stream = watched.identity[0]
        self.shard_id = SHARD_ID
        self.generation = 0
        self.ceiling: float = math.inf
        self.fence: Fence | None = None
        self.started = -1
        self.unread = False
        self.lost = False
        self._watched = watched
        self._opened = watched.tracker.opened
        self._log = log
        self._next = 0
        # By place, which is never given twice: a rewind delivers a record again at a new one.
        self._open: dict[int, Delivery] = {}

    def deliver(self, record: LogRecord, causes: tuple[Cause, ...]) -> OneRun:
        """Gives a record its place."""
        place = self._next
        self._next = place + 1
        delivery = Delivery(self._watched, self, place, record, causes)
        self._open[place] = delivery
        self._opened(delivery)
        return OneRun(delivery)

    @property
    def undecided(self) -> int:
        """Deliveries that are neither settled nor held."""
        return len(self._open)

    def last_of_record(self, place: int) -> int:
        """The delivery itself: here an aggregate is taken apart before its records get places."""
        return place

    def ack(self, place: int) -> None:
        """Settles the delivery at `place`; once more, or late, changes nothing."""
        delivery = self._open.pop(place, None)
        if delivery is not None:
            delivery.settle()

    def begin_anew(self) -> list[Delivery]:
        """A rewind: what was delivered so far, and is open, is void, and returned."""
        self.generation += 1
        void = list(self._open.values())
        self._open.clear()
        return void

    def ack_range(self, start: int, stop: int) -> None:
        """Settles the deliveries at `start` up to, not including, `stop`."""
        self.ack_all(range(start, stop))

    def ack_all(self, places: Sequence[int]) -> None:
        """Settles the deliveries at `places`."""
        for place in places:
            self.ack(place)

    def defer(self, place: int) -> None:
        """The delivery waits as a copy: that is decided, and it is settled when the copy is sent."""
        delivery = self._open.get(place)
        if delivery is not None:
            delivery.defer()

    def hold(self, place: int) -> None:
        """Leaves the delivery open: here it does not come back."""
        delivery = self._open.pop(place, None)
        if delivery is None:
            return
        delivery.hold()
        count = self._log.due()
        if count is not None:
            logger.warning(
                "stream %s: %d record(s) stay open; the in-process log does not bring them back",
                self.stream,
                count,
                extra=fields(self.stream, self.shard_id),
            )


class LogSource:
    """A `Source`: feeds the records of one stream into the channel of one subscription.

    Args:
        log: Where the records are.
        tracker: Is told of every delivery.
        subscriber: Which stream, and where to start.
        connection: Time.
        channel: Takes the deliveries.
        copies: What waits of a delivery that a rewind makes void is dropped from it.
        supervisor: Owns the feeding task.
    """

    def __init__(
        self,
        log: Log,
        tracker: Tracker,
        subscriber: Subscriber,
        connection: Connection,
        channel: Channel,
        copies: Copies,
        supervisor: Supervisor,
    ) -> None:
        self._copies = copies
        self._log = log
        self._stream = subscriber.stream.name
        self._start_at = subscriber.start_at
        self._channel = channel
        self._supervisor = supervisor
        self._shard = LogShard(
            Watched.of(tracker, subscriber, manual=True), MinuteLog(connection.clock)
        )
        # What the channel had no room for; a record that is published does not wait for it.
        self._backlog: deque[OneRun] = deque()
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def shards(self) -> tuple[LogShard, ...]:
        """The one shard."""
        return (self._shard,)

    @property
    def state(self) -> tuple[ShardState, ...]:
        """The one shard; there is no checkpoint to tell."""
        shard = self._shard
        return (
            ShardState(
                shard_id=shard.shard_id,
                checkpoint=None,
                lag_ms=None,
                open=shard.undecided,
                held=0,
                held_for=None,
                ended=False,
                reading_for=0.0,
                polled_ago=0.0,
            ),
        )

    @property
    def source(self) -> SourceState:
        """Nobody else is there."""
        return SourceState(ReadCounters())

    async def open(self, info: StreamInfo) -> None:
        """Starts at the subscription's position, by default the tip."""
        del info
        records = self._log.records(self._stream)
        first = len(records) if self._start_at is None else _first(records, self._start_at)
        for record in records[first:]:
            self.offer(record, ())
        self._log.read(self._stream, self)
        self._task = self._supervisor.spawn(f"log[{self._stream}/{SHARD_ID}]", self._feed())

    def offer(self, record: LogRecord, causes: tuple[Cause, ...]) -> None:
        """Puts a record into the channel, or behind those that wait for room in it."""
        run = self._shard.deliver(record, causes)
        if not self._backlog and self._channel.queued < CAPACITY:
            self._channel.put(run)
        else:
            self._backlog.append(run)
            self._more.set()

    async def _feed(self) -> None:
        backlog = self._backlog
        while True:
            await self._more.wait()
            while backlog:
                # It stays in sight until it is in: what is offered meanwhile comes behind it.
                run = backlog[0]
                await self._channel.feed(run)
                if backlog and backlog[0] is run:
                    backlog.popleft()
            self._more.clear()

    async def seek(self, position: KinesisPosition) -> None:
        """Delivers the records from `position` on, once more or for the first time.

        Called within a handler, what is delivered again goes back to what its record goes back to.
        """
        if self._task is None or self._stopping:
            state = "is not open yet" if self._task is None else "is stopping"
            raise NotConnected(f"the subscription {state}", stream=self._stream)
        # A handler that always seeks never suspends here: timers must run.
        await asyncio.sleep(0)
        shard = self._shard
        if position.shard_id not in (None, SHARD_ID):
            raise not_held(self._stream, position.shard_id)
        records = self._log.records(self._stream)
        first = _first(records, position)
        if position.kind == "sequence" and first == len(records):
            raise unknown_record(self._stream, position)
        # What is delivered again is open before what is void closes: who waits, waits for both.
        void = shard.begin_anew()
        self._backlog.clear()
        self._channel.discard(shard)
        self._copies.discard(shard)
        for record in records[first:]:
            self.offer(record, CAUSES.get())
        for delivery in void:
            delivery.void()

    async def stop_reading(self) -> None:
        """Takes no more records."""
        self._stopping = True
        self._log.leave(self._stream, self)
        if self._task is not None:
            await self._supervisor.cancel([self._task])

    def cut_off(self) -> None:
        """Nothing starts any more; there is no checkpoint that a late ack could move."""
        for shard in self.shards:
            shard.generation += 1
            shard.lost = True

    async def release(self) -> None:
        """Nothing to release: there are no leases."""


def _first(records: list[LogRecord], position: KinesisPosition) -> int:
    """Index of the first record at `position`; the end where there is none."""
    match position.kind:
        case "horizon":
            return 0
        case "timestamp":
            when = position.when or 0.0
            matches = (record.arrival.timestamp() >= when for record in records)
        case "sequence":
            wanted = position.sequence_number
            matches = (record.sequence_number == wanted for record in records)
        case _:
            return len(records)
    return next((index for index, match in enumerate(matches) if match), len(records))
