"""`Subscription`: one declared subscriber at work, from shards to outcomes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.batches import BatchDispatcher
from ruststream_kinesis.channel import CAPACITY, Channel, DeliveryShard
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.dispatch import Caller, Dispatcher
from ruststream_kinesis.errors import AccessDenied, KinesisError, NotConnected, StreamNotFound
from ruststream_kinesis.handlers import Tools
from ruststream_kinesis.limits import MAX_GET_RECORDS
from ruststream_kinesis.middlewares import around
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.reader import READ_LIMIT
from ruststream_kinesis.router import Subscriber
from ruststream_kinesis.seek import Seeker
from ruststream_kinesis.settlement import Settlement
from ruststream_kinesis.state import ShardState, SourceState, SubscriptionState
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.threads import HandlerThreads
from ruststream_kinesis.transport import StreamInfo, patiently
from ruststream_kinesis.wording import fields, label

__all__ = ["Source", "SourceFactory", "Subscription", "shards_of_stream"]

logger = logging.getLogger("ruststream_kinesis")

# A stream that is being created becomes active within tens of seconds on the real service.
_CREATE_DEADLINE = 120.0
# Records that one line of the log names; how many there are stands before them.
_NAMED = 4


class Source(Protocol):
    """What fills the channel of a subscription."""

    @property
    def shards(self) -> Iterable[DeliveryShard]:
        """The shards that deliveries may come from now."""
        ...

    @property
    def state(self) -> tuple[ShardState, ...]:
        """What those shards are at."""
        ...

    @property
    def source(self) -> SourceState:
        """Who holds the other shards, and how it stands with the stream and the lease store."""
        ...

    async def open(self, info: StreamInfo) -> None:
        """Starts; a record that is published after it returns is delivered."""
        ...

    async def seek(self, position: KinesisPosition) -> None:
        """Reads on from `position`; what was delivered before is void. Waits for no worker."""
        ...

    async def stop_reading(self) -> None:
        """Puts nothing more into the channel; what is settled still counts."""
        ...

    def cut_off(self) -> None:
        """Nothing that is settled after this counts, and no delivery starts any more."""
        ...

    async def release(self) -> None:
        """Stores how far all is settled, and lets go of the shards."""
        ...


SourceFactory = Callable[[Subscriber, Connection, Channel, Copies, Supervisor], Source]


def shards_of_stream(
    subscriber: Subscriber,
    connection: Connection,
    channel: Channel,
    copies: Copies,
    supervisor: Supervisor,
) -> Coordinator:
    """The source of every service: the shards of the subscriber's stream, by lease."""
    return Coordinator(
        subscriber.stream,
        subscriber.group,
        subscriber.start_at,
        connection,
        channel,
        copies,
        supervisor,
        min(subscriber.batch or READ_LIMIT, MAX_GET_RECORDS),
    )


def _dispatcher(
    subscriber: Subscriber,
    channel: Channel,
    caller: Caller,
    settlement: Settlement,
    clock: Clock,
) -> Dispatcher | BatchDispatcher:
    if subscriber.batch is None:
        return Dispatcher(subscriber.handler, channel, caller, settlement, clock)
    return BatchDispatcher(
        subscriber.handler,
        subscriber.batch,
        subscriber.batch_window,
        channel,
        caller,
        settlement,
        clock,
    )


