"""A reader with everything around it: a transport that answers from a list, a channel, a worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, KinesisStream
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.errors import KinesisError, RequestError
from ruststream_kinesis.leases import LeaseKey, LeaseState
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from tests.support.scripted import record

SHARD = "shardId-000000000000"
OTHER = "shardId-000000000001"
HORIZON = KinesisPosition.horizon()
AT = KinesisPosition.timestamp


def body(numbers: Sequence[int] = (), lag: int | None = 0, following: str | None = "next") -> bytes:
    """Return a GetRecords response with records of these sequence numbers."""
    found: dict[str, Any] = {
        "Records": [record(number, str(number).encode()) for number in numbers],
        "NextShardIterator": following,
    }
    if lag is not None:
        found["MillisBehindLatest"] = lag
    return json.dumps(found).encode()


def refusal(code: str, status: int | None = 400) -> RequestError:
    """Return a failure with this code."""
    return RequestError("made by a test", code=code, status=status, stream="orders", shard_id=SHARD)


EXPIRED = "ExpiredIteratorException"
THROTTLED = "ProvisionedThroughputExceededException"


@dataclass(frozen=True)
class Asked:
    """One GetShardIterator."""

    position: KinesisPosition
    after: bool


class Scripted:
    """A transport that answers reads from a list, and notes when it was asked for what."""

    def __init__(self, clock: ManualClock, answers: Sequence[bytes | KinesisError]) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.refusals: list[KinesisError] = []
        """What the next GetShardIterator calls raise."""
        self.asked: list[Asked] = []
        self.reads: list[tuple[float, str]] = []
        """Time and iterator of each GetRecords."""

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Refuse, or give the next iterator: `new-1`, then `new-2`."""
        await asyncio.sleep(0)
        self.asked.append(Asked(position, after))
        if self.refusals:
            raise self.refusals.pop(0)
        return f"new-{len(self.asked)}"

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Give the next answer; at their end never answer again."""
        self.reads.append((self.clock.monotonic(), iterator))
        await asyncio.sleep(0)
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, KinesisError):
            raise answer
        return answer

    @property
    def times(self) -> list[Any]:
        """When it was read, in seconds, to be compared with numbers."""
        return [pytest.approx(when) for when, _ in self.reads]


class Bench:
    """A reader with everything around it: clock, channel, and a worker that acks what comes."""

    def __init__(
        self,
        *answers: bytes | KinesisError,
        opening: KinesisPosition = HORIZON,
        after: bool = False,
        at_tip: bool = False,
        transport: Any = None,
    ) -> None:
        self.clock = ManualClock()
        self.transport: Any = transport or Scripted(self.clock, answers)
        self.channel = Channel()
        self.received: list[str] = []
        self.generations: list[int] = []
        """The stamp of each delivery that reached the worker."""
        self.acking = True
        self.moves = 0
        lease = LeaseState(LeaseKey("orders", SHARD), "me#1", 1, None)
        self.shard = HeldShard(
            lease, opening, after=after, clock=self.clock, moved=self._moved, at_tip=at_tip
        )
        calls: Any = self.transport
        self.reader = Reader(
            self.shard,
            KinesisStream("orders"),
            calls,
            self.channel,
            self.clock,
        )
        self.task: asyncio.Task[None] = asyncio.create_task(self.reader.run())
        self.worker = asyncio.create_task(self._work())

    def _moved(self, _: HeldShard) -> None:
        self.moves += 1

    async def _work(self) -> None:
        while (run := await self.channel.take(0)) is not None:
            for index in run.indices:
                self.channel.release()
                if self.shard.generation != run.generation:
                    continue
                self.received.append(run.page.sequence_number(index))
                self.generations.append(run.generation)
                if self.acking:
                    self.shard.ack(run.base + index)

    async def stop(self) -> None:
        """Cancel reader and worker."""
        for task in (self.task, self.worker):
            task.cancel()
        await asyncio.gather(self.task, self.worker, return_exceptions=True)


@contextlib.asynccontextmanager
async def bench(*answers: bytes | KinesisError, **options: Any) -> AsyncIterator[Bench]:
    """Run a reader over these answers."""
    made = Bench(*answers, **options)
    try:
        yield made
    finally:
        await made.stop()


SURVIVED = [
    (THROTTLED, 400),
    ("LimitExceededException", 400),
    ("KMSThrottlingException", 400),
    ("InternalFailure", 500),
    ("HTTP500", 500),
    ("HTTP503", 503),
    ("ClientPayloadError", None),
    ("Timeout", None),
]
