"""`AwsTransport`: the calls of `Transport` over aiobotocore, one client per event loop.

It is a file of its own so that importing the package does not import aiobotocore, which alone takes
half a second; `open` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import importlib
import itertools
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.aws_errors import member, translated
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import (
    ConfigurationError,
    NotConnected,
    RequestError,
)
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutResult, ShardInfo, ShardListing, StreamInfo

if TYPE_CHECKING:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

__all__ = ["AwsSettings", "AwsTransport"]

logger = logging.getLogger("ruststream_kinesis")

# A response that never ends is cut off here and asked for again.
CALL_DEADLINE = 30.0
# botocore pools ten connections; a service with hundreds of shards would queue behind them.
_POOL_SIZE = 128
# A host that answers at all takes a connection within seconds; botocore would wait a minute.
_CONNECT_TIMEOUT = 5.0
# One connection in so many is kept for everything that is no GetRecords.
_POOL_SHARE = 4
_NO_TURN: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
# A put is small: an answer that takes longer than this does not come, and the publish has time
# left to try again.
_DEADLINES = {"put_record": 10.0}
# The client of a thread that is busy at the stop is left to the end of its loop.
_CLOSE_DEADLINE = 2.0
_KIB = 1024
# ListShards names at most this many a page by default; said so that the pages are not smaller.
_SHARDS_PER_PAGE = 1000
# An unexpected answer for ever must not keep us listing for ever.
_LISTING_ATTEMPTS = 5
_ERROR_STATUS = 300
_ITERATOR_TYPES = {"horizon": "TRIM_HORIZON", "latest": "LATEST", "timestamp": "AT_TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How to reach the service; region and credentials are resolved on connect."""

    region: str | None = None
    endpoint_url: str | None = None
    session: AioSession | None = None
    config: AioConfig | None = None
    test_credentials: bool = False


