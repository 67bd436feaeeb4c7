"""Who waits for what: deliveries, the publishes that caused them, and when all is decided.

Invariant: a delivery is open from the moment its record is appended until it is settled or held
*and* its handler has ended. Whatever a handler publishes before that has the same cause, so a cause
with nothing open has had all its consequences.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ruststream_kinesis.channel import Run
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.outcomes import ACK, RETRY, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ruststream_kinesis.errors import AckUnsupported
    from ruststream_kinesis.testing.feed import LogShard
    from ruststream_kinesis.testing.log import LogRecord

__all__ = ["CAUSE", "DELIVERY", "Cause", "Delivery", "Tracker", "Undecided"]

# A value may be anything, `None` too.
_NOT_YET: Final = object()
# Named in an error; a test that leaves more open than this has one fault, not many.
_NAMED = 5


class Undecided(KinesisError):
    """A publish of a test whose deliveries did not all get an outcome.

    The message names the record and what is still open; the cause (`__cause__`) is what ended the
    service, where something did.
    """


class Cause:
    """One publish of a test, with the number of open deliveries that go back to it."""

    __slots__ = ("open", "record", "waiter")

    def __init__(self) -> None:
        self.open = 0
        self.record: LogRecord | None = None
        """The record that was published."""
        self.waiter: asyncio.Future[None] | None = None


class Delivery:
    """One record on its way through one subscription, and what became of it."""

    __slots__ = (
        "_closed",
        "_place",
        "_shard",
        "_value",
        "asked",
        "called",
        "cause",
        "error",
        "held",
        "record",
        "returned",
        "running",
        "settled",
        "tracker",
        "waiting",
    )

    def __init__(
        self, tracker: Tracker, shard: LogShard, place: int, record: LogRecord, cause: Cause | None
    ) -> None:
        self.tracker = tracker
        self._shard = shard
        self._place = place
        self._value: Any = _NOT_YET
        self.record = record
        self.cause = cause
        self.asked: KinesisMessage[Any] | None = None
        """The message that the handler was given, if it asked for it."""
        self.called = False
        """Whether the handler was called; it is not for a payload that does not decode."""
        self.running = False
        """Whether the handler is at it now."""
        self.returned: Any = None
        """What the handler returned, as it is."""
        self.error: BaseException | None = None
        """What the handler raised; `AckUnsupported` where its `retry()` was refused."""
        self.settled = False
        """Whether the checkpoint may pass the record."""
        self._closed = False
        self.waiting = False
        """Whether a copy of the record waits, or waited, for its time."""
        self.held = False
        """Whether the record was left open on purpose: it would hold the checkpoint."""

    @property
    def value(self) -> Any:
        """The payload as the handler got it; decoded anew, so what it does to its own is not seen."""
        if self._value is _NOT_YET:
            self._value = self._shard.decode(self.record.payload)
        return self._value

    @property
    def outcome(self) -> Outcome | BaseException | None:
        """What the handler said of the record, or the error that it raised.

        `retry()` for a reply that could not be published; `None` while nothing is decided.
        """
        said = self.asked.outcome if self.asked is not None else None
        if self.error is not None and not self._refused:
            return self.error
        if said is not None:
            return said
        if isinstance(self.returned, Outcome):
            return self.returned
        if self.held:
            return RETRY
        return ACK if self.settled and self.called else None

    @property
    def message(self) -> KinesisMessage[Any]:
        """The delivery as a handler may ask for it: headers, key, arrival, position, attempt."""
        run = Run(self._shard, self._shard.generation, self.record.page, self._place, range(1))
        return KinesisMessage(run, 0, self.value, _decided)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the delivery, with its key, sequence number and shard."""
        return self.message.headers

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.message.attempt

    @property
    def _refused(self) -> bool:
        """Whether `error` is the answer to a `retry()`, and not what the handler raised."""
        return isinstance(self.returned, Outcome)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.tracker.closed(self)

    def ended(self) -> None:
        """The handler returned or raised."""
        self.running = False
        if self.settled or self.held or self.waiting:
            self._close()

    def settle(self) -> None:
        """The checkpoint may pass it."""
        self.settled = True
        if not self.running:
            self._close()

    def defer(self) -> None:
        """A copy of it waits for its time."""
        self.waiting = True
        if not self.running:
            self._close()

    def hold(self, refusal: AckUnsupported) -> None:
        """It stays open; the in-process log does not bring it back."""
        self.held = True
        if isinstance(self.returned, Outcome) and self.error is None:
            self.error = refusal
        if not self.running:
            self._close()

    def __repr__(self) -> str:
        state = "its handler runs" if self.running else "it waits for its handler"
        if self.called and not self.running:
            state = f"{self.outcome!r}" if self.outcome else "left open by its handler"
        return f"<record {self.record.sequence_number} of stream {self._shard.stream}: {state}>"


