"""What the world knows of one process, beside the code that it runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.sim.loop import Scheduler, SimLoop

__all__ = ["Process", "ProcessClock"]


class ProcessClock:
    """The clocks of one machine: nobody else's monotonic one compares, and the wall one is off."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        # Whole seconds: see the scheduler about exact sums.
        self._since = float(rng.randint(-10_000, 1_000_000))
        self.skew = float(rng.randint(-90, 90))

    def monotonic(self) -> float:
        """Return seconds since this machine's own start."""
        return self._scheduler.now + self._since

    def time(self) -> float:
        """Return what this machine believes the time to be."""
        return 1_700_000_000.0 + self._scheduler.now + self.skew

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(max(0.0, seconds))


class Process:
    """One process: its loops, its clocks, and what it has been told.

    Args:
        scheduler: Where its loops run.
        rng: Its clocks.
        name: For traces.
        max_shards: Of each subscription that it takes at most.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        name: str,
        max_shards: int | None = None,
    ) -> None:
        self.name = name
        self.max_shards = max_shards
        self.scheduler = scheduler
        self.clock = ProcessClock(scheduler, rng)
        self.loop = SimLoop(scheduler, name)
        self.side = SimLoop(scheduler, f"{name}/heartbeat")
        self.known: set[str | None] = set()
        """Acquisitions whose answer came."""
        self.told: set[str | None] = set()
        """Acquisitions of which it knows that they are over."""
        self.alive = True
        self.stopping = False
        self.opened_at: float | None = None
        self.disturbed_until = 0.0
        """Something held it up until then."""

    def __repr__(self) -> str:
        return self.name

    def disturb(self, seconds: float) -> None:
        """Note that it is held up for so long."""
        self.disturbed_until = max(self.disturbed_until, self.scheduler.now + seconds)

    def pause(self, seconds: float) -> None:
        """Run nothing of it for a while, as SIGSTOP does."""
        self.disturb(seconds)
        self.loop.freeze(seconds)
        self.side.freeze(seconds)

    def block(self, seconds: float) -> None:
        """Hold up its main loop, as a handler that blocks."""
        self.disturb(seconds)
        self.loop.freeze(seconds)

    def crash(self) -> None:
        """End it without a word."""
        self.alive = False
        self.loop.kill()
        self.side.kill()

    async def run_in_thread(self, name: str, work: Any) -> None:
        """Run a coroutine as a thread of its own would: stands in for the package's."""
        here = asyncio.get_running_loop()
        ended = here.create_future()

        async def main() -> None:
            error: BaseException | None = None
            try:
                await work()
            except BaseException as raised:  # noqa: BLE001 - whoever waits raises it
                error = raised
            here.call_soon_threadsafe(_set, ended, error)

        task: Any = None

        def start() -> None:
            nonlocal task
            task = self.side.create_task(main(), name=name)

        self.side.call_soon_threadsafe(start)
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            # Not `task.cancel` itself: there may be no task yet.
            self.side.call_soon_threadsafe(lambda: task.cancel())  # noqa: PLW0108 - as above
            await asyncio.wait({ended}, timeout=5.0)
            raise
        if ended.result() is not None:
            raise ended.result()


def _set(future: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not future.done():
        future.set_result(error)
