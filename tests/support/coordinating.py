"""Whole instances of a service, between lease store and handlers, on a stream in memory.

`Stream` can be split and made to fail; an `Instance` is everything of a service between lease store
and handlers. Two instances of one store are two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ruststream_kinesis import KinesisPosition, KinesisStream, MemoryLeaseStore
from ruststream_kinesis.attempts import RetryPolicy
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.errors import AccessDenied, RequestError
from ruststream_kinesis.leases import LeaseKey, LeaseState
from ruststream_kinesis.leases.rows import acquired
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import ShardInfo, ShardListing, StreamInfo
from tests.support import stores
from tests.support.scripted import record
from tests.support.tables import MemoryTable

HORIZON = KinesisPosition.horizon()
INFO = StreamInfo("orders", "ACTIVE", created=1000.0)


def denied() -> RequestError:
    """Return a failure that no retry mends."""
    return AccessDenied("made by a test", code="AccessDeniedException", status=400, stream="orders")


def throttled() -> RequestError:
    """Return a failure that passes."""
    return RequestError("made by a test", code="LimitExceededException", status=400)


@dataclass
class Part:
    """One shard of the stream."""

    parents: tuple[str, ...] = ()
    records: list[int] = field(default_factory=list)
    closed: bool = False
    fails: Callable[[], Exception] | None = None
    """Makes the answer to every read, while it is set."""
    starts: str | None = None
    """Its starting sequence number, as listed."""


class Stream:
    """A stream in memory, as a transport."""

    def __init__(self, clock: ManualClock, **parts: Part) -> None:
        self.clock = clock
        self.parts = dict(parts)
        self.hidden: set[str] = set()
        """Shards that are not listed (any more)."""
        self.listing_fails: Callable[[], Exception] | None = None
        self.listing_hangs = False
        self.listing_turns = 1
        """Turns of the loop that each listing takes."""
        self.listings = 0
        self.opened: list[tuple[str, KinesisPosition, bool]] = []
        self.reads: Counter[str] = Counter()
        self.asking = self.most_asking = 0
        """GetShardIterator calls that are on their way, and the most there ever were."""

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """List what is not hidden."""
        self.listings += 1
        for _ in range(self.listing_turns):
            await asyncio.sleep(0)
        if self.listing_hangs:
            await asyncio.Event().wait()
        if self.listing_fails is not None:
            raise self.listing_fails()
        listed = [
            ShardInfo(name, part.parents, part.starts)
            for name, part in self.parts.items()
            if name not in self.hidden
        ]
        return ShardListing(tuple(listed), self.clock.time())

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Return shard and index. A timestamp means everything: no record has a time here."""
        self.opened.append((shard_id, position, after))
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            self.asking -= 1
        part = self.parts[shard_id]
        if part.fails is not None:
            raise part.fails()
        if position.kind == "latest":
            return f"{shard_id}:{len(part.records)}"
        if position.kind == "sequence":
            number = int(position.sequence_number or "") + after
            return f"{shard_id}:{len([each for each in part.records if each < number])}"
        return f"{shard_id}:0"

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Return up to three records."""
        self.reads[shard_id] += 1
        await asyncio.sleep(0)
        part, first = self.parts[shard_id], int(iterator.rpartition(":")[2])
        if part.fails is not None:
            raise part.fails()
        found = part.records[first : first + 3]
        stop = first + len(found)
        over = part.closed and stop == len(part.records)
        answer = {
            "Records": [record(number) for number in found],
            "NextShardIterator": None if over else f"{shard_id}:{stop}",
            "MillisBehindLatest": len(part.records) - stop,
        }
        return json.dumps(answer).encode()

    async def close(self) -> None:
        """Do nothing."""


@dataclass
class Faults:
    """What a store notes, and how it fails."""

    written: list[tuple[str, str]] = field(default_factory=list)
    """(shard, checkpoint) of each checkpoint write."""
    fails: Counter[str] = field(default_factory=Counter)
    """How many of the next calls of a method raise."""
    turns: int = 0
    """Turns of the loop that each release takes."""
    leases_hang: bool = False

    def maybe_fail(self, method: str) -> None:
        """Raise, if that was asked for."""
        if self.fails[method]:
            self.fails[method] -= 1
            raise ConnectionError(f"{method}: made by a test")


if TYPE_CHECKING:
    # What it stands before; both kinds of store have the methods that it calls.
    _Base = MemoryLeaseStore
else:
    _Base = object


class _Faulty(_Base):
    """A store that notes the checkpoints it was given, and fails on demand."""

    faults: Faults

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """Acquire, or fail."""
        self.faults.maybe_fail("acquire")
        return await super().acquire(key, owner_id, duration=duration, member=member)

    async def renew(self, held: LeaseState) -> None:
        """Renew, or fail."""
        self.faults.maybe_fail("renew")
        await super().renew(held)

    async def leave(self, nonce: str) -> None:
        """Leave, or fail."""
        self.faults.maybe_fail("leave")
        await super().leave(nonce)

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Note it, then store it."""
        self.faults.maybe_fail("checkpoint")
        await super().checkpoint(held, checkpoint, number=number, resume_from=resume_from)
        if checkpoint is not None:
            self.faults.written.append((held.key.shard_id, checkpoint))

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """Take its turns, then release."""
        for _ in range(self.faults.turns):
            await asyncio.sleep(0)
        self.faults.maybe_fail("release")
        await super().release(
            held,
            checkpoint=checkpoint,
            number=number,
            resume_from=resume_from,
            successor=successor,
        )

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """List the rows, or hang."""
        if self.faults.leases_hang:
            await asyncio.Event().wait()
        return await super().leases(stream, group)

    async def of(self, shard_id: str) -> LeaseState | None:
        """Return the row of a shard."""
        return await self.read(LeaseKey("orders", shard_id))

    async def checkpoint_of(self, shard_id: str) -> str | None:
        """Return what is stored."""
        row = await self.of(shard_id)
        return None if row is None else row.checkpoint


