"""What becomes of one record in one subscription, and which publishes of the test it goes back to.

A record travels alone here, as a run of one, so that the worker that opens it, and whoever settles
it, can say which delivery it is at.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ruststream_kinesis.attempts import NOT_BEFORE_HEADER
from ruststream_kinesis.channel import DeliveryShard, Run
from ruststream_kinesis.errors import AckUnsupported
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.outcomes import ACK, RETRY, Outcome

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ruststream_kinesis.codec import Decoder
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.testing.record import LogRecord
    from ruststream_kinesis.testing.tracking import Tracker

__all__ = ["CAUSES", "DELIVERY", "Cause", "Delivery", "Expected", "OneRun", "Watched"]

# A value may be anything, `None` too.
_NOT_YET: Final = object()


class Cause:
    """One publish of a test, with the number of open deliveries that go back to it."""

    __slots__ = ("adopted_by", "forming", "open", "waiter")

    def __init__(self) -> None:
        self.adopted_by: tuple[Cause, ...] = ()
        """On a server, what a record turned out to go back to that was read before its put was
        answered."""
        self.open = 0
        self.forming = 0
        """Those of them that wait for their batch to close."""
        self.waiter: asyncio.Future[None] | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What the kit must know of the subscription that a delivery is for."""

    tracker: Tracker
    identity: tuple[str, str | None]
    decode: Decoder
    """The handler's own, for a test that asks for the value."""
    holds: bool
    """Whether `retry()` is refused: the subscription declares no cap."""
    window: float | None
    """Seconds of *manual* time after which a batch closes; `None` where nothing waits for it."""

    @classmethod
    def of(cls, tracker: Tracker, subscriber: Subscriber, *, manual: bool) -> Watched:
        """Of a subscription, on a clock that stands still or on a real one."""
        batched = manual and subscriber.batch is not None
        return cls(
            tracker,
            subscriber.identity,
            subscriber.handler.decode,
            subscriber.retry.cap is None,
            subscriber.batch_window if batched else None,
        )


class Expected:
    """Something undecided: here, a record that was put and has not been read yet."""

    __slots__ = ("causes", "sequence_number", "shard_id", "watched")

    def __init__(
        self, watched: Watched, shard_id: str, sequence_number: str, causes: tuple[Cause, ...]
    ) -> None:
        self.watched = watched
        self.shard_id = shard_id
        self.sequence_number = sequence_number
        self.causes = causes

    @property
    def stream(self) -> str:
        """Plain name of the stream."""
        return self.watched.identity[0]

    @property
    def state(self) -> str:
        """What it waits for, in words."""
        return "it was not read yet"

    def __repr__(self) -> str:
        return f"<record {self.sequence_number} of stream {self.stream}: {self.state}>"


