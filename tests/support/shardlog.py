"""A stream with a family of shards, read through a transport that tells of lag and of ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, ShardListing
from tests.support.world import FakeTransport, World

__all__ = ["QuickClock", "ShardLog", "shard"]


def shard(number: int) -> str:
    """Return a shard's id."""
    return f"shardId-{number:012}"


class QuickClock:
    """A clock that nobody waits for: a sleep is a turn of the loop, and moves time."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.slept: list[float] = []
        self.during: Callable[[], Awaitable[None]] | None = None
        """Awaited within each sleep: what happens meanwhile."""

    def monotonic(self) -> float:
        """As a clock's."""
        return self.now

    def time(self) -> float:
        """As a clock's."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)
        if self.during is not None:
            await self.during()


class ShardLog(FakeTransport):
    """The stream `orders`; a second of lag for every record that is left.

    Args:
        parents: Of each shard; those that are some shard's have ended.
        page: Records of a page.
    """

    def __init__(self, parents: dict[int, tuple[int, ...]], page: int = 2) -> None:
        self.clock = QuickClock()
        super().__init__(World(clock=self.clock, store=object()))
        self.world.stream("orders", 0)
        self._parents: dict[str, tuple[str, ...]] = {}
        self._page = page
        self.opened: list[KinesisPosition] = []
        """Where iterators were asked for."""
        for number, of in parents.items():
            self.add(number, *of)

    def add(self, number: int, *parents: int) -> None:
        """Add a shard; its parents end."""
        self.world.streams["orders"][shard(number)] = []
        self._parents[shard(number)] = tuple(map(shard, parents))

    def put(self, number: int, *values: object, key: str = "key") -> list[str]:
        """Put values into a shard and return their sequence numbers."""
        place = list(self.world.streams["orders"]).index(shard(number))
        return self.world.put("orders", *values, key=key, shard=place)

    @property
    def _ended(self) -> set[str]:
        return {parent for of in self._parents.values() for parent in of}

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """As the service."""
        listing = await super().list_shards(stream)
        shards = tuple(
            ShardInfo(
                each.shard_id, self._parents[each.shard_id], ended=each.shard_id in self._ended
            )
            for each in listing.shards
        )
        return ShardListing(shards, listing.service_time)

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """As the service; a time is the beginning."""
        self.opened.append(position)
        return await super().get_shard_iterator(stream, shard_id, position, after=after)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """As the service."""
        body = json.loads(
            await super().get_records(stream, shard_id, iterator, min(limit, self._page))
        )
        read = int(body["NextShardIterator"].rpartition("/")[2])
        left = len(self.world.streams["orders"][shard_id]) - read
        body["MillisBehindLatest"] = 1_000 * (left + len(body["Records"])) if left else 0
        if not left and shard_id in self._ended:
            body["NextShardIterator"] = None
            body["ChildShards"] = [
                {"ShardId": child, "ParentShards": list(of), "HashKeyRange": {}}
                for child, of in self._parents.items()
                if shard_id in of
            ]
        return json.dumps(body).encode()
