"""Parts to test copies with: records as a reader gives them, a shard and a transport that note all.

`Script.events` is one list for both, so that a test sees what came first, the put or the ack.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruststream_kinesis import MemoryLeaseStore
from ruststream_kinesis._core import Page, decode_envelope
from ruststream_kinesis.attempts import Copy, RetryPolicy
from ruststream_kinesis.channel import DeliveryShard, Fence, Run
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import PutResult, ShardListing, StreamInfo
from tests import reference

__all__ = ["DEAD", "ORDERS", "Script", "Shard", "enveloped", "run_of"]

ORDERS, DEAD = StreamRef.parse("orders"), StreamRef.parse("orders.dead")


def enveloped(block: bytes, payload: bytes) -> bytes:
    """A blob with this header block, however odd."""
    return b"RSK1" + len(block).to_bytes(4, "big") + block + payload


def run_of(shard: DeliveryShard, *blobs: bytes, key: str | None = "key", base: int = 0) -> Run:
    """Deliveries of one page; sequence numbers are 1, 2, 3, …."""
    listed = [reference.record(blob, str(n), PartitionKey=key) for n, blob in enumerate(blobs, 1)]
    page = Page.parse(reference.response(listed, NextShardIterator="i"))
    return Run(shard, shard.generation, page, base, range(len(blobs)))


@dataclass
class Script:
    """A transport that notes every put, with the shard and the copies that belong to it."""

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Any = field(default_factory=ManualClock)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    answer: Callable[[str], Awaitable[None]] | None = None
    """Awaited before each put takes effect; what it raises is the put's answer."""
    limits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = Connection(MemoryLeaseStore(clock=self.clock), "me", self.clock)
        self.connection.attach(self)
        self.copies = Copies(self.policy, ORDERS, self.connection)
        self.shard = Shard(self.events)
        self.put: list[tuple[str, bytes, str]] = []
        self.hash_keys: list[str | None] = []
        """The explicit hash keys of what was put."""

    def copy(self, blob: bytes = b"1", attempts: int = 1, due: float = 0.0) -> Copy:
        """A copy of the only record of a page."""
        return Copy(run_of(self.shard, blob), 0, attempts, due)

    def headers(self, at: int = -1) -> Mapping[str, str]:
        """The headers of what was put."""
        return decode_envelope(self.put[at][1])[0]

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        limit = self.limits.get(stream.name, DEFAULT_MAX_RECORD_BYTES)
        return StreamInfo(stream.name, "ACTIVE", 0.0, limit)

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        self.events.append(("asked", stream.name))
        await asyncio.sleep(0)
        if self.answer is not None:
            await self.answer(stream.name)
        self.events.append(("put", stream.name))
        self.put.append((stream.name, data, partition_key))
        self.hash_keys.append(explicit_hash_key)
        return PutResult("shardId-0", str(len(self.put)))

    async def put_records(self, *_: Any) -> list[PutResult | RequestError]:
        raise NotImplementedError

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        raise NotImplementedError

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        raise NotImplementedError

    async def get_shard_iterator(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    async def get_records(self, *_: Any) -> bytes:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


class Shard:
    """A `DeliveryShard` that notes what becomes of its deliveries."""

    def __init__(self, events: list[tuple[Any, ...]], shard_id: str = "shardId-0") -> None:
        self.stream = "orders"
        self.shard_id = shard_id
        self.generation = 0
        self.ceiling: float = math.inf
        self.fence: Fence | None = None
        self.started = -1
        self.unread = False
        self.lost = False
        self._events = events

    def last_of_record(self, place: int) -> int:
        return place

    def ack(self, place: int) -> None:
        self._events.append(("ack", place))

    def ack_range(self, start: int, stop: int) -> None:
        self.ack_all(range(start, stop))

    def ack_all(self, places: Sequence[int]) -> None:
        for place in places:
            self.ack(place)

    def hold(self, place: int) -> None:
        self._events.append(("hold", place))

    def defer(self, place: int) -> None:
        self._events.append(("defer", place))

    def lose(self) -> None:
        self.lost = True
        self.generation += 1