class Delivery(Expected):
    """One record on its way through one subscription, and what became of it."""

    __slots__ = (
        "_closed",
        "_message",
        "_value",
        "_void",
        "called",
        "error",
        "generation",
        "held",
        "place",
        "record",
        "refused",
        "returned",
        "running",
        "settled",
        "shard",
        "unsaid",
        "waiting",
    )

    def __init__(
        self,
        watched: Watched,
        shard: DeliveryShard,
        place: int,
        record: LogRecord,
        causes: tuple[Cause, ...],
    ) -> None:
        # The base's fields set directly, as each publish of a test pays for this.
        self.watched = watched
        self.shard_id = record.shard_id
        self.sequence_number = record.sequence_number
        self.causes = causes
        self.shard = shard
        self.generation = shard.generation
        self.place = place
        self.record = record
        """The record as it stands in the stream."""
        self._value: Any = _NOT_YET
        self._message: KinesisMessage[Any] | None = None
        self.called = False
        """Whether the handler was called; it is not for a payload that does not decode."""
        self.running = False
        """Whether the handler is at it now."""
        self.returned: Any = None
        """What the handler returned: of a batch handler's list, the element for this record."""
        self.error: BaseException | None = None
        """What the handler raised; `AckUnsupported` where its `retry()` was refused."""
        self.settled = False
        """Whether the checkpoint may pass the record."""
        self.waiting = False
        """Whether a copy of the record waits for its time; while it does, the record is open."""
        self.held = False
        """Whether the record was left open on purpose: it would hold the checkpoint."""
        self.refused = False
        """Whether it is held because a `retry()` was refused: no cap is declared."""
        self.unsaid = False
        """Whether a batch handler's list was too short to say anything of it."""
        self._closed = False
        self._void = False

    @property
    def value(self) -> Any:
        """The payload as the handler got it; decoded anew, so what it does to its own is not seen."""
        if self._value is _NOT_YET:
            self._value = self.watched.decode(self.record.payload)
        return self._value

    @property
    def _said(self) -> Outcome | None:
        """What was said of it, through the message or by returning it."""
        said = None if self._message is None else self._message.outcome
        if said is None and isinstance(self.returned, Outcome):
            return self.returned
        return said

    @property
    def outcome(self) -> Outcome | BaseException | None:
        """What the handler said of the record, or the error that it raised.

        `retry()` for a reply that could not be published; `None` while nothing is decided, and for
        an element that a batch handler said nothing of.
        """
        if self.error is not None and not self.refused:
            return self.error
        said = self._said
        if said is not None or self.unsaid:
            return said
        if self.held:
            return RETRY
        return ACK if self.settled and self.called else None

    @property
    def message(self) -> KinesisMessage[Any]:
        """The delivery as a handler may ask for it: headers, key, arrival, position, attempt."""
        run = OneRun(self)
        return KinesisMessage(run, self.record.index, self.value, _decided)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the delivery, with its key, sequence number and shard."""
        return self.message.headers

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.message.attempt

    def delay(self, now: float) -> float | None:
        """Seconds until the copy that waits is due, asked when it begins to; `None`: unknown.

        Args:
            now: Seconds since the epoch.
        """
        said = self._said
        if said is not None:
            return said.delay
        if self.called:
            return None  # by an error policy's own word
        # It came early itself, and waits out the rest.
        due = self.record.headers.get(NOT_BEFORE_HEADER, "")
        return int(due) / 1000 - now if due.isascii() and due.isdigit() else None

    def begin(self, message: KinesisMessage[Any]) -> None:
        """The handler is called with it."""
        self._message = message
        self.called = self.running = True
        if self.watched.window is not None:
            self.watched.tracker.formed(self)

    def end(self, returned: Any = None, error: BaseException | None = None) -> None:
        """The handler returned or raised."""
        self.running = False
        self.returned = returned
        if error is not None:
            self.error = error
        if self.settled or self.held or self.waiting or self._void:
            self._close()

    def settle(self) -> None:
        """The checkpoint may pass it."""
        self.settled = True
        if self.waiting:
            self.waiting = False
            self.watched.tracker.sent(self)
        if not self.running:
            self._close()

    def defer(self) -> None:
        """A copy of it waits for its time."""
        self.waiting = True
        self.watched.tracker.waits(self)
        if not self.running:
            self._close()

    def hold(self) -> None:
        """It stays open."""
        self.held = True
        if self.waiting:
            self.waiting = False
            self.watched.tracker.sent(self)
        said = self._said
        if said is not None and said.kind == "retry" and self.watched.holds:
            self.refused = True
            if self.error is None:
                self.error = AckUnsupported(
                    "the subscription declares neither max_attempts nor dead_letter: the record "
                    "stays open and holds the checkpoint of its shard",
                    stream=self.stream,
                    shard_id=self.shard_id,
                    sequence_number=self.sequence_number,
                )
        if not self.running:
            self._close()

    def void(self) -> None:
        """Its shard was rewound or lost: nothing becomes of it any more."""
        self._void = True
        if self.waiting:
            self.waiting = False
            self.watched.tracker.sent(self)
        if not self.running:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.watched.tracker.closed(self)

    @property
    def state(self) -> str:
        """What it is at, in words."""
        if self.running:
            return "its handler runs"
        if self.called:
            outcome = self.outcome
            return f"{outcome!r}" if outcome is not None else "left open by its handler"
        return "it waits for its handler"


class OneRun(Run):
    """One delivery; the worker that opens it is at that delivery from then on."""

    __slots__ = ("delivery",)

    def __init__(self, delivery: Delivery) -> None:
        # The fields of a `Run` set directly, as each publish of a test pays for this.
        index = delivery.record.index
        self.shard = delivery.shard
        self.generation = delivery.generation
        self.page = delivery.record.page
        self.base = delivery.place - index
        self.indices = _FIRST if index == 0 else range(index, index + 1)
        self.delivery = delivery

    def payloads_of(self, indices: Sequence[int]) -> list[bytes]:
        """The payload. Called by the worker in its own task, before the handler."""
        del indices
        return self.payloads()

    def payloads(self) -> list[bytes]:
        """The same, as a worker asks that handles one record at a time."""
        delivery = self.delivery
        DELIVERY.set(delivery)
        CAUSES.set(delivery.causes)
        index = delivery.record.index
        return self.page.payloads(index, index + 1)


_FIRST: Final = range(1)


async def _decided(_outcome: Outcome, _run: Run, _index: int) -> bool:
    """A message that a test looks at settles nothing any more."""
    return False


CAUSES: ContextVar[tuple[Cause, ...]] = ContextVar("causes", default=())
"""What a record that is appended now goes back to. Threads and tasks of a handler inherit it."""

DELIVERY: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""The delivery that the worker is at."""
