"""`Service`: an application at work - start, run, stop, in that order and each with a deadline.

Start: connect, check streams, open subscriptions. Stop: stop reading, drain, store checkpoints and
release leases, close clients. Every step of the stop runs even if one before it failed, and what
did not finish is named.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from typing import Any

from ruststream_kinesis.broker import KinesisBroker
from ruststream_kinesis.errors import StopTimeout
from ruststream_kinesis.router import Subscriber
from ruststream_kinesis.state import Phase
from ruststream_kinesis.subscriber import SourceFactory, Subscription, shards_of_stream
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.wording import fields_of, shown, trace

__all__ = ["SHUTDOWN_TIMEOUT", "Hook", "Service"]

logger = logging.getLogger("ruststream_kinesis")

Hook = Callable[[], Awaitable[None] | None]
"""What an application calls at its start or stop, `async def` or plain `def`."""

# Kubernetes gives a pod 30 s after SIGTERM by default.
SHUTDOWN_TIMEOUT = 30.0
# A step that only talks to the service or the store.
_STEP_TIMEOUT = 10.0


class _State(Enum):
    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Service:
    """Runs the subscriptions of an application, once.

    Args:
        broker: How to connect.
        subscribers: What to run.
        on_startup: Called after the connection is open, before reading.
        on_shutdown: Called after the last handler, before the connection closes.
        shutdown_timeout: Seconds that running handlers get at the stop.
        source: Makes what feeds a subscription.
    """

    def __init__(
        self,
        broker: KinesisBroker,
        subscribers: Sequence[Subscriber],
        on_startup: Sequence[Hook] = (),
        on_shutdown: Sequence[Hook] = (),
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
        source: SourceFactory = shards_of_stream,
    ) -> None:
        self._broker = broker
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown
        self._shutdown_timeout = shutdown_timeout
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: BaseException | None = None
        self._state = _State.NEW
        self._opened = False
        self._supervisor = Supervisor(self._failed)
        self.subscriptions = [
            Subscription(subscriber, broker.connection, self._supervisor, self._failed, source)
            for subscriber in subscribers
        ]

    @property
    def phase(self) -> Phase:
        """Where it is between its start and its stop."""
        if self._stopping.is_set() or self._state is _State.STOPPED:
            return "stopping"
        opened = self._state is _State.RUNNING and self._opened
        return "running" if opened else "starting"

    @property
    def failure(self) -> BaseException | None:
        """What ends the service; `None` while nothing does."""
        return self._failure

    @property
    def running(self) -> list[str]:
        """Names of the service's tasks."""
        return self._supervisor.running

    def request_stop(self) -> None:
        """Asks for a graceful stop; asked again, it waits for no handler."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends with the service, and the service with its error."""
        return self._supervisor.spawn(name, work)

    def _failed(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    async def start(self) -> None:
        """Connects, checks the streams and opens every subscription.

        A record published after it returns is read. When it fails or is cancelled, nothing is left
        running.
        """
        if self._stopping.is_set():
            return
        self._state = _State.RUNNING
        try:
            await self._broker.connect()
            for subscription in self.subscriptions:
                await subscription.check()
            for subscription in self.subscriptions:
                await subscription.check_targets()
            for hook in self._on_startup:
                await _call(hook)
            await self._open()
        except BaseException:
            await self._stop_quietly()
            raise

    async def _open(self) -> None:
        opening = [asyncio.ensure_future(each.open()) for each in self.subscriptions]
        try:
            await asyncio.gather(*opening)
            self._opened = True
        finally:
            # When one fails, or we are cancelled, the others must not go on behind our back.
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

    async def run(self, started: Callable[[], object] | None = None) -> None:
        """Starts, runs until a stop is asked for or something fails, and stops.

        Args:
            started: Called when every subscription is open.

        Raises:
            Exception: What ended the service, when it was no request.
        """
        try:
            await self._start_unless_stopped()
            if started is not None and not self._stopping.is_set():
                started()
            await self._stopping.wait()
        except BaseException:
            await self._stop_quietly()
            raise
        try:
            await self.stop()
        except StopTimeout as late:
            if self._failure is None:
                raise
            logger.error("%s", late)
        if self._failure is not None:
            raise self._failure

    async def _start_unless_stopped(self) -> None:
        """Starts; a stop that is asked for meanwhile ends the start, however long it would take."""
        start = asyncio.ensure_future(self.start())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if self._state is _State.RUNNING:
                start.cancel()
            # Else it failed and cleans up after itself; in the end it leaves nothing running.
            await _end_of(start, self._hurry.set)
        if not start.cancelled():
            start.result()

    async def stop(self) -> None:
        """Stops in order; once more does nothing.

        Cancelling it waits for no handler any more, like a second request to stop, but every step
        still runs before the cancellation goes on.

        Raises:
            StopTimeout: Steps that failed or did not finish in time, by name.
        """
        self._stopping.set()
        if self._state is not _State.RUNNING:
            self._state = _State.STOPPED
            return
        self._state = _State.STOPPED
        # A task of its own, which no cancellation of ours reaches.
        stop = asyncio.ensure_future(self._stop())
        await _end_of(stop, self._hurry.set)
        unfinished = stop.result()
        if unfinished:
            raise StopTimeout("the stop did not finish: " + "; ".join(unfinished))

    async def _stop_quietly(self) -> None:
        """Stops where something else is what the caller must hear."""
        try:
            await self.stop()
        except StopTimeout as late:
            logger.error("%s", late)

    async def _stop(self) -> list[str]:
        """The steps; returns the names of those that failed or took too long."""
        unfinished: list[str] = []

        async def step(
            name: str, work: Callable[[], Awaitable[object] | None], timeout: float = _STEP_TIMEOUT
        ) -> None:
            try:
                async with asyncio.timeout(timeout):
                    await _call(work)
            except BaseException as error:
                # Whatever it is, the other steps run.
                logger.error(
                    "stopping: %s failed: %s",
                    name,
                    shown(error),
                    exc_info=trace(error, logger),
                    extra=fields_of(error),
                )
                unfinished.append(f"{name} ({type(error).__name__})")

        each_of = self.subscriptions
        # Kept for what applications publish without waiting; what hooks publish shares it.
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._shutdown_timeout

        async def flush() -> str:
            seconds = 0.0 if self._hurry.is_set() else ends - loop.time()
            return await self._broker.connection.collectors.flush(seconds)

        await asyncio.gather(*(step(f"stop reading {s.name}", s.stop_reading) for s in each_of))
        drained = await asyncio.gather(*map(self._drain, each_of), return_exceptions=True)
        for result in drained:
            unfinished += result if isinstance(result, list) else [f"drain ({result!r})"]
        # There may be a hundred thousand of them: as much time as the handlers had.
        patience = max(_STEP_TIMEOUT, self._shutdown_timeout)
        copies = "publish waiting copies of"
        await asyncio.gather(
            *(step(f"{copies} {s.name}", s.publish_waiting, patience) for s in each_of)
        )
        # Before the leases go: handlers have acked what they published from without waiting.
        await step("send what was published", flush, patience)
        await asyncio.gather(*(step(f"release leases of {s.name}", s.release) for s in each_of))
        for hook in self._on_shutdown:
            await step(f"shutdown hook {getattr(hook, '__qualname__', hook)!s}", hook)
        if left := await flush():
            unfinished.append(f"publish: {left}")
        await step("end remaining tasks", self._supervisor.close)
        await step("close clients", self._broker.close)
        return unfinished

    async def _drain(self, subscription: Subscription) -> list[str]:
        """Waits for the handlers; a second request to stop cuts the waiting short."""
        drain = asyncio.ensure_future(subscription.drain(self._shutdown_timeout))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not drain.done():
                return await subscription.drain(0.0)
            return await drain
        finally:
            hurry.cancel()
            drain.cancel()


async def _call(work: Callable[[], Awaitable[object] | None]) -> None:
    """Calls a hook, `async def` or plain."""
    result = work()
    if inspect.isawaitable(result):
        await result


async def _end_of(task: asyncio.Future[Any], hurry: Callable[[], None]) -> None:
    """Waits for a task that must come to its end; a cancellation hurries it and is raised after it.

    Cut off, the stop would leave tasks, leases and sockets behind; its own deadlines bound it.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            hurry()
    if cancelled is not None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("while being cancelled: %s", shown(error), extra=fields_of(error))
        raise cancelled
