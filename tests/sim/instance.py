"""One instance of the service under test: the package's own application in a simulated process."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisStream,
    Outcome,
    RustStream,
    drop,
    retry_after,
)
from tests.sim.invariants import Acquisition, Monitor
from tests.sim.kinesis import STREAM, Kinesis, Record, SimTransport
from tests.sim.loop import Scheduler
from tests.sim.process import Process

__all__ = ["Behaviour", "Instance"]


# What was cancelled at the end, and waits for an answer, is gone after that.
_GRACE = 6.0


@dataclass(slots=True)
class Behaviour:
    """How the service is declared, and what its handlers do; the same for the whole fleet."""

    workers: int = 1
    batch: int | None = None
    direct: bool = False
    """The handler takes the payload alone: another way through the dispatch."""
    poll_interval: float = 1.0
    drop: float = 0.0
    copy: float = 0.0
    refuse: float = 0.0
    """The handler raises: the record stays open, and holds the checkpoint."""
    block: float = 0.0
    """The handler holds up its event loop."""
    suspend: float = 0.0
    """The whole machine stands still in the middle of a handler."""
    slow: float = 0.0


class Refused(Exception):
    """What a handler raises."""


class Instance:
    """An application from its start to its end.

    Args:
        scheduler: Time.
        rng: What its handlers do.
        name: For traces.
        owner_id: As the user may have set it.
        kinesis: The service.
        monitor: Watches it.
        behaviour: What it does.
        store: Makes the lease store of a process.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        name: str,
        owner_id: str,
        kinesis: Kinesis,
        monitor: Monitor,
        behaviour: Behaviour,
        store: Any,
    ) -> None:
        self.process = Process(scheduler, rng, name)
        self._scheduler = scheduler
        self._rng = rng
        self._kinesis = kinesis
        self._monitor = monitor
        self._behaviour = behaviour
        broker = KinesisBroker(
            lease_store=store(self.process), owner_id=owner_id, clock=self.process.clock
        )
        broker.connection.attach(SimTransport(kinesis, monitor, self.process))
        self.app = RustStream(broker, title="sim", version="0")
        self._declare()
        self.ended = False
        self.error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return self.process.name

    def _declare(self) -> None:
        told = self._behaviour
        stream = KinesisStream(STREAM, poll_interval=told.poll_interval)
        options: dict[str, Any] = {"workers": told.workers}
        handler: Any = self._message
        if told.batch is not None:
            options["batch"], handler = told.batch, self._messages
        elif told.direct:
            handler = self._payload
        self.app.subscriber(stream, **options)(handler)

    # -- handlers ----------------------------------------------------------------------------------

    async def _payload(self, value: int) -> None:
        record = self._kinesis.values[value]
        held = self._monitor.started(self.process, record, None)
        await self._work()
        if self._draw(self._behaviour.refuse):
            self._monitor.finished(self.process, record, held, "refuse")
            raise Refused
        self._monitor.finished(self.process, record, held, "ack")

    async def _message(self, message: KinesisMessage[int]) -> Outcome | None:
        record, held = self._started(message)
        await self._work()
        said, outcome = self._decide()
        self._monitor.finished(self.process, record, held, said)
        if said == "refuse":
            raise Refused
        return outcome

    async def _messages(self, messages: list[KinesisMessage[int]]) -> list[Outcome | None]:
        batch = [self._started(each, alone=False) for each in messages]
        await self._work()
        outcomes: list[Outcome | None] = []
        for record, held in batch:
            said, outcome = self._decide()
            if said == "refuse":
                said, outcome = "ack", None
            self._monitor.finished(self.process, record, held, said)
            outcomes.append(outcome)
        return outcomes

    def _started(
        self, message: KinesisMessage[int], *, alone: bool = True
    ) -> tuple[Record, Acquisition | None]:
        record = self._kinesis.records[int(message.sequence_number)]
        shard: Any = message.run.shard
        held = self._monitor.started(self.process, record, shard.lease.owner, alone=alone)
        return record, held

    async def _work(self) -> None:
        told = self._behaviour
        if self._draw(told.block):
            await self._hold_up("blocks", self._rng.choice([0.5, 4.0, 15.0]))
        elif self._draw(told.suspend):
            seconds = self._rng.choice([4.0, 12.0, 25.0])
            self.process.side.freeze(seconds)
            await self._hold_up("suspended", seconds)
        elif self._draw(told.slow):
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        elif self._draw(0.5):
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))

    async def _hold_up(self, what: str, seconds: float) -> None:
        self._monitor.note(self.process, what, seconds)
        self.process.disturb(seconds)
        self._monitor.disturbed(seconds)
        await self.process.loop.block(seconds)

    def _decide(self) -> tuple[str, Outcome | None]:
        told = self._behaviour
        roll = self._rng.random()
        if roll < told.refuse:
            return "refuse", None
        if roll < told.refuse + told.copy:
            return "copy", retry_after(self._rng.choice([0.0, 0.3, 5.0]))
        if roll < told.refuse + told.copy + told.drop:
            return "drop", drop()
        return "ack", None

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

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
        self._monitor.note(self.process, "start", round(self.process.clock.skew, 1))
        self._task = self.process.loop.create_task(self._run(), name="app.run")

    async def _run(self) -> None:
        try:
            await self.app.run(signals=False, started=self._opened)
        except BaseException as error:  # noqa: BLE001 - the world judges it
            self.error = error
        self._monitor.note(self.process, "ended", repr(self.error))
        self.ended = True
        # It may only end by itself, or end badly, while something is wrong.
        calm = max(self._monitor.calm_since, self.process.disturbed_until)
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
        self._monitor.opened(self.process)

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        self._monitor.note(self.process, "stop")
        self.process.stopping = True
        self.process.loop.call_soon_threadsafe(self.app.stop)

    def crash(self) -> None:
        """End it without a word."""
        self._monitor.note(self.process, "crash")
        self.process.crash()

    def dispose(self) -> None:
        """Take apart what is left of it."""
        self.process.loop.dispose()
        self.process.side.dispose()
