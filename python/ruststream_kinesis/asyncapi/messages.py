"""From declarations to the messages of a document: payload, headers, content type, a stable name."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Union, get_args, get_origin

from ruststream_kinesis.asyncapi.schemas import REF, Schema, Schemas
from ruststream_kinesis.attempts import (
    ATTEMPTS_HEADER,
    ERROR_HEADER,
    NOT_BEFORE_HEADER,
    ORIGIN_SEQUENCE_NUMBER_HEADER,
    ORIGIN_SHARD_HEADER,
    ORIGIN_STREAM_HEADER,
)
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.message import (
    PARTITION_KEY_HEADER,
    RETRY_COUNT_HEADER,
    SEQUENCE_NUMBER_HEADER,
    SHARD_ID_HEADER,
)
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.router import Subscriber

__all__ = ["Messages", "binding", "payload_types", "reply_types"]

_OCTETS: Final = "application/octet-stream"

_NUMBER: Final = "^[0-9]+$"


def _text(description: str, **more: str) -> Schema:
    return {"type": "string", "description": description, **more}


_KEY: Final = {
    PARTITION_KEY_HEADER: _text("The partition key; empty where the record came without one.")
}
_PLACE: Final = {
    SEQUENCE_NUMBER_HEADER: _text("Given by the service.", pattern=_NUMBER),
    SHARD_ID_HEADER: _text("Given by the service."),
}
_DELIVERY_HEADERS: Final[Schema] = {
    "type": "object",
    "description": "Headers of a delivery. The partition key is the record's own, sequence number and "
    "shard are those of its place; all others travel in the envelope.",
    "properties": {
        **_KEY,
        **_PLACE,
        RETRY_COUNT_HEADER: _text("Earlier deliveries, in a retry copy.", pattern=_NUMBER),
        NOT_BEFORE_HEADER: _text(
            "In a copy that was published before it was due: when it is, in milliseconds since the "
            "epoch.",
            pattern=_NUMBER,
        ),
    },
    "required": [PARTITION_KEY_HEADER],
    "additionalProperties": {"type": "string"},
}
_DEAD_LETTER_HEADERS: Final[Schema] = {
    "type": "object",
    "description": "Headers of a dead letter, beside those that its record came with. A record near "
    "the size limit goes without some of them.",
    "properties": {
        **_KEY,
        **_PLACE,
        ORIGIN_STREAM_HEADER: _text("Stream that the record was read from."),
        ORIGIN_SHARD_HEADER: _text("Its shard there."),
        ORIGIN_SEQUENCE_NUMBER_HEADER: _text("Its sequence number there.", pattern=_NUMBER),
        ATTEMPTS_HEADER: _text("How often it was delivered.", pattern=_NUMBER),
        ERROR_HEADER: _text("The last error, in one line."),
    },
    "required": [PARTITION_KEY_HEADER],
    "additionalProperties": {"type": "string"},
}


def binding(body: Mapping[str, Any]) -> dict[str, Any]:
    """What Kinesis has to say of an object: AsyncAPI knows no binding for it, but extensions.

    Place and names are those of the Rust crate's document, as far as both say the same.
    """
    return {"bindings": {"x-ruststream-kinesis": dict(body)}}


def payload_types(subscriber: Subscriber) -> list[Any]:
    """What a payload may be made into: one type, or the members of a union."""
    return list(_members(subscriber.handler.payload_type))


def reply_types(subscriber: Subscriber) -> list[Any]:
    """What a handler may publish: its return annotation without outcomes and `None`.

    `Any` where it has no annotation, and nothing where its subscription names no stream.
    """
    reply = subscriber.policies.reply
    if reply is None or reply.to is None:
        return []
    returns = subscriber.handler.returns
    if returns is inspect.Parameter.empty:
        return [Any]
    silent = (None, type(None), Outcome, typing.NoReturn, typing.Never)
    # A batch has one reply; a list is one of outcomes.
    lists = (list, tuple) if subscriber.batch is not None else ()
    return [
        kind
        for kind in _members(returns)
        if _bare(kind) not in silent and (get_origin(_bare(kind)) or _bare(kind)) not in lists
    ]


def _bare(annotation: Any) -> Any:
    """The type itself, without what `Annotated` adds or an alias calls it."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _members(annotation: Any) -> Iterator[Any]:
    bare = _bare(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        for kind in get_args(bare):
            yield from _members(kind)
    else:
        yield annotation


class Messages:
    """The messages of one document, and the schemas that they need.

    A message is called as the class of its payload, or, where that is no class, as the subscription
    that it belongs to. Two that are equal are one.
    """

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        # Made once: a type is looked up as the object it is.
        self._received = {each.identity: payload_types(each) for each in subscribers}
        self._replies = {each.identity: reply_types(each) for each in subscribers}
        whole = [each.handler.payload_type for each in subscribers]
        self._schemas = Schemas(
            [*whole, *itertools.chain(*self._received.values())],
            [*itertools.chain(*self._replies.values())],
        )
        self.components: dict[str, dict[str, Any]] = {}

    @property
    def schemas(self) -> dict[str, Schema]:
        """The components that the messages refer to."""
        return self._schemas.components

    def received(self, subscriber: Subscriber, name: str) -> list[str]:
        """The messages of a subscription: one, or one for each class of a union of classes.

        Args:
            subscriber: The subscription.
            name: Its own in the document.
        """
        kinds = self._received[subscriber.identity]
        if any(_component(self._schemas.of(kind)) is None for kind in kinds):
            kinds = [subscriber.handler.payload_type]
        codec = subscriber.codec
        ours = type(codec).decoder is JsonCodec.decoder
        return [
            self._add_payload(f"{name}_message", kind, self._schemas.of(kind), codec, ours=ours)
            for kind in kinds
        ]

    def replies(self, subscriber: Subscriber, name: str) -> list[str]:
        """The messages that a subscription publishes for its handler; none where it does not."""
        codec, policy = subscriber.codec, subscriber.policies.reply
        ours = type(codec).encode is JsonCodec.encode
        key = None if policy is None else policy.partition_key
        more = binding({"partitionKey": key}) if isinstance(key, str) else {}
        return [
            self._add_payload(
                f"{name}_reply", kind, self._schemas.of(kind, sent=True), codec, more, ours=ours
            )
            for kind in self._replies[subscriber.identity]
        ]

    def dead_letters(self, subscriber: Subscriber, name: str, received: list[str]) -> list[str]:
        """What stands in the dead letter stream of a subscription.

        Args:
            subscriber: The subscription.
            name: Its own in the document.
            received: Its messages.
        """
        headers = {"headers": self._schemas.reserve("DeadLetterHeaders", _DEAD_LETTER_HEADERS)}
        letters = [
            self._add(f"{each}_dead_letter", self.components[each] | headers) for each in received
        ]
        # A payload that does not decode goes there, too, unless a function decides, or it stops.
        plain = subscriber.handler.payload_type is bytes and isinstance(subscriber.codec, JsonCodec)
        if subscriber.policies.on_decode_error in ("drop", "retry") and not plain:
            broken = {"contentType": _OCTETS, **headers, "payload": {}}
            note = {"description": "A payload that does not decode, as it came."}
            letters.append(self._add(f"{name}_undecodable", broken | note))
        return letters

    def _add_payload(
        self,
        fallback: str,
        kind: Any,
        schema: Schema | None,
        codec: Codec,
        more: Mapping[str, Any] | None = None,
        *,
        ours: bool,
    ) -> str:
        """Adds the message of one type; `ours`: as `JsonCodec` has it."""
        notes = [] if ours else [f"Encoded by {type(codec).__qualname__}."]
        if schema is None:
            notes.append("Its type has no schema.")
        elif not schema:
            notes.append("Its type is not declared.")
        binary = kind in (bytes, bytearray, memoryview)
        content = getattr(codec, "content_type", None)
        if content is None and ours:
            content = _OCTETS if binary else "text/plain" if kind is str else "application/json"
        if binary:
            schema = {"type": "string", "format": "binary"}
        message = {
            **({} if content is None else {"contentType": content}),
            "headers": self._schemas.reserve("KinesisHeaders", _DELIVERY_HEADERS),
            "payload": schema or {},
            **({"description": " ".join(notes)} if notes else {}),
            **(more or {}),
        }
        return self._add(_component(schema) or fallback, message)

    def _add(self, wanted: str, message: dict[str, Any]) -> str:
        """Puts a message among the components, unless it is there; its name."""
        name, number = wanted, 1
        while (
            self.components.setdefault(name, named := {"name": name} | message | {"name": name})
            != named
        ):
            number += 1
            name = f"{wanted}_{number}"
        return name


def _component(schema: Schema | None) -> str | None:
    """The component that a schema is, if it is nothing else."""
    if schema is None or schema.keys() != {"$ref"}:
        return None
    return str(schema["$ref"]).removeprefix(REF)
