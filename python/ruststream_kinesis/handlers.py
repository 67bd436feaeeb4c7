"""Handler parameters, resolved once at registration; nothing is inspected per record."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from ruststream_kinesis.codec import Codec, Decoder
from ruststream_kinesis.context import Context
from ruststream_kinesis.errors import HandlerError, TransactionsUnsupported
from ruststream_kinesis.message import Headers, KinesisMessage
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.seek import Seeker

__all__ = ["Handler", "Tools", "payload_source", "resolve_handler"]


@dataclass(frozen=True, slots=True)
class Tools:
    """What a subscription has for its handler; the same at every call."""

    publisher: KinesisPublisher
    seeker: Seeker
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the application's lifespan yielded."""


Source = Callable[[Any, "KinesisMessage[Any] | None", Tools], Any]
"""Makes one argument from the decoded payload, the message and the subscription's tools."""

_MISSING: Any = inspect.Parameter.empty
_BESIDE = "KinesisMessage, Headers, KinesisPublisher, KinesisPosition, Seeker"
_SINGLE_PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler with everything that registration could find out."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    payload_type: Any
    decode: Decoder
    replies: bool
    """Its return annotation names a value beside `None` and `Outcome`."""
    sources: tuple[Source, ...] | None
    """One for each parameter; `None` where the payload is the only one: the fast way."""
    wants_message: bool
    """Whether a `KinesisMessage` has to be made for a call, or one for each of a batch."""
    returns: Any
    """Its return annotation, evaluated; `inspect.Parameter.empty` where there is none."""
    doc: str
    """Its docstring without indentation, or nothing."""
    wants_context: tuple[str, ...] = ()
    """Names of what its parameters ask of the context."""

    def arguments(self, value: Any, message: KinesisMessage[Any] | None, tools: Tools) -> list[Any]:
        """The arguments of one call, in the order of the parameters."""
        return [source(value, message, tools) for source in self.sources or (payload_source,)]


