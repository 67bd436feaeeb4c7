"""`run --reload`: a service that starts again when its source changes; for who writes it.

Invariant: one process of it runs at a time; the old one is stopped gracefully before the next one
is started. One that ends by itself is started again by the next change, and by nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from importlib.util import find_spec
from pathlib import Path

from ruststream_kinesis.cli.logs import log_to_stderr, say
from ruststream_kinesis.cli.processes import Spawn, Stopping, spawner, was_stopped
from ruststream_kinesis.cli.run import RunOptions
from ruststream_kinesis.signals import listening
from ruststream_kinesis.wording import listing

__all__ = ["Reloading", "run_reloading"]

logger = logging.getLogger("ruststream_kinesis.cli")

Changes = AsyncIterator[Collection[str]]
"""Names of files that changed, together; ends with the stop."""

# The exit code of a wrong command line: no change of a file makes it right.
_WRONG = 2


def run_reloading(options: RunOptions) -> int:
    """Runs a service until a signal, and anew after every change of a `*.py` below here.

    Returns:
        The exit code: 0 after a stop that was asked for, 1 where that did not go well or changes
        cannot be seen, 2 where the command line is wrong.
    """
    if find_spec("watchfiles") is None:
        say(
            "--reload needs watchfiles, which is not installed here: "
            "pip install 'ruststream-kinesis[cli]'"
        )
        return 1
    log_to_stderr(options.log_level, options.log_format)
    # We say ourselves what changed.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)

    async def run() -> int:
        stopping = Stopping()
        with listening(stopping.ask):
            return await Reloading(spawner(options), _changes(Path.cwd(), stopping), stopping).run()

    try:
        return asyncio.run(run())
    except (OSError, RuntimeError) as error:  # the latter is what watchfiles raises of its own
        if options.debug:
            raise
        say(f"cannot watch the files below {Path.cwd()}: {error}", options.log_format)
        return 1


async def _changes(folder: Path, stopping: Stopping) -> Changes:
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - where it is installed

    # Virtual environments, caches and repositories are left out by the filter.
    async for changes in awatch(
        folder,
        watch_filter=PythonFilter(),
        stop_event=stopping.asked,
        ignore_permission_denied=True,
    ):
        yield sorted({str(Path(path).relative_to(folder)) for _, path in changes})


class Reloading:
    """Keeps one service running, anew after every change.

    Args:
        spawn: Starts it.
        changes: When, and what.
        stopping: The request to stop.
    """

    def __init__(self, spawn: Spawn, changes: Changes, stopping: Stopping) -> None:
        self._spawn = spawn
        self._changes = changes
        self._stopping = stopping
        self._changed = asyncio.Event()
        self._names: set[str] = set()

    async def run(self) -> int:
        """Runs until the stop; returns the exit code."""
        watching = asyncio.ensure_future(self._watch())
        try:
            return await self._run(watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._stopping.kill()

    async def _watch(self) -> None:
        async for names in self._changes:
            self._names.update(names)
            self._changed.set()

    async def _run(self, watching: asyncio.Future[None]) -> int:
        asked = self._stopping.asked
        while not asked.is_set():
            self._changed.clear()
            self._names.clear()
            running = await self._stopping.run(self._spawn, "")
            await self._until(running.code, watching)
            if not running.code.done() and not asked.is_set():
                logger.info("%s changed: stopping the service", listing(sorted(self._names)))
                self._stopping.pass_on(running.process)
            code = await running.code
            if asked.is_set():
                return 0 if was_stopped(code) else 1
            if code == _WRONG:
                return code
            if not self._changed.is_set():
                logger.warning("the service ended with exit code %d; waiting for a change", code)
                await self._until(watching)
                if self._changed.is_set():
                    logger.info("%s changed: starting", listing(sorted(self._names)))
        # Stopped while nothing ran: what ended before has said so already.
        return 0

    async def _until(self, *others: asyncio.Future[int] | asyncio.Future[None]) -> None:
        """Waits for a change, for a stop, or for one of these.

        Raises:
            OSError: Changes cannot be seen any more; watchfiles may raise `RuntimeError`.
        """
        waits = [asyncio.ensure_future(e.wait()) for e in (self._changed, self._stopping.asked)]
        try:
            await asyncio.wait({*waits, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        for other in others:
            # The one that watches ends by itself only where it fails, or with the stop.
            if other.done() and other.exception() is not None:
                other.result()
