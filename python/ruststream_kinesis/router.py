"""`Router`: a group of subscribers that an application mounts; the declarations themselves."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ruststream_kinesis.attempts import Deferred, RetryPolicy
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.errors import ConfigurationError, HandlerError
from ruststream_kinesis.handlers import Handler, resolve_handler
from ruststream_kinesis.limits import check_seconds
from ruststream_kinesis.middlewares import Around, Middleware, check_middleware
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublish
from ruststream_kinesis.settlement import OnError, Policies
from ruststream_kinesis.stream import KinesisStream, StreamRef

__all__ = ["Router", "Subscriber"]

# Each is a task, or a thread; a shard has far fewer keys at once than this.
_MAX_WORKERS = 1_024

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)

_ERROR_POLICIES = ("retry", "drop", "stop")


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One declared subscription; nothing of it runs yet."""

    handler: Handler
    stream: KinesisStream
    group: str | None
    workers: int
    batch: int | None
    batch_window: float
    start_at: KinesisPosition | None
    retry: RetryPolicy
    policies: Policies
    codec: Codec
    around: Around = field(default_factory=Around)
    """What stands around the handler, of the routers that it was mounted with so far."""

    def within(self, around: Around) -> Subscriber:
        """The same within what an application, or a router, puts around it."""
        middlewares = (*around.middlewares, *self.around.middlewares)
        return replace(self, around=replace(around, middlewares=middlewares))

    @property
    def identity(self) -> tuple[str, str | None]:
        """What two subscriptions of an application may not share: stream and group."""
        return self.stream.name, self.group


def _check_policy(name: str, policy: OnError) -> None:
    if inspect.iscoroutinefunction(policy):
        raise ConfigurationError(f"{name} is called in place and cannot be awaited: {policy!r}")
    if not callable(policy) and policy not in _ERROR_POLICIES:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(map(repr, _ERROR_POLICIES))} or a function of the "
            f"error and the message: {policy!r}"
        )


@contextlib.contextmanager
def _about(stream: KinesisStream) -> Iterator[None]:
    """Whatever is refused within names the stream of the subscription."""
    try:
        yield
    except ConfigurationError as error:
        error.stream = error.stream or stream.name
        raise


