"""`HeldShard`: one shard while this instance holds it - generation, watermark, position.

Everything that may change which deliveries count happens here, in one place: taking places,
settling, holding, losing the shard. Invariant: the checkpoint that `position` yields never passes a
delivery that is still open, and nothing that was read under an older generation can move it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ruststream_kinesis._core import Page, Watermark
from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import Fence
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.counters import ReadCounters
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.leases.base import SHARD_END, LeaseState
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.state import ShardState
from ruststream_kinesis.wording import fields, kind

__all__ = ["MAX_HELD", "HeldShard", "Mark"]

logger = logging.getLogger("ruststream_kinesis")

# Refused deliveries that a shard may hold before it is released and read again from the first.
MAX_HELD = 10_000


class Mark(NamedTuple):
    """What a row keeps of how far a shard is: one of the two, the other is `None`."""

    checkpoint: str | None
    resume_from: KinesisPosition | None


class HeldShard:
    """A shard from the moment its lease is taken until it is released, lost or finished.

    Args:
        lease: The acquisition; its token fences every write.
        opening: Where the first read starts.
        after: Whether `opening` names a record that was handled already.
        clock: Time.
        moved: Called whenever there is something new to store.
        at_tip: The first iterator may be `LATEST`; a later one is built at `opening`.
        counters: The subscription's.
    """

    def __init__(
        self,
        lease: LeaseState,
        opening: KinesisPosition,
        *,
        after: bool,
        clock: Clock,
        moved: Callable[[HeldShard], None],
        at_tip: bool = False,
        counters: ReadCounters | None = None,
    ) -> None:
        self.lease = lease
        self.stream = lease.key.stream
        self.shard_id = lease.key.shard_id
        self.generation = 0
        self.ceiling: float = math.inf
        self.fence: Fence | None = None
        self.started = -1
        self.watermark = Watermark()
        self._settle = self.watermark.settle
        self.read_from = opening
        """Where an iterator is built: the opening, then the last record that took its place."""
        self.read_after = after
        self.read_at_tip = at_tip
        """The next iterator may be `LATEST`: once, a lost one is built at `read_from`."""
        self.resume_from: KinesisPosition | None = None
        """Where the shard was moved; it counts until something is settled from there on."""
        self.ended = False
        """The shard is closed and every record of it took its place."""
        self.unread = False
        """Nothing more is read of it: it has ended, or holds too many. Until a rewind starts its
        reader again, what is open is all that keeps it from being let go."""
        self.lost = False
        self.busy = False
        """A handler runs whose delivery a rewind made void: until it has ended, the shard is not
        finished, since its children hold the same keys."""
        self.writing = False
        """A checkpoint write is on its way or due: it will see what moves meanwhile by itself."""
        self.lag_ms: int | None = None
        """How far the last page was behind the tip; `None` where the service did not say."""
        self.counters = counters or ReadCounters()
        self.polled_at: float | None = None
        """When a read was answered last, on the monotonic clock; `None` before the first."""
        self.read_error: str | None = None
        """Class and code of the last failure to read, while reads fail."""
        self.feeding = False
        """A page of it waits until handlers make room, and its reader with it."""
        self._began: float | None = None
        """When its reader began."""
        self.opened = asyncio.Event()
        """The first iterator, since the last rewind, is there, or the first attempt failed."""
        self._moved = moved
        self._clock = clock
        self._held_log = MinuteLog(clock)
        self._held_since: float | None = None

    def begins(self) -> None:
        """A reader begins, the first or another one."""
        self.unread = False
        self._began, self.polled_at = self._clock.monotonic(), None

    def polled(self, page: Page) -> None:
        """A read was answered."""
        counters = self.counters
        counters.reads += 1
        counters.records += len(page)
        self.polled_at, self.read_error = self._clock.monotonic(), None
        self.lag_ms = page.millis_behind_latest

    def failed(self, error: KinesisError) -> None:
        """A read, or its iterator, could not be had."""
        self.counters.failed(getattr(error, "code", None) or type(error).__name__)
        self.read_error = kind(error)

    def deliver(self, page: Page) -> int:
        """The whole page takes its places, in arrival order.

        Returns:
            The place of its first record.
        """
        watermark = self.watermark
        before = watermark.position if page.empty_aggregates else None
        base = watermark.deliver(page)
        last = page.last_sequence_number
        if last is not None:
            # An aggregate takes all its places in one page: nothing of it is behind this number.
            self.read_from, self.read_after = KinesisPosition.sequence(self.shard_id, last), True
        if page.empty_aggregates and watermark.position != before and not self.writing:
            # Nobody will settle them, so that nobody else says that the checkpoint may pass them.
            self._moved(self)
        return base

    def end(self) -> None:
        """The reader reached the end of the shard; it is finished when all of it is settled."""
        self.ended = True
        self._look_at_end()

    def idle(self) -> None:
        """No handler of it runs whose delivery is void."""
        self.busy = False
        self._look_at_end()

    def _look_at_end(self) -> None:
        if self.finished and not self.writing:
            self._moved(self)

    def last_of_record(self, place: int) -> int:
        """The last place of the record of the log, an aggregate maybe, that a delivery is out of."""
        return self.watermark.last_of_record(place)

    def ack(self, place: int) -> None:
        """Settles the delivery at `place`: the checkpoint moves if no earlier one is open."""
        if self._settle(place) and not self.writing:
            self._moved(self)

    def ack_range(self, start: int, stop: int) -> None:
        """Settles the deliveries at `start` up to, not including, `stop`."""
        if self.watermark.settle_range(start, stop) and not self.writing:
            self._moved(self)

    def ack_all(self, places: Sequence[int]) -> None:
        """Settles the deliveries at `places`."""
        if self.watermark.settle_all(places) and not self.writing:
            self._moved(self)

    def hold(self, place: int) -> None:
        """Keeps the delivery open, with its place and nothing else."""
        if self.watermark.hold(place):
            if self.watermark.held == 1:
                self._held_since = self._clock.monotonic()
            count = self._held_log.due()
            if count is not None:
                logger.warning(
                    "shard %s of stream %s: %d record(s) more stay open (retry(), a failed handler, "
                    "or what could not be published), %d in all; they hold the checkpoint, after "
                    "%s, until the shard is taken anew. With max_attempts or dead_letter, retries "
                    "let it move on",
                    self.shard_id,
                    self.stream,
                    count,
                    self.watermark.held,
                    self.watermark.position or "the opening",
                    extra=fields(self.stream, self.shard_id),
                )

    def hold_above(self, ceiling: float) -> None:
        """Keeps open what lies above `ceiling`: it was never started, and never will be here."""
        if ceiling < self.watermark.next_place:
            for place in range(int(ceiling) + 1, self.watermark.next_place):
                self.watermark.hold(place)

    def defer(self, place: int) -> None:
        """Nothing to note: the place is open, and is settled when its copy is in the stream."""

    @property
    def state(self) -> ShardState:
        """The shard at this moment."""
        watermark, since, now = self.watermark, self._held_since, self._clock.monotonic()
        held_for = None
        if watermark.held and since is not None:
            held_for = now - since
        return ShardState(
            shard_id=self.shard_id,
            checkpoint=self.checkpoint,
            lag_ms=self.lag_ms,
            open=watermark.open,
            held=watermark.held,
            held_for=held_for,
            ended=self.ended,
            reading_for=None
            if self._began is None or self.ended or self.unread
            else now - self._began,
            polled_ago=None if self.polled_at is None else now - self.polled_at,
            read_error=self.read_error,
            waiting=self.feeding,
        )

    def lose(self) -> None:
        """The lease is gone: queued deliveries become void and nothing is written any more."""
        self.lost = True
        self.void()
        self.opened.set()

    def void(self) -> None:
        """Makes every delivery so far void and starts the watermark anew."""
        self.generation += 1
        self.watermark.reset()

    def rewind(self, position: KinesisPosition, *, at_tip: bool = False) -> None:
        """Reads anew from `position`; nothing delivered so far counts any more."""
        self.void()
        self.read_from, self.read_after, self.read_at_tip = position, False, at_tip
        self.resume_from = position
        self.ended = False
        self.lag_ms = None
        # Whoever waits for the old one waits for nothing any more.
        self.opened.set()
        self.opened = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether the shard ended and every delivery of it is settled.

        A shard that is lost has no deliveries any more, and is not finished by that.
        """
        return self.ended and not self.lost and not self.busy and self.watermark.open == 0

    @property
    def checkpoint(self) -> str | None:
        """What to store now; `None` when nothing was settled since the shard was taken."""
        return SHARD_END if self.finished else self.watermark.position

    @property
    def mark(self) -> Mark | None:
        """What its row should say; `None` when that is what it says since the shard was taken."""
        if (checkpoint := self.checkpoint) is not None:
            return Mark(checkpoint, None)
        return None if self.resume_from is None else Mark(None, self.resume_from)
