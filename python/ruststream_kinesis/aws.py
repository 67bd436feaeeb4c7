"""`AwsTransport`: the calls of `Transport` over aiobotocore, one client per event loop.

It is a file of its own so that importing the package does not import aiobotocore, which alone takes
half a second; `open` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from ruststream_kinesis.aws_client import BODY, DEFAULTS, Client
from ruststream_kinesis.aws_errors import member, refused, translated
from ruststream_kinesis.clients import ClientSettings, LoopClients
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import NotConnected, RequestError, StreamNotFound
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import (
    PutEntry,
    PutResult,
    ShardInfo,
    ShardListing,
    StreamInfo,
)
from ruststream_kinesis.wording import asked_at

__all__ = ["AwsTransport", "put_results"]

# A response that never ends is cut off here and asked for again.
CALL_DEADLINE = 30.0
_NO_TURN: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
# A put is small: an answer that takes longer than this does not come, and the publish has time
# left to try again. A batch may have 10 MiB to send.
_DEADLINES = {"put_record": 10.0, "put_records": 15.0}
_KIB = 1024
# ListShards names at most this many a page by default; said so that the pages are not smaller.
_SHARDS_PER_PAGE = 1000
# An unexpected answer for ever must not keep us listing for ever.
_LISTING_ATTEMPTS = 5
_ITERATOR_TYPES = {"horizon": "TRIM_HORIZON", "latest": "LATEST", "timestamp": "AT_TIMESTAMP"}


class AwsTransport:
    """Kinesis through aiobotocore.

    The loop that opened it owns the credentials; another one has a client of its own from its first
    call on (`clients.py`).

    Args:
        settings: Where and as whom.
        clock: For the service's time where a response has no `Date`.
        deadline: Seconds that a call may take until its whole answer is there.
    """

    def __init__(
        self, settings: ClientSettings, clock: Clock, *, deadline: float = CALL_DEADLINE
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._clients: LoopClients[Client] = LoopClients(
            "kinesis",
            settings,
            advice="KinesisBroker",
            options=True,
            defaults=DEFAULTS,
            made=self._made,
            bound=True,
        )
        self._opened = self._closed = False

    async def open(self) -> None:
        """Resolves region and credentials and makes this loop's client.

        Raises:
            ConfigurationError: No region, or no credentials, anywhere in the configuration.
        """
        self._opened = True
        await self._client()

    async def close(self) -> None:
        """Closes the clients of every loop; a loop that is gone took its client with it."""
        self._closed = True
        await self._clients.close()

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """DescribeStreamSummary."""
        try:
            answer = await self._call("describe_stream_summary", stream, **stream.parameters())
        except StreamNotFound as error:
            where = asked_at((await self._client()).kinesis.meta)
            raise StreamNotFound(
                f"{error.message}. It was looked for at {where}",
                code=error.code,
                status=error.status,
                stream=stream.name,
            ) from error
        summary = member(answer, "StreamDescriptionSummary", stream)
        created = summary.get("StreamCreationTimestamp")
        size = summary.get("MaxRecordSizeInKiB")
        return StreamInfo(
            name=stream.name,
            status=summary.get("StreamStatus", "ACTIVE"),
            created=None if created is None else created.timestamp(),
            max_record_bytes=DEFAULT_MAX_RECORD_BYTES if size is None else size * _KIB,
            mode=(summary.get("StreamModeDetails") or {}).get("StreamMode"),
            open_shards=summary.get("OpenShardCount"),
            retention_hours=summary.get("RetentionPeriodHours"),
        )

    async def list_streams(self) -> list[str]:
        """ListStreams, all pages: the names of this account and region's streams, in their order."""
        names: list[str] = []
        while True:
            # By the last name and not by a token, which ages.
            begin = {"ExclusiveStartStreamName": names[-1]} if names else {}
            answer = await self._call("list_streams", None, **begin)
            page = member(answer, "StreamNames", None)
            names += page
            if not answer.get("HasMoreStreams") or not page:
                return names

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        """CreateStream; a stream that exists already is no error."""
        try:
            await self._call("create_stream", stream, StreamName=stream.name, ShardCount=shards)
        except RequestError as error:
            # Another instance was first: the stream is what was asked for.
            if error.code != "ResourceInUseException":
                raise

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """ListShards, all pages; a token that expired restarts the listing."""
        for attempt in itertools.count(1):
            try:
                return await self._list_shards(stream)
            except RequestError as error:
                # The listing took longer than a token lives: only a new one is whole.
                if error.code != "ExpiredNextTokenException" or attempt == _LISTING_ATTEMPTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _list_shards(self, stream: StreamRef) -> ShardListing:
        shards: list[ShardInfo] = []
        # The token stands for the stream: the service refuses both together.
        request: dict[str, Any] = {**stream.parameters(), "MaxResults": _SHARDS_PER_PAGE}
        first: Any = None
        while True:
            answer = await self._call("list_shards", stream, **request)
            first = first or answer
            for shard in member(answer, "Shards", stream):
                parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                shard_id = member(shard, "ShardId", stream)
                numbers = shard.get("SequenceNumberRange") or {}
                keys = shard.get("HashKeyRange") or {}
                low, high = keys.get("StartingHashKey"), keys.get("EndingHashKey")
                shards.append(
                    ShardInfo(
                        shard_id,
                        tuple(p for p in parents if p),
                        numbers.get("StartingSequenceNumber"),
                        (str(low), str(high)) if low and high else None,
                        ended=bool(numbers.get("EndingSequenceNumber")),
                    )
                )
            token = answer.get("NextToken")
            if not token:
                # The first page's time: what is older than it was listed.
                return ShardListing(tuple(shards), self._service_time(first))
            request = {"NextToken": token, "MaxResults": _SHARDS_PER_PAGE}

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """GetShardIterator."""
        request: dict[str, Any] = {**stream.parameters(), "ShardId": shard_id}
        if position.kind == "sequence":
            request["ShardIteratorType"] = (
                "AFTER_SEQUENCE_NUMBER" if after else "AT_SEQUENCE_NUMBER"
            )
            request["StartingSequenceNumber"] = position.sequence_number
        else:
            request["ShardIteratorType"] = _ITERATOR_TYPES[position.kind]
            if position.kind == "timestamp":
                request["Timestamp"] = position.when
        answer = await self._call("get_shard_iterator", stream, shard_id, **request)
        return str(member(answer, "ShardIterator", stream, shard_id))

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """GetRecords, unparsed: the body goes to the core as it came."""
        request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            request["StreamARN"] = stream.arn
        answer = await self._call("get_records", stream, shard_id, **request)
        body: bytes = answer[BODY]
        return body

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """PutRecord."""
        entry = _members(PutEntry(data, partition_key, explicit_hash_key))
        answer = await self._call("put_record", stream, **stream.parameters(), **entry)
        return PutResult(
            member(answer, "ShardId", stream), member(answer, "SequenceNumber", stream)
        )

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """PutRecords."""
        if not entries:
            return []
        records = [_members(entry) for entry in entries]
        answer = await self._call("put_records", stream, **stream.parameters(), Records=records)
        names = ("ShardId", "SequenceNumber", "ErrorCode", "ErrorMessage")
        rows = [tuple(map(each.get, names)) for each in member(answer, "Records", stream)]
        return put_results(stream, len(entries), rows)

    def _service_time(self, answer: Any) -> float:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            return email.utils.parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return self._clock.time()

    async def _call(
        self,
        operation: str,
        stream: StreamRef | None,
        shard_id: str | None = None,
        /,
        **request: Any,
    ) -> Any:
        deadline = self._deadline_of(operation)
        with translated(operation, stream, shard_id, deadline):
            client = await self._client()
            # Reads take turns for a part of the pool, first come first served: however many shards
            # there are, and however slow the answers, a publish or a new iterator finds a
            # connection. The deadline starts when the turn has come.
            async with _turn(client, operation), asyncio.timeout(deadline):
                return await getattr(client.kinesis, operation)(**request)

    def _deadline_of(self, operation: str) -> float:
        return min(self._deadline, _DEADLINES.get(operation, self._deadline))

    async def _client(self) -> Client:
        if self._closed or not self._opened:
            raise NotConnected("not connected to Kinesis: the service is not running")
        return await self._clients.get()

    async def _made(self, kinesis: Any, belongings: contextlib.AsyncExitStack) -> Client:
        """What a new client is used through.

        Args:
            kinesis: aiobotocore's.
            belongings: What is closed before it, in its loop.
        """
        del belongings  # of those that have some
        return Client.over(kinesis)


