"""What the handlers of an instance do: one subscription as the simulated service declares it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis import (
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    KinesisStream,
    Outcome,
    RustStream,
    Seeker,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis.errors import KinesisError
from tests.sim.fleet import ARN
from tests.sim.invariants import Monitor
from tests.sim.kinesis import STREAM, Kinesis, Record
from tests.sim.process import Process
from tests.sim.tenures import Delivery
from tests.sim.trace import Trace
from tests.sim.transport import dead_letters, replies

__all__ = ["Behaviour", "Subscription"]

# How far back a seek goes by time, in seconds, and by records.
_BACK = 40.0
_RECORDS_BACK = 30


@dataclass(slots=True)
class Behaviour:
    """How the service is declared, and what its handlers do; the same for the whole fleet."""

    workers: int = 1
    batch: int | None = None
    direct: bool = False
    """The handler takes the payload alone: another way through the dispatch."""
    poll_interval: float = 1.0
    max_attempts: int | None = None
    dead_letter: bool = False
    replies: bool = False
    """What is acked is answered."""
    publish_batch: int | None = None
    """Copies, dead letters and replies share requests."""
    drop: float = 0.0
    copy: float = 0.0
    refuse: float = 0.0
    """The handler raises: without further attempts the record stays open, and holds the checkpoint."""
    seek: float = 0.0
    """The handler moves its subscription."""
    block: float = 0.0
    """The handler holds up its event loop."""
    suspend: float = 0.0
    """The whole machine stands still in the middle of a handler."""
    slow: float = 0.0

    @property
    def cap(self) -> int | None:
        """Deliveries of a record, the first included."""
        return self.max_attempts or (1 if self.dead_letter else None)

    def publish(self, group: str | None) -> KinesisPublish | None:
        """Return the policy of a subscription."""
        if not self.replies and self.publish_batch is None:
            return None
        to = replies(group) if self.replies else None
        return KinesisPublish(to=to, batch=self.publish_batch)


class Refused(Exception):
    """What a handler raises."""


class Subscription:
    """One subscription of one instance.

    Args:
        rng: What its handlers do.
        process: Where it runs.
        kinesis: The stream.
        trace: Events and failures.
        monitor: Watches it.
        behaviour: What it does.
    """

    def __init__(
        self,
        rng: random.Random,
        process: Process,
        kinesis: Kinesis,
        trace: Trace,
        monitor: Monitor,
        behaviour: Behaviour,
    ) -> None:
        self._rng = rng
        self._process = process
        self._kinesis = kinesis
        self._trace = trace
        self._monitor = monitor
        self._behaviour = behaviour
        self._seeker: Seeker | None = None
        self._seeking = 0
        self._sought = True

    def declare(self, app: RustStream) -> None:
        """Declare it."""
        told, group = self._behaviour, self._monitor.group
        name = STREAM if group is None else ARN
        stream = KinesisStream(name, poll_interval=told.poll_interval)
        options: dict[str, Any] = {
            "group": group,
            "workers": told.workers,
            "max_attempts": told.max_attempts,
            "dead_letter": dead_letters(group) if told.dead_letter else None,
            "publish": told.publish(group),
        }
        handler: Any = self._message
        if told.batch is not None:
            options["batch"], handler = told.batch, self._messages
        elif told.direct:
            handler = self._payload
        app.subscriber(stream, **options)(handler)
        self._seeker = app.seeker(stream, group)

    # -- handlers ----------------------------------------------------------------------------------

    async def _payload(self, value: int) -> Any:
        record = self._kinesis.values[value]
        delivery = self._monitor.started(self._process, record, None)
        await self._work()
        if self._draw(self._behaviour.refuse):
            self._monitor.finished(self._process, [delivery], "refuse")
            raise Refused
        return self._acked([delivery], [record])

    async def _message(self, message: KinesisMessage[int]) -> Any:
        record, delivery = self._started(message)
        await self._work()
        said, outcome = self._decide(record)
        if said == "ack":
            return self._acked([delivery], [record])
        self._monitor.finished(self._process, [delivery], said)
        if said == "refuse":
            raise Refused
        if outcome is not None and outcome.kind == "retry" and self._draw(0.5):
            raise Refused
        return outcome

    async def _messages(self, messages: list[KinesisMessage[int]]) -> Any:
        batch = [self._started(each, alone=False) for each in messages]
        await self._work()
        decided = [self._decide(record) for record, _ in batch]
        if self._behaviour.cap is None:
            # One that raises leaves the whole batch open.
            decided = [("ack", None) if said == "refuse" else (said, o) for said, o in decided]
        if self._behaviour.replies and all(said == "ack" for said, _ in decided):
            return self._acked([each for _, each in batch], [each for each, _ in batch])
        for (_, delivery), (said, _) in zip(batch, decided, strict=True):
            self._monitor.finished(self._process, [delivery], said)
        return [outcome for _, outcome in decided]

    def _acked(self, deliveries: list[Delivery | None], records: list[Record]) -> Any:
        if not self._behaviour.replies:
            self._monitor.finished(self._process, deliveries, "ack")
            return None
        self._monitor.finished(self._process, deliveries, "reply")
        return {"of": [each.number for each in records]}

    def _started(
        self, message: KinesisMessage[int], *, alone: bool = True
    ) -> tuple[Record, Delivery | None]:
        record = self._kinesis.records[int(message.sequence_number)]
        if message.attempt != record.attempt:
            self._trace.fail(
                self._process,
                f"{record.number} is delivery {record.attempt}, and {message.attempt} to its handler",
            )
        shard: Any = message.run.shard
        token = shard.lease.owner
        return record, self._monitor.started(self._process, record, token, alone=alone)

    async def _work(self) -> None:
        told = self._behaviour
        if self._draw(told.seek):
            await self.seek()
        if self._draw(told.block):
            await self._hold_up("blocks", self._rng.choice([0.5, 4.0, 15.0]))
        elif self._draw(told.suspend):
            seconds = self._rng.choice([4.0, 12.0, 25.0])
            self._process.side.freeze(seconds)
            await self._hold_up("suspended", seconds)
        elif self._draw(told.slow):
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        elif self._draw(0.5):
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))

    async def _hold_up(self, what: str, seconds: float) -> None:
        self._trace.note(self._process, what, seconds)
        self._process.disturb(seconds)
        self._trace.disturbed(seconds)
        await self._process.loop.block(seconds)

    def _decide(self, record: Record) -> tuple[str, Outcome | None]:
        told, roll = self._behaviour, self._rng.random()
        again = told.refuse + told.copy
        if roll < again and told.cap is not None:
            wait = self._rng.choice([0.0, 0.3, 5.0])
            outcome = retry() if roll < told.refuse else retry_after(wait)
            if record.attempt < told.cap:
                return "retry", outcome
            return ("bury" if told.dead_letter else "give up"), outcome
        if roll < told.refuse:
            return "refuse", None
        if roll < again:
            return "copy", retry_after(self._rng.choice([0.0, 0.3, 5.0]))
        if roll < again + told.drop:
            return "drop", drop()
        return "ack", None

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    # -- seeks -------------------------------------------------------------------------------------

    async def seek(self) -> None:
        """Move it somewhere."""
        position, done = self._position(), False
        if position is None or self._seeker is None:
            return
        self._trace.note(self._process, "seek", position.to_text())
        if not self._seeking:
            self._monitor.seeks(self._process)
        self._seeking += 1
        try:
            await self._seeker.seek(position)
            done = True
            self._trace.note(self._process, "sought", position.to_text())
        except KinesisError as error:
            self._trace.note(self._process, "did not seek", str(error)[:60])
        except TimeoutError as error:
            self._trace.note(self._process, "did not seek", repr(error))
        finally:
            self._seeking -= 1
            self._sought = self._sought and done
            if not self._seeking:
                self._monitor.sought(self._process, done=self._sought)
                self._sought = True

    def _position(self) -> KinesisPosition | None:
        rng = self._rng
        kind = rng.choice(["horizon", "latest", "timestamp", "timestamp", "sequence", "sequence"])
        if kind == "horizon":
            return KinesisPosition.horizon()
        if kind == "latest":
            return KinesisPosition.latest()
        if kind == "timestamp":
            return KinesisPosition.timestamp(self._kinesis.time - rng.uniform(0.0, _BACK))
        mine = [
            each.shard
            for each in self._monitor.latest.values()
            if each.process is self._process and not each.released and each.shard.records
        ]
        if not mine:
            return None
        shard = rng.choice(mine)
        record = rng.choice(shard.records[-_RECORDS_BACK:])
        return KinesisPosition.sequence(shard.shard_id, str(record.number))
