"""The handler's side of every run: it sees ids, opens and closes the clock, and checks them.

All contenders share it, so what it costs (some 0.1 µs a record) is the same for each. The clock
runs from the first record of one page to the first record of another, far inside the stream: what
comes before (connecting, leases, the first answers) and after (the stop) is not measured, and a
contender that reads ahead gains nothing, since it reads ahead at both ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.cpu import Sample, Stopwatch
from benches.pages import Order, Spec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

# Before the clock starts: connections, caches and the adaptive interpreter have settled.
WARMUP_PAGES = 3
# After it stops: one page is still being read or handled by then.
TAIL_PAGES = 2


class WrongResultError(AssertionError):
    """A contender lost, repeated or reordered records: its time means nothing."""


@dataclass(frozen=True)
class Plan:
    """How much one run reads, and over which part of it the clock runs."""

    records: int = 1_000
    record_bytes: int = 512
    pages: int = 40
    """Measured pages."""
    uvloop: bool = False
    """Run on uvloop instead of the stock event loop."""
    warmup: int = WARMUP_PAGES
    """Pages before the clock starts."""

    def run(self, main: Coroutine[object, object, Sample]) -> Sample:
        """`asyncio.run` on the event loop of this plan."""
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
        if self.uvloop:
            import uvloop  # noqa: PLC0415 (optional: only for runs that ask for it)

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    @property
    def spec(self) -> Spec:
        """The stream that holds this run, warm-up and tail included."""
        return Spec(
            records=self.records,
            record_bytes=self.record_bytes,
            pages=self.warmup + self.pages + TAIL_PAGES,
        )


class Tally:
    """What one run has seen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ids: list[int] = []
        self.done = asyncio.Event()
        """Set when the last record of the stream has been handled."""
        self.sample: Sample | None = None
        self._watch = Stopwatch()
        self._seen_at_start = 0
        spec = plan.spec
        self._first = spec.record_id(0, plan.warmup, 0)
        self._end = spec.record_id(0, plan.warmup + plan.pages, 0)
        self._last = spec.record_id(0, spec.pages - 1, spec.records - 1)

    def handler(self) -> Callable[[Order], Awaitable[None]]:
        """A handler that does nothing but be counted."""
        append = self.ids.append
        marks = frozenset((self._first, self._end, self._last))
        reached = self._reached

        # The service resolves this annotation at run time: `Order` must stay a real import here.
        async def handle(order: Order) -> None:
            append(order.id)
            if order.id in marks:
                reached(order.id)

        return handle

    def batch_handler(self) -> Callable[[list[Order]], Awaitable[None]]:
        """The same for lists: the clock is read at the end of the batch that a mark stands in."""
        extend = self.ids.extend
        marks = frozenset((self._first, self._end, self._last))
        reached = self._reached

        async def handle(orders: list[Order]) -> None:
            seen = [order.id for order in orders]
            extend(seen)
            for order_id in sorted(marks.intersection(seen)):
                reached(order_id)

        return handle

    def _reached(self, order_id: int) -> None:
        if order_id == self._first:
            self._seen_at_start = len(self.ids)
            self._watch.start()
        elif order_id == self._end:
            # What was handled between the two readings, whatever a batch was made of.
            self.sample = self._watch.stop(len(self.ids) - self._seen_at_start)
        else:
            self.done.set()

    def checked(self, *, in_order: bool = True) -> Sample:
        """The sample, once every id of the stream was seen exactly once.

        Raises:
            WrongResultError: Records are missing, repeated or, where order counts, out of order.
        """
        spec = self.plan.spec
        expected = spec.ids(0, spec.pages)
        seen = self.ids if in_order else sorted(self.ids)
        if seen != expected:
            missing = len(set(expected) - set(seen))
            raise WrongResultError(
                f"{len(seen)} records seen of {len(expected)}, {missing} missing, "
                f"{len(seen) - len(set(seen))} repeated, or not in order"
            )
        if self.sample is None:
            raise WrongResultError("the measured part of the stream was never reached")
        return self.sample
