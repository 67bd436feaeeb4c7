"""Publish middlewares: what an application puts around each value that it publishes.

They see what `publish`, `publish_nowait` and replies put into a stream; copies and dead letters, which
are byte for byte what was received, pass none. Invariant: only headers change on the way. Value,
stream and keys are what the caller said, so that neither the order of a key nor the shard of a record
depends on what stands around.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.message import PARTITION_KEY_HEADER
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutResult

__all__ = ["Publication", "PublishMiddleware", "PublishMiddlewares", "Put", "Through"]


class Publication(msgspec.Struct, frozen=True, eq=False):
    """A value on its way into a stream, as a publish middleware sees it."""

    # A struct, as it is made ten times as fast as a frozen dataclass.

    value: Any
    """What was given to `publish`, or returned by the handler; not encoded yet."""
    to: str
    """Name or ARN of the stream, as it was given."""
    partition_key: str | None
    """The call's, else that of the `partition-key` header; `None` leaves it to the policy."""
    explicit_hash_key: str | None
    headers: dict[str, str]
    """A middleware may change them. With any, the record travels in an envelope."""
    _put: Put

    @property
    def stream(self) -> str:
        """Plain name of the stream."""
        return StreamRef.parse(self.to).name


Put = Callable[[Publication], Awaitable[PutResult | None]]
"""Puts it; `None` when nobody wanted it any more."""
Through = Callable[[Publication], Awaitable[PutResult | None]]
"""The same through all middlewares."""
PublishMiddleware = Callable[[Publication, Callable[[Publication], Any]], Any]
"""`async def`: awaits `call_next(record)`. Plain `def`: returns the future that it returned."""


class PublishMiddlewares:
    """Those of one application, shared by its publishers: also by those that were made before."""

    __slots__ = ("_all", "_awaits", "through")

    def __init__(self) -> None:
        self._all: list[PublishMiddleware] = []
        self._awaits: PublishMiddleware | None = None
        """The first of them that is an `async def`."""
        self.through: Through | None = None
        """All of them and then the put, put together once; `None` while there are none."""

    def add(self, middleware: PublishMiddleware) -> None:
        """Adds one, within those that there are."""
        if not callable(middleware):
            raise ConfigurationError(f"a publish middleware is a function: {middleware!r}")
        self._all.append(middleware)
        if self._awaits is None and is_async(middleware):
            self._awaits = middleware
        through: Through = _put
        for each in reversed(self._all):
            through = (_around if is_async(each) else _around_plainly)(each, through)
        self.through = through

    def check_plain(self, what: str, stream: str) -> None:
        """Refuses what cannot await where records are collected in the order of their calls.

        Raises:
            ConfigurationError: One of them is an `async def`.
        """
        if self._awaits is not None:
            raise ConfigurationError(
                f"{what} cannot pass the publish middleware {name_of(self._awaits)}: it is an async "
                "def, and a policy with a batch takes records in the order of the calls, without "
                "waiting; make it a plain def that returns the future of call_next",
                stream=stream,
            )


def publication(
    value: Any,
    to: str,
    partition_key: str | None,
    headers: Mapping[str, str] | None,
    explicit_hash_key: str | None,
    put: Put,
) -> Publication:
    """What the middlewares get to see; the partition key is no header among them."""
    own = dict(headers) if headers else {}
    key = own.pop(PARTITION_KEY_HEADER, None) or None
    if partition_key is None:
        partition_key = key
    return Publication(value, to, partition_key, explicit_hash_key, own, put)


def _put(record: Publication) -> Awaitable[PutResult | None]:
    if PARTITION_KEY_HEADER in record.headers:
        raise ConfigurationError(
            "a publish middleware has set the header partition-key: which key a record has is "
            "said by its publisher alone",
            stream=record.stream,
        )
    return record._put(record)  # noqa: SLF001 - not for middlewares


def _around(middleware: PublishMiddleware, inner: Through) -> Through:
    async def through(record: Publication) -> PutResult | None:
        result: PutResult | None = await middleware(record, inner)
        return result

    return through


def _around_plainly(middleware: PublishMiddleware, inner: Through) -> Through:
    def call_next(record: Publication) -> asyncio.Future[PutResult | None]:
        return asyncio.ensure_future(inner(record))

    def through(record: Publication) -> Awaitable[PutResult | None]:
        future: Awaitable[PutResult | None] = middleware(record, call_next)
        if not asyncio.isfuture(future):
            raise ConfigurationError(
                f"the publish middleware {name_of(middleware)} returned {future!r}: a plain def "
                "returns the future that call_next returned",
                stream=record.stream,
            )
        return future

    return through


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of it makes a coroutine: a function, a partial of one, an object."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - what is asked is whether that is async
    )


def name_of(function: Callable[..., Any]) -> str:
    """How messages name it."""
    return str(getattr(function, "__qualname__", function))