class Subscription:
    """The parts of one subscription, put together.

    Args:
        subscriber: What was declared.
        connection: The service's connection.
        supervisor: Owns every task.
        stop: Asks the service to stop, with the reason.
        source: Makes what fills the channel.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        connection: Connection,
        supervisor: Supervisor,
        stop: Callable[[BaseException], None],
        source: SourceFactory = shards_of_stream,
    ) -> None:
        self.subscriber = subscriber
        self._connection = connection
        self._supervisor = supervisor
        # A batch is not cut into slices of the usual channel on its way.
        self._channel = Channel(subscriber.workers, max(CAPACITY, subscriber.batch or 0))
        self._threads = HandlerThreads(subscriber.workers, f"handler-{subscriber.stream.name}")
        reply, surroundings = subscriber.policies.reply, subscriber.around
        if reply is not None and reply.to is not None and reply.batching is not None:
            surroundings.publishing.check_plain("batched replies", subscriber.stream.name)
        publisher = KinesisPublisher(connection, reply, subscriber.codec, surroundings.publishing)
        self.copies = Copies(
            subscriber.retry, subscriber.stream.ref, connection, publisher=publisher
        )
        settlement = Settlement(
            subscriber.handler.name,
            subscriber.policies,
            self.copies,
            publisher,
            connection.clock,
            stop,
        )
        self.counters = settlement.counters
        tools = Tools(publisher, Seeker(self.seek), surroundings.context)
        handler, caller = around(
            subscriber.handler,
            Caller(subscriber.handler, tools, self._threads),
            surroundings.middlewares,
        )
        self._dispatcher = _dispatcher(
            dataclasses.replace(subscriber, handler=handler),
            self._channel,
            caller,
            settlement,
            connection.clock,
        )
        self._source = source(subscriber, connection, self._channel, self.copies, supervisor)
        self._info: StreamInfo | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._workers: list[asyncio.Task[None]] = []
        self._copying: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Stream, and group where there is one."""
        return label(self.subscriber.stream.name, self.subscriber.group)

    @property
    def state(self) -> SubscriptionState:
        """The subscription at this moment."""
        return SubscriptionState(
            stream=self.subscriber.stream.name,
            group=self.subscriber.group,
            shards=self._source.state,
            queued=self._channel.queued,
            waiting_copies=self.copies.waiting,
            running=tuple(self._dispatcher.running),
            counters=dataclasses.replace(self.counters),
            opened=self._opened,
            source=self._source.source,
        )

    async def check(self) -> None:
        """Makes sure that the stream exists and can be read.

        Raises:
            StreamNotFound: It does not, and `create_if_missing` does not ask for it.
            RequestError: The service could not be asked.
        """
        stream, connection = self.subscriber.stream, self._connection
        info = await self._describe()
        clock, backoff = connection.clock, Backoff(first=0.1, cap=5.0)
        deadline = clock.monotonic() + _CREATE_DEADLINE
        while info is None or info.status == "CREATING":
            if clock.monotonic() > deadline:
                raise KinesisError(
                    f"the stream is not active after {_CREATE_DEADLINE:g} s", stream=stream.name
                )
            await clock.sleep(backoff.next())
            info = await self._describe()
        connection.max_record_bytes[stream.ref] = info.max_record_bytes
        self._info = info

    async def check_targets(self) -> None:
        """Makes sure that what is only written to exists: replies, dead letters.

        Once every stream of the application is checked, since one of those may be it.

        Raises:
            StreamNotFound: It does not.
            RequestError: The service could not be asked.
        """
        stream = self.subscriber.stream
        reply, retry = self.subscriber.policies.reply, self.subscriber.retry
        if reply is not None and reply.to is not None:
            target = StreamRef.parse(reply.to)
            if stream.ref.may_be(target):
                # Said here and not where it is declared, which is before anybody set up a log.
                logger.warning(
                    "the replies of the subscription to %s go to the stream that it reads: each is "
                    "delivered to it again, and answered again unless the handler ends that",
                    self.name,
                    extra=fields(self.subscriber.stream.name),
                )
            await self._check_target(target, "the replies")
        if retry.dead_letter is not None:
            await self._check_target(retry.dead_letter, "the dead letters")

    async def _check_target(self, stream: StreamRef, what: str) -> None:
        """A stream that is only written to: a typing error is found now, not at the first record."""
        connection = self._connection
        transport = connection.transport
        try:
            info = await patiently(lambda: transport.describe_stream(stream), connection.clock)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"the stream for {what} of the subscription to {self.name} does not exist: "
                f"{error.message}",
                code=error.code,
                status=error.status,
                stream=stream.name,
            ) from error
        except AccessDenied as error:
            # Writing needs no right to look at the stream; whether that is allowed shows then.
            logger.warning(
                "cannot check the stream for %s: %s", what, error, extra=fields(stream.name)
            )
            return
        connection.max_record_bytes[stream] = info.max_record_bytes

    async def _describe(self) -> StreamInfo | None:
        """What the service says of the stream; `None` when it was just asked to create it."""
        stream, connection = self.subscriber.stream, self._connection
        transport = connection.transport
        try:
            return await patiently(lambda: transport.describe_stream(stream.ref), connection.clock)
        except StreamNotFound:
            if stream.create_if_missing is None:
                raise
            await transport.create_stream(stream.ref, stream.create_if_missing)
            return None

    async def open(self) -> None:
        """Starts workers and readers; returns once every shard taken has its iterator."""
        if self._info is None:
            raise RuntimeError("a subscription is opened only after its stream was checked")
        self._loop = asyncio.get_running_loop()
        self._copying = self._supervisor.spawn(f"copies[{self.name}]", self.copies.run())
        for lane in range(self.subscriber.workers):
            self._workers.append(
                self._supervisor.spawn(f"worker[{self.name}/{lane}]", self._dispatcher.work(lane))
            )
        await self._source.open(self._info)
        self._opened = True

    async def seek(self, position: KinesisPosition) -> None:
        """Moves the subscription; from any thread that runs an event loop.

        Raises:
            NotConnected: It is not open yet, or stopping.
            KinesisError: It cannot move there.
        """
        if self._loop is None:
            raise NotConnected(
                "the subscription is not open yet", stream=self.subscriber.stream.name
            )
        if asyncio.get_running_loop() is self._loop:
            await self._source.seek(position)
            return
        # A handler thread with a loop of its own: shards belong to the service's.
        move = asyncio.run_coroutine_threadsafe(self._source.seek(position), self._loop)
        await asyncio.wrap_future(move)

    async def stop_reading(self) -> None:
        """Ends the readers; leases stay held while handlers finish."""
        await self._source.stop_reading()

    async def drain(self, timeout: float) -> list[str]:
        """Lets running handlers finish, and what is older than them or of the same aggregate.

        Args:
            timeout: Seconds; then they are cancelled, which leaves their records open.

        Returns:
            Names of the workers that had to be cancelled, and what they were at.
        """
        self._dispatcher.close(self._source.shards)
        if timeout and (running := self._dispatcher.running):
            logger.info(
                "stopping: waiting up to %g s for %d handler(s): %s; a second signal cuts them off",
                timeout,
                len(running),
                "; ".join(running[:_NAMED]),
                extra=fields(self.subscriber.stream.name),
            )
        at: list[str] = []

        def cut_off() -> None:
            # First the cut, then the cancellation: a handler that hides it settles nothing.
            at.extend(self._dispatcher.running)
            self._source.cut_off()

        late = await self._supervisor.finish(self._workers, timeout, cut_off)
        self._threads.close()
        return late + at

    async def publish_waiting(self) -> None:
        """Publishes the copies that still wait for their time, marked with it.

        Cut off by a deadline, the rest stays what it is: open originals, which come again.
        """
        if self._copying is not None:
            self.copies.finish()
            try:
                await asyncio.wait({self._copying})
            finally:
                await self._supervisor.cancel([self._copying])
                if self.copies.waiting:
                    settled = self.subscriber.retry.deferred == "settle"
                    logger.error(
                        "%d waiting copies of %s were not published in time: %s",
                        self.copies.waiting,
                        self.name,
                        "they are LOST, deferred='settle' had settled their originals"
                        if settled
                        else "their originals stay open and are read again",
                        extra=fields(self.subscriber.stream.name),
                    )

    async def release(self) -> None:
        """Stores the final checkpoints and releases the leases."""
        await self._source.release()
