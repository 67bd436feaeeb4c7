"""The lifespan of an application at work: entered before anything is read, left after all handlers.

Invariant: it is entered and left in one task of its own, so that what it holds meanwhile (a task
group, a cancel scope) knows its task. An error of it in between ends the service.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from ruststream_kinesis.context import AppContext
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.handlers import Handler

__all__ = ["Lifespan", "LifespanRun", "check_lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""Makes the context manager, from the application."""

Spawn = Callable[[str, Coroutine[Any, Any, None]], "asyncio.Task[None]"]


def check_lifespan(lifespan: Lifespan | None) -> Lifespan | None:
    """Refuses what is no function that makes a context manager.

    Raises:
        ConfigurationError: It is something else; an undecorated generator above all.
    """
    if inspect.isasyncgenfunction(lifespan):
        raise ConfigurationError(
            f"lifespan {lifespan.__qualname__} is an async generator: decorate it with "
            "contextlib.asynccontextmanager"
        )
    if lifespan is not None and not callable(lifespan):
        raise ConfigurationError(
            f"lifespan is a function of the application that makes an async context manager: "
            f"{lifespan!r}"
        )
    return lifespan


class LifespanRun:
    """One run of a lifespan.

    Args:
        make: Makes the context manager; `None` where the application declares none.
        app: What it is given.
        context: Gets what it yields.
        handlers: Whose wishes that has to meet.
    """

    def __init__(
        self,
        make: Lifespan | None,
        app: object,
        context: AppContext,
        handlers: Iterable[Handler],
    ) -> None:
        self._make = make
        self._app = app
        self._context = context
        self._handlers = tuple(handlers)
        self._task: asyncio.Task[None] | None = None
        self._entered = asyncio.get_running_loop().create_future()
        self._leaving = asyncio.Event()
        self._error: BaseException | None = None
        """What it raised when it was entered or left."""

    async def enter(self, spawn: Spawn) -> None:
        """Enters it, and makes sure that it yields what handlers ask for.

        Raises:
            Exception: The lifespan's own.
            ConfigurationError: It yields no mapping, or a handler asks for what is not in it.
        """
        if self._make is not None:
            self._task = task = spawn("lifespan", self._live(self._make))
            await asyncio.wait({task, self._entered}, return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                self._task, error = None, self._error
                raise error
        for handler in self._handlers:
            for name in handler.wants_context:
                if name not in self._context:
                    raise ConfigurationError(
                        f"handler {handler.name} asks for {name!r}, but "
                        + self._context.lacks(name)
                    )

    async def leave(self) -> None:
        """Leaves it; does nothing where it was not entered. Cut off, it is left to the supervisor.

        Raises:
            Exception: What the lifespan raised when it was left.
        """
        task = self._task
        if task is None:
            return
        self._leaving.set()
        if not self._entered.done():
            task.cancel()
        await asyncio.wait({task})
        if isinstance(self._error, Exception):
            raise self._error

    async def _live(self, make: Lifespan) -> None:
        try:
            async with make(self._app) as shared:
                self._context.update(_checked(shared))
                self._entered.set_result(None)
                await self._leaving.wait()
        except BaseException as error:
            if self._entered.done() and not self._leaving.is_set():
                raise  # its supervisor stops the service with it
            self._error = error
        finally:
            self._context.clear()


def _checked(shared: object) -> Mapping[str, Any]:
    if shared is None:
        return {}
    if not isinstance(shared, Mapping) or not all(isinstance(each, str) for each in shared):
        raise ConfigurationError(
            f"a lifespan yields a mapping of names to what is shared, or nothing: {shared!r}"
        )
    return shared
