"""A test on a server: the real service against an endpoint, watched from where its parts meet.

A record is followed by its sequence number: it is expected from the moment its put is answered, and
decided when the shard it was read from is told so. The production objects at work are watched
through their own methods, wrapped on the instance; they know nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from ruststream_kinesis._core import decode_aggregate
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.errors import (
    ConfigurationError,
    KinesisError,
    NotConnected,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.stream import KinesisStream, StreamRef
from ruststream_kinesis.subscriber import shards_of_stream
from ruststream_kinesis.testing.collecting import Caused
from ruststream_kinesis.testing.delivery import CAUSES, Cause, Delivery, Expected, OneRun, Watched
from ruststream_kinesis.testing.record import LogRecord
from ruststream_kinesis.testing.tail import Aside, Tail
from ruststream_kinesis.transport import PutEntry, PutResult, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ruststream_kinesis._core import Page
    from ruststream_kinesis.channel import Channel, DeliveryShard, Run
    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.copies import Copies
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.subscriber import Source
    from ruststream_kinesis.supervisor import Supervisor
    from ruststream_kinesis.testing.clock import LiveClock
    from ruststream_kinesis.testing.faults import Faults
    from ruststream_kinesis.testing.tracking import Tracker

__all__ = ["Live"]

logger = logging.getLogger("ruststream_kinesis")

# How often a test's shards are read: no test server throttles, and a test waits for every read.
_POLL: Final = 0.02
# Any will do for a server that is no AWS; where none is configured.
_REGION: Final = "us-east-1"

_Key = tuple[tuple[str, str | None], str, str]
"""A record in one subscription: its identity, shard and sequence number."""


class Live:
    """A Kinesis server, for one test.

    Args:
        url: Its endpoint.
        settings: The application's; region, session and configuration are taken from it.
        clock: Real time.
        tracker: Is told of every delivery.
        faults: Which attempts to publish fail.
        timeout: Seconds until a stream must be active.

    Raises:
        ConfigurationError: The endpoint is no URL.
    """

    def __init__(
        self,
        url: str,
        settings: ClientSettings,
        clock: LiveClock,
        tracker: Tracker,
        faults: Faults,
        timeout: float,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"live must be the http(s):// URL of a server: {url!r}")
        environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        self._settings = replace(
            settings,
            region=settings.region or environment or _REGION,
            endpoint_url=url,
            # Never a real account's: a test creates streams and leaves records in them.
            test_credentials=True,
        )
        self._clock = clock
        self._tracker = tracker
        self._faults = faults
        self._timeout = timeout
        self._transport = AwsTransport(self._settings, clock)
        self._aside: Aside | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._tails: dict[str, Tail] = {}
        self._opening = asyncio.Lock()
        self._reading = False
        self._watched: dict[str, list[Watched]] = defaultdict(list)
        self._expected: dict[_Key, Expected] = {}
        self._deliveries: dict[_Key, list[Delivery]] = defaultdict(list)
        self._shards: dict[DeliveryShard, dict[int, Delivery]] = {}

    async def open(self, subscribers: Sequence[Subscriber]) -> Transport:
        """Creates the streams that the application declares, where they are missing."""
        self._loop = asyncio.get_running_loop()
        await self._transport.open()
        for each in subscribers:
            reply, dead_letter = each.policies.reply, each.retry.dead_letter
            await self.tail(each.stream.ref)
            if reply is not None and reply.to is not None:
                await self.tail(StreamRef.parse(reply.to))
            if dead_letter is not None:
                await self.tail(dead_letter)
        return cast("Transport", _Watching(self._transport, self))

    def opened(self) -> None:
        """From now on a record that is put is expected in every subscription of its stream."""
        self._reading = True

    def tuned(self, subscriber: Subscriber) -> Subscriber:
        """Read as often as a test server stands."""
        stream = subscriber.stream
        quick = KinesisStream(
            stream.ref.arn or stream.name,
            poll_interval=min(_POLL, stream.poll_interval),
            read_interval=min(_POLL, stream.read_interval),
        )
        return replace(subscriber, stream=quick)

    async def tail(self, ref: StreamRef) -> Tail:
        """The reading of a stream from where it stood when the test met it; creates a missing one.

        Raises:
            StreamNotFound: It is named by an ARN, and is not there.
        """
        known = self._tails.get(ref.name)
        if known is not None:
            return known
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            # A handler thread with a loop of its own.
            there = asyncio.run_coroutine_threadsafe(self.tail(ref), self._loop)
            return await asyncio.wrap_future(there)
        async with self._opening:
            if ref.name not in self._tails:
                self._tails[ref.name] = await self._made(self._transport, ref)
        return self._tails[ref.name]

    async def _made(self, transport: Transport, ref: StreamRef) -> Tail:
        asked = False
        async with asyncio.timeout(self._timeout):
            while True:
                try:
                    if (await transport.describe_stream(ref)).status in ("ACTIVE", "UPDATING"):
                        return await Tail.at_the_tip(transport, ref)
                except StreamNotFound:
                    if ref.arn is not None or asked:
                        raise
                    asked = True
                    await transport.create_stream(ref, 1)
                await self._clock.sleep(_POLL)

    def check(self, stream: str) -> None:
        """Fails where the test asked for it."""
        self._faults.check(stream)

    def put(self, stream: str, result: PutResult) -> None:
        """A record of ours is in its stream; called on any loop, in the context that put it."""
        causes = CAUSES.get()
        if self._loop is None or asyncio.get_running_loop() is self._loop:
            self._expect(stream, result, causes)
        else:
            self._loop.call_soon_threadsafe(self._expect, stream, result, causes)

    def _expect(self, stream: str, result: PutResult, causes: tuple[Cause, ...]) -> None:
        if not self._reading:
            return
        causes = _resolved(causes)
        for watched in self._watched[stream]:
            key = (watched.identity, result.shard_id, result.sequence_number)
            read = self._deliveries.get(key)
            if read is None or not _is_last(read[-1].record.page, read[-1].record.index):
                self._expected[key] = expected = Expected(
                    watched, result.shard_id, result.sequence_number, causes
                )
                self._tracker.opened(expected)
            # Its subscription was quicker than the answer.
            for delivery in read or ():
                self._tracker.adopted(delivery.causes[0], causes)

    def source(
        self,
        subscriber: Subscriber,
        connection: Connection,
        channel: Channel,
        copies: Copies,
        owner: Supervisor,
    ) -> Source:
        """The shards of the stream, whose deliveries are followed on their way to the handler."""
        watched = Watched.of(self._tracker, subscriber, manual=False)
        self._watched[subscriber.stream.name].append(watched)
        put = channel.put

        def one_by_one(run: Run) -> None:
            for index in run.indices:
                put(OneRun(self._read(watched, run, index)))

        # On this one object; the class, and every other channel, stay as they are.
        channel.put = one_by_one  # type: ignore[method-assign]  # as said
        return shards_of_stream(subscriber, connection, channel, copies, owner)

    def _read(self, watched: Watched, run: Run, index: int) -> Delivery:
        """A record is about to enter the channel."""
        shard = run.shard
        record = LogRecord.of(shard.stream, shard.shard_id, run.page, index)
        key = (watched.identity, shard.shard_id, record.sequence_number)
        expected, earlier = self._expected.get(key), self._deliveries[key]
        if expected is not None:
            causes = expected.causes
        else:
            # Again, or before its put was answered; or nobody here put it.
            causes = _resolved(earlier[-1].causes) if earlier else (Cause(),)
        delivery = Delivery(watched, shard, run.base + index, record, causes)
        earlier.append(delivery)
        if shard not in self._shards:
            self._shards[shard] = {}
            self._watch(shard)
        self._shards[shard][delivery.place] = delivery
        # First the new one, so that its causes stay open all along.
        self._tracker.opened(delivery)
        if expected is not None and _is_last(run.page, index):
            del self._expected[key]
            self._tracker.closed(expected)
        return delivery

    def _watch(self, shard: DeliveryShard) -> None:
        """Hears what the shard is told of its deliveries, after the shard itself did."""
        heard = _Heard(self._shards[shard])
        for name in ("ack", "ack_range", "ack_all", "hold", "defer", "void"):
            _after(shard, name, getattr(heard, name))

    def records(self, stream: str) -> list[LogRecord]:
        """Reads the stream on to its present end; blocks meanwhile, as the caller is no coroutine.

        Raises:
            RequestError: The server refuses.
            TimeoutError: It does not answer.
        """
        tail = self._tails.get(stream)
        if self._closed or self._loop is None:
            return [] if tail is None else list(tail.records)
        if self._aside is None:
            self._aside = Aside(self._settings, self._clock, self._timeout)
        if tail is None:
            ref = StreamRef.parse(stream)
            tail = self._tails[stream] = self._aside.run(lambda there: self._made(there, ref))
        return self._aside.run(tail.read)

    async def close(self) -> None:
        """Reads all streams once more, for a look after the test, and closes the clients."""
        self._closed = True
        try:
            for tail in self._tails.values():
                await tail.read(self._transport)
        except KinesisError as error:
            # The server may be gone: what was read before is what there is to see.
            logger.warning("the streams were not read at the end of the test: %s", error)
        finally:
            await self._transport.close()
            if self._aside is not None:
                await asyncio.to_thread(self._aside.close)


class _Watching:
    """The service's transport; what it puts is heard of, and every call goes on to the real one."""

    def __init__(self, inner: AwsTransport, live: Live) -> None:
        self._inner = inner
        self._live = live
        self._closed = False

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Puts one record, into a stream that is there."""
        if self._closed:
            raise NotConnected("the test is over")
        await self._live.tail(stream)
        self._live.check(stream.name)
        result = await self._inner.put_record(
            stream, data, partition_key, explicit_hash_key=explicit_hash_key
        )
        if decode_aggregate(data) != []:
            # An aggregate without a record is delivered to nobody.
            self._live.put(stream.name, result)
        return result

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """Puts records, into a stream that is there; a fault is its entry's."""
        if self._closed:
            raise NotConnected("the test is over")
        await self._live.tail(stream)
        failed: dict[int, Any] = {}
        for at in range(len(entries)):
            try:
                self._live.check(stream.name)
            except KinesisError as error:
                failed[at] = error
        rest = [entry for at, entry in enumerate(entries) if at not in failed]
        put = iter(await self._inner.put_records(stream, rest))
        results = [failed[at] if at in failed else next(put) for at in range(len(entries))]
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, PutResult) and decode_aggregate(entry[0]) != []:
                token = CAUSES.set(entry.causes if isinstance(entry, Caused) else CAUSES.get())
                self._live.put(stream.name, result)
                CAUSES.reset(token)
        return results

    async def close(self) -> None:
        """The service is done with it; the test still reads."""
        self._closed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Heard:
    """What a shard was told of its deliveries, by their places."""

    def __init__(self, places: dict[int, Delivery]) -> None:
        self._places = places

    def ack(self, place: int) -> None:
        """Settled."""
        if (delivery := self._places.pop(place, None)) is not None:
            delivery.settle()

    def ack_range(self, start: int, stop: int) -> None:
        """Settled, many at once."""
        self.ack_all(range(start, stop))

    def ack_all(self, places: Sequence[int]) -> None:
        """Settled, wherever they are."""
        for place in places:
            self.ack(place)

    def hold(self, place: int) -> None:
        """Left open."""
        if (delivery := self._places.pop(place, None)) is not None:
            delivery.hold()

    def defer(self, place: int) -> None:
        """A copy waits for its time."""
        if (delivery := self._places.get(place)) is not None:
            delivery.defer()

    def void(self) -> None:
        """Rewound or lost: nothing becomes of any of them."""
        while self._places:
            self._places.popitem()[1].void()


def _is_last(page: Page, index: int) -> bool:
    """Whether nothing more comes of its record: an aggregate enters the channel in parts."""
    after = index + 1
    return after == len(page) or page.sequence_number(after) != page.sequence_number(index)


def _resolved(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """These, and those that have adopted one of them."""
    if not any(cause.adopted_by for cause in causes):
        return causes
    found = dict.fromkeys(causes)
    for cause in causes:
        found.update(dict.fromkeys(_resolved(cause.adopted_by)))
    return tuple(found)


def _after(target: object, name: str, heard: Callable[..., None]) -> None:
    """Calls `heard` after each call of a method of this one object."""
    method = getattr(target, name)

    def both(*arguments: Any) -> Any:
        result = method(*arguments)
        heard(*arguments)
        return result

    setattr(target, name, both)
