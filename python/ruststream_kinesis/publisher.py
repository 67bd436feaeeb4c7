"""Publishing: one PutRecord a record, whose answer is the acknowledgement."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import ConfigurationError, InvalidRecord, PublishError, RequestError
from ruststream_kinesis.limits import (
    DEFAULT_MAX_RECORD_BYTES,
    check_partition_key,
    check_record_size,
    check_seconds,
)
from ruststream_kinesis.message import (
    PARTITION_KEY_HEADER,
    SEQUENCE_NUMBER_HEADER,
    SHARD_ID_HEADER,
)
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, PutResult, judge

__all__ = ["KinesisPublish", "KinesisPublisher"]

logger = logging.getLogger("ruststream_kinesis")

# How long a record that the service refuses for a passing reason is tried again.
_PUBLISH_DEADLINE = 30.0
# Facts of a delivery, not of a record: they never travel in an envelope.
_DELIVERY_HEADERS = frozenset({PARTITION_KEY_HEADER, SEQUENCE_NUMBER_HEADER, SHARD_ID_HEADER})


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisPublish:
    """Publish policy: a pure declaration.

    Raises:
        ConfigurationError: A value is refused.
    """

    to: str | None = None
    """Stream name or ARN, where the policy declares a handler's replies."""
    partition_key: str | Callable[[Any], str] | None = None
    """A key for every record, or a function from the value to its key. It comes after the call's
    argument and the `partition-key` header; without any, a key of this process' own spreads the
    records over the shards."""
    deadline: float = _PUBLISH_DEADLINE
    """Seconds to go on trying a record that is refused for a passing reason."""

    def __post_init__(self) -> None:
        if self.to is not None:
            StreamRef.parse(self.to)
        if isinstance(self.partition_key, str):
            try:
                check_partition_key(self.partition_key, self.to)
            except InvalidRecord as error:
                raise ConfigurationError(error.message, stream=self.to) from error
        elif self.partition_key is not None and not callable(self.partition_key):
            raise ConfigurationError(
                f"partition_key must be text or a function of the value: {self.partition_key!r}"
            )
        check_seconds("deadline", self.deadline)

    @classmethod
    def of(cls, publish: KinesisPublish | str | None) -> KinesisPublish | None:
        """The policy itself, or the one that a plain stream name means."""
        if publish is not None and not isinstance(publish, str | KinesisPublish):
            raise ConfigurationError(f"publish is a stream name or a KinesisPublish: {publish!r}")
        return cls(to=publish) if isinstance(publish, str) else publish


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record that passed every local check, ready to be sent."""

    stream: StreamRef
    data: bytes
    """The blob as it stands in the stream, envelope included."""
    partition_key: str
    key_bytes: int
    """Size of the partition key in bytes of UTF-8; it counts against the record's limit."""


class RecordMaker:
    """Turns a value into a checked record: codec, envelope, key ladder, limits.

    The publisher and the in-process log share it, so that a test writes what production writes and
    refuses what production refuses.

    Args:
        policy: Where the key may come from.
        codec: Encodes values.
    """

    # One run of keys for the whole process: unlike any other process', and each unlike the last,
    # so that the service's hash spreads them.
    _nonce = secrets.token_hex(8)
    _numbers = itertools.count()

    def __init__(self, policy: KinesisPublish, codec: Codec) -> None:
        self._policy = policy
        self._codec = codec
        self._streams: dict[str, StreamRef] = {}

    def make(
        self,
        value: Any,
        to: str,
        partition_key: str | None,
        headers: Mapping[str, str] | None,
    ) -> OutgoingRecord:
        """The record, checked but for its size: that limit is the stream's.

        Raises:
            ConfigurationError: `to` is neither a stream name nor an ARN.
            InvalidRecord: The partition key is refused.
            EnvelopeError: A header cannot be carried exactly.
        """
        stream = self._streams.get(to)
        if stream is None:
            stream = self._streams[to] = StreamRef.parse(to)
        own = None
        if headers:
            own = {name: text for name, text in headers.items() if name not in _DELIVERY_HEADERS}
            if partition_key is None:
                # The key of a record that came without one says nothing.
                partition_key = headers.get(PARTITION_KEY_HEADER) or None
        if partition_key is None:
            partition_key = self._policy_key(value)
        key_bytes = check_partition_key(partition_key, stream.name)
        data = encode_envelope(own, self._codec.encode(value))
        return OutgoingRecord(stream, data, partition_key, key_bytes)

    def _policy_key(self, value: Any) -> str:
        key = self._policy.partition_key
        if key is None:
            return f"{self._nonce}-{next(self._numbers)}"
        return key if isinstance(key, str) else key(value)


class KinesisPublisher:
    """Publishes values; usable while the service runs, from any event loop.

    Made by `app.publisher()`, or injected into a handler that asks for it.

    Args:
        connection: The service's connection.
        policy: Where keys come from, how long to try.
        codec: Encodes values.
    """

    def __init__(
        self,
        connection: Connection,
        policy: KinesisPublish | None = None,
        codec: Codec | None = None,
    ) -> None:
        self._connection = connection
        self._policy = policy or KinesisPublish()
        self._maker = RecordMaker(self._policy, codec or JsonCodec())

    async def publish(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PutResult:
        """Puts one record; when it returns, the record is durably in the stream.

        A record whose answer was lost is sent again, so it may stand in the stream twice: delivery
        is at-least-once on this side too. Cancelling leaves open whether it was put.

        Args:
            value: Anything the codec encodes; `bytes` and `str` travel as they are.
            to: Stream name or ARN.
            partition_key: 1 to 256 characters. By default the `partition-key` header, else the
                policy's, else one that spreads records over the shards.
            headers: They travel in the envelope.

        Returns:
            Shard and sequence number of the record.

        Raises:
            InvalidRecord: Key or size are refused, nothing was sent.
            EnvelopeError: A header cannot be carried exactly, nothing was sent.
            NotConnected: The service is not running.
            PublishError: The service refused it, or went on refusing it past the deadline.
        """
        record = self._maker.make(value, to, partition_key, headers)
        clock, backoff = self._connection.clock, Backoff(first=0.1, cap=5.0)
        deadline = clock.monotonic() + self._policy.deadline
        while True:
            try:
                if len(record.data) + record.key_bytes > DEFAULT_MAX_RECORD_BYTES:
                    await self._check_size(record)
                return await self._connection.transport.put_record(
                    record.stream, record.data, record.partition_key
                )
            except RequestError as error:
                delay = backoff.next()
                if judge(error) is not Failure.PASSING or clock.monotonic() + delay > deadline:
                    raise PublishError(
                        f"a record of {len(record.data)} bytes was not published "
                        f"({backoff.failures} attempt(s)): {error.message}",
                        stream=record.stream.name,
                    ) from error
                logger.debug("publishing to %s failed, trying again: %s", record.stream, error)
            await clock.sleep(delay)

    async def _check_size(self, record: OutgoingRecord) -> None:
        """For a record that not every stream takes: no stream's limit is below the usual one."""
        stream, limits = record.stream, self._connection.max_record_bytes
        limit = limits.get(stream)
        if limit is None:
            info = await self._connection.transport.describe_stream(stream)
            limit = limits[stream] = info.max_record_bytes
        check_record_size(len(record.data), record.key_bytes, limit, stream.name)

    def publish_nowait(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[PutResult]:
        """The same without waiting: the future ends with the record's own result.

        The caller keeps the future; an error that nobody asks for is reported by asyncio.
        """
        return asyncio.get_running_loop().create_task(
            self.publish(value, to, partition_key=partition_key, headers=headers),
            name=f"publish[{to}]",
        )
