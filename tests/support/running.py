"""A service that runs beside a test, and what its handlers received.

Whatever a test waits for, it waits through `Running.wait`: a service that fails meanwhile fails the
test at once with its own error, where a plain wait would hang until the test's time is up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ruststream_kinesis import RustStream
from ruststream_kinesis.testing import ManualClock

__all__ = ["PATIENCE", "Inbox", "Running", "running"]

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds until something that takes some round trips must have happened."""


class Inbox:
    """What came, in order, and a wait for more of it."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self._arrival = asyncio.Event()

    def put(self, item: bytes) -> None:
        """Note one item; a handler calls it."""
        self.items.append(item)
        # Wakes everybody who waits now; the next to wait gets a new event.
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def first(self, count: int) -> list[bytes]:
        """Wait until so many have come, and return all of them."""
        while len(self.items) < count:
            await self._arrival.wait()
        return self.items

    async def has(self, item: bytes) -> None:
        """Wait until `item` has come."""
        while item not in self.items:
            await self._arrival.wait()


class Running:
    """A running service."""

    def __init__(self, app: RustStream, task: asyncio.Task[None]) -> None:
        self.app = app
        self.task = task

    async def wait(self, something: Awaitable[T], what: str = "") -> T:
        """Await `something`, at most `PATIENCE`, while the service lives.

        Raises:
            BaseException: What ended the service.
            TimeoutError: It did not come.
        """
        waiting = asyncio.ensure_future(something)
        try:
            await asyncio.wait(
                {waiting, self.task}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting.done():
                return waiting.result()
            if self.task.done():
                self.task.result()
                raise AssertionError(f"the service ended; nobody waits any more: {what}")
            raise TimeoutError(f"did not come within {PATIENCE:g} s: {what or something!r}")
        finally:
            waiting.cancel()

    async def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Let loop and sockets go on until something holds."""
        await self.wait(_until(true), what)

    async def drive(
        self, clock: ManualClock, true: Callable[[], bool], *, step: float = 0.1, what: str = ""
    ) -> None:
        """Move the service's time, a step at a time, until something holds."""

        async def move() -> None:
            while not true():
                await clock.advance(step)

        await self.wait(move(), what)


@contextlib.asynccontextmanager
async def running(app: RustStream) -> AsyncIterator[Running]:
    """Run a service until the block ends, and raise what ended it otherwise.

    The block starts when every subscription is open.
    """
    started = asyncio.Event()
    task = asyncio.create_task(app.run(signals=False, started=started.set), name="app.run")
    service = Running(app, task)
    try:
        await service.wait(started.wait(), "the service to start")
        yield service
    finally:
        if not task.done():
            app.stop()
        await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            task.cancel()
    await task


async def _until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - whatever it is, no event tells of it
        await asyncio.sleep(0)
