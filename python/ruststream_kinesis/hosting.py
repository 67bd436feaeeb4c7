"""A service within a host: for as long as a block of the host's own task runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.wording import shown

__all__ = ["running_in"]

logger = logging.getLogger("ruststream_kinesis")

Run = Callable[[Callable[[], object]], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def running_in(run: Run, stop: Callable[[], None]) -> AsyncIterator[None]:
    """Runs a service in a task of its own, from its start to the end of the block.

    Args:
        run: Runs it, and calls what it is given once it is open.
        stop: Asks it to stop.

    Raises:
        Exception: What ended it: the block is cancelled then, and this is raised in place of the
            cancellation. An error that the block raises by itself comes first.
    """
    opened = asyncio.get_running_loop().create_future()
    service = asyncio.create_task(run(partial(opened.set_result, None)), name="service")
    host = _Host(service)
    try:
        try:
            await asyncio.wait({service, opened}, return_when=asyncio.FIRST_COMPLETED)
            if service.done():
                service.result()
                raise KinesisError("the service was stopped before it was open")
            host.within = True
            yield
        finally:
            host.within = False
            await _stopped(service, stop)
    except BaseException as error:
        if not host.takes_back(error):
            host.tell_of_another(error)
            raise
    else:
        host.takes_back(None)
    if service.cancelled():
        raise _gone()
    service.result()


class _Host:
    """The task whose block a service runs in: cancelled, at most once, when the service fails."""

    def __init__(self, service: asyncio.Task[None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._service = service
        self._before = task.cancelling()
        self._interrupted = False
        self.within = False
        """It is in its block."""
        service.add_done_callback(self._ended)

    def _ended(self, service: asyncio.Task[None]) -> None:
        error = _gone() if service.cancelled() else service.exception()
        if self.within and error is not None:
            logger.error("the service failed, its host is told: %s", shown(error))
            self._interrupted = self._task.cancel()

    def tell_of_another(self, raised: BaseException) -> None:
        """Logs what ended the service, where the block raises something else."""
        service = self._service
        error = service.exception() if service.done() and not service.cancelled() else None
        if error is not None and error is not raised:
            logger.error("the service failed, too: %s", shown(error))

    def takes_back(self, ended: BaseException | None) -> bool:
        """Takes its cancellation back; whether the block has ended with that and nothing else."""
        if not self._interrupted:
            return False
        others = self._task.uncancel() > self._before
        return isinstance(ended, asyncio.CancelledError) and not others


def _gone() -> KinesisError:
    return KinesisError("the service's task was cancelled by somebody else")


async def _stopped(service: asyncio.Task[None], stop: Callable[[], None]) -> None:
    """Stops it and waits for its end; a cancellation is handed on to it, and raised after it."""
    if not service.done():
        stop()
    cancelled: asyncio.CancelledError | None = None
    while not service.done():
        try:
            await asyncio.wait({service})
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            service.cancel()
    if cancelled is not None:
        raise cancelled
