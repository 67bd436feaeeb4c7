"""Payload bytes to values and back.

`JsonCodec` covers what handlers usually ask for: any type that `msgspec` converts, `bytes`, `str`,
and pydantic models where pydantic is installed. Decoders are made once, at registration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import msgspec.inspect

__all__ = ["Codec", "Decoder", "JsonCodec", "is_pydantic_model"]

Decoder = Callable[[bytes], Any]


class Codec(Protocol):
    """How values travel in a record's payload.

    One that has an attribute `content_type` says so in the AsyncAPI document.
    """

    def encode(self, value: Any) -> bytes:
        """The payload of `value`."""
        ...

    def decoder(self, kind: Any) -> Decoder:
        """A function from payload to `kind`; whatever it raises means "does not decode".

        Raises:
            TypeError: The codec cannot make this type.
        """
        ...


def is_pydantic_model(kind: Any) -> bool:
    """Whether it is a pydantic model; without pydantic there is none."""
    # A model exists only where pydantic was imported, so the package itself never imports it.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _encode_foreign(value: Any) -> Any:
    if is_pydantic_model(type(value)):
        return value.model_dump(mode="json")
    # Not NotImplementedError, which is a RuntimeError: it is the value that is of a wrong type.
    raise TypeError(f"no JSON form of {type(value).__name__}")


def _decode_foreign(kind: type, value: Any) -> Any:
    if is_pydantic_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]  # a pydantic model, above
    return value  # `object`: `_check_makeable` lets nothing else come here


def _check_makeable(kind: Any) -> None:
    """Looks for types that only fail when the first record comes, and would be dropped for it.

    Raises:
        TypeError: `kind`, or something within it, is a class that neither msgspec nor pydantic
            can make from JSON.
    """
    seen: set[int] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | tuple):
            waiting += node
        elif (
            isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen
        ):
            seen.add(id(node))  # a type may hold itself
            if (
                isinstance(node, msgspec.inspect.CustomType)
                and node.cls is not object
                and not is_pydantic_model(node.cls)
            ):
                raise TypeError(
                    f"{node.cls.__qualname__} has no schema: make it a msgspec.Struct, a dataclass, "
                    "a TypedDict or a pydantic model"
                )
            waiting += [getattr(node, name) for name in node.__struct_fields__]


def _as_it_is(payload: bytes) -> bytes:
    return payload


def _as_text(payload: bytes) -> str:
    return payload.decode()


class JsonCodec:
    """JSON by msgspec; `bytes` and `str` travel as they are, not as JSON strings."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)

    def encode(self, value: Any) -> bytes:
        """The payload of `value`."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        return self._encoder.encode(value)

    def decoder(self, kind: Any) -> Decoder:
        """A decoder for `kind`, made once."""
        if kind is bytes:
            return _as_it_is
        if kind is str:
            return _as_text
        if is_pydantic_model(kind):
            validate: Decoder = kind.model_validate_json
            return validate
        decode: Decoder = msgspec.json.Decoder(kind, dec_hook=_decode_foreign).decode
        _check_makeable(kind)
        return decode
