"""Services in processes of their own, for `run --workers` and `run --reload`.

Invariants:

* A service gets SIGTERM from here alone, and as often as we were told to stop: Ctrl-C on a terminal
  reaches us, not the services, which are in process groups of their own.
* None outlives us: its standard input is a pipe that we hold, and its end stops it (`run.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from ruststream_kinesis.cli.logs import WORKER
from ruststream_kinesis.cli.run import RunOptions

__all__ = ["Process", "Spawn", "Stopping", "spawner", "was_stopped"]

# The third time somebody asks for a stop, waiting is over.
_KILL = 3


class Process(Protocol):
    """A service in a process of its own."""

    async def wait(self) -> int:
        """Waits for its end and returns its exit code."""
        ...

    def send_signal(self, signal: int) -> None:
        """Raises `ProcessLookupError` where it has ended."""
        ...


Spawn = Callable[[str], Awaitable[Process]]
"""Starts a service, by the number of its worker."""


def spawner(options: RunOptions) -> Spawn:
    """Starts `ruststream-kinesis run` with these options."""

    async def spawn(worker: str) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ruststream_kinesis.cli", *options.arguments),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, WORKER: worker},
            process_group=0,
        )

    return spawn


def was_stopped(code: int) -> bool:
    """Whether an exit code is that of a service that was told to stop, and did.

    One that had not come so far as to listen is ended by the signal itself.
    """
    return code in (0, -signal.SIGTERM)


class Stopping:
    """The request to stop, and the processes that it is passed on to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Somebody asked for a stop."""
        self._times = 0
        self._running: set[Process] = set()

    def ask(self) -> None:
        """Asks all that run to stop: gracefully, then at once; the third time they are killed."""
        self._times += 1
        self.asked.set()
        for process in tuple(self._running):
            self.pass_on(process)

    def pass_on(self, process: Process) -> None:
        """Asks one process, as insistently as we were asked ourselves."""
        number = signal.SIGKILL if self._times >= _KILL else signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            process.send_signal(number)

    async def run(self, spawn: Spawn, worker: str) -> Running:
        """Starts a process that a stop reaches, even one that was asked for meanwhile."""
        process = await spawn(worker)
        self._running.add(process)
        if self.asked.is_set():
            self.pass_on(process)
        return Running(process, self._running)

    async def kill(self) -> None:
        """Ends what still runs, where we ourselves failed."""
        for process in tuple(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)


class Running:
    """One process at work.

    Args:
        process: It.
        running: All that a stop is passed on to; it leaves them at its end.
    """

    def __init__(self, process: Process, running: set[Process]) -> None:
        self.process = process
        self._running = running
        self.code: asyncio.Task[int] = asyncio.ensure_future(self._wait())
        """Ends with it, and is its exit code."""

    async def _wait(self) -> int:
        try:
            return await self.process.wait()
        finally:
            self._running.discard(self.process)
