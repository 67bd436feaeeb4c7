"""`Router`: a group of subscribers that an application mounts; the declarations themselves."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.dispatch import OnError, Policies
from ruststream_kinesis.errors import ConfigurationError, HandlerError
from ruststream_kinesis.handlers import Handler, resolve_handler
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublish
from ruststream_kinesis.stream import KinesisStream

__all__ = ["Router", "Subscriber"]

F = TypeVar("F", bound=Callable[..., Any])

_ERROR_POLICIES = ("retry", "drop", "stop")


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One declared subscription; nothing of it runs yet."""

    handler: Handler
    stream: KinesisStream
    group: str | None
    workers: int
    start_at: KinesisPosition | None
    policies: Policies
    codec: Codec

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


class Router:
    """Collects subscribers; `app.include(router)` mounts them."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

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
        start_at: KinesisPosition | None = None,
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
            start_at: Where to read from at every start; by default at the checkpoint, else at the
                tip.
            publish: Where the handler's return value is published; a plain name means
                `KinesisPublish(to=name)`.
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
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigurationError(
                f"workers must be at least 1: {workers!r}", stream=descriptor.name
            )
        if group is not None and (
            not isinstance(group, str) or not group or "/" in group or ":" in group
        ):
            raise ConfigurationError(
                f"group must be non-empty and hold neither '/' nor ':': {group!r}",
                stream=descriptor.name,
            )
        if start_at is not None and not isinstance(start_at, KinesisPosition):
            raise ConfigurationError(
                f"start_at must be a KinesisPosition: {start_at!r}", stream=descriptor.name
            )
        _check_policy("on_error", on_error)
        _check_policy("on_decode_error", on_decode_error)
        reply = KinesisPublish.of(publish)
        if reply is not None and reply.to is None:
            raise ConfigurationError(
                "publish= names no stream for the replies: KinesisPublish(to=...)",
                stream=descriptor.name,
            )
        # The names that the handler's annotations see where it is defined.
        frame = sys._getframe(1)  # noqa: SLF001 - CPython's documented way
        local_names, place = dict(frame.f_locals), frame.f_code.co_qualname
        del frame  # it would keep everything of its caller alive

        payloads = codec or JsonCodec()

        def declare(function: F) -> F:
            # Looked at now, so that a mistake is found where it was made.
            handler = resolve_handler(function, payloads, local_names, place)
            if handler.replies and reply is None:
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
                    start_at=start_at,
                    policies=Policies(on_error, on_decode_error, reply),
                    codec=payloads,
                )
            )
            return function

        return declare

    def include(self, router: Router) -> None:
        """Mounts the subscribers of another router, as they are now; all of them or none."""
        self._declare(*router.subscribers)

    def _declare(self, *subscribers: Subscriber) -> None:
        known = {each.identity for each in self._subscribers}
        for each in subscribers:
            if each.identity in known:
                raise ConfigurationError(
                    f"a second subscription to stream {each.stream.name!r} needs a group of its "
                    f"own (this one has {each.group!r})",
                    stream=each.stream.name,
                )
            known.add(each.identity)
        self._subscribers += subscribers
