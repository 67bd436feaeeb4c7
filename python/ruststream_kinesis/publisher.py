"""Publishing values: policies, and the publisher that handlers and applications use."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis.buffer import Pending
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.collector import Batching, Collector
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import (
    BufferFull,
    ConfigurationError,
    InvalidRecord,
    NotConnected,
    PublishError,
)
from ruststream_kinesis.limits import (
    DEFAULT_MAX_RECORD_BYTES,
    MAX_PUT_RECORDS,
    MAX_PUT_RECORDS_BYTES,
    check_partition_key,
    check_record_size,
    check_seconds,
)
from ruststream_kinesis.publications import Publication, PublishMiddlewares, Put, publication
from ruststream_kinesis.records import OutgoingRecord, RecordMaker, send
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Parts, PutResult

__all__ = ["KinesisPublish", "KinesisPublisher"]

# How long a record that the service refuses for a passing reason is tried again.
_PUBLISH_DEADLINE = 30.0
# Each publish waits as long for others; more than this is a mistake of units.
_LONGEST_LINGER = 10.0


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
    deadline: float | None = None
    """Seconds to go on trying a record that is refused for a passing reason. By default 30; a reply
    is tried until its shard is lost or the service stops, since nobody else would try again."""
    batch: int | None = None
    """Records a PutRecords request, 1 to 500; `None`: each record goes by itself, at once. A request
    closes at so many, at 10 MiB, or at the end of `linger`. Records of one partition key never share
    a request, since the service may take them in another order: few keys make small requests."""
    linger: float = 0.05
    """Seconds that the first record of a request waits for others, where there is a `batch`."""
    aggregate: bool = False
    """Pack records of one shard into one, as the Kinesis Producer Library does; means a `batch` of
    500 where none is given, which then counts aggregates. Only for streams whose readers all know
    aggregates: others lose the records, some of them in silence. Copies and dead letters go by
    themselves all the same."""
    buffer_records: int = 100_000
    """Records that may wait or be on their way to one stream, where there is a `batch`; when there
    are so many, `publish` waits for room and `publish_nowait` raises `BufferFull`."""
    buffer_bytes: int = 64 * 1024 * 1024
    """The same in bytes of data and keys, at least 10 MiB: the largest record has to fit."""

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
        if self.deadline is not None:
            check_seconds("deadline", self.deadline)
        self._check_batching()

    def _check_batching(self) -> None:
        if not isinstance(self.aggregate, bool):
            raise ConfigurationError(f"aggregate must be True or False: {self.aggregate!r}")
        if self.batch is not None:
            _check_whole("batch", self.batch, 1)
        if self.batch is not None and self.batch > MAX_PUT_RECORDS:
            raise ConfigurationError(
                f"batch must be at most {MAX_PUT_RECORDS}, as PutRecords takes: {self.batch!r}"
            )
        if check_seconds("linger", self.linger) > _LONGEST_LINGER:
            raise ConfigurationError(
                f"linger must be at most {_LONGEST_LINGER:g} s: {self.linger!r}"
            )
        if (self.batch is not None or self.aggregate) and self.linger == 0:
            what = "batch" if self.batch is not None else "aggregate"
            raise ConfigurationError(
                f"a batch that waits for nobody is none: leave out {what}=, or give linger= some "
                "milliseconds"
            )
        _check_whole("buffer_records", self.buffer_records, self.batch or 1)
        _check_whole("buffer_bytes", self.buffer_bytes, MAX_PUT_RECORDS_BYTES)

    @property
    def batching(self) -> Batching | None:
        """How records are collected; `None` where each goes by itself."""
        batch = self.batch or (MAX_PUT_RECORDS if self.aggregate else None)
        if batch is None:
            return None
        return Batching(batch, self.linger, self.buffer_records, self.buffer_bytes, self.aggregate)

    @classmethod
    def of(cls, publish: KinesisPublish | str | None) -> KinesisPublish | None:
        """The policy itself, or the one that a plain stream name means."""
        if publish is not None and not isinstance(publish, str | KinesisPublish):
            raise ConfigurationError(f"publish is a stream name or a KinesisPublish: {publish!r}")
        return cls(to=publish) if isinstance(publish, str) else publish


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}: {value!r}")


class KinesisPublisher:
    """Publishes values; usable while the service runs, from any event loop.

    Made by `app.publisher()`, or injected into a handler that asks for it.

    Args:
        connection: The service's connection.
        policy: Where keys come from, how long to try, whether to collect.
        codec: Encodes values.
        around: What each value passes first.
    """

    def __init__(
        self,
        connection: Connection,
        policy: KinesisPublish | None = None,
        codec: Codec | None = None,
        around: PublishMiddlewares | None = None,
    ) -> None:
        self._connection = connection
        self._policy = policy or KinesisPublish()
        self._around = around or PublishMiddlewares()
        self._maker = RecordMaker(self._policy.partition_key, codec or JsonCodec())
        self._parts = self._maker.parts
        self._way: Callable[..., Pending | Parts] = self._parts
        """Of a record of `publish_nowait`: its parts, or where the last collector takes it in itself,
        what is pending."""
        self._batching = self._policy.batching
        deadline = self._policy.deadline
        self._deadline = _PUBLISH_DEADLINE if deadline is None else deadline
        self._last: tuple[asyncio.AbstractEventLoop, StreamRef, Collector] | None = None
        """The collector that was used last: most publishers have one stream and one loop."""

    @property
    def batching(self) -> Batching | None:
        """How records are collected; `None` where each goes by itself."""
        return self._batching

    async def publish(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Puts one record; when it returns, the record is durably in the stream.

        A record whose answer was lost is sent again, so it may stand in the stream twice: delivery
        is at-least-once on this side too. Cancelling leaves open whether it was put. Where the
        policy has a `batch`, it waits for room in the buffer first, and then for its request.

        Args:
            value: Anything the codec encodes; `bytes` and `str` travel as they are.
            to: Stream name or ARN.
            partition_key: 1 to 256 characters. By default the `partition-key` header, else the
                policy's, else one that spreads records over the shards.
            headers: They travel in the envelope.
            explicit_hash_key: Decimal digits of the hash key that chooses the shard in place of
                the partition key's own.

        Returns:
            Shard and sequence number of the record.

        Raises:
            InvalidRecord: Key or size are refused, nothing was sent.
            EnvelopeError: A header cannot be carried exactly, nothing was sent.
            NotConnected: The service is not running.
            PublishError: The service refused it, or went on refusing it past the deadline.
        """
        if (through := self._around.through) is not None:
            given = publication(
                value, to, partition_key, headers, explicit_hash_key, self._putting(self._deadline)
            )
            if (result := await through(given)) is None:
                raise _no_result(to)
        elif self._batching is not None:
            parts = self._parts(value, to, partition_key, headers, explicit_hash_key)
            result = await self._collect(parts, self._deadline)
        else:
            record = self._maker.make(value, to, partition_key, headers, explicit_hash_key)
            deadline = self._connection.clock.monotonic() + self._deadline
            result = await send(self._connection, record, deadline=deadline)
        assert result is not None  # it only gives up early where it was asked to
        return result

    async def publish_while(
        self, value: Any, to: str, wanted: Callable[[], bool]
    ) -> PutResult | None:
        """Publishes for as long as `wanted()` says so, and the policy's deadline if it has one.

        For what is part of a settlement: nobody else would try again.

        Returns:
            `None` when it was not wanted any more.
        """
        if self._batching is not None:
            return await self.collect_while(value, to, wanted)
        seconds = self._policy.deadline
        if (through := self._around.through) is not None:
            given = publication(value, to, None, None, None, self._putting(seconds, wanted))
            result = await through(given)
            if result is None and wanted():
                raise _no_result(to)
            return result
        record = self._maker.make(value, to, None, None)
        deadline = None if seconds is None else self._connection.clock.monotonic() + seconds
        return await send(self._connection, record, deadline=deadline, wanted=wanted)

    def collect_while(self, value: Any, to: str, wanted: Callable[[], bool]) -> Pending:
        """`publish_while` without waiting, where the policy has a `batch`.

        Where the buffer is full it waits outside, in its order: who calls bounds how many do.
        """
        if (through := self._around.through) is not None:
            # Plain functions all of them, as was made sure of at the start.
            put = self._putting(self._policy.deadline, wanted)
            return through(publication(value, to, None, None, None, put))  # type: ignore[return-value]  # so it is a future
        return self._collect(
            self._parts(value, to, None, None, None), self._policy.deadline, wanted
        )

    async def put_while(
        self, record: OutgoingRecord, wanted: Callable[[], bool]
    ) -> PutResult | None:
        """Puts a record that is made already, a copy, for as long as it is wanted.

        It has no deadline, whatever the policy says: a copy is all that is left to be tried. It is
        never part of an aggregate: whoever reads the stream has to know it as a record of its own.
        """
        if self._batching is not None:
            return await self._collect(record.parts, None, wanted, alone=True)
        return await send(self._connection, record, wanted=wanted)

    def publish_nowait(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        explicit_hash_key: str | None = None,
    ) -> asyncio.Future[PutResult]:
        """The same without waiting: the future ends with the record's own result.

        Where the policy has a `batch` it is one of our own, which does what one of asyncio does, but
        is no instance of `asyncio.Future`.

        The caller keeps the future; an error that nobody asks for is reported by asyncio. What is
        wrong with the record is the future's error too. Cancelling it takes the record back, unless
        it is on its way already.

        Raises:
            BufferFull: The policy has a `batch`, and its buffer is full: nothing of the record is
                kept.
            ConfigurationError: The policy has a `batch`, and a publish middleware is an `async def`.
        """
        if self._batching is None:
            return asyncio.get_running_loop().create_task(
                self.publish(
                    value,
                    to,
                    partition_key=partition_key,
                    headers=headers,
                    explicit_hash_key=explicit_hash_key,
                ),
                name=f"publish[{to}]",
            )
        if (through := self._around.through) is not None:
            self._around.check_plain("publish_nowait", to)
            put = self._putting(self._deadline, patient=False)
            given = publication(value, to, partition_key, headers, explicit_hash_key, put)
            try:
                return through(given)  # type: ignore[return-value]  # plain functions: a future
            except BufferFull:
                raise
            except Exception as error:  # noqa: BLE001 - as below, and a middleware's too
                return _failed(error)
        try:
            found = self._way(value, to, partition_key, headers, explicit_hash_key)
        except Exception as error:  # noqa: BLE001 - a codec's or key function's errors are its own
            return _failed(error)
        if type(found) is Pending:
            return found  # type: ignore[return-value]  # as said
        try:
            return self._collect(found, self._deadline, None, False)  # type: ignore[return-value]  # as said
        except (InvalidRecord, NotConnected) as error:
            return _failed(error)

    def _putting(
        self,
        seconds: float | None,
        wanted: Callable[[], bool] | None = None,
        *,
        patient: bool = True,
    ) -> Put:
        """What puts a record that has passed all middlewares: without waiting, where it collects."""

        def put(given: Publication) -> Awaitable[PutResult | None]:
            connection, maker = self._connection, self._maker
            said = (given.value, given.to, given.partition_key, given.headers or None)
            if self._batching is not None:
                parts = self._parts(*said, given.explicit_hash_key)
                return self._collect(parts, seconds, wanted, patient)
            record = maker.make(*said, given.explicit_hash_key)
            deadline = None if seconds is None else connection.clock.monotonic() + seconds
            return send(connection, record, deadline=deadline, wanted=wanted)

        return put

    def _collect(
        self,
        record: Parts,
        deadline: float | None,
        wanted: Callable[[], bool] | None = None,
        patient: bool = True,
        *,
        alone: bool = False,
    ) -> Pending:
        """Gives a record to the collector of its stream on this loop; `alone`: to no aggregate."""
        connection, loop, last = self._connection, asyncio.get_running_loop(), self._last
        if not connection.connected:
            _ = connection.transport  # raises: a service that does not run takes nothing
        stream, entry, size, key = record
        batching = self._batching
        assert batching is not None
        if alone and batching.aggregate:
            plain = dataclasses.replace(batching, aggregate=False)
            last = (loop, stream, connection.collectors.of(stream, plain, loop))
        elif last is None or last[0] is not loop or last[1] is not stream:
            collector = connection.collectors.of(stream, batching, loop)
            last = self._last = (loop, stream, collector)
            self._way = collector.way(self._maker.native, self._deadline)
        if size > DEFAULT_MAX_RECORD_BYTES and (limit := connection.max_record_bytes.get(stream)):
            data_bytes = len(entry[0])
            check_record_size(data_bytes, size - data_bytes, limit, stream.name)
        return last[2].submit(entry, size, key, deadline, wanted, patient)


def _no_result(to: str) -> PublishError:
    return PublishError(
        "a publish middleware returned None in place of what call_next returns: whether the record "
        "was published is not known",
        stream=StreamRef.parse(to).name,
    )


def _failed(error: Exception) -> asyncio.Future[PutResult]:
    """The future of a record that is not sent."""
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed
