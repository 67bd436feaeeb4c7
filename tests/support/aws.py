"""A raw client beside the package under test.

What a test puts into a stream, or looks up afterwards, goes through plain aiobotocore and never
through our own code: a mistake there must not be able to cancel itself out.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.support.servers import REGION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from types_aiobotocore_kinesis import KinesisClient
    from types_aiobotocore_kinesis.type_defs import RecordTypeDef, ShardTypeDef

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
"""No server checks them. Twelve digits as the key id would select another account in kinesis-local."""

PATIENCE = 20.0
"""Seconds until a server must have done what it announced. It takes 10 ms; CI machines stall."""

# The parsed service model is the slow part of a new client; a session keeps it, and has no loop.
_SESSION = get_session()


@dataclass
class Aws:
    """Streams on one server, by a client without retries."""

    url: str
    """The server's endpoint."""
    client: KinesisClient
    """For everything that has no helper here."""
    created: list[str] = field(default_factory=list)
    """Names from `create_stream`, deleted in the end: moto lists them all in every scan."""

    def unique(self, prefix: str = "stream") -> str:
        """Return a stream name that no other test uses."""
        return f"{prefix}-{uuid.uuid4().hex[:12]}"

    async def create_stream(self, name: str | None = None, shards: int = 1) -> str:
        """Create a stream, wait until it is active, and return its name (a unique one by default)."""
        name = name or self.unique()
        await self.client.create_stream(StreamName=name, ShardCount=shards)
        self.created.append(name)
        await self.active(name)
        return name

    async def delete_stream(self, name: str) -> None:
        """Delete a stream, and wait until it is gone."""
        await self.client.delete_stream(StreamName=name)
        self.created.remove(name)
        async with asyncio.timeout(PATIENCE):
            while True:
                # No pause, as in `active`.
                try:
                    await self.client.describe_stream_summary(StreamName=name)
                except self.client.exceptions.ResourceNotFoundException:
                    return

    async def active(self, name: str) -> None:
        """Wait until the stream is ACTIVE: after creating it, a split or a merge."""
        async with asyncio.timeout(PATIENCE):
            while True:
                # No pause: a round trip on loopback is one, and the state changes in 10 ms.
                answer = await self.client.describe_stream_summary(StreamName=name)
                if answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
                    return

    async def put(
        self, name: str, data: bytes, key: str = "key", *, hash_key: str | None = None
    ) -> str:
        """Put one record and return its sequence number."""
        explicit: Any = {} if hash_key is None else {"ExplicitHashKey": hash_key}
        answer = await self.client.put_record(
            StreamName=name, Data=data, PartitionKey=key, **explicit
        )
        return answer["SequenceNumber"]

    async def shards(self, name: str) -> list[ShardTypeDef]:
        """List every shard, closed ones included, following the pages."""
        answer = await self.client.list_shards(StreamName=name)
        shards = answer["Shards"]
        while token := answer.get("NextToken"):
            answer = await self.client.list_shards(NextToken=token)
            shards += answer["Shards"]
        return shards

    async def iterator(
        self, name: str, shard_id: str, kind: Any = "TRIM_HORIZON", **at: Any
    ) -> str:
        """Return a shard iterator; `at` is `StartingSequenceNumber=` or `Timestamp=`."""
        answer = await self.client.get_shard_iterator(
            StreamName=name, ShardId=shard_id, ShardIteratorType=kind, **at
        )
        return answer["ShardIterator"]

    async def records(self, name: str) -> list[RecordTypeDef]:
        """Read all records of all shards from the horizon: shard by shard, in order within each."""
        found: list[RecordTypeDef] = []
        for shard in await self.shards(name):
            found += await self.shard_records(name, shard["ShardId"])
        return found

    async def shard_records(self, name: str, shard_id: str) -> list[RecordTypeDef]:
        """Read all records of one shard from the horizon to its present end."""
        found: list[RecordTypeDef] = []
        iterator: str | None = await self.iterator(name, shard_id)
        while iterator:
            answer = await self.client.get_records(ShardIterator=iterator)
            found += answer["Records"]
            # Neither server ever gives an empty page before the end.
            iterator = answer.get("NextShardIterator") if answer["Records"] else None
        return found

    async def split(self, name: str, shard_id: str) -> list[ShardTypeDef]:
        """Split a shard in the middle, and return the two children, the lower range first."""
        (shard,) = [each for each in await self.shards(name) if each["ShardId"] == shard_id]
        keys = shard["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        await self.client.split_shard(
            StreamName=name, ShardToSplit=shard_id, NewStartingHashKey=str(middle)
        )
        await self.active(name)
        children = await self._children(name, shard_id)
        return sorted(children, key=lambda child: int(child["HashKeyRange"]["StartingHashKey"]))

    async def merge(self, name: str, shard_id: str, adjacent_shard_id: str) -> ShardTypeDef:
        """Merge two neighbouring shards, and return the child."""
        await self.client.merge_shards(
            StreamName=name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_shard_id
        )
        await self.active(name)
        (child,) = await self._children(name, shard_id)
        return child

    async def _children(self, name: str, shard_id: str) -> list[ShardTypeDef]:
        shards = await self.shards(name)
        return [shard for shard in shards if shard.get("ParentShardId") == shard_id]


def client_arguments(url: str) -> dict[str, Any]:
    """Return what every client against a test server is created with."""
    # One attempt: a test that provokes an error wants to see it, not its fourth retry.
    config = AioConfig(
        retries={"total_max_attempts": 1}, connect_timeout=PATIENCE, read_timeout=PATIENCE
    )
    return {"region_name": REGION, "endpoint_url": url, "config": config, **CREDENTIALS}


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Aws]:
    """Open a raw client for the server at `url`; delete the streams it created in the end."""
    async with _SESSION.create_client("kinesis", **client_arguments(url)) as client:
        aws = Aws(url, client)
        try:
            yield aws
        finally:
            for name in aws.created:
                # A test may have deleted it, or killed the server: neither is this test's failure.
                with contextlib.suppress(Exception):
                    await client.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