class Store(_Faulty, MemoryLeaseStore):
    """Leases in the memory of the one process that there is."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.faults = Faults()

    def another(self) -> Store:
        """Return the store of another instance."""
        return self

    async def steal(self, shard_id: str) -> None:
        """Take a held shard as if its lease had run out, for good."""
        row = self._rows[LeaseKey("orders", shard_id)]
        row.owner, row.renewed, row.duration = "somebody#1", 0.0, 1e9


class TableStore(_Faulty, TableLeaseStore):
    """Leases in a table: each instance has its own store, and they know of each other by the rows."""

    def __init__(self, clock: ManualClock, table: MemoryTable, faults: Faults) -> None:
        TableLeaseStore.__init__(self, table, clock=clock)
        self._made_of = clock, table, faults
        self.faults = faults

    def another(self) -> TableStore:
        """Return the store of another instance."""
        return TableStore(*self._made_of)

    async def steal(self, shard_id: str) -> None:
        """Take a held shard as if its lease had run out."""
        key = LeaseKey("orders", shard_id).row
        await self._made_of[1].update(key, acquired("somebody#1", 1e3, 0.0), [])

    def renewer(self) -> None:
        """Return none: another thread would not follow the clock of a test."""


class Instance:
    """A service without handlers: what comes out of the channel is open until the test acks it."""

    def __init__(
        self, stream: Stream, store: Store | TableStore, start_at: KinesisPosition | None = HORIZON
    ) -> None:
        self.clock = stream.clock
        self.failures: list[BaseException] = []
        self.supervisor = Supervisor(self.failures.append)
        self.connection = Connection(store, None, stream.clock)
        transport: Any = stream
        self.connection.attach(transport)
        self.channel = Channel()
        self.coordinator = Coordinator(
            KinesisStream("orders"),
            None,
            start_at,
            self.connection,
            self.channel,
            Copies(RetryPolicy(), StreamRef("orders"), self.connection),
            self.supervisor,
            1000,
        )
        self.open: dict[tuple[str, int], tuple[HeldShard, int]] = {}
        """Deliveries that were started, by shard and number: shard and place."""
        self.received: list[tuple[str, int]] = []
        self.acking = False
        self.holding = False
        self.worker: asyncio.Task[None] | None = None

    def let_go(self, shard_id: str) -> None:
        """End the holding of a shard at the next pass, as if something of it had failed."""
        held = self.coordinator.held
        held.conclude(self.coordinator.holdings[shard_id])
        held.over(self.coordinator.holdings[shard_id].shard)

    async def start(self) -> None:
        """Open, as the service does."""
        self.worker = self.supervisor.spawn("worker", self._work())
        await self.coordinator.open(INFO)

    async def _work(self) -> None:
        while (run := await self.channel.take(0)) is not None:
            shard: Any = run.shard
            for index in run.indices:
                self.channel.release()
                if shard.generation != run.generation:
                    continue
                if run.base + index > shard.ceiling:
                    continue
                shard.started = max(shard.started, run.base + index)
                number = int(run.page.sequence_number(index))
                self.received.append((shard.shard_id, number))
                self.open[shard.shard_id, number] = (shard, run.base + index)
                if self.acking:
                    self.ack(shard.shard_id, number)
                if self.holding:
                    shard.hold(run.base + index)

    def ack(self, shard_id: str, *numbers: int) -> None:
        """Settle records that were received."""
        for number in numbers:
            shard, place = self.open[shard_id, number]
            shard.ack(place)

    def numbers(self, shard_id: str) -> list[int]:
        """Return what came of a shard."""
        return [number for shard, number in self.received if shard == shard_id]

    async def stop(self) -> None:
        """Stop as the service does."""
        await self.coordinator.stop_reading()
        await self.coordinator.release()
        await self.supervisor.close()

    async def kill(self) -> None:
        """End without a word to the store, as a process that is killed."""
        await self.supervisor.close()


class World:
    """A stream, a store, and the instances that a test starts."""

    def __init__(self, **parts: Part) -> None:
        self.clock = ManualClock()
        self.stream = Stream(self.clock, **parts)
        self.store: Store | TableStore
        if stores.KINDS[-1] == "memory":
            self.store = Store(self.clock)
        else:
            self.store = TableStore(self.clock, MemoryTable(), Faults())
        """That of the first instance."""
        self.instances: list[Instance] = []

    async def start(
        self, start_at: KinesisPosition | None = HORIZON, *, acking: bool = False
    ) -> Instance:
        """Start another instance."""
        store = self.store.another() if self.instances else self.store
        instance = Instance(self.stream, store, start_at)
        instance.acking = acking
        self.instances.append(instance)
        opening = asyncio.create_task(instance.start())
        await self.clock.advance(0)
        if not opening.done():
            await self.clock.advance(1)
        await asyncio.wait_for(opening, 5)
        return instance

    async def end(self) -> None:
        """End whatever still runs; a task that died is the test's failure."""
        for instance in self.instances:
            await instance.supervisor.close()
        for instance in self.instances:
            assert instance.failures == []
            assert instance.supervisor.running == []


@contextlib.asynccontextmanager
async def world(**parts: Part) -> AsyncIterator[World]:
    """Give a stream with these shards."""
    made = World(**parts)
    try:
        yield made
    finally:
        await made.end()


def split_of(parent: str, *records: int) -> Part:
    """Return a child of one parent."""
    return Part((parent,), list(records))
