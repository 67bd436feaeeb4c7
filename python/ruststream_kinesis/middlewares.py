"""Middlewares: what an application puts around its handlers, composed once when it starts.

Without any, nothing of this is called. With some, a message is made for each delivery, whether the
handler asks for one or not. What a middleware raises is an error of the handler, what it returns is
what the handler said. A record that does not decode reaches no handler and no middleware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ruststream_kinesis.context import AppContext
from ruststream_kinesis.dispatch import Caller
from ruststream_kinesis.errors import ConfigurationError, HandlerError
from ruststream_kinesis.handlers import Handler, payload_source
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.publications import PublishMiddlewares, is_async

__all__ = ["Around", "CallNext", "Delivered", "Middleware", "around", "check_middleware"]

Delivered = KinesisMessage[Any] | Sequence[KinesisMessage[Any]]
"""What a call of a handler is for: a message, or those of a batch."""
CallNext = Callable[[Any], Awaitable[Any]]
"""Calls the next middleware, or the handler; its result is what that said."""
Middleware = Callable[[Any, CallNext], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Around:
    """What an application puts around a subscription."""

    middlewares: tuple[Middleware, ...] = ()
    """Of its handler, the outermost first."""
    publishing: PublishMiddlewares = field(default_factory=PublishMiddlewares)
    """Of its replies, and of the publisher that its handler may ask for."""
    context: AppContext = field(default_factory=AppContext)
    """What the lifespan yielded."""


def check_middleware(middleware: Middleware) -> Middleware:
    """Refuses what cannot be awaited around a handler.

    Raises:
        ConfigurationError: It is no `async def`.
    """
    if not callable(middleware) or not is_async(middleware):
        raise ConfigurationError(
            f"a middleware is an async def of the message and call_next: {middleware!r}"
        )
    return middleware


class _Batch(tuple[KinesisMessage[Any], ...]):
    """The messages of a batch. Its own type: what a middleware passes on must be all of them."""

    __slots__ = ()


class _Around(Caller):
    """Calls a handler through its middlewares."""

    def __init__(self, inner: Caller, handler: Handler, middlewares: Sequence[Middleware]) -> None:
        self._inner = inner.call
        self._handler_name = handler.name
        call: CallNext = self._called
        for each in reversed(middlewares):
            call = _layer(each, call)
        self._outermost = call

    async def call(self, _value: Any, message: Any) -> Any:
        return await self._outermost(_Batch(message) if isinstance(message, list) else message)

    async def _called(self, message: Any) -> Any:
        if isinstance(message, KinesisMessage):
            return await self._inner(message.payload, message)
        if not isinstance(message, _Batch):
            # Fewer of them, and the outcomes of the handler would be those of other records.
            raise HandlerError(
                f"a middleware of handler {self._handler_name} has passed on {message!r}: call_next "
                "takes what the middleware was given"
            )
        return await self._inner([each.payload for each in message], list(message))


def _layer(middleware: Middleware, inner: CallNext) -> CallNext:
    async def call_next(message: Any) -> Any:
        return await middleware(message, inner)

    return call_next


def around(
    handler: Handler, caller: Caller, middlewares: Sequence[Middleware]
) -> tuple[Handler, Caller]:
    """The handler and its caller as the dispatcher gets them: the same where there is nothing."""
    if not middlewares:
        return handler, caller
    wanting = replace(handler, wants_message=True, sources=handler.sources or (payload_source,))
    return wanting, _Around(caller, handler, middlewares)
