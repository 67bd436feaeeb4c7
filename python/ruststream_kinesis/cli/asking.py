"""Requests of a command: the first one, for which somebody sits and waits, and many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.transport import Failure, judge, patiently

__all__ = ["asked", "together"]

T = TypeVar("T")


async def asked(call: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of `call`, asked for again where the service did answer, and said to come later.

    An endpoint that does not answer at all the first time is most likely a wrong one, and said to be
    so at once. Requests that follow a good one are made with `patiently`.

    Raises:
        RequestError: As `call` raises it.
    """
    try:
        return await call()
    except RequestError as error:
        if error.status is None or judge(error) is not Failure.PASSING:
            raise
    return await patiently(call, clock)


@contextlib.asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks of which the first failure is everybody's, raised as it is.

    What fails one of them fails the others, as a rule: one line says it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
