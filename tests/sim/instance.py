"""One instance of the service under test: the package's own application in a simulated process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from ruststream_kinesis import KinesisBroker, RustStream
from tests.sim.fleet import Fleet
from tests.sim.handling import Behaviour, Subscription
from tests.sim.kinesis import Kinesis
from tests.sim.loop import Scheduler
from tests.sim.process import Process
from tests.sim.transport import SimTransport

__all__ = ["Instance"]


# What was cancelled at the end, and waits for an answer, is gone after that.
_GRACE = 6.0


class Instance:
    """An application from its start to its end.

    Args:
        scheduler: Time.
        rng: What its handlers do.
        name: For traces.
        owner_id: As the user may have set it.
        kinesis: The service.
        fleet: Watches it.
        behaviour: What it does.
        store: Makes the lease store of a process.
        max_shards: Of each subscription that it takes at most.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        name: str,
        owner_id: str,
        kinesis: Kinesis,
        fleet: Fleet,
        behaviour: Behaviour,
        store: Callable[[Process], Any],
        max_shards: int | None = None,
    ) -> None:
        self.process = Process(scheduler, rng, name, max_shards)
        self._scheduler = scheduler
        self._fleet = fleet
        self._trace = fleet.trace
        broker = KinesisBroker(
            lease_store=store(self.process),
            owner_id=owner_id,
            clock=self.process.clock,
            max_shards=max_shards,
        )
        broker.connection.attach(SimTransport(kinesis, fleet, self.process))
        self.app = RustStream(broker, title="sim", version="0")
        self.subscriptions = [
            Subscription(rng, self.process, kinesis, self._trace, monitor, behaviour)
            for monitor in fleet.all
        ]
        for each in self.subscriptions:
            each.declare(self.app)
        self.ended = False
        self.error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return self.process.name

    # -- life --------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether it runs, or believes that it does."""
        return self.process.alive and not self.ended

    @property
    def open(self) -> bool:
        """Whether it takes part, as far as it knows."""
        return self.live and self.process.opened_at is not None and not self.process.stopping

    def start(self) -> None:
        """Run the application."""
        self._trace.note(self.process, "start", round(self.process.clock.skew, 1))
        self._task = self.process.loop.create_task(self._run(), name="app.run")

    async def _run(self) -> None:
        try:
            await self.app.run(signals=False, started=self._opened)
        except BaseException as error:  # noqa: BLE001 - the world judges it
            self.error = error
        self._trace.note(self.process, "ended", repr(self.error))
        self.ended = True
        # It may only end by itself, or end badly, while something is wrong.
        calm = max(self._trace.calm_since, self.process.disturbed_until)
        if self._scheduler.now > calm + _GRACE and (
            self.error is not None or not self.process.stopping
        ):
            self._scheduler.fail(f"{self} ended: {self.error!r}")
        self.process.alive = False
        self._scheduler.at(self._scheduler.now + _GRACE, self._left)

    def _left(self) -> None:
        left = [task.get_name() for task in asyncio.all_tasks(self.process.loop)]
        left += [task.get_name() for task in asyncio.all_tasks(self.process.side)]
        if left:
            self._scheduler.fail(f"{self}: left running: {sorted(left)}")

    def _opened(self) -> None:
        self.process.opened_at = self._scheduler.now
        self._fleet.opened(self.process)

    def seek(self, subscription: Subscription) -> None:
        """Move one of its subscriptions somewhere, from outside of handlers."""
        loop = self.process.loop
        # Not a coroutine yet: its process may be gone before it begins.
        loop.call_soon_threadsafe(lambda: loop.create_task(subscription.seek(), name="seek"))

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        self._trace.note(self.process, "stop")
        self.process.stopping = True
        self.process.loop.call_soon_threadsafe(self.app.stop)

    def crash(self) -> None:
        """End it without a word."""
        self._trace.note(self.process, "crash")
        self.process.crash()

    def dispose(self) -> None:
        """Take apart what is left of it."""
        self.process.loop.dispose()
        self.process.side.dispose()
