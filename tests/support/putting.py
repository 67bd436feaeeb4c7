"""A stream that takes batches: it notes every request and refuses what a test tells it to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruststream_kinesis import KinesisPublish, KinesisPublisher, MemoryLeaseStore
from ruststream_kinesis._core import hash_key
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import KinesisError, NotConnected, RequestError
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES, LAST_HASH_KEY
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import (
    PutEntry,
    PutResult,
    ShardInfo,
    ShardListing,
    StreamInfo,
)

__all__ = ["Failing", "Sink", "throttled"]


def throttled() -> RequestError:
    """Return what a shard answers that has enough."""
    return RequestError("slow down", code="ProvisionedThroughputExceededException")


@dataclass
class Sink:
    """The service of one test, and the connection to it."""

    clock: Any = field(default_factory=ManualClock)
    refuse: Callable[[PutEntry], KinesisError | None] = lambda _entry: None
    """Asked for each entry: its error, if it is refused."""
    fail: Callable[[], BaseException | None] = lambda: None
    """Asked for each request: the error of the whole."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, requests are on their way."""
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    requests: list[list[PutEntry]] = field(default_factory=list)
    """What each request held, in the order of their arrival."""
    records: dict[str, list[tuple[str, bytes]]] = field(default_factory=lambda: defaultdict(list))
    """Key and data of what was taken, by stream."""
    described: int = 0
    shards: list[ShardInfo] = field(
        default_factory=lambda: [ShardInfo("shardId-0", hash_keys=("0", LAST_HASH_KEY))]
    )
    """What a listing says, and where a record goes."""
    listed: int = 0
    fail_listing: Callable[[], BaseException | None] = lambda: None
    """Asked for each listing: its error."""
    closed: bool = False

    def __post_init__(self) -> None:
        self.open.set()
        self.connection = Connection(MemoryLeaseStore(clock=self.clock), "me", self.clock)
        self.connection.attach(self)  # type: ignore[arg-type]  # what batches need of a transport

    def publisher(self, batch: int | None = 500, **policy: Any) -> KinesisPublisher:
        """Return a publisher with this policy."""
        return KinesisPublisher(self.connection, KinesisPublish(batch=batch, **policy))

    def taken(self, stream: str = "orders") -> list[bytes]:
        """Return the data of a stream, in order."""
        return [data for _, data in self.records[stream]]

    @property
    def sizes(self) -> list[int]:
        """How many entries each request had."""
        return [len(entries) for entries in self.requests]

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | KinesisError]:
        """Take a request."""
        if self.closed:
            raise NotConnected("closed")
        assert 1 <= len(entries) <= 500
        assert sum(len(data) + len(key.encode()) for data, key, _ in entries) <= 10 * 1024 * 1024
        self.requests.append(list(entries))
        await asyncio.sleep(0)
        await self.open.wait()
        if (error := self.fail()) is not None:
            raise error
        results: list[PutResult | KinesisError] = []
        for entry in entries:
            refused = self.refuse(entry)
            if refused is None:
                self.records[stream.name].append((entry[1], entry[0]))
                number = str(len(self.records[stream.name]))
                refused_or_put: Any = PutResult(self.shard_of(entry), number)
            else:
                refused_or_put = refused
            results.append(refused_or_put)
        return results

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Take a record that travels alone."""
        (result,) = await self.put_records(
            stream, [PutEntry(data, partition_key, explicit_hash_key)]
        )
        if isinstance(result, KinesisError):
            raise result
        return result

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """Tell the record limit."""
        self.described += 1
        return StreamInfo(stream.name, "ACTIVE", 0.0, self.max_record_bytes)

    def shard_of(self, entry: tuple[Any, str, str | None]) -> str:
        """Return the open shard that takes a record."""
        at = int(entry[2] or hash_key(entry[1]))
        (shard,) = (
            each.shard_id
            for each in self.shards
            if not each.ended
            and each.hash_keys is not None
            and int(each.hash_keys[0]) <= at <= int(each.hash_keys[1])
        )
        return shard

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """List the shards."""
        del stream
        self.listed += 1
        listing = ShardListing(tuple(self.shards), 0.0)
        await asyncio.sleep(0)
        if (error := self.fail_listing()) is not None:
            raise error
        return listing

    async def close(self) -> None:
        """Close."""
        self.closed = True


class Failing:
    """Refuses the entries with this data, so many times each."""

    def __init__(self, times: dict[bytes, int], error: KinesisError | None = None) -> None:
        self.left = dict(times)
        self.error = error

    def __call__(self, entry: PutEntry) -> KinesisError | None:
        if not self.left.get(entry[0]):
            return None
        self.left[entry[0]] -= 1
        return self.error or throttled()
