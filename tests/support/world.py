"""A Kinesis without sockets under the `Transport` protocol, and services on it.

For what a socket would only slow down: order of settlement, of the stop, of every await. `World` is
what outlives a service (streams, leases, time), so a restart is a second `app()` of one world.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    RustStream,
)
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import NotConnected, RequestError, StreamNotFound
from ruststream_kinesis.leases import LeaseKey, LeaseStore
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import PutEntry, PutResult, ShardInfo, ShardListing, StreamInfo
from tests.support.stores import spy_store

__all__ = ["Call", "FakeTransport", "Stored", "World", "outcome_of", "running", "serve", "until"]

PATIENCE = 10.0
"""Seconds until something that takes a few loop turns must have happened."""

Hook = Callable[["Call"], Awaitable[None]]


@dataclass(frozen=True)
class Stored:
    """A record in a shard."""

    sequence_number: str
    data: bytes
    key: str

    def listed(self) -> dict[str, Any]:
        """Return the GetRecords form."""
        return {
            "SequenceNumber": self.sequence_number,
            "Data": base64.b64encode(self.data).decode(),
            "PartitionKey": self.key,
            "ApproximateArrivalTimestamp": 1_700_000_000.0,
        }


@dataclass(frozen=True)
class Call:
    """One call to the service, before it takes effect."""

    operation: str
    stream: str
    shard_id: str | None = None
    data: bytes = b""


@dataclass
class World:
    """Streams, leases and time: what a service finds at its start and leaves behind."""

    clock: Any = field(default_factory=ManualClock)
    store: Any = None
    streams: dict[str, dict[str, list[Stored]]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    hooks: list[Hook] = field(default_factory=list)
    """Awaited before each call takes effect; what one raises is the call's answer."""
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    created: float = 1_600_000_000.0
    """The streams' creation time: change it for one that was made anew."""
    transports: list[FakeTransport] = field(default_factory=list)
    _numbers: int = 0

    def __post_init__(self) -> None:
        if self.store is None:
            self.store = spy_store(self.clock)

    def stream(self, name: str = "orders", shards: int = 1) -> str:
        """Create a stream and return its name."""
        self.streams[name] = {f"shardId-{n:012}": [] for n in range(shards)}
        return name

    def put(self, stream: str, *values: object, key: str = "key", shard: int = 0) -> list[str]:
        """Put values (`bytes` as they are, else JSON) and return their sequence numbers."""
        shard_id = list(self.streams[stream])[shard]
        found = []
        for value in values:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            found.append(self.append(stream, shard_id, data, key).sequence_number)
        return found

    def append(self, stream: str, shard_id: str, data: bytes, key: str) -> Stored:
        """Put one record; numbers are 1, 2, 3, …: text order is wrong from 10 on (case W3)."""
        self._numbers += 1
        stored = Stored(str(self._numbers), data, key)
        self.streams[stream][shard_id].append(stored)
        return stored

    def records(self, stream: str) -> list[Stored]:
        """Return everything in a stream, shard by shard."""
        return [record for shard in self.streams[stream].values() for record in shard]

    async def checkpoint(self, stream: str = "orders", shard: int = 0) -> str | None:
        """Return the stored checkpoint of a shard."""
        row = await self.store.read(LeaseKey(stream, f"shardId-{shard:012}"))
        return None if row is None else row.checkpoint

    async def owner(self, stream: str = "orders", shard: int = 0) -> str | None:
        """Return the stored owner of a shard."""
        row = await self.store.read(LeaseKey(stream, f"shardId-{shard:012}"))
        return None if row is None else row.owner

    def broker(self, *, store: LeaseStore | None = None) -> KinesisBroker:
        """Return a broker that is connected to this world."""
        broker = KinesisBroker(lease_store=store or self.store, clock=self.clock)
        transport = FakeTransport(self)
        self.transports.append(transport)
        broker.connection.attach(transport)
        return broker

    def app(self, *, store: LeaseStore | None = None, **options: Any) -> RustStream:
        """Return an application on this world, without subscribers yet."""
        return RustStream(self.broker(store=store), title="test", version="0", **options)


