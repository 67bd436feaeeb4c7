"""`TestApp`: the service's own application, connected in process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.errors import ConfigurationError, KinesisError
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.service import Service
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing.clock import ManualClock
from ruststream_kinesis.testing.feed import LogSource
from ruststream_kinesis.testing.log import Log, LogRecord, LogTransport
from ruststream_kinesis.testing.tracking import CAUSE, DELIVERY, Cause, Delivery, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.broker import KinesisBroker
    from ruststream_kinesis.channel import Channel
    from ruststream_kinesis.codec import Codec
    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.copies import Copies
    from ruststream_kinesis.handlers import Handler
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.service import Hook
    from ruststream_kinesis.settlement import Counters
    from ruststream_kinesis.supervisor import Supervisor
    from ruststream_kinesis.transport import PutResult

__all__ = ["SubscriberCalls", "TestApp"]

# Real seconds until a publish must be decided. A handler that needs longer in a test hangs.
TIMEOUT = 10.0


class SubscriberCalls:
    """What one subscription did during the test; complete after it, too."""

    def __init__(self, calls: list[Delivery], counters: Counters) -> None:
        self.calls = calls
        """The calls of the handler, in the order they began."""
        self.counters = counters
        """What became of the deliveries."""

    @property
    def values(self) -> list[Any]:
        """The payloads the handler was called with, decoded."""
        return [call.value for call in self.calls]


class TestApp:
    """Runs an application in process, on a log that is read without polling.

    Everything between record and outcome is the application's own: descriptors, policies, dispatch,
    publishers, hooks. The streams are this test's, empty at its start; time stands still until
    `clock` is moved. Afterwards the application is as it was, so a module's one application serves
    all its tests, one after the other.

    Args:
        app: The application; it must not run.
        timeout: Real seconds until a `publish` that has undecided deliveries fails.
        codec: Encodes the values that the test publishes.
    """

    __test__ = False  # pytest: the name is not a request to be collected

    def __init__(
        self, app: RustStream, *, timeout: float = TIMEOUT, codec: Codec | None = None
    ) -> None:
        self.app = app
        self.clock = ManualClock()
        """The service's time."""
        self._timeout = timeout
        self._log = Log(self.clock)
        self._tracker = Tracker(timeout)
        self._publisher = app.publisher(codec=codec)
        self._calls: dict[tuple[str, str | None], list[Delivery]] = {}
        self._service: Service | None = None
        self._running: asyncio.Task[None] | None = None
        self._restore: Callable[[], None] = _nothing
        self._reported = False

    async def __aenter__(self) -> Self:
        """Starts the application; it reads when this returns.

        Raises:
            ConfigurationError: It runs already.
            Exception: What its start raised, for example a startup hook.
        """
        connection, loop = self.app.broker.connection, asyncio.get_running_loop()
        if connection.connected or self._running is not None:
            raise ConfigurationError(
                "a TestApp runs an application once, and not while it is connected already"
            )
        clock, limits = connection.clock, dict(connection.max_record_bytes)

        def restore() -> None:
            connection.clock = clock
            connection.max_record_bytes.clear()
            connection.max_record_bytes.update(limits)

        self._restore = restore
        connection.clock = self.clock
        connection.attach(LogTransport(self._log, self.clock, loop))
        opened = loop.create_future()
        self._running = loop.create_task(
            self.app.run(
                signals=False, started=partial(opened.set_result, None), service=self._make
            ),
            name=f"test[{self.app.title}]",
        )
        self._running.add_done_callback(self._ended)
        try:
            await asyncio.wait({self._running, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Whether it failed, was stopped, or we are cancelled: nothing is left running.
            failure = None if opened.done() else await self._stop()
        if not opened.done():
            raise failure or KinesisError("the application stopped before it was open")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops the application as a signal would.

        Raises:
            Exception: What ended it, where neither a `publish` nor the test has raised.
        """
        failure = await self._stop()
        if failure is not None and error is None and not self._reported:
            raise failure

    async def _stop(self) -> BaseException | None:
        """Stops and restores.

        Returns:
            What ended the application, when it was not this.
        """
        running = self._running
        if running is None:
            return None
        try:
            if not running.done():
                self.app.stop()
                await asyncio.wait({running}, timeout=self._timeout)
            if not running.done():
                self.app.stop()  # once more: waits for no handler
                await asyncio.wait({running})
        finally:
            if running.cancel():
                await asyncio.wait({running})
            await self.app.broker.connection.close()
            self._restore()
        return None if running.cancelled() else running.exception()

    def _ended(self, running: asyncio.Task[None]) -> None:
        failure = None if running.cancelled() else running.exception()
        why = "the service stopped" if failure is None else f"the service failed ({failure})"
        self._tracker.end(why, failure)

    def _make(
        self,
        broker: KinesisBroker,
        subscribers: Sequence[Subscriber],
        on_startup: Sequence[Hook],
        on_shutdown: Sequence[Hook],
        shutdown_timeout: float,
    ) -> Service:
        """The application's service, fed from the log, with handlers whose calls are noted."""
        self._calls = {each.identity: [] for each in subscribers}
        noted = [
            replace(each, handler=_noted(each.handler, self._calls[each.identity]))
            for each in subscribers
        ]

        def source(
            subscriber: Subscriber,
            connection: Connection,
            channel: Channel,
            copies: Copies,
            owner: Supervisor,
        ) -> LogSource:
            return LogSource(
                self._log, self._tracker, subscriber, connection, channel, copies, owner
            )

        self._service = Service(
            broker, noted, on_startup, on_shutdown, shutdown_timeout, source=source
        )
        return self._service

    async def publish(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PutResult:
        """Publishes as `KinesisPublisher` does, and waits for all that comes of it.

        It returns when every delivery that goes back to this record, through replies and further
        streams too, has its outcome decided. A record that a handler leaves open is decided. Called
        within a handler it does not wait.

        Args:
            value: Anything the codec encodes; `bytes` and `str` travel as they are.
            to: Stream name or ARN.
            partition_key: As for `KinesisPublisher.publish`.
            headers: They travel in the envelope.

        Returns:
            Shard and sequence number of the record.

        Raises:
            Undecided: The service failed or stopped, or the timeout passed, with deliveries open.
            ConfigurationError: The stream name is refused.
            InvalidRecord: Key or size are refused.
            EnvelopeError: A header cannot be carried exactly.
            NotConnected: Outside `async with`, or after the service failed.
        """
        publish = self._publisher.publish
        delivery = DELIVERY.get()
        if delivery is not None and delivery.tracker is self._tracker:
            return await publish(value, to, partition_key=partition_key, headers=headers)
        cause = Cause()
        token = CAUSE.set(cause)
        try:
            result = await publish(value, to, partition_key=partition_key, headers=headers)
        finally:
            CAUSE.reset(token)
        if cause.open:
            try:
                await self._tracker.decided(cause)
            except KinesisError:
                self._reported = True
                raise
        return result

    async def settled(self) -> None:
        """Waits until no delivery at all is undecided, whoever published it.

        Raises:
            Undecided: The service failed or stopped, or the timeout passed, with deliveries open.
        """
        try:
            await self._tracker.idle()
        except KinesisError:
            self._reported = True
            raise

    def published(self, stream: str) -> list[LogRecord]:
        """Every record of a stream, oldest first, whoever published it."""
        return list(self._log.records(StreamRef.parse(stream).name))

    def subscriber(self, stream: str, group: str | None = None) -> SubscriberCalls:
        """The calls of a subscription.

        Raises:
            ConfigurationError: The application has no such subscription.
        """
        name = StreamRef.parse(stream).name
        service = self._service
        for each in service.subscriptions if service is not None else ():
            if each.subscriber.identity == (name, group):
                return SubscriberCalls(self._calls[name, group], each.counters)
        known = ", ".join(map(repr, self._calls)) or "none"
        raise ConfigurationError(
            f"no subscription to {name!r} with group {group!r}; there are: {known}", stream=name
        )


def _nothing() -> None:
    """What there is to restore before the start."""


def _noted(handler: Handler, calls: list[Delivery]) -> Handler:
    """The handler, with each call noted in `calls`."""
    call, wants_message = handler.call, handler.wants_message

    def begin(arguments: tuple[Any, ...]) -> Delivery:
        delivery = DELIVERY.get()
        if delivery is None:
            raise RuntimeError("a handler of a test is called only for a delivery")
        if wants_message:
            delivery.asked = next(
                (each for each in arguments if isinstance(each, KinesisMessage)), None
            )
        delivery.called = delivery.running = True
        calls.append(delivery)
        return delivery

    async def noted(*arguments: Any) -> Any:
        delivery = begin(arguments)
        try:
            delivery.returned = returned = await call(*arguments)
        except BaseException as error:
            delivery.error = error
            raise
        finally:
            delivery.ended()
        return returned

    def noted_in_thread(*arguments: Any) -> Any:
        delivery = begin(arguments)
        try:
            delivery.returned = returned = call(*arguments)
        except BaseException as error:
            delivery.error = error
            raise
        finally:
            # It has no way to settle before it ends, so there is nothing to decide here.
            delivery.running = False
        return returned

    return replace(handler, call=noted if handler.is_async else noted_in_thread)