class AwsTransport:
    """Kinesis through aiobotocore.

    Clients belong to an event loop. The loop that opened the transport owns the credentials and
    their refresh; another loop gets a client of its own at its first call, which signs with frozen
    snapshots, since a refreshable object's lock is bound to one loop.

    Args:
        settings: Where and as whom.
        clock: For the service's time where a response has no `Date`.
        deadline: Seconds that a call may take until its whole answer is there.
    """

    def __init__(
        self, settings: AwsSettings, clock: Clock, *, deadline: float = CALL_DEADLINE
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._deadline = deadline
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Any = None
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Task[_Client]] = {}
        self._closed = False

    async def open(self) -> None:
        """Resolves region and credentials and makes this loop's client.

        Raises:
            ConfigurationError: No region, or no credentials, anywhere in the configuration.
        """
        # Off the loop: a service that hosts us in its own lifespan must not stall for the import.
        await asyncio.to_thread(importlib.import_module, "aiobotocore.session")
        self._loop = asyncio.get_running_loop()
        self._session = self._settings.session or _new_session()
        await self._client()

    async def close(self) -> None:
        """Closes the clients of every loop; a loop that is gone took its client with it."""
        self._closed = True
        clients, self._clients = self._clients, {}
        # Each by itself: a thread whose loop ends at this moment must not keep the others open.
        await asyncio.gather(*(_close_on(loop, task) for loop, task in clients.items()))

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """DescribeStreamSummary."""
        answer = await self._call("describe_stream_summary", stream, **stream.parameters())
        summary = member(answer, "StreamDescriptionSummary", stream)
        created = summary.get("StreamCreationTimestamp")
        size = summary.get("MaxRecordSizeInKiB")
        return StreamInfo(
            name=stream.name,
            status=summary.get("StreamStatus", "ACTIVE"),
            created=None if created is None else created.timestamp(),
            max_record_bytes=DEFAULT_MAX_RECORD_BYTES if size is None else size * _KIB,
        )

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
                shards.append(ShardInfo(shard_id, tuple(p for p in parents if p)))
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
        body: bytes = answer[_BODY]
        return body

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """PutRecord."""
        request: dict[str, Any] = {"Data": data, "PartitionKey": partition_key}
        if explicit_hash_key is not None:
            request["ExplicitHashKey"] = explicit_hash_key
        answer = await self._call("put_record", stream, **stream.parameters(), **request)
        return PutResult(
            member(answer, "ShardId", stream), member(answer, "SequenceNumber", stream)
        )

    def _service_time(self, answer: Any) -> float:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            return email.utils.parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return self._clock.time()

    async def _call(
        self, operation: str, stream: StreamRef, shard_id: str | None = None, /, **request: Any
    ) -> Any:
        deadline = min(self._deadline, _DEADLINES.get(operation, self._deadline))
        async with translated(operation, stream, shard_id, deadline):
            client = await self._client()
            # Reads take turns for a part of the pool, first come first served: however many shards
            # there are, and however slow the answers, a publish or a new iterator finds a
            # connection. The deadline starts when the turn has come.
            turn = client.reads if operation == "get_records" else _NO_TURN
            async with turn, asyncio.timeout(deadline):
                return await getattr(client.kinesis, operation)(**request)

    async def _client(self) -> _Client:
        if self._closed or self._loop is None:
            raise NotConnected("not connected to Kinesis: the service is not running")
        loop = asyncio.get_running_loop()
        task = self._clients.get(loop)
        if task is None:
            for other in list(self._clients):
                if other.is_closed():
                    self._clients.pop(other, None)
            # A task, so that callers that come meanwhile share the one client, and none that is
            # cancelled takes it from the others.
            task = self._clients[loop] = loop.create_task(
                self._connect(loop), name="kinesis-client"
            )
            task.add_done_callback(self._connected)
        elif task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        return await asyncio.shield(task)

    def _connected(self, task: asyncio.Task[_Client]) -> None:
        """Forgets a client that did not come to be: the next caller tries anew."""
        loop = task.get_loop()
        failed = task.cancelled() or task.exception() is not None
        if failed and self._clients.get(loop) is task:
            del self._clients[loop]

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Client:
        from aiobotocore.config import AioConfig  # noqa: PLC0415 - see the module's header

        settings = self._settings
        # Our request checks are stricter and cheaper than the client's model walk.
        config = AioConfig(
            connect_timeout=_CONNECT_TIMEOUT,
            max_pool_connections=_POOL_SIZE,
            tcp_keepalive=True,
            parameter_validation=False,
        )
        if settings.config is not None:
            config = config.merge(settings.config)
        # One attempt a call is ours to decide: the callers own back-off and the iterator.
        config = config.merge(AioConfig(retries={"total_max_attempts": 1, "mode": "standard"}))
        session = self._session
        keys: dict[str, Any] = {}
        if settings.test_credentials:
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        elif loop is not self._loop:
            session = _new_session()
            # aiobotocore has no public way to give a session its credentials object.
            session._credentials = _snapshots(self._session, self._loop)  # noqa: SLF001 - as said
        region = settings.region or self._session.get_config_variable("region")
        if region is None and settings.test_credentials:
            region = "us-east-1"
        if region is None:
            raise ConfigurationError(
                "no region: set AWS_REGION or the profile's, or pass KinesisBroker(region=...), "
                "on the command line --region"
            )
        if not keys and await session.get_credentials() is None:
            raise ConfigurationError(
                "no credentials: configure a profile, a role or AWS_ACCESS_KEY_ID; for a local "
                "endpoint pass KinesisBroker(test_credentials=True), on the command line "
                "--test-credentials"
            )
        life = _life(
            session.create_client(
                "kinesis",
                region_name=region,
                endpoint_url=settings.endpoint_url,
                config=config,
                **keys,
            )
        )
        pool = max(1, config.max_pool_connections)  # type: ignore[attr-defined]  # set by botocore
        reads = asyncio.Semaphore(max(1, pool - pool // _POOL_SHARE))
        return _Client(await anext(life), life, reads)


@dataclass(frozen=True, slots=True)
class _Client:
    kinesis: Any
    life: AsyncGenerator[Any, None]
    reads: asyncio.Semaphore


async def _life(opening: Any) -> AsyncGenerator[Any, None]:
    """A client, until it is closed or its loop ends.

    A loop closes the generators that are left open in it (`asyncio.run` does): the sockets of a
    thread that came, published and went do not wait for the stop of the service.
    """
    async with opening as kinesis:
        kinesis.meta.events.register("before-parse.kinesis.GetRecords", _take_body)
        yield kinesis


# Under this name the hook below hands the unparsed body through botocore's parsed response.
_BODY = "ruststream_body"


def _take_body(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Keeps botocore's parser away from a page of records: it costs 23 µs a record."""
    if response_dict["status_code"] < _ERROR_STATUS:
        customized_response_dict[_BODY] = response_dict["body"]
        response_dict["body"] = b""


async def _close_on(loop: asyncio.AbstractEventLoop, task: asyncio.Task[_Client]) -> None:
    """Closes a client where it lives; a loop that is gone, or going, takes its client with it."""
    if loop is asyncio.get_running_loop():
        await _close(task)
        return
    closing = _close(task)
    try:
        there = asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop was closed meanwhile
        closing.close()
        return
    # Waited for, not awaited: however it ends there, nothing of it is ours. A busy loop may take
    # longer than anybody should wait.
    await asyncio.wait([asyncio.wrap_future(there)], timeout=_CLOSE_DEADLINE)


async def _close(task: asyncio.Task[_Client]) -> None:
    if not task.done():
        task.cancel()
    # A client that never came to be has nothing to close.
    with contextlib.suppress(asyncio.CancelledError, Exception):
        client = await task
        await client.life.aclose()


def _new_session() -> Any:
    from aiobotocore.session import AioSession  # noqa: PLC0415 - see the module's header

    session = AioSession()
    # The name that every other SDK reads; botocore by itself knows AWS_DEFAULT_REGION only.
    region = os.environ.get("AWS_REGION")
    if region:
        session.set_config_variable("region", region)
    return session


def _snapshots(session: Any, owner: asyncio.AbstractEventLoop | None) -> Any:
    """Credentials for another loop: frozen copies, asked for on the loop that refreshes them."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - see the module's header

    async def snapshot() -> Any:
        credentials = await session.get_credentials()
        return None if credentials is None else await credentials.get_frozen_credentials()

    class Snapshots(AioCredentials):
        def __init__(self) -> None:
            super().__init__("pending", "pending", method="ruststream-snapshot")

        async def get_frozen_credentials(self) -> Any:  # type: ignore[override]  # as AioCredentials
            if owner is None or not owner.is_running():
                raise NotConnected("not connected to Kinesis: the service's loop has ended")
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(snapshot(), owner))

    return Snapshots()