class FakeTransport:
    """`Transport` on the streams of a world; an iterator is `stream/shard/index`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed = False

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        await self._arrive(Call("describe_stream", stream.name))
        world = self.world
        return StreamInfo(stream.name, "ACTIVE", world.created, world.max_record_bytes)

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        self.world.stream(stream.name, shards)

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        await self._arrive(Call("list_shards", stream.name))
        shards = tuple(ShardInfo(shard_id) for shard_id in self.world.streams[stream.name])
        return ShardListing(shards, self.world.clock.time())

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        await self._arrive(Call("get_shard_iterator", stream.name, shard_id))
        records = self.world.streams[stream.name][shard_id]
        match position.kind:
            case "latest":
                index = len(records)
            case "sequence":
                number = int(position.sequence_number or "") + after
                earlier = [each for each in records if int(each.sequence_number) < number]
                index = len(earlier)
            case _:
                index = 0
        return f"{stream.name}/{shard_id}/{index}"

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        await self._arrive(Call("get_records", stream.name, shard_id))
        name, shard_id, index = iterator.split("/")
        records = self.world.streams[name][shard_id][int(index) : int(index) + limit]
        following = f"{name}/{shard_id}/{int(index) + len(records)}"
        page = {
            "Records": [each.listed() for each in records],
            "NextShardIterator": following,
            "MillisBehindLatest": 0,
        }
        return json.dumps(page).encode()

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        await self._arrive(Call("put_record", stream.name, None, data))
        return self._append(stream, data, partition_key)

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        await self._arrive(Call("put_records", stream.name, None))
        return [self._append(stream, data, key) for data, key, _ in entries]

    def _append(self, stream: StreamRef, data: bytes, partition_key: str) -> PutResult:
        shard_id = next(iter(self.world.streams[stream.name]))
        stored = self.world.append(stream.name, shard_id, data, partition_key)
        return PutResult(shard_id, stored.sequence_number)

    async def close(self) -> None:
        self.closed = True

    async def _arrive(self, call: Call) -> None:
        if self.closed:
            raise NotConnected("the fake transport is closed")
        self.world.calls.append(call)
        # Every call takes at least a loop turn, as on a socket: somebody else may come between.
        await asyncio.sleep(0)
        for hook in self.world.hooks:
            await hook(call)
        if call.stream not in self.world.streams:
            # Of a shard, the service does not say which of the two is missing.
            kind = StreamNotFound if call.shard_id is None else RequestError
            raise kind(
                "there is no such stream",
                code="ResourceNotFoundException",
                status=400,
                stream=call.stream,
            )


@contextlib.asynccontextmanager
async def running(app: RustStream) -> AsyncIterator[asyncio.Task[None]]:
    """Run an application until the block ends; its failure is raised there."""
    started = asyncio.Event()
    task = asyncio.create_task(app.run(signals=False, started=started.set), name="app.run")
    waiting = asyncio.create_task(started.wait())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if started.is_set():
            yield task
        else:
            await task
            raise AssertionError("the service ended before it started")
    finally:
        waiting.cancel()
        if not task.done():
            app.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({task})
    await task


async def until(true: Callable[[], bool], what: str = "") -> None:
    """Let the loop turn until something holds.

    Raises:
        TimeoutError: It does not within `PATIENCE`.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            while not true():  # noqa: ASYNC110 - whatever it is, no event tells of it
                await asyncio.sleep(0)
    except TimeoutError:
        raise TimeoutError(f"never came true: {what or true!r}") from None


async def serve(
    world: World,
    handler: Callable[..., Any],
    *,
    until_handled: int,
    **options: Any,
) -> RustStream:
    """Run a handler on `orders` until so many deliveries have had an outcome, and stop it."""
    app = world.app()
    app.subscriber("orders", start_at=KinesisPosition.horizon(), **options)(handler)
    async with running(app):
        counters = app.counters["orders"]
        await until(
            lambda: counters.handled + counters.failed + counters.undecodable >= until_handled
        )
        # The last one may still be publishing or settling.
        for _ in range(20):
            await asyncio.sleep(0)
    return app


async def outcome_of(world: World, handler: Callable[..., Any], **options: Any) -> str:
    """Let `handler` have record 1 of three, the others acked: is it settled or open?"""

    async def choose(message: KinesisMessage[int]) -> Any:
        if message.payload == 1:
            return await handler(message)
        return None

    world.put("orders", 1, 2, 3)
    await serve(world, choose, until_handled=3, **options)
    stored = await world.checkpoint()
    assert stored in {None, "3"}
    return "open" if stored is None else "settled"


def _protocols(transport: FakeTransport, clock: ManualClock) -> tuple[Any, Clock]:
    """Let mypy compare the fakes with the protocols they stand for."""
    from ruststream_kinesis.transport import Transport  # noqa: PLC0415 - for this check only

    checked: Transport = transport
    return checked, clock