def _check_count(name: str, value: object, *, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be at least 1: {value!r}")
    if most is not None and value > most:
        raise ConfigurationError(f"{name} must be at most {most}: {value!r}")


def _check_group(group: object) -> None:
    if group is not None and (
        not isinstance(group, str) or not group or "/" in group or ":" in group
    ):
        raise ConfigurationError(f"group must be non-empty and hold neither '/' nor ':': {group!r}")


def _dead_letter(name: str | None, stream: KinesisStream) -> StreamRef | None:
    if name is None:
        return None
    ref = StreamRef.parse(name)
    if ref.may_be(stream.ref):
        raise ConfigurationError(
            "the dead letter stream is the stream itself: its records would come again for ever"
        )
    return ref


class Router:
    """Collects subscribers; `app.include(router)` mounts them."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._middlewares: list[Middleware] = []

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """What was declared, in that order."""
        return tuple(self._subscribers)

    def subscriber(
        self,
        stream: KinesisStream | str,
        *,
        group: str | None = None,
        workers: int = 1,
        batch: int | None = None,
        batch_window: float = 0.05,
        start_at: KinesisPosition | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        deferred: Deferred = "hold",
        publish: KinesisPublish | str | None = None,
        codec: Codec | None = None,
        on_error: OnError = "retry",
        on_decode_error: OnError = "drop",
    ) -> Callable[[F], F]:
        """Declares a handler of a stream's records.

        Args:
            stream: What to read; a plain name means `KinesisStream(name)`.
            group: Keeps the leases of this subscription apart from another's on the same stream.
            workers: Worker partitions. A partition key always goes to the same one, so that one
                key is never handled twice at once and keeps its order.
            batch: Records a call: the handler takes a `list[T]`. A batch closes at this number, or
                when its window is over; each worker partition forms its own.
            batch_window: Seconds a batch waits for more records after its first one.
            start_at: Where to read from at every start; by default at the checkpoint, else at the
                tip.
            max_attempts: Deliveries of a record, the first included. With it, or with
                `dead_letter`, `retry()` puts a copy at the end of the stream.
            dead_letter: Stream for records whose attempts are spent, or that do not decode. Alone
                it means one attempt.
            deferred: When the original of a `retry_after` is settled: `"hold"`, once its copy is in
                the stream, so that a crash redelivers it; `"settle"`, at once, so that the
                checkpoint moves on and a crash loses the copy.
            publish: Where the handler's return value is published; a plain name means
                `KinesisPublish(to=name)`. A policy with a `batch` holds for copies and dead letters
                too, and then needs no `to`.
            codec: Payload to value and back; JSON by default.
            on_error: What a handler that raises means: `"retry"` (the record stays open), `"drop"`,
                `"stop"` (the service stops, the record stays open), or a function of the error and
                the message that returns an outcome.
            on_decode_error: The same for a payload that does not decode.

        Raises:
            ConfigurationError: A value is refused.
            HandlerError: The handler's signature cannot be resolved.
        """
        descriptor = KinesisStream.of(stream)
        with _about(descriptor):
            _check_count("workers", workers, most=_MAX_WORKERS)
            if batch is not None:
                _check_count("batch", batch)
            check_seconds("batch_window", batch_window)
            retry = RetryPolicy(max_attempts, _dead_letter(dead_letter, descriptor), deferred)
            _check_group(group)
            if start_at is not None and not isinstance(start_at, KinesisPosition):
                raise ConfigurationError(f"start_at must be a KinesisPosition: {start_at!r}")
            _check_policy("on_error", on_error)
            _check_policy("on_decode_error", on_decode_error)
            reply = KinesisPublish.of(publish)
            if reply is not None and reply.to is None and reply.batching is None:
                raise ConfigurationError(
                    "publish= names no stream for the replies, KinesisPublish(to=...), nor a "
                    "batch= for copies and dead letters"
                )
        # The names that the handler's annotations see where it is defined.
        frame = sys._getframe(1)  # noqa: SLF001 - CPython's documented way
        local_names, place = dict(frame.f_locals), frame.f_code.co_qualname
        del frame  # it would keep everything of its caller alive

        payloads = codec or JsonCodec()

        def declare(function: F) -> F:
            # Looked at now, so that a mistake is found where it was made.
            handler = resolve_handler(
                function, payloads, local_names, place, batch=batch is not None
            )
            if handler.replies and (reply is None or reply.to is None):
                raise HandlerError(
                    f"handler {handler.name} returns a value by its annotation, but publish= names "
                    "no stream for it",
                    stream=descriptor.name,
                )
            self._declare(
                Subscriber(
                    handler=handler,
                    stream=descriptor,
                    group=group,
                    workers=workers,
                    batch=batch,
                    batch_window=batch_window,
                    start_at=start_at,
                    retry=retry,
                    policies=Policies(on_error, on_decode_error, reply),
                    codec=payloads,
                )
            )
            return function

        return declare

    def middleware(self, middleware: M) -> M:
        """Puts a function around every handler that is declared or mounted here.

        It is an `async def` of the message, or of the messages of a batch, and of `call_next`, which
        calls what is within: what that said is its result. What the middleware returns or raises
        counts as the handler's own word. The first that is registered is the outermost; those of an
        application stand around those of a router. Records that do not decode reach none.

        Raises:
            ConfigurationError: It cannot be awaited.
        """
        self._middlewares.append(check_middleware(middleware))
        return middleware

    def include(self, router: Router) -> None:
        """Mounts the subscribers of another router with what it has around them, as they are now.

        All of them or none.
        """
        around = Around(tuple(router._middlewares))
        self._declare(*[each.within(around) for each in router.subscribers])

    def _declare(self, *subscribers: Subscriber) -> None:
        known = {each.identity for each in self._subscribers}
        for each in subscribers:
            if each.identity in known:
                raise ConfigurationError(
                    f"a second subscription to stream {each.stream.name!r} needs a group of its "
                    'own: pass group="…"' + (f" other than {each.group!r}" if each.group else ""),
                    stream=each.stream.name,
                )
            known.add(each.identity)
        self._subscribers += subscribers
