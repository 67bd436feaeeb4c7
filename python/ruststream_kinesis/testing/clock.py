"""`ManualClock`: time that moves when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["ManualClock"]

# Loop turns that follow each wake-up, so that what it set off has happened before time moves on.
# Work that needs longer (sockets, threads) is awaited by its own event, not by time.
_TURNS = 50


class ManualClock:
    """A `Clock` whose time stands still until `advance`.

    Args:
        wall: Wall-clock time at the start, seconds since the epoch.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def time(self) -> float:
        """Wall-clock time, seconds since the epoch."""
        return self._wall + self._now

    async def sleep(self, seconds: float) -> None:
        """Waits until `advance` has moved time this far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    @property
    def sleeping(self) -> list[float]:
        """How long each sleeper still has, shortest first."""
        return sorted(when - self._now for when, _, woken in self._sleepers if not woken.done())

    async def advance(self, seconds: float) -> None:
        """Moves time, waking sleepers one by one, each at its own moment.

        Raises:
            ValueError: `seconds` is negative: time only grows.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        end = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            when, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue  # cancelled meanwhile
            self._now = when
            woken.set_result(None)
            await self._settle()
        self._now = end
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
