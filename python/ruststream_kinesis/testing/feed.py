"""From the log into a subscription's channel: what a coordinator and its readers do elsewhere."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import CAPACITY, Channel, Run
from ruststream_kinesis.errors import AckUnsupported
from ruststream_kinesis.testing.log import SHARD_ID, Log, LogRecord
from ruststream_kinesis.testing.tracking import CAUSE, DELIVERY, Cause, Delivery, Tracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ruststream_kinesis.codec import Decoder
    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.copies import Copies
    from ruststream_kinesis.position import KinesisPosition
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.supervisor import Supervisor
    from ruststream_kinesis.transport import StreamInfo

__all__ = ["LogShard", "LogSource"]

logger = logging.getLogger("ruststream_kinesis")

# A record travels alone, so that its worker's context can say which delivery it is at.
_ONE: Final = range(1)


class LogRun(Run):
    """One delivery; the worker that opens it is at that delivery from then on."""

    __slots__ = ("delivery",)

    def __init__(self, shard: LogShard, delivery: Delivery, place: int) -> None:
        # The fields of a `Run` set directly, as each publish of a test pays for this.
        self.shard = shard
        self.generation = shard.generation
        self.page = delivery.record.page
        self.base = place
        self.indices = _ONE
        self.delivery = delivery

    def payloads_of(self, indices: Sequence[int]) -> list[bytes]:
        """The payload, by whichever way a worker asks for it."""
        del indices
        return self.payloads()

    def payloads(self) -> list[bytes]:
        """The payload. Called by the worker in its own task, right before the handler."""
        delivery = self.delivery
        DELIVERY.set(delivery)
        CAUSE.set(delivery.cause)
        return self.page.payloads(0, 1)


class LogShard:
    """A `DeliveryShard` without lease, checkpoint and watermark: it only learns what is decided.

    Args:
        stream: Plain name of the stream.
        tracker: Is told.
        decode: The handler's own, for a test that asks for the value.
        log: Keeps the warning of held records rare.
    """

    def __init__(self, stream: str, tracker: Tracker, decode: Decoder, log: MinuteLog) -> None:
        self.stream = stream
        self.shard_id = SHARD_ID
        self.generation = 0
        self.ceiling: float = math.inf
        self.started = -1
        self.ended = False
        self.lost = False
        self.decode = decode
        self._tracker = tracker
        self._log = log
        self._next = 0
        # By place, which is never given twice: a rewind delivers a record again at a new one.
        self._open: dict[int, Delivery] = {}

    def deliver(self, record: LogRecord, cause: Cause | None) -> LogRun:
        """Gives a record its place."""
        place = self._next
        self._next = place + 1
        delivery = Delivery(self._tracker, self, place, record, cause)
        self._open[place] = delivery
        self._tracker.opened(delivery)
        return LogRun(self, delivery, place)

    def ack(self, place: int) -> None:
        """Settles the delivery at `place`; once more, or late, changes nothing."""
        delivery = self._open.pop(place, None)
        if delivery is not None:
            delivery.settle()

    def ack_range(self, start: int, stop: int) -> None:
        """Settles the deliveries at `start` up to, not including, `stop`."""
        for place in range(start, stop):
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
        refusal = AckUnsupported(
            "the subscription declares neither max_attempts nor dead_letter: the record stays open "
            "and holds the checkpoint of its shard",
            stream=self.stream,
            shard_id=self.shard_id,
            sequence_number=delivery.record.sequence_number,
        )
        delivery.hold(refusal)
        count = self._log.due()
        if count is not None:
            logger.warning(
                "stream %s: %d refused record(s) stay open; the in-process log does not bring them "
                "back",
                self.stream,
                count,
                extra={"stream": self.stream, "shard_id": self.shard_id},
            )


class LogSource:
    """A `Source`: feeds the records of one stream into the channel of one subscription.

    Args:
        log: Where the records are.
        tracker: Is told of every delivery.
        subscriber: Which stream, and where to start.
        connection: Time.
        channel: Takes the deliveries.
        copies: Not needed here.
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
        del copies  # there is no end of a shard, and no loss of one
        self._log = log
        self._stream = subscriber.stream.name
        self._start_at = subscriber.start_at
        self._channel = channel
        self._supervisor = supervisor
        self._shard = LogShard(
            self._stream, tracker, subscriber.handler.decode, MinuteLog(connection.clock)
        )
        # What the channel had no room for; a record that is published does not wait for it.
        self._backlog: deque[LogRun] = deque()
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def shards(self) -> tuple[LogShard, ...]:
        """The one shard."""
        return (self._shard,)

    async def open(self, info: StreamInfo) -> None:
        """Starts at the subscription's position, by default the tip."""
        del info
        records = self._log.records(self._stream)
        first = len(records) if self._start_at is None else _first(records, self._start_at)
        for record in records[first:]:
            self.offer(record, None)
        self._log.read(self._stream, self)
        self._task = self._supervisor.spawn(f"log[{self._stream}/{SHARD_ID}]", self._feed())

    def offer(self, record: LogRecord, cause: Cause | None) -> None:
        """Puts a record into the channel, or behind those that wait for room in it."""
        run = self._shard.deliver(record, cause)
        if not self._backlog and self._channel.queued < CAPACITY:
            self._channel.put(run)
        else:
            self._backlog.append(run)
            self._more.set()

    async def _feed(self) -> None:
        shard, backlog, channel = self._shard, self._backlog, self._channel
        while True:
            await self._more.wait()
            while backlog:
                room = await channel.room(shard, shard.generation)
                for _ in range(min(room, len(backlog))):
                    channel.put(backlog.popleft())
            self._more.clear()

    async def stop_reading(self) -> None:
        """Takes no more records."""
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
