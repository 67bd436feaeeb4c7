"""Records on their way into a stream: made from values, checked, sent, and sent again.

Everything that this package puts into a stream passes `outgoing` and `send`: replies, publishes,
copies, dead letters. The in-process log is behind them too, so that a test writes what production
writes and refuses what production refuses.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ruststream_kinesis._core import Maker, SpreadKeys
from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import PublishError, RequestError
from ruststream_kinesis.limits import (
    DEFAULT_MAX_RECORD_BYTES,
    check_explicit_hash_key,
    check_partition_key,
    check_record_size,
)
from ruststream_kinesis.message import (
    PARTITION_KEY_HEADER,
    SEQUENCE_NUMBER_HEADER,
    SHARD_ID_HEADER,
)
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, Parts, PutEntry, PutResult, judge, record_limit
from ruststream_kinesis.wording import fields

__all__ = ["OutgoingRecord", "RecordMaker", "outgoing", "send", "spread_key"]

logger = logging.getLogger("ruststream_kinesis")

# Facts of a delivery, not of a record: they never travel in an envelope.
_DELIVERY_HEADERS = frozenset({PARTITION_KEY_HEADER, SEQUENCE_NUMBER_HEADER, SHARD_ID_HEADER})

# One run of keys for the whole process: unlike any other process', and each unlike the last.
_spread_keys = SpreadKeys(secrets.token_hex(8))


def spread_key() -> str:
    """A partition key of this process' own; the service's hash spreads them over the shards."""
    return _spread_keys.take()


class OutgoingRecord(NamedTuple):
    """A record that passed every local check, ready to be sent."""

    stream: StreamRef
    data: bytes
    """The blob as it stands in the stream, envelope included."""
    partition_key: str
    key_bytes: int
    """Size of the partition key in bytes of UTF-8; it counts against the record's limit."""
    explicit_hash_key: str | None = None
    """The hash key that stands in for the partition key's own, in decimal digits."""
    spread: bool = False
    """Its partition key is of our own making: no other record has it."""

    @property
    def parts(self) -> Parts:
        """The same in plain tuples."""
        stream, data, key, key_bytes, explicit_hash_key, spread = self
        entry = PutEntry(data, key, explicit_hash_key)
        return stream, entry, len(data) + key_bytes, None if spread else key


class RecordMaker:
    """Turns a value into a checked record: codec, envelope, key ladder, limits.

    The publisher and the in-process log share it, so that a test writes what production writes and
    refuses what production refuses.

    Args:
        policy_key: The policy's key, or a function from a value to its key.
        codec: Encodes values.
    """

    def __init__(self, policy_key: str | Callable[[Any], str] | None, codec: Codec) -> None:
        self.native = Maker(
            policy_key,
            codec.encode,
            plain=type(codec) is JsonCodec,
            spread=_spread_keys,
            parse=StreamRef.parse,
            split=_split,
            check_hash_key=check_explicit_hash_key,
        )
        """Makes the record; in the core, since each costs as much as all of sending it otherwise."""
        self.parts: Callable[..., Parts] = self.native.parts
        """`make` for who publishes a great many."""

    def make(
        self,
        value: Any,
        to: str,
        partition_key: str | None,
        headers: Mapping[str, str] | None,
        explicit_hash_key: str | None = None,
    ) -> OutgoingRecord:
        """The record, checked but for its size: that limit is the stream's.

        Raises:
            ConfigurationError: `to` is neither a stream name nor an ARN.
            InvalidRecord: The partition key, or the explicit hash key, is refused.
            EnvelopeError: A header cannot be carried exactly.
        """
        stream, entry, size, own = self.parts(value, to, partition_key, headers, explicit_hash_key)
        data, key, hash_key = entry
        return OutgoingRecord(stream, data, key, size - len(data), hash_key, own is None)


