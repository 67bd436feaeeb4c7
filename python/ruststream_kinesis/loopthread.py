"""A coroutine on a thread and an event loop of its own, which the main loop cannot hold up.

Invariant: the caller learns of the end, whatever it was, and a cancelled caller leaves no thread
that still works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["run_in_thread"]

logger = logging.getLogger("ruststream_kinesis")

# What is on its way when the thread is told to end has deadlines of its own, shorter than this.
_END_TIMEOUT = 5.0


async def run_in_thread(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `work()` to its end in a thread of that name.

    Cancelling cancels the work there, and waits until the thread has ended (a few seconds at most).

    Raises:
        Exception: What ended the work.
    """
    here = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = here.create_future()
    there: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
    told_to_end = threading.Event()

    async def main() -> None:
        task = asyncio.ensure_future(work())
        there.append((asyncio.get_running_loop(), task))
        if told_to_end.is_set():
            task.cancel()
        await task

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(main())
        except BaseException as raised:  # noqa: BLE001 - the caller raises it, whatever it is
            error = raised
        # The main loop may be gone: the process ends, and nobody asks.
        with contextlib.suppress(RuntimeError):
            here.call_soon_threadsafe(_set, ended, error)

    # A daemon: a call that hangs for ever must not keep the process from ending.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        # Shielded by being waited for, not awaited: a cancellation must not cancel the future.
        await asyncio.wait({ended})
    except asyncio.CancelledError:
        told_to_end.set()
        for loop, task in there:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        _, late = await asyncio.wait({ended}, timeout=_END_TIMEOUT)
        if late:
            logger.error("thread %s did not end within %g s", name, _END_TIMEOUT)
        else:
            # It has said that it ended, which is the last that it does.
            thread.join(_END_TIMEOUT)
        raise
    # It has said that it ended, which is the last that it does.
    thread.join(_END_TIMEOUT)
    error = ended.result()
    if isinstance(error, asyncio.CancelledError):
        raise RuntimeError(  # noqa: TRY004 - an event, not a wrong argument
            f"the work of thread {name} was cancelled by somebody else"
        ) from error
    if error is not None:
        raise error


def _set(future: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not future.done():
        future.set_result(error)