def resolve_handler(
    function: Callable[..., Any],
    codec: Codec,
    local_names: Mapping[str, Any] | None = None,
    place: str = "",
    *,
    batch: bool = False,
) -> Handler:
    """Looks at the signature of `function`.

    The first free parameter is the payload; `KinesisMessage`, `Headers`, `KinesisPublisher`,
    `KinesisPosition` and `Seeker` may be asked for beside it, by annotation, in any order. A
    `KinesisMessage[T]` alone makes `T` the payload's type. `Annotated[T, Context()]` is a part of the
    application's context, of any type.

    Args:
        function: `async def` or plain `def`.
        codec: Makes the payload's decoder.
        local_names: Names of the place of registration, for annotations that are text.
        place: Qualified name of that place. A function defined there sees its names first, any
            other function its own module's.
        batch: It takes a list: the payload parameter is a `list[T]`, and beside it a
            `list[KinesisMessage]` may be asked for.

    Raises:
        HandlerError: A parameter cannot be resolved; the message names it.
        TransactionsUnsupported: A parameter asks for what Kinesis does not have.
    """
    if not callable(function) or inspect.isclass(function):
        raise HandlerError(f"a handler must be a function, not {function!r}")
    target = _defined(function)
    name = getattr(target, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise HandlerError(f"handler {name} is a generator: calling it would run nothing of it")
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise HandlerError(f"handler {name} has no signature to look at: {error}") from error
    hints = _annotations(name, target, local_names or {}, place)
    payload, payload_type, sources = _sources(name, signature, hints, batch=batch)
    if batch:
        if get_origin(_bare(payload_type)) is not list or len(get_args(_bare(payload_type))) != 1:
            raise HandlerError(
                f"parameter {payload!r} of handler {name} must be a list[T], since batch= is "
                f"declared, not {payload_type!r}"
            )
        payload_type = get_args(_bare(payload_type))[0]
    try:
        decode = codec.decoder(payload_type)
    except Exception as error:
        raise HandlerError(
            f"parameter {payload!r} of handler {name}: the codec cannot make {payload_type!r}: "
            f"{error}"
        ) from error
    return Handler(
        name=name,
        call=function,
        is_async=inspect.iscoroutinefunction(target),
        payload_type=payload_type,
        decode=decode,
        replies=_replies(hints.get("return"), batch=batch),
        sources=None if sources == [payload_source] else tuple(sources),
        wants_message=any(source in _FROM_MESSAGE.values() for source in sources),
        returns=hints.get("return", _MISSING),
        doc=inspect.cleandoc(target.__doc__ or ""),
        wants_context=tuple(each.name for each in sources if isinstance(each, _FromContext)),
    )


def _defined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The `def` that has the annotations: below a `partial`, or of an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _sources(
    name: str, signature: inspect.Signature, hints: Mapping[str, Any], *, batch: bool
) -> tuple[str, Any, list[Source]]:
    """The payload's parameter and type, and a source for each argument.

    Where no parameter is free, the type is the message's, `bytes` by default.
    """
    sources: list[Source] = []
    payload, payload_type = "", _MISSING
    messages: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        where = f"parameter {parameter.name!r} of handler {name}"
        if not _passed(parameter, where):
            continue
        annotation = hints.get(parameter.name, _MISSING)
        if annotation is _MISSING:
            raise HandlerError(
                f"{where} has no annotation: the payload's type (or bytes, str), or one of {_BESIDE}"
            )
        source = _from_context(annotation, parameter, where) or (
            _injected_in_batch if batch else _injected
        )(annotation, where)
        if source is None and payload_type is _MISSING:
            payload, payload_type, source = parameter.name, annotation, payload_source
        elif source is _FROM_MESSAGE[KinesisMessage]:
            messages[parameter.name] = annotation
        if source is not None:
            sources.append(source)
        elif parameter.default is not _MISSING:
            break  # it and what follows keep their defaults
        else:
            raise HandlerError(
                f"{where} cannot be resolved: the payload is taken by an earlier parameter, and "
                f"{annotation!r} is none of {_BESIDE}"
            )
    if not sources:
        raise HandlerError(f"handler {name} takes no parameter: the first one is the payload")
    if payload_type is _MISSING:
        payload, payload_type = _message_type(messages, batch=batch)
    return payload, payload_type, sources


def _message_type(messages: Mapping[str, Any], *, batch: bool) -> tuple[str, Any]:
    """Parameter and payload type where only messages are asked for."""
    name, kind = next(iter(_message_types(messages)), ("", bytes))
    return name, list[kind] if batch else kind  # type: ignore[valid-type]  # built at run time


def _message_types(messages: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What `KinesisMessage[T]`, or lists of it, say of their payload."""
    for name, annotation in messages.items():
        message = _bare(annotation)
        if get_origin(message) is list:
            message = _bare(get_args(message)[0])
        for kind in get_args(message):
            if not isinstance(kind, TypeVar) and kind is not Any:
                yield name, kind


def _passed(parameter: inspect.Parameter, where: str) -> bool:
    """Whether an argument is passed for it; a keyword-only one keeps its default."""
    if parameter.kind in _SINGLE_PARAMETER_KINDS:
        return True
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise HandlerError(f"{where} is variadic: name what the handler takes")
    if parameter.default is _MISSING:
        raise HandlerError(f"{where} is keyword-only: make it an ordinary parameter")
    return False


def _annotations(
    name: str, target: Callable[..., Any], local_names: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """Every annotation, evaluated; one at a time, so that an error names what it is of."""
    defined = inspect.unwrap(target)
    names = getattr(defined, "__globals__", {})
    at_home = getattr(defined, "__qualname__", "").startswith(f"{place}.<locals>.")
    # Elsewhere, a name that both places know means what it means where the handler was written.
    scope = dict(local_names) if at_home else {**local_names, **names}
    hints: dict[str, Any] = {}
    for parameter, annotation in getattr(target, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={parameter: annotation})
        try:
            hints |= typing.get_type_hints(one, names, scope, include_extras=True)
        except Exception as error:
            of = "the return value" if parameter == "return" else f"parameter {parameter!r}"
            raise HandlerError(
                f"the annotation {annotation!r} of {of} of handler {name} cannot be resolved: "
                f"{error}"
            ) from error
    return hints


def payload_source(value: Any, _message: Any, _tools: Tools) -> Any:
    """The source of the parameter that takes the payload."""
    return value


@dataclass(frozen=True, slots=True)
class _FromContext:
    """The source of a parameter that asks for a part of the application's context."""

    name: str

    def __call__(self, _value: Any, _message: Any, tools: Tools) -> Any:
        return tools.context[self.name]


def _from_context(annotation: Any, parameter: inspect.Parameter, where: str) -> _FromContext | None:
    """The same where a parameter is marked; `None` where it is not."""
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    unmade = (_bare(annotation), *marks)
    if isinstance(parameter.default, Context) or any(each is Context for each in unmade):
        raise HandlerError(
            f"{where}: what comes from the context is declared as Annotated[T, Context()]"
        )
    for mark in marks:
        if isinstance(mark, Context):
            return _FromContext(mark.name or parameter.name)
    return None


_FROM_TOOLS: dict[Any, Source] = {
    KinesisPublisher: lambda _value, _message, tools: tools.publisher,
    Seeker: lambda _value, _message, tools: tools.seeker,
}


# A message is made for every call of a handler that has one of these.
_FROM_MESSAGE: dict[Any, Source] = {
    KinesisMessage: lambda _value, message, _tools: message,
    Headers: lambda _value, message, _tools: message.headers,  # type: ignore[union-attr]  # as above
    KinesisPosition: lambda _value, message, _tools: message.position,  # type: ignore[union-attr]  # as above
}


def _bare(annotation: Any) -> Any:
    """What `Annotated` annotates."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _injected(annotation: Any, where: str) -> Source | None:
    """The source of a parameter that is not the payload; `None` where it is free."""
    kind = get_origin(_bare(annotation)) or _bare(annotation)
    if isinstance(kind, type) and kind in _FROM_TOOLS:
        return _FROM_TOOLS[kind]
    if isinstance(kind, type) and kind in _FROM_MESSAGE:
        return _FROM_MESSAGE[kind]
    if isinstance(kind, type) and kind.__name__ in ("Transaction", "ReplyTo"):
        raise TransactionsUnsupported(
            f"{where} asks for {kind.__name__}: Kinesis has no transactions and no reply address"
        )
    return None


def _injected_in_batch(annotation: Any, where: str) -> Source | None:
    """The same for a batch handler, whose messages come as a list beside the payloads."""
    kind = _bare(annotation)
    if get_origin(kind) is list:
        of = get_args(kind)[0]
        if (get_origin(_bare(of)) or _bare(of)) is KinesisMessage:
            return _FROM_MESSAGE[KinesisMessage]
        return None
    source = _injected(annotation, where)
    if source in _FROM_MESSAGE.values():
        raise HandlerError(f"{where}: a batch handler asks for list[KinesisMessage] instead")
    return source


def _replies(annotation: Any, *, batch: bool) -> bool:
    """Whether a return annotation names a value; a batch handler's list says so by its elements."""
    annotation = _bare(annotation)
    if annotation is None or annotation is Any or annotation is _MISSING:
        return False
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_replies(kind, batch=batch) for kind in get_args(annotation))
    if batch and list in (annotation, get_origin(annotation)):
        return any(_replies(kind, batch=False) for kind in get_args(annotation))
    silent = (type(None), Outcome, typing.NoReturn, typing.Never)
    return annotation not in silent and get_origin(annotation) is not collections.abc.Coroutine
