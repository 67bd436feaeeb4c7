"""`TestApp`: the service's own application, connected in process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.errors import ConfigurationError, KinesisError
from ruststream_kinesis.leases.memory import MemoryLeaseStore
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.service import Service
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing.calls import Calls, SubscriberCalls, noted
from ruststream_kinesis.testing.clock import LiveClock, ManualClock
from ruststream_kinesis.testing.collecting import watch
from ruststream_kinesis.testing.delivery import CAUSES, DELIVERY, Cause
from ruststream_kinesis.testing.faults import Fault, Faults, Kind
from ruststream_kinesis.testing.place import InProcess, Place
from ruststream_kinesis.testing.tracking import Tracker
from ruststream_kinesis.testing.undecided import Undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.broker import KinesisBroker
    from ruststream_kinesis.codec import Codec
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.service import Hook
    from ruststream_kinesis.testing.record import LogRecord
    from ruststream_kinesis.transport import PutResult

__all__ = ["TestApp"]

# Real seconds until a publish must be decided. A handler that needs longer in a test hangs.
TIMEOUT = 10.0


class TestApp:
    """Runs an application in process, on a log that is read without polling, or on a server.

    Everything between record and outcome is the application's own: descriptors, policies, dispatch,
    publishers, hooks. The streams are this test's, empty at its start; time stands still until
    `clock` is moved. Afterwards the application is as it was, so a module's one application serves
    all its tests, one after the other.

    With `live=` the same test runs against a Kinesis server: missing streams are created with one
    shard, leases are kept in memory, credentials are made up, time is real.

    Args:
        app: The application; it must not run.
        live: Endpoint of a server to run on, such as `http://localhost:4567`.
        timeout: Real seconds until a wait fails: a `publish` that has undecided deliveries, an
            `advance` that sets off more and more.
        codec: Encodes the values that the test publishes.
    """

    __test__ = False  # pytest: the name is not a request to be collected

    def __init__(
        self,
        app: RustStream,
        *,
        live: str | None = None,
        timeout: float = TIMEOUT,
        codec: Codec | None = None,
    ) -> None:
        self.app = app
        self.live = live
        """The endpoint it runs on; `None` in process."""
        self.clock: ManualClock | LiveClock
        """The service's time."""
        self._place: Place
        self._timeout = timeout
        if live is None:
            self.clock = manual = ManualClock(limit=timeout)
            self._tracker = Tracker(manual, timeout)
            self._faults = Faults(manual)
            self._place = InProcess(manual, self._tracker, self._faults)
        else:
            # What talks to a server is imported for a test on one only.
            from ruststream_kinesis.testing.live import Live  # noqa: PLC0415 - as above

            self.clock = real = LiveClock(timeout)
            self._tracker = Tracker(real, timeout)
            self._faults = Faults(real)
            settings = app.broker.settings
            self._place = Live(live, settings, real, self._tracker, self._faults, timeout)
        # What a test publishes comes from elsewhere: nothing of the application stands around it.
        self._publisher = KinesisPublisher(app.broker.connection, codec=codec)
        self._calls: dict[tuple[str, str | None], Calls] = {}
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
        store = connection.store
        unwatch = watch(connection.collectors, self._tracker, self.clock)

        def restore() -> None:
            unwatch()
            connection.clock, connection.store = clock, store
            connection.max_record_bytes.clear()
            connection.max_record_bytes.update(limits)

        self._restore = restore
        connection.clock, connection.store = self.clock, MemoryLeaseStore()
        self._tracker.loop = loop
        try:
            connection.attach(await self._place.open(self.app.subscribers))
        except BaseException:
            restore()
            await self._place.close()
            raise
        opened = loop.create_future()
        self._running = loop.create_task(
            self.app.run(
                signals=False, started=partial(opened.set_result, None), service=self._make
            ),
            name=f"test[{self.app.title}]",
        )
        self._running.add_done_callback(self._ended)
        try:
            await asyncio.wait(
                {self._running, opened},
                timeout=self._timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            late = not opened.done() and not self._running.done()
        finally:
            # Whether it failed, was stopped, or we are cancelled: nothing is left running.
            failure = None if opened.done() else await self._stop()
        if not opened.done():
            if late:
                raise KinesisError(
                    f"the application did not start within {self._timeout:g} s: a startup hook, or "
                    "what it waits for, does not end"
                ) from failure
            raise failure or KinesisError("the application stopped before it was open")
        self._place.opened()
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
            await self._place.close()
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
        """The application's service, with handlers whose calls are noted."""
        self._calls = {each.identity: [] for each in subscribers}
        watched = [
            replace(
                self._place.tuned(each),
                handler=noted(
                    each.handler, self._calls[each.identity], batched=each.batch is not None
                ),
            )
            for each in subscribers
        ]
        self._service = Service(
            broker, watched, on_startup, on_shutdown, shutdown_timeout, source=self._place.source
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
        if delivery is not None and delivery.watched.tracker is self._tracker:
            return await publish(value, to, partition_key=partition_key, headers=headers)
        cause = Cause()
        token = CAUSES.set((cause,))
        try:
            result = await publish(value, to, partition_key=partition_key, headers=headers)
        finally:
            CAUSES.reset(token)
        if cause.open:
            try:
                await self._tracker.decided(cause, to, result)
            except KinesisError:
                self._reported = True
                raise
        return result

    async def settled(self) -> None:
        """Waits until no delivery at all is undecided, and every copy that is due is published.

        Raises:
            Undecided: The service failed or stopped, or the timeout passed, with deliveries open.
        """
        try:
            await self._tracker.idle()
        except KinesisError:
            self._reported = True
            raise

    async def advance(self, seconds: float) -> None:
        """Moves time, and waits for all that comes of it: the copies of `retry_after` above all.

        Raises:
            Undecided: As for `settled`; or each thing that comes of it leads to another, and the
                timeout passed before the time did.
            ConfigurationError: On a server, where it really waits: for longer than the timeout.
        """
        try:
            await self.clock.advance(seconds)
        except Undecided as endless:
            if not (unfinished := self._tracker.unfinished):
                raise
            raise Undecided(f"{endless.message}; there are: {unfinished}") from endless
        await self.settled()

    def fail_publish(
        self, stream: str, *, times: int | None = 1, error: Kind | KinesisError = "passing"
    ) -> Fault:
        """Lets attempts to put a record into a stream fail, whoever makes them; nothing is put.

        A `passing` failure is tried again by the service, after a back-off that costs a test in
        process no time. A `terminal` one is not.

        Args:
            stream: Name or ARN.
            times: How many attempts fail; `None`: all, until the result's `end()` is called or its
                `with` block is left.
            error: `"passing"` (throttled), `"terminal"` (access denied), or the error to raise.

        Returns:
            What tells how often it struck (`hits`), and ends it.

        Raises:
            ConfigurationError: A value is refused.
        """
        return self._faults.add(Fault(stream, times, error))

    def published(self, stream: str) -> list[LogRecord]:
        """Every record of a stream since the start, oldest first, whoever published it.

        On a server it is read back, which blocks the event loop for a moment.
        """
        return self._place.records(StreamRef.parse(stream).name)

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