async def _decided(_outcome: Outcome, _run: Run, _index: int) -> bool:
    """A message that a test looks at settles nothing any more."""
    return False


CAUSE: ContextVar[Cause | None] = ContextVar("cause", default=None)
"""What a record that is appended now goes back to. Threads and tasks of a handler inherit it."""

DELIVERY: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""The delivery that the worker is at."""


class Tracker:
    """Every open delivery of one log, and who waits for them.

    Args:
        timeout: Real seconds until a wait gives up.
    """

    def __init__(self, timeout: float) -> None:
        self.open: dict[Delivery, None] = {}
        self._timeout = timeout
        self._idle: list[asyncio.Future[None]] = []
        # Who waits, oldest first, with the deadline. One timer for the oldest serves them all: a
        # test publishes thousands of times, and a timer each would be a good part of its cost.
        self._waiting: dict[Cause, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended: str | None = None
        self._failure: BaseException | None = None

    def opened(self, delivery: Delivery) -> None:
        """A record is on its way to a subscription."""
        self.open[delivery] = None
        if delivery.cause is not None:
            delivery.cause.open += 1

    def closed(self, delivery: Delivery) -> None:
        """Its outcome is decided; once more changes nothing."""
        if delivery not in self.open:
            return
        del self.open[delivery]
        cause = delivery.cause
        if cause is not None:
            cause.open -= 1
            if not cause.open and cause.waiter is not None:
                _wake(cause.waiter)
        if not self.open and self._idle:
            self._wake_idle()

    def end(self, why: str, failure: BaseException | None) -> None:
        """The service is over: what is open now stays so."""
        self._ended, self._failure = why, failure
        for cause in self._waiting:
            if cause.waiter is not None:
                _wake(cause.waiter)
        self._wake_idle()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def decided(self, cause: Cause) -> None:
        """Waits until nothing that goes back to `cause` is open.

        Raises:
            Undecided: The service ended, or the time passed.
        """
        loop = asyncio.get_running_loop()
        self._waiting[cause] = deadline = loop.time() + self._timeout
        if self._timer is None and self._ended is None:
            self._timer = loop.call_at(deadline, self._look)
        try:
            # Again after each wake-up: a task that a handler started may have published meanwhile.
            while cause.open and self._ended is None:
                cause.waiter = loop.create_future()
                await cause.waiter
                if cause.open and loop.time() >= deadline:
                    break
            if cause.open:
                raise self._undecided(cause)
        finally:
            del self._waiting[cause]
            cause.waiter = None

    async def idle(self) -> None:
        """Waits until nothing at all is open.

        Raises:
            Undecided: The service ended, or the time passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while self.open:
            if self._ended is not None or loop.time() >= deadline:
                raise self._undecided(None)
            waiter = loop.create_future()
            self._idle.append(waiter)
            timer = loop.call_at(deadline, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()

    def _look(self) -> None:
        """Wakes those whose time is over, and comes again when that of the oldest is."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        for cause, deadline in self._waiting.items():
            if deadline > now:
                self._timer = loop.call_at(deadline, self._look)
                return
            if cause.waiter is not None:
                _wake(cause.waiter)

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            _wake(waiter)

    def _undecided(self, cause: Cause | None) -> Undecided:
        why = self._ended or f"{self._timeout:g} s have passed"
        left = [each for each in self.open if cause is None or each.cause is cause]
        record = left[0].record if cause is None or cause.record is None else cause.record
        error = Undecided(
            f"{why}, and {len(left)} delivery(ies) have no outcome: {_named(left)}",
            stream=record.stream,
            shard_id=record.shard_id,
            sequence_number=record.sequence_number,
        )
        error.__cause__ = self._failure
        return error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _named(deliveries: Iterable[Delivery]) -> str:
    names = [repr(each) for each in deliveries]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
