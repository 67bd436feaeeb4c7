"""Event loops in virtual time: one scheduler, and a loop for each thread of each process.

What asyncio guarantees is kept: callbacks of a loop run in the order in which they became ready, and
one at a time. What it does not guarantee is drawn from the seed: which loop runs next, and when one
of them is held up. A *step* is one callback.

A loop can be *frozen* (none of its callbacks runs; later all that became due run at once, as after
SIGSTOP, or behind a handler that blocks) and *killed* (none ever runs again).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import math
import random
import types
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["Scheduler", "SimLoop", "SimTask"]

T = TypeVar("T")

if TYPE_CHECKING:
    # To mypy only: nobody asks a loop in virtual time for sockets, signals or processes.
    _Base = asyncio.BaseEventLoop
else:
    _Base = asyncio.AbstractEventLoop

# Steps that a loop takes before another one may come in between.
_SLICE = 32
# Time goes in steps of a power of two, about a microsecond: sums of such times are exact, so who
# sleeps until a time never wakes just before it, and every wait takes some time.
_TICKS = float(1 << 20)


class SimTask(asyncio.Task[T]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    _numbers = itertools.count()

    def __init__(self, coro: Coroutine[Any, Any, T], **options: Any) -> None:
        # First: the base class puts it into a set.
        self.number = next(SimTask._numbers)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        """Return its number, which no address of an object decides."""
        return self.number


class _Callback:
    """A callback that is ready or waits for its time."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float,
    ) -> None:
        self.callback = callback
        self.args = args
        # A context may be empty, and be somebody's all the same.
        self.context = contextvars.copy_context() if context is None else context
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        # What it holds on to is not needed any more, however long its time is to come.
        self.args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class SimLoop(_Base):
    """The event loop of one thread of one process.

    Args:
        scheduler: Whose time it has.
        name: For traces.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.ready: deque[_Callback] = deque()
        self.frozen = 0
        """How many reasons there are for it to stand still."""
        self.dead = False
        self.queued = False
        """The scheduler knows that it has something to do."""
        self._jump = False

    def __repr__(self) -> str:
        return f"<loop {self.name}>"

    # -- what asyncio asks for -------------------------------------------------------------------

    def time(self) -> float:
        """Return virtual seconds."""
        return self.scheduler.now

    def call_soon(  # type: ignore[override]  # `*args: Any` is what it is
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Callback:
        """Queue a callback behind those that are ready."""
        handle = _Callback(callback, args, context, 0.0)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def _enqueue(self, handle: _Callback) -> None:
        if self.dead:
            return
        if self._jump:
            self._jump = False
            self.ready.appendleft(handle)
        else:
            self.ready.append(handle)
        if not self.queued and not self.frozen:
            self.queued = True
            self.scheduler.active.append(self)

    def call_later(  # type: ignore[override]  # as call_soon
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Callback:
        """Queue a callback in so many seconds."""
        return self.call_at(self.scheduler.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Callback:
        """Queue a callback at a time."""
        handle = _Callback(callback, args, context, when)
        self.scheduler.push(when, self, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # as call_soon
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task on this loop."""
        return SimTask(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Return False: debug mode looks at real time."""
        return False

    def is_running(self) -> bool:
        """Whether its process lives."""
        return not self.dead

    def is_closed(self) -> bool:
        """Whether its process is gone."""
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what nobody caught, unless nobody is there to catch it."""
        if not self.dead:
            error = context.get("exception")
            self.scheduler.fail(f"{self.name}: {context.get('message')}: {error!r}")

    # -- what the simulation does to it ----------------------------------------------------------

    def freeze(self, seconds: float) -> None:
        """Run nothing for a while."""
        self.frozen += 1
        self.scheduler.at(self.scheduler.now + seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen and self.ready and not self.queued and not self.dead:
            self.queued = True
            self.scheduler.active.append(self)

    async def block(self, seconds: float) -> None:
        """Hold the loop up as a handler does that blocks: nothing else runs before it goes on."""
        self.freeze(seconds)
        # The next callback to become ready is our own, and goes on first.
        self._jump = True
        await _turn()

    def kill(self) -> None:
        """Run nothing any more."""
        self.dead = True
        self.ready.clear()

    def dispose(self) -> None:
        """Take apart what is left, so that nothing is reported when it is collected."""
        self.kill()
        events._set_running_loop(self)
        try:
            for task in sorted(asyncio.all_tasks(self), key=lambda each: each.number):  # type: ignore[attr-defined]  # a SimTask
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # as documented in asyncio
                coroutine: Any = task.get_coro()
                # Whatever its cleaning up says: its process is gone.
                with contextlib.suppress(BaseException):
                    coroutine.close()
        finally:
            events._set_running_loop(None)


@types.coroutine
def _turn() -> Generator[None, None, None]:
    yield


class Scheduler:
    """Virtual time, and which callback runs next.

    Args:
        rng: Decides between loops that could both run.
    """

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.steps = 0
        self.failure: str | None = None
        """The first thing that went wrong; nothing runs after it."""
        self.active: list[SimLoop] = []
        self._heap: list[tuple[float, int, SimLoop | None, Any]] = []
        self._numbers = itertools.count()
        self._rng = rng

    def at(self, when: float, callback: Callable[[], object]) -> None:
        """Do something to the world at a time, on no loop."""
        self.push(when, None, callback)

    def push(self, when: float, loop: SimLoop | None, what: Any) -> None:
        """Queue something of a loop, or of the world."""
        if when == math.inf:
            return  # nobody waits to see it
        tick = max(self.now, math.ceil(when * _TICKS) / _TICKS)
        heapq.heappush(self._heap, (tick, next(self._numbers), loop, what))

    def fail(self, what: str) -> None:
        """Note what went wrong; only the first counts."""
        if self.failure is None:
            self.failure = what

    def run(self, until: float) -> None:
        """Let time pass; returns early after a failure."""
        heap, pop = self._heap, heapq.heappop
        while self.failure is None:
            if self.active:
                self._slice()
                continue
            if not heap or heap[0][0] > until:
                self.now = max(self.now, math.ceil(until * _TICKS) / _TICKS)
                return
            when, _, loop, what = pop(heap)
            if loop is None:
                self.now = when
                what()
            elif not what._cancelled:
                self.now = when
                loop._enqueue(what)

    def _slice(self) -> None:
        """Some steps of one loop."""
        active = self.active
        index = self._rng.randrange(len(active)) if len(active) > 1 else 0
        loop = active[index]
        ready = loop.ready
        events._set_running_loop(loop)
        try:
            for _ in range(_SLICE):
                if not ready or loop.frozen:
                    break
                handle = ready.popleft()
                if not handle._cancelled:
                    self.steps += 1
                    handle.context.run(handle.callback, *handle.args)
                    if self.failure is not None:
                        break
        except Exception as error:  # noqa: BLE001 - a callback that raises is a finding
            self.fail(f"{loop.name}: a callback raised {error!r}")
        finally:
            events._set_running_loop(None)
        if not ready or loop.frozen:
            loop.queued = False
            # Not by `remove`: its place is known, and order among them is by chance anyhow.
            active[index] = active[-1]
            active.pop()
