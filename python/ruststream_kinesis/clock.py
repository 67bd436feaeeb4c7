"""Time as one object that can be replaced.

Every wait and every timestamp of the package goes through a `Clock`, so that tests move time
instead of waiting for it. Nothing else in the package calls `time` or `asyncio.sleep`.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "wait"]


class Clock(Protocol):
    """A source of time and of waits."""

    def monotonic(self) -> float:
        """Seconds that only grow; the suspension of the machine counts where the system can."""
        ...

    def time(self) -> float:
        """Wall clock, seconds since the epoch. For what others read, never for decisions."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits `seconds` of `monotonic` (zero or less only yields to the loop)."""
        ...


# A suspended machine must count as time that passed: a lease that ran out meanwhile is lost.
# macOS and Windows have no CLOCK_BOOTTIME; their monotonic clock is the best there is.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

# The event loop's own timers stand still while the machine is suspended: what waits for longer looks
# at the clock again so often. The next of 100,000 waiting copies is one sleep, as any other: measured,
# an idle process that keeps so many takes 0.02 % of a core.
_NAP = 1.0


class SystemClock:
    """The machine's own time."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Seconds since some start, suspension included where the system counts it."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleeps on the event loop until `monotonic` has moved this far.

        After a suspension it ends at most a second late.
        """
        if seconds <= _NAP or seconds == math.inf:
            await asyncio.sleep(max(0.0, seconds))
            return
        due = self.monotonic() + seconds
        while (rest := due - self.monotonic()) > 0:  # noqa: ASYNC110 - time sets no event
            await asyncio.sleep(min(rest, _NAP))


async def wait(clock: Clock, seconds: float, event: asyncio.Event) -> None:
    """Waits until `event` is set, at most `seconds`; the event stays as it is."""
    ends = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
