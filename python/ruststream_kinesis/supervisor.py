"""One owner for every task of a service, by name.

Invariant: no task outlives its supervisor, and none dies in silence. A task that fails is reported
with its name; the first failure is what ends the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.wording import fields_of, shown, trace

__all__ = ["Supervisor"]

logger = logging.getLogger("ruststream_kinesis")

T = TypeVar("T")


class Supervisor:
    """Starts tasks, notices their death, and stops what is left.

    Args:
        failed: Called with each error that ended a task.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dismissed: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled here: their end is no failure."""

    @property
    def running(self) -> list[str]:
        """Names of the tasks that run now."""
        return sorted(task.get_name() for task in self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts `work` as a task with that name."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        dismissed = task in self._dismissed
        self._dismissed.discard(task)
        error: BaseException | None
        if task.cancelled():
            if dismissed:
                return
            # A worker that is gone without a word is a shard that stands still.
            error = KinesisError(f"task {task.get_name()} was cancelled by somebody else")
        else:
            error = task.exception()
        if error is not None:
            logger.error(
                "task %s failed: %s",
                task.get_name(),
                shown(error),
                exc_info=trace(error, logger),
                extra=fields_of(error),
            )
            self._failed(error)

    async def finish(
        self,
        tasks: Iterable[asyncio.Task[Any]],
        timeout: float,
        late: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Waits for `tasks`, cancels those that take longer, and waits for the cancelled ones.

        Args:
            tasks: Of this supervisor.
            timeout: Seconds to wait for them.
            late: Called before any is cancelled.

        Returns:
            Names of the tasks that had to be cancelled.
        """
        waiting = {task for task in tasks if not task.done()}
        if not waiting:
            return []
        _, slow = await asyncio.wait(waiting, timeout=max(0.0, timeout))
        if slow:
            late()
        await self.cancel(slow)
        return sorted(task.get_name() for task in slow)

    async def cancel(self, tasks: Iterable[asyncio.Task[Any]], grace: float = 1.0) -> None:
        """Cancels `tasks` and waits up to `grace` seconds for each to give in."""
        waiting = {task for task in tasks if not task.done()}
        for task in waiting:
            self._dismissed.add(task)
            task.cancel()
        if waiting:
            _, stubborn = await asyncio.wait(waiting, timeout=grace)
            for task in stubborn:
                logger.error("task %s does not react to its cancellation", task.get_name())

    def dismiss(self, tasks: Iterable[asyncio.Task[Any]] | None = None) -> None:
        """Cancels `tasks`, by default whatever still runs, and waits for none of them."""
        for task in self._tasks if tasks is None else tasks:
            if not task.done():
                self._dismissed.add(task)
                task.cancel()

    async def close(self) -> None:
        """Cancels whatever still runs."""
        await self.cancel(set(self._tasks))
