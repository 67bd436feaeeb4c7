"""How long handlers take: a histogram of each subscription's calls, where somebody asks for it.

Nothing of it stands on the way of a record that nobody times: a handler that is timed is another
handler, made when the service starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from time import perf_counter
from typing import Any

from ruststream_kinesis.handlers import Handler
from ruststream_kinesis.router import Subscriber

__all__ = ["BUCKETS", "HandlerTimes", "Histogram"]

# Upper bounds in seconds. A handler that only computes takes 10 µs, one that asks somebody else some
# milliseconds, and one that takes longer than a minute is stuck, however much.
BUCKETS = (
    0.00001, 0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip


class Histogram:
    """Durations of the calls of one handler; a call of a batch handler is one.

    No lock: where plain `def` handlers end in several threads at once, the interpreter switches
    between none of the steps of an addition.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        """Calls in each bucket, the last one without a bound."""
        self.total = 0.0
        """Seconds of all calls together."""


class HandlerTimes:
    """The histograms of an application, by stream and group; they outlast a run."""

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, str | None], Histogram] = {}

    def timing(self, subscribers: Sequence[Subscriber]) -> tuple[Subscriber, ...]:
        """The same subscribers with handlers that are timed."""
        return tuple(
            replace(
                each,
                handler=_timed(
                    each.handler, self.histograms.setdefault(each.identity, Histogram())
                ),
            )
            for each in subscribers
        )


def _timed(handler: Handler, histogram: Histogram) -> Handler:
    call, counts = handler.call, histogram.counts
    # Spelled out three times, since each call of a function would cost a quarter of all this.
    if handler.is_async and handler.sources is None:

        @wraps(call)
        async def timed_alone(value: Any) -> Any:
            began = perf_counter()
            try:
                return await call(value)
            finally:
                seconds = perf_counter() - began
                counts[bisect_left(BUCKETS, seconds)] += 1
                histogram.total += seconds

        return replace(handler, call=timed_alone)

    if handler.is_async:

        @wraps(call)
        async def timed(*arguments: Any) -> Any:
            began = perf_counter()
            try:
                return await call(*arguments)
            finally:
                seconds = perf_counter() - began
                counts[bisect_left(BUCKETS, seconds)] += 1
                histogram.total += seconds

        return replace(handler, call=timed)

    @wraps(call)
    def timed_in_thread(*arguments: Any) -> Any:
        began = perf_counter()
        try:
            return call(*arguments)
        finally:
            seconds = perf_counter() - began
            counts[bisect_left(BUCKETS, seconds)] += 1
            histogram.total += seconds

    return replace(handler, call=timed_in_thread)
