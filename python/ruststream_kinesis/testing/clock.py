"""Time in a test: `ManualClock` moves when the test says so, `LiveClock` is real."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import weakref
from typing import Any

from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.testing.undecided import Undecided

__all__ = ["LiveClock", "ManualClock"]

# Loop turns that follow each wake-up, so that what it set off has happened before time moves on.
# Work that needs longer (sockets, threads) is awaited by its own event, not by time.
_TURNS = 50


class ManualClock:
    """A `Clock` whose time stands still until `advance`.

    Args:
        wall: Wall-clock time at the start, seconds since the epoch.
        limit: Real seconds that one `advance` may take; `None`: as long as something is due.
    """

    def __init__(self, wall: float = 1_700_000_000.0, limit: float | None = None) -> None:
        self._wall = wall
        self._limit = limit
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._hasty: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where time is kept; sleepers on other loops wait by way of it."""

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
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        hasty = bool(self._hasty) and task is not None and task in self._hasty
        if hasty and task is not None:
            self._hasty.discard(task)
        if self.loop is not None and loop is not self.loop:
            there = self._move(seconds) if hasty else self.sleep(seconds)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there, self.loop))
            return
        if hasty:
            await self._move(seconds)
            return
        woken = loop.create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    def hasten(self) -> None:
        """A sleep of the running task that follows at once moves time instead of waiting."""
        task = asyncio.current_task()
        if task is not None:
            self._hasty.add(task)
            # A sleep that does not follow at once is about something else.
            asyncio.get_running_loop().call_soon(self._hasty.discard, task)

    @property
    def sleeping(self) -> list[float]:
        """How long each sleeper still has, shortest first."""
        return sorted(when - self._now for when, _, woken in self._sleepers if not woken.done())

    async def advance(self, seconds: float) -> None:
        """Moves time, waking sleepers one by one, each at its own moment.

        Raises:
            ValueError: `seconds` is negative: time only grows.
            Undecided: It takes longer than the limit: each sleep leads to another.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        await self._move(seconds, math.inf if self._limit is None else self._limit)

    async def _move(self, seconds: float, limit: float = math.inf) -> None:
        """Within the service without a limit: what the test waits for has one of its own."""
        loop, begin, end = asyncio.get_running_loop(), self._now, self._now + seconds
        deadline = loop.time() + limit
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            if loop.time() >= deadline:
                raise Undecided(
                    f"{limit:g} s have passed, and time has moved by {self._now - begin:g} s of "
                    f"{seconds:g} s: something sleeps again whenever it wakes, as a handler does "
                    "that always answers retry_after(), or a loop of a hook"
                )
            when, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue  # cancelled meanwhile
            self._now = max(self._now, when)  # others may move time meanwhile
            woken.set_result(None)
            await self._settle()
        self._now = max(self._now, end)
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class LiveClock(SystemClock):
    """The machine's own time, for a test on a server: `advance` really waits.

    Args:
        limit: The most seconds that a test may wait at once.
    """

    __slots__ = ("_limit",)

    def __init__(self, limit: float) -> None:
        self._limit = limit

    async def advance(self, seconds: float) -> None:
        """Waits.

        Raises:
            ValueError: `seconds` is negative: time only grows.
            ConfigurationError: A test would wait for longer than its timeout.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        if seconds > self._limit:
            raise ConfigurationError(
                f"on a server time is real, and {seconds:g} s are more than the {self._limit:g} s "
                "of this test's timeout: shorten the delay, or run this test in process only"
            )
        await self.sleep(seconds)

    def hasten(self) -> None:
        """Nothing to do: real time passes by itself."""
