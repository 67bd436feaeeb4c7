"""How long an event loop is held, and by what.

Three instruments, because each has a blind spot:

- A selector that notes when `select` is entered and left. Between two calls of it the loop runs
  callbacks and nothing else can happen: that is a *hold*, exactly, and includes the whole batch of
  callbacks that were ready together.
- A wrapper around each callback, which says whose time it was: the transport that reads the socket,
  or the step of a task, by the task's name.
- A heartbeat every millisecond that notes how late it comes. It also sees what the other two
  cannot: a thread that keeps the GIL while the loop waits, and a machine that is busy elsewhere.

The wrapper costs about a microsecond a callback; it is installed for the observed block only.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from asyncio import events
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from ruststream_kinesis.http_connection import Answer, Connection

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

_clock = time.perf_counter

# How often the heartbeat asks to be called.
HEARTBEAT = 0.001

# A response body above this is a page; answers to other calls are far smaller.
_PAGE_BYTES = 100_000


class Span(NamedTuple):
    """A stretch of time, in seconds of `time.perf_counter`."""

    start: float
    end: float
    what: str

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


@dataclass
class Recording:
    """What was seen, in order of time."""

    holds: list[Span] = field(default_factory=list)
    """From one `select` to the next."""
    callbacks: list[Span] = field(default_factory=list)
    """Each callback: `network`, `heartbeat`, `callback`, or the task's name before its `[`."""
    bodies: list[float] = field(default_factory=list)
    """When each page's body had been read completely."""
    late: list[tuple[float, float]] = field(default_factory=list)
    """Heartbeats: when each ran, and how many seconds late."""


class _TimedSelector(selectors.BaseSelector):
    """The platform's selector, with the time between two `select` calls noted."""

    def __init__(self, holds: list[Span]) -> None:
        self._inner = selectors.DefaultSelector()
        self._holds = holds
        self._left: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._left is not None:
            self._holds.append(Span(self._left, _clock(), ""))
        ready = self._inner.select(timeout)
        self._left = _clock()
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class _Heartbeat:
    """Calls itself every millisecond and notes the delay."""

    def __init__(self, late: list[tuple[float, float]]) -> None:
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._next()

    def _next(self) -> None:
        self._due = self._loop.time() + HEARTBEAT
        self._handle = self._loop.call_at(self._due, self.beat)

    def beat(self) -> None:
        """One beat."""
        self._late.append((_clock(), self._loop.time() - self._due))
        self._next()

    def stop(self) -> None:
        """No further beats."""
        self._handle.cancel()


def _owner(callback: object) -> str:
    bound = getattr(callback, "__self__", None)
    if isinstance(bound, asyncio.Task):
        frame = getattr(bound.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_globals.get("__name__", "").startswith("aiohttp."):
            # Its task that writes a request: a `send` that often wakes the server on our own core.
            return "network"
        return bound.get_name().partition("[")[0]
    if isinstance(bound, _Heartbeat):
        return "heartbeat"
    if isinstance(bound, asyncio.BaseTransport | asyncio.AbstractEventLoop):
        return "network"
    return "callback"


@contextlib.contextmanager
def _instrumented(recording: Recording) -> Iterator[None]:
    run = events.Handle._run  # noqa: SLF001 (the one place every callback passes)
    read, ask = aiohttp.ClientResponse.read, Connection.ask
    note = recording.callbacks.append

    def timed_run(handle: Any) -> None:
        # Before the call: a handle forgets its callback when it is cancelled.
        owner = _owner(handle._callback)  # noqa: SLF001 (as above)
        start = _clock()
        run(handle)
        note(Span(start, _clock(), owner))

    async def marked_read(response: aiohttp.ClientResponse) -> bytes:
        body = await read(response)
        if len(body) > _PAGE_BYTES:
            recording.bodies.append(_clock())
        return body

    async def marked_ask(connection: Connection, head: bytes, body: bytes) -> Answer:
        answer = await ask(connection, head, body)
        if len(answer.body) > _PAGE_BYTES:
            recording.bodies.append(_clock())
        return answer

    events.Handle._run = timed_run  # type: ignore[method-assign,assignment]  # noqa: SLF001 (as above)
    aiohttp.ClientResponse.read = marked_read  # type: ignore[method-assign,assignment]  # the body's last byte
    Connection.ask = marked_ask  # type: ignore[method-assign,assignment]  # the same, on the short way
    try:
        yield
    finally:
        events.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001 (as above)
        aiohttp.ClientResponse.read = read  # type: ignore[method-assign]  # as it was
        Connection.ask = ask  # type: ignore[method-assign]  # as it was


def observe(main: Coroutine[Any, Any, object], *, heartbeat: bool = True) -> Recording:
    """Run a coroutine on a watched event loop of its own."""
    recording = Recording()

    async def watched() -> None:
        beat = _Heartbeat(recording.late) if heartbeat else None
        try:
            await main
        finally:
            if beat is not None:
                beat.stop()

    def new_loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_TimedSelector(recording.holds))

    with _instrumented(recording), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(watched())
    return recording
