"""The in-process log: streams of one shard each, and the transport that writes to them.

Every named stream exists. A record is stored as the page that a read of it would give: its response
body goes through the same native decode as one from the service, once, and all subscriptions and
the test share the result.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from ruststream_kinesis._core import Page
from ruststream_kinesis.errors import KinesisError, NotConnected, RequestError
from ruststream_kinesis.limits import LAST_HASH_KEY
from ruststream_kinesis.testing.collecting import Caused
from ruststream_kinesis.testing.delivery import CAUSES, Cause
from ruststream_kinesis.testing.record import LogRecord
from ruststream_kinesis.transport import (
    PutEntry,
    PutResult,
    ShardInfo,
    ShardListing,
    StreamInfo,
)

if TYPE_CHECKING:
    from ruststream_kinesis.clock import Clock
    from ruststream_kinesis.position import KinesisPosition
    from ruststream_kinesis.stream import StreamRef
    from ruststream_kinesis.testing.faults import Faults

__all__ = ["SHARD_ID", "Log", "LogTransport", "Reading"]

SHARD_ID: Final = "shardId-000000000000"
"""The one shard of every stream."""

# As long as the service's own, so that nobody's test takes one for a machine integer.
_FIRST_SEQUENCE_NUMBER = 49_650_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_002

# Often enough for a deadline, rare enough to cost nothing.
_PUTS_A_TURN = 64


class _Entry(msgspec.Struct, rename="pascal"):
    sequence_number: str
    approximate_arrival_timestamp: float
    data: bytes
    partition_key: str


class _Body(msgspec.Struct, rename="pascal"):
    records: list[_Entry]
    next_shard_iterator: str = "in-process"
    millis_behind_latest: int = 0


_ENCODER = msgspec.json.Encoder()


class Reading(Protocol):
    """A subscription at work on a stream."""

    def offer(self, record: LogRecord, causes: tuple[Cause, ...]) -> None:
        """Takes a record that was just appended."""
        ...


class Log:
    """All streams of one test.

    Args:
        clock: Stamps the records.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: defaultdict[str, list[LogRecord]] = defaultdict(list)
        self._readings: defaultdict[str, list[Reading]] = defaultdict(list)
        self._next = _FIRST_SEQUENCE_NUMBER
        self._started = clock.time()

    def records(self, stream: str) -> list[LogRecord]:
        """The records of a stream, oldest first."""
        return self._streams[stream]

    def read(self, stream: str, reading: Reading) -> None:
        """Offers every later record of `stream` to `reading`."""
        self._readings[stream].append(reading)

    def leave(self, stream: str, reading: Reading) -> None:
        """Ends `read`."""
        if reading in self._readings[stream]:
            self._readings[stream].remove(reading)

    def append(self, stream: str, data: bytes, partition_key: str) -> str:
        """Appends a record and hands it, or what it holds, to the subscriptions of its stream.

        Returns:
            Its sequence number.
        """
        number = str(self._next)
        self._next += 1
        entry = _Entry(number, self._clock.time(), data, partition_key)
        page = Page.parse(_ENCODER.encode(_Body([entry])))
        # One, but for an aggregate, which is as many as it holds.
        records = [LogRecord.of(stream, SHARD_ID, page, index) for index in range(len(page))]
        self._streams[stream] += records
        causes = CAUSES.get()
        for reading in self._readings[stream]:
            for record in records:
                reading.offer(record, causes)
        return number

    def describe(self, stream: str) -> StreamInfo:
        """Every stream exists, and was made when the test began."""
        return StreamInfo(stream, "ACTIVE", self._started)


class LogTransport:
    """A `Transport` that writes to a `Log`.

    The log hands its records over by itself, so nobody asks for iterators and pages.

    Args:
        log: Where to write.
        clock: The service's time.
        loop: The loop that the log lives on; calls from other loops go through it.
        faults: Which attempts fail.
    """

    def __init__(
        self, log: Log, clock: Clock, loop: asyncio.AbstractEventLoop, faults: Faults
    ) -> None:
        self._faults = faults
        self._log = log
        self._clock = clock
        self._loop = loop
        self._closed = False
        self._puts = 0

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Appends a record, from any loop."""
        del explicit_hash_key  # there is one shard
        if self._closed:
            raise NotConnected("the in-process log is closed: the test is over")
        if self._faults.pending:
            self._faults.check(stream.name)
        if asyncio.get_running_loop() is not self._loop:
            # A handler thread with a loop of its own. The context, and so the cause, goes along.
            there = self._put(stream, data, partition_key)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there, self._loop))
        number = self._log.append(stream.name, data, partition_key)
        self._puts += 1
        if self._puts % _PUTS_A_TURN == 0:
            # A handler that publishes what it handles never suspends here: timers must run.
            await asyncio.sleep(0)
        return PutResult(SHARD_ID, number)

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """Appends records one by one; a fault that the test asked for is its entry's."""
        results: list[Any] = []
        for entry in entries:
            data, partition_key, _ = entry
            token = CAUSES.set(entry.causes if isinstance(entry, Caused) else CAUSES.get())
            try:
                results.append(await self.put_record(stream, data, partition_key))
            except NotConnected:
                raise
            except KinesisError as error:
                results.append(error)
            finally:
                CAUSES.reset(token)
        return results

    async def _put(self, stream: StreamRef, data: bytes, partition_key: str) -> PutResult:
        return PutResult(SHARD_ID, self._log.append(stream.name, data, partition_key))

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """Every stream exists."""
        return self._log.describe(stream.name)

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        """Nothing to do: every stream exists, with one shard."""

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """The one shard."""
        del stream
        return ShardListing(
            (ShardInfo(SHARD_ID, hash_keys=("0", LAST_HASH_KEY)),), self._clock.time()
        )

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Not here: subscriptions are handed their records."""
        del position, after
        raise _not_polled(stream, shard_id)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Not here: subscriptions are handed their records."""
        del iterator, limit
        raise _not_polled(stream, shard_id)

    async def close(self) -> None:
        """Later calls raise `NotConnected`."""
        self._closed = True


def _not_polled(stream: StreamRef, shard_id: str) -> KinesisError:
    return KinesisError("the in-process log is not polled", stream=stream.name, shard_id=shard_id)
