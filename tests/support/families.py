"""Services on a stream whose shards have parents and children, and who is at which key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from ruststream_kinesis import (
    KinesisMessage,
    KinesisPosition,
    LeaseKey,
    LeaseState,
    RustStream,
    Seeker,
)
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, ShardListing
from tests.support.tables import MemoryTable
from tests.support.world import FakeTransport, World

__all__ = ["HORIZON", "Family", "Work", "done"]

HORIZON = KinesisPosition.horizon()
Work = Callable[[int, Seeker], Awaitable[None]]


def _id(number: int) -> str:
    return f"shardId-{number:012}"


class _Tree(FakeTransport):
    """Shards with parents, which have ended."""

    def __init__(
        self, world: World, parents: Mapping[int, tuple[int, ...]], late: Mapping[int, int]
    ) -> None:
        super().__init__(world)
        self._late = {_id(number): listings for number, listings in late.items()}
        self._listed = 0
        self._parents = {_id(child): tuple(map(_id, of)) for child, of in parents.items()}
        self._ended = {parent for of in self._parents.values() for parent in of}

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        listing = await super().list_shards(stream)
        self._listed += 1
        shards = [
            ShardInfo(shard.shard_id, self._parents.get(shard.shard_id, ()))
            for shard in listing.shards
            if self._listed > self._late.get(shard.shard_id, 0)
        ]
        return ShardListing(tuple(shards), listing.service_time)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        body = json.loads(await super().get_records(stream, shard_id, iterator, limit))
        if shard_id in self._ended:
            body["NextShardIterator"] = None
        return json.dumps(body).encode()


class _Store(TableLeaseStore):
    family: Family | None = None

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        if self.family is not None:
            await self.family.before_acquiring(key)
        return await super().acquire(key, owner_id, duration=duration, member=member)

    def renewer(self) -> None:
        """Return none: another thread would not follow the clock of a test."""


class Family:
    """Instances on one stream, with their leases in one table.

    Of two shards that one instance has too many, the plan moves that with the higher id.

    Args:
        parents: Of each shard that has some; those have ended.
        count: Shards.
    """

    def __init__(self, parents: Mapping[int, tuple[int, ...]], count: int = 2) -> None:
        self.world = World()
        self.table = MemoryTable()
        self.world.stream("orders", count)
        self._tree = dict(parents)
        self.before_acquiring: Callable[[LeaseKey], Awaitable[None]] = _nothing
        """Is called before an instance asks for a lease."""
        self.said: list[str] = []
        """`A begins 1`, `A ends 1`."""
        self.clashes: list[str] = []
        """Handlers that began while another instance was at the same key."""
        self._at: dict[str, list[str]] = {}

    @property
    def numbers(self) -> list[str]:
        """What was begun, in order."""
        return [said.split()[-1] for said in self.said if "begins" in said]

    def put(self, shard: int, *numbers: int, key: str = "k") -> None:
        """Put records of one key."""
        self.world.put("orders", *numbers, key=key, shard=shard)

    def store(self) -> TableLeaseStore:
        """Return another view of the table."""
        return _Store(self.table, clock=self.world.clock)

    def service(
        self,
        name: str,
        work: Work,
        start_at: KinesisPosition | None = None,
        workers: int = 4,
        *,
        late: Mapping[int, int] | None = None,
    ) -> RustStream:
        """Return an instance; its first listings, so many of each shard in `late`, lack that one."""
        store = _Store(self.table, clock=self.world.clock)
        store.family = self
        app = self.world.app(store=store)
        app.broker.connection.attach(_Tree(self.world, self._tree, late or {}))

        @app.subscriber("orders", start_at=start_at, workers=workers)
        async def handle(message: KinesisMessage[int], seeker: Seeker) -> None:
            number, at = message.payload, self._at.setdefault(message.partition_key, [])
            if others := [other for other in at if other != name]:
                self.clashes.append(f"{name} begins {number} beside {others}")
            at.append(name)
            self.said.append(f"{name} begins {number}")
            try:
                await work(number, seeker)
            finally:
                at.remove(name)
                self.said.append(f"{name} ends {number}")

        return app

    async def pass_by(self, seconds: float) -> None:
        """Let time pass, in steps that leave the instances their turns."""
        while seconds > 0:
            await self.world.clock.advance(min(1.0, seconds))
            seconds -= 1.0

    async def seek(self, app: RustStream, position: KinesisPosition = HORIZON) -> None:
        """Rewind one instance, while time passes."""
        await asyncio.gather(app.seeker("orders").seek(position), self.pass_by(1))


async def done(_number: int, _seeker: Seeker) -> None:
    """Handle a record at once."""


async def _nothing(_key: LeaseKey) -> None:
    """Come between nothing."""