def put_results(
    stream: StreamRef, count: int, rows: Sequence[tuple[str | None, ...]]
) -> list[PutResult | RequestError]:
    """What became of each entry of a batch.

    Args:
        stream: Where they went.
        count: How many there were.
        rows: Shard, sequence number, error code and message of each, as answered.

    Raises:
        RequestError: There is not one row for each entry: nobody can tell whose they are.
    """
    if len(rows) != count:
        raise RequestError(
            f"the answer has {len(rows)} results for {count} records",
            code="MalformedAnswer",
            stream=stream.name,
        )
    return list(_each_result(stream, rows))


def _each_result(
    stream: StreamRef, rows: Iterable[tuple[str | None, ...]]
) -> Iterable[PutResult | RequestError]:
    for shard_id, sequence_number, code, said in rows:
        if shard_id and sequence_number and not code:
            yield PutResult(shard_id, sequence_number)
        else:
            # No status: an entry has none of its own, and one without a reason is asked again.
            yield refused("put_record", stream, None, None, code or "MalformedAnswer", said)


def _members(entry: PutEntry) -> dict[str, Any]:
    data, partition_key, explicit_hash_key = entry
    members: dict[str, Any] = {"Data": data, "PartitionKey": partition_key}
    if explicit_hash_key is not None:
        members["ExplicitHashKey"] = explicit_hash_key
    return members


def _turn(client: Client, operation: str) -> contextlib.AbstractAsyncContextManager[None]:
    if operation == "get_records":
        return client.reads
    return client.puts if operation.startswith("put_record") else _NO_TURN
