"""Who waits for what: open deliveries, the publishes that caused them, and when all is decided.

Invariant: a delivery is open from the moment its record is in the stream until it is settled, held
or waiting as a copy *and* its handler has ended. Whatever a handler publishes before that has the
same cause, so a cause with nothing open has had all its consequences.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing.delivery import Cause, Delivery, Expected
from ruststream_kinesis.testing.undecided import Undecided

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ruststream_kinesis.testing.clock import LiveClock, ManualClock
    from ruststream_kinesis.transport import PutResult

__all__ = ["Tracker"]

# Named in an error; a test that leaves more open than this has one fault, not many.
_NAMED = 5
# Loop turns without a change until a batch is believed to get no more records. Publishes that a
# test starts together are in their streams after one.
_TURNS = 10


class Tracker:
    """Every open delivery of one test, and who waits for them.

    Args:
        clock: The service's time; a manual one is moved where only a batch's window is waited for.
        timeout: Real seconds until a wait gives up.
    """

    def __init__(self, clock: ManualClock | LiveClock, timeout: float) -> None:
        self.open: dict[Expected, None] = {}
        self.loop: asyncio.AbstractEventLoop
        """The service's; set when the test begins."""
        self._clock = clock
        self._timeout = timeout
        self._idle: list[asyncio.Future[None]] = []
        # Who waits, oldest first, with the deadline. One timer for the oldest serves them all: a
        # test publishes thousands of times, and a timer each would be a good part of its cost.
        self._waiting: dict[Cause, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended: str | None = None
        self._failure: BaseException | None = None
        # Deliveries that wait for their batch to close, and what closes it.
        self._forming: dict[Delivery, None] = {}
        self._changes = 0
        self._closing: asyncio.Task[None] | None = None
        # Deliveries whose copy waits, with the time it is due, as far as that is known.
        self._copies: dict[Delivery, float] = {}

    def opened(self, each: Expected) -> None:
        """A record is on its way to a subscription."""
        self.open[each] = None
        for cause in each.causes:
            cause.open += 1
        if isinstance(each, Delivery) and each.watched.window is not None:
            self._forming[each] = None
            for cause in each.causes:
                cause.forming += 1
            self._look_at_batches()

    def adopted(self, cause: Cause, by: tuple[Cause, ...]) -> None:
        """What goes back to `cause` turns out to go back to these."""
        cause.adopted_by += by
        for each in self.open:
            if cause in each.causes:
                more = tuple(one for one in by if one not in each.causes)
                each.causes += more
                for one in more:
                    one.open += 1

    def formed(self, delivery: Delivery) -> None:
        """Its batch is closed, or it will be in none."""
        if delivery in self._forming:
            del self._forming[delivery]
            for cause in delivery.causes:
                cause.forming -= 1
            self._look_at_batches()

    def closed(self, each: Expected) -> None:
        """Its outcome is decided; once more changes nothing."""
        if each not in self.open:
            return
        if self._forming:
            if isinstance(each, Delivery):
                self.formed(each)
            self._look_at_batches()
        del self.open[each]
        for cause in each.causes:
            cause.open -= 1
            if not cause.open and cause.waiter is not None:
                _wake(cause.waiter)
        if self._idle and not self.open:
            self._wake_idle()

    def waits(self, delivery: Delivery) -> None:
        """A copy of the delivery is kept until it is due."""
        delay = delivery.delay(self._clock.time())
        if delay is not None:
            self._copies[delivery] = self._clock.monotonic() + delay

    def sent(self, delivery: Delivery) -> None:
        """The copy is in its stream, or will never be."""
        self._copies.pop(delivery, None)
        if self._idle:
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
        if self._closing is not None:
            self._closing.cancel()

    async def decided(self, cause: Cause, to: str, put: PutResult) -> None:
        """Waits until nothing that goes back to `cause` is open.

        Args:
            cause: A publish of the test.
            to: Its stream.
            put: Where its record stands.

        Raises:
            Undecided: The service ended, or the time passed.
        """
        loop = asyncio.get_running_loop()
        self._waiting[cause] = deadline = loop.time() + self._timeout
        if self._timer is None and self._ended is None:
            self._timer = loop.call_at(deadline, self._look)
        if cause.forming:
            self._look_at_batches()
        try:
            # Again after each wake-up: a task that a handler started may have published meanwhile.
            while cause.open and self._ended is None:
                cause.waiter = loop.create_future()
                await cause.waiter
                if cause.open and loop.time() >= deadline:
                    break
            if cause.open:
                left = [each for each in self.open if cause in each.causes]
                raise self._undecided(left, StreamRef.parse(to).name, put)
        finally:
            del self._waiting[cause]
            cause.waiter = None

    async def idle(self) -> None:
        """Waits until nothing at all is open, and every copy that is due is in its stream.

        Raises:
            Undecided: The service ended, or the time passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while left := [*self.open, *self._due()]:
            if self._ended is not None or loop.time() >= deadline:
                raise self._undecided(left, left[0].stream, left[0])
            waiter = loop.create_future()
            self._idle.append(waiter)
            if self._forming:
                self._look_at_batches()
            timer = loop.call_at(deadline, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()

    @property
    def unfinished(self) -> str:
        """What is open, or waits as a copy, for messages; empty where nothing does."""
        return _named([*self.open, *self._copies])

    def _due(self) -> list[Delivery]:
        now = self._clock.monotonic()
        return [each for each, due in self._copies.items() if due <= now]

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

    def _look_at_batches(self) -> None:
        self._changes += 1
        if self._closing is None and self._ended is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._close_batches(), name="test[batch windows]"
            )
            self._closing.add_done_callback(self._looked)

    def _looked(self, _task: asyncio.Task[None]) -> None:
        self._closing = None

    async def _close_batches(self) -> None:
        """Moves time to the end of a batch's window where somebody waits for nothing else.

        Only once for each change, so that a batch that is held up otherwise lets no time run away.
        """
        seen = -1
        while seen != self._changes:
            # Nothing may happen for some turns: more records would be in the same batch.
            while seen != self._changes:
                seen = self._changes
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            if not self._stuck():
                return
            for window in sorted({each.watched.window or 0.0 for each in self._forming}):
                # Who waits has a limit of its own.
                with contextlib.suppress(Undecided):
                    await self._clock.advance(window)
                if seen != self._changes:
                    break

    def _stuck(self) -> bool:
        """Whether somebody waits for forming batches only."""
        if self._idle and len(self._forming) == len(self.open) > 0:
            return True
        return any(cause.forming == cause.open > 0 for cause in self._waiting)

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            _wake(waiter)

    def _undecided(self, left: list[Expected], stream: str, at: PutResult | Expected) -> Undecided:
        why = self._ended or f"{self._timeout:g} s have passed"
        error = Undecided(
            f"{why}, and {len(left)} delivery(ies) have no outcome: {_named(left)}",
            stream=stream,
            shard_id=at.shard_id,
            sequence_number=at.sequence_number,
        )
        error.__cause__ = self._failure
        return error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _named(deliveries: Iterable[Expected]) -> str:
    names = [repr(each) for each in deliveries]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
