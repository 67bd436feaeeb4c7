"""Services on a stream whose shards have parents and children, and who is at which key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from ruststream_kinesis import KinesisMessage, KinesisPosition, RustStream, Seeker
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

    def __init__(self, world: World, parents: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__(world)
        self._parents = {_id(child): tuple(map(_id, of)) for child, of in parents.items()}
        self._ended = {parent for of in self._parents.values() for parent in of}

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        listing = await super().list_shards(stream)
        shards = [ShardInfo(s.shard_id, self._parents.get(s.shard_id, ())) for s in listing.shards]
        return ShardListing(tuple(shards), listing.service_time)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        body = json.loads(await super().get_records(stream, shard_id, iterator, limit))
        if shard_id in self._ended:
            body["NextShardIterator"] = None
        return json.dumps(body).encode()


class _Store(TableLeaseStore):
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

    def service(
        self, name: str, work: Work, start_at: KinesisPosition | None = None, workers: int = 4
    ) -> RustStream:
        """Return an instance."""
        app = self.world.app(store=_Store(self.table, clock=self.world.clock))
        app.broker.connection.attach(_Tree(self.world, self._tree))

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