def _split(headers: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The headers that travel, and the partition key among the others."""
    own = {name: text for name, text in headers.items() if name not in _DELIVERY_HEADERS}
    # The key of a record that came without one says nothing.
    return own, headers.get(PARTITION_KEY_HEADER) or None


def outgoing(
    stream: StreamRef,
    data: bytes,
    partition_key: str | None,
    explicit_hash_key: str | None = None,
) -> OutgoingRecord:
    """A record from its blob; without a partition key, with one that spreads over the shards.

    Raises:
        InvalidRecord: The partition key is refused.
    """
    if partition_key is None:
        own = spread_key()
        return OutgoingRecord(stream, data, own, len(own), explicit_hash_key, True)
    key_bytes = check_partition_key(partition_key, stream.name)
    return OutgoingRecord(stream, data, partition_key, key_bytes, explicit_hash_key)


async def send(
    connection: Connection,
    record: OutgoingRecord,
    *,
    deadline: float | None = None,
    wanted: Callable[[], bool] | None = None,
) -> PutResult | None:
    """Puts a record into its stream, again and again while the failure is passing.

    A record whose answer was lost is sent again, so it may stand in the stream twice.

    Args:
        connection: Transport and clock.
        record: What to put.
        deadline: When to give up, on the monotonic clock.
        wanted: Asked before every attempt whether to go on.

    Returns:
        Where it stands, or `None` when it was not wanted any more.

    Raises:
        InvalidRecord: It is larger than the stream takes; nothing was sent.
        NotConnected: The service is not running.
        PublishError: The service refused it, or went on refusing it past the deadline.
    """
    # Named at a stop that cannot wait for it.
    collectors = connection.collectors
    number = collectors.sets_out(record.stream.name, record.partition_key)
    try:
        return await _sent(connection, record, deadline, wanted)
    finally:
        collectors.arrives(number)


async def _sent(
    connection: Connection,
    record: OutgoingRecord,
    deadline: float | None,
    wanted: Callable[[], bool] | None,
) -> PutResult | None:
    clock = connection.clock
    # Made at the first failure: most records have none.
    backoff: Backoff | None = None
    log: MinuteLog | None = None
    while wanted is None or wanted():
        try:
            if len(record.data) + record.key_bytes > DEFAULT_MAX_RECORD_BYTES:
                await _check_size(connection, record)
            result = await connection.transport.put_record(
                record.stream,
                record.data,
                record.partition_key,
                explicit_hash_key=record.explicit_hash_key,
            )
        except RequestError as error:
            connection.collectors.counters_of(record.stream.name).errors += 1
            backoff = backoff or Backoff(first=0.1, cap=5.0)
            log = log or MinuteLog(clock)
            delay = backoff.next()
            late = deadline is not None and clock.monotonic() + delay > deadline
            if late or judge(error) is not Failure.PASSING:
                raise PublishError(
                    f"a record of {len(record.data)} bytes was not published "
                    f"({backoff.failures} attempt(s)): {error.message}",
                    stream=record.stream.name,
                ) from error
            _say(log if deadline is None else None, record, error)
        else:
            connection.collectors.counters_of(record.stream.name).records += 1
            return result
        await clock.sleep(delay)
    return None


def _say(log: MinuteLog | None, record: OutgoingRecord, error: RequestError) -> None:
    """A publisher with a deadline tells its caller; one without has only the log."""
    count = None if log is None else log.due()
    if count is None:
        logger.debug(
            "publishing to %s failed, trying again: %s",
            record.stream,
            error,
            extra=fields(record.stream.name),
        )
    else:
        logger.warning(
            "publishing to stream %s failed (%d time(s)), trying again: %s",
            record.stream.name,
            count,
            error,
            extra=fields(record.stream.name),
        )


async def _check_size(connection: Connection, record: OutgoingRecord) -> None:
    """For a record that not every stream takes: no stream's limit is below the usual one."""
    stream = record.stream
    limit = await record_limit(connection, stream)
    check_record_size(len(record.data), record.key_bytes, limit, stream.name)
