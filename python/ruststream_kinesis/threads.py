"""Threads for plain `def` handlers.

Not `concurrent.futures`: the interpreter waits at its exit for every thread of that pool, so one
handler that never returns would keep the process alive after the service stopped. These threads are
daemons: a process that was told to stop twice ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["HandlerThreads"]

_Call = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[[], Any]
]


class HandlerThreads:
    """At most `limit` threads, started when they are needed.

    Args:
        limit: As many as there are worker partitions: each runs one handler at a time.
        name: Prefix of the threads' names.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """The result of `function`, run in a thread with the caller's context variables.

        Cancelling abandons the call: a thread cannot be stopped, its result is thrown away.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._calls.put((loop, done, contextvars.copy_context(), function))
        if not self._idle.acquire(blocking=False) and self._started < self._limit:
            self._started += 1
            threading.Thread(
                target=self._work, name=f"{self._name}-{self._started}", daemon=True
            ).start()
        return await done

    def close(self) -> None:
        """Ends the threads, each after the call it is at; calls not begun are thrown away."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, done, context, function = call
            try:
                result, error = context.run(function), None
            except BaseException as raised:  # noqa: BLE001 - the caller raises it, whatever it is
                result, error = None, raised
            del call, context, function
            self._idle.release()
            # The loop may have ended while the handler ran: nobody waits for it any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, done, result, error)
            del result, error, done, loop


def _finish(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    elif isinstance(error, StopIteration):
        # A future refuses it: it would end the coroutine that awaits.
        done.set_exception(RuntimeError(f"the handler raised {error!r}"))
    else:
        done.set_exception(error)
