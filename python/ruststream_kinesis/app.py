"""`RustStream`: the application - declarations, and `run()`."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ruststream_kinesis.broker import KinesisBroker
from ruststream_kinesis.codec import Codec
from ruststream_kinesis.context import AppContext
from ruststream_kinesis.errors import ConfigurationError, NotConnected
from ruststream_kinesis.health import STALE_AFTER, Health, judge_health
from ruststream_kinesis.hosting import running_in
from ruststream_kinesis.lifespan import Lifespan, LifespanRun, check_lifespan
from ruststream_kinesis.limits import check_seconds
from ruststream_kinesis.middlewares import Around
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publications import PublishMiddleware, PublishMiddlewares
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.router import Router, Subscriber
from ruststream_kinesis.seek import Seeker
from ruststream_kinesis.service import SHUTDOWN_TIMEOUT, Hook, Service
from ruststream_kinesis.settlement import Counters
from ruststream_kinesis.signals import listening
from ruststream_kinesis.state import AppState
from ruststream_kinesis.stream import KinesisStream, StreamRef
from ruststream_kinesis.times import HandlerTimes
from ruststream_kinesis.wording import kind, label

if TYPE_CHECKING:
    from ruststream_kinesis.probe import Probe

__all__ = ["RustStream"]

logger = logging.getLogger("ruststream_kinesis")

ServiceFactory = Callable[
    [KinesisBroker, Sequence[Subscriber], Sequence[Hook], Sequence[Hook], float], Service
]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

P = TypeVar("P", bound=PublishMiddleware)


def _probing(app: RustStream, probe: Probe | str | None) -> AbstractAsyncContextManager[object]:
    if probe is None:
        return contextlib.nullcontext()
    # Brings aiohttp, which nobody else waits for.
    from ruststream_kinesis.probe import Probe  # noqa: PLC0415 - as above

    found = Probe(probe) if isinstance(probe, str) else probe
    return found.serving(app)


class _Run:
    """One call of `run`, from the call on: it may be told to stop before it was ever awaited."""

    __slots__ = ("stop_asked",)

    def __init__(self) -> None:
        self.stop_asked = False


class RustStream(Router):
    """A service: subscribers, a broker, a life.

    Making one does no I/O and starts no task.

    Args:
        broker: How to reach Kinesis.
        title: Name of the application.
        version: Version of the application.
        description: A sentence or two for the generated document.
        shutdown_timeout: Seconds that running handlers get at the stop.
        lifespan: Makes an async context manager from the application. It is entered after
            connecting, before the startup hooks, and left after the shutdown hooks, while publishers
            still work; what it yields, a mapping or nothing, is the `context`.
    """

    def __init__(
        self,
        broker: KinesisBroker,
        *,
        title: str,
        version: str,
        description: str | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
        lifespan: Lifespan | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(broker, KinesisBroker):
            raise ConfigurationError(f"the first argument is a KinesisBroker, not {broker!r}")
        self.broker = broker
        self.title = title
        self.version = version
        self.description = description
        self.shutdown_timeout = check_seconds("shutdown_timeout", shutdown_timeout)
        self.context = AppContext()
        """What the lifespan yielded, while the service runs; empty else. A handler asks for a part of
        it with `Annotated[T, Context()]`."""
        self._lifespan = check_lifespan(lifespan)
        self._publishing = PublishMiddlewares()
        self._on_startup: list[Hook] = []
        self._on_shutdown: list[Hook] = []
        self._service: Service | None = None
        self._began = 0.0
        """When the run began, on the monotonic clock."""
        self._failure: BaseException | None = None
        """What ended the last run."""
        self.handler_times: HandlerTimes | None = None
        """Where it is set, handlers of the next run are timed; see `metrics.app_metrics`."""
        self._coming: _Run | None = None
        """The run that was asked for last, until it is over."""

    def publisher(
        self, policy: KinesisPublish | None = None, *, codec: Codec | None = None
    ) -> KinesisPublisher:
        """A publisher on the service's connection; it may be made before the service runs."""
        return KinesisPublisher(self.broker.connection, policy, codec, self._publishing)

    def publish_middleware(self, middleware: P) -> P:
        """Puts a function around whatever is published here, replies too; not copies, dead letters.

        It gets a `Publication`, whose headers it may change, and `call_next`. An `async def` awaits
        `call_next(record)` and returns its result. A plain `def` returns the future that
        `call_next(record)` returned: the only kind that `publish_nowait` and replies can pass where
        their policy has a `batch`. The first that is registered is the outermost.

        Raises:
            ConfigurationError: It is no function.
        """
        self._publishing.add(middleware)
        return middleware

    def seeker(self, stream: KinesisStream | str, group: str | None = None) -> Seeker:
        """Moves a subscription to another position, while the service runs.

        Args:
            stream: What it reads: descriptor, name or ARN.
            group: The subscription's.

        Raises:
            ConfigurationError: The application has no such subscription (yet).
        """
        name = stream.name if isinstance(stream, KinesisStream) else StreamRef.parse(stream).name
        identity = (name, group)
        known = [each.identity for each in self.subscribers]
        if identity not in known:
            raise ConfigurationError(
                f"no subscription to {label(*identity)} is declared; there are: "
                + (", ".join(label(*each) for each in known) or "none"),
                stream=name,
            )

        async def move(position: KinesisPosition) -> None:
            service = self._service
            for each in () if service is None else service.subscriptions:
                if each.subscriber.identity == identity:
                    return await each.seek(position)
            raise NotConnected("the service does not run, so nothing can be moved", stream=name)

        return Seeker(move)

    def asyncapi(self) -> dict[str, Any]:
        """The AsyncAPI 3.0 document of what is declared so far; nothing is connected for it."""
        from ruststream_kinesis.asyncapi import document  # noqa: PLC0415 - only for who asks

        return document(self)

    def on_startup(self, hook: Hook) -> Hook:
        """Registers a function to call after connecting, before the first record is read."""
        self._on_startup.append(hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Registers a function to call after the last handler, while publishers still work."""
        self._on_shutdown.append(hook)
        return hook

    def run(
        self,
        *,
        signals: bool = True,
        started: Callable[[], object] | None = None,
        service: ServiceFactory = Service,
        probe: Probe | str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Runs the service until SIGTERM, SIGINT, `stop()`, cancellation or a failure.

        The first signal stops gracefully, the second at once. What it returns is to be awaited, or
        made a task; an application runs once at a time, and again when that is over.

        Args:
            signals: Listen to SIGTERM and SIGINT while running. Turn it off where the host of the
                event loop listens itself: a loop has one handler a signal.
            started: Called once every subscription is open: a record that is published from then
                on is read.
            service: Makes the service from broker, subscribers, hooks and shutdown timeout.
            probe: Where to answer health checks and show the dashboard while it runs, as
                `HOST:PORT` or a `Probe`.

        Raises:
            StreamNotFound: A stream does not exist.
            ConfigurationError: No region or no credentials.
            HandlerFailed: A handler raised and `on_error="stop"`.
            StopTimeout: The stop did not finish in time.
        """
        # No coroutine function: a stop between `create_task(app.run())` and the task's first step
        # is meant for this run, and one from before this call is not.
        coming = _Run()
        if self._service is None:
            self._coming = coming
        return self._run(coming, signals, started, service, probe)

    async def _run(
        self,
        coming: _Run,
        signals: bool,
        started: Callable[[], object] | None,
        service: ServiceFactory,
        probe: Probe | str | None,
    ) -> None:
        if self._service is not None:
            raise ConfigurationError("the service runs already")
        times, self._failure = self.handler_times, None
        self._began = self.broker.connection.clock.monotonic()
        around = Around(tuple(self._middlewares), self._publishing, self.context)
        subscribers: Sequence[Subscriber] = [each.within(around) for each in self.subscribers]
        if times is not None:
            subscribers = times.timing(subscribers)
        life = LifespanRun(
            self._lifespan, self, self.context, [each.handler for each in subscribers]
        )

        async def enter() -> None:
            await life.enter(running.spawn)

        async def leave() -> None:
            await life.leave()

        leave.__qualname__ = "lifespan"  # as a stop names it
        running = self._service = service(
            self.broker,
            subscribers,
            [enter, *self._on_startup],
            [*self._on_shutdown, leave],
            self.shutdown_timeout,
        )
        try:
            with listening(running.request_stop) if signals else contextlib.nullcontext():
                if coming.stop_asked:
                    running.request_stop()
                async with _probing(self, probe):
                    await running.run(started)
        except BaseException as error:
            self._failure = error if isinstance(error, Exception) else None
            raise
        finally:
            self._service = self._coming = None

    @contextlib.asynccontextmanager
    async def running(
        self, *, service: ServiceFactory = Service, probe: Probe | str | None = None
    ) -> AsyncIterator[Self]:
        """Runs the service within a host that has a life of its own, such as a web application.

        The block begins when every subscription is open, and the service is stopped at its end. It
        listens to no signal: the host does. If the service fails meanwhile, the block is cancelled,
        and the error is raised in its place.

        Args:
            service: As for `run`.
            probe: As for `run`; a web application may rather answer from `health()` itself.

        Raises:
            Exception: As `run` does: what the start raised, what ended the service, `StopTimeout`.
        """
        async with running_in(
            lambda started: self.run(signals=False, started=started, service=service, probe=probe),
            self.stop,
        ):
            yield self

    def stop(self) -> None:
        """Asks for a graceful stop; a second time, for one that waits for no handler.

        It is meant for the run that `run()` was called for last, whether or not that was awaited
        yet: stopped before its first step, it returns at once and connects nothing. Where there is
        none, before the first call and after the end of the last, there is nothing to stop, and the
        next run knows nothing of it. From another thread, pass it to `loop.call_soon_threadsafe`.
        """
        if self._service is not None:
            self._service.request_stop()
        elif self._coming is not None:
            self._coming.stop_asked = True

    def state(self) -> AppState:
        """What the application is at: shards, lag, held records, waiting copies, counts."""
        service, connection = self._service, self.broker.connection
        failure = self._failure if service is None else service.failure
        return AppState(
            title=self.title,
            version=self.version,
            running=service is not None,
            subscriptions=()
            if service is None
            else tuple(subscription.state for subscription in service.subscriptions),
            instance=connection.owner_id,
            phase="stopped" if service is None else service.phase,
            running_for=None if service is None else connection.clock.monotonic() - self._began,
            failure=None if failure is None else kind(failure),
            published=connection.collectors.state,
        )

    def health(self, stale_after: float = STALE_AFTER) -> Health:
        """Whether the service lives, reads, and what is wrong with it.

        Asked on the service's own event loop, an answer says by itself that the loop turns.

        Args:
            stale_after: Seconds without an answer to a read after which a shard counts as not read;
                for a subscription whose `poll_interval` is long, three of those.
        """
        return judge_health(self.state(), stale_after)

    @property
    def counters(self) -> dict[str, Counters]:
        """What became of the deliveries, by subscription; empty while the service does not run."""
        service = self._service
        return {} if service is None else {s.name: s.counters for s in service.subscriptions}
