"""JSON payloads: what goes out, what comes in, and what is refused at registration."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pydantic
import pytest

from ruststream_kinesis import JsonCodec


class Order(msgspec.Struct):
    id: int
    total: float = 0.0


@dataclasses.dataclass
class Line:
    sku: str
    amount: int


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    fast: bool


class Colour(Enum):
    RED = "red"


class Customer(pydantic.BaseModel):
    name: str
    since: datetime
    balance: Decimal = Decimal(0)


class Basket(msgspec.Struct):
    """A struct with a model in it, as a service in the middle of a migration has."""

    customer: Customer
    lines: list[Line]


class Company(pydantic.BaseModel):
    owner: Customer


class Plain:
    """No schema at all."""


CUSTOMER = Customer(name="Ada", since=datetime(2024, 1, 2, tzinfo=UTC), balance=Decimal("1.50"))

VALUES = [
    (Order, Order(1, 2.5)),
    (Line, Line("a", 3)),
    (Point, Point(1, 2)),
    (Options, {"fast": True}),
    (Colour, Colour.RED),
    (Customer, CUSTOMER),
    (Company, Company(owner=CUSTOMER)),
    (Basket, Basket(CUSTOMER, [Line("a", 3)])),
    (list[Customer], [CUSTOMER]),
    (dict[str, Customer], {"a": CUSTOMER}),
    (Customer | None, CUSTOMER),
    (Customer | None, None),
    (dict[str, list[int]], {"a": [1, 2]}),
    (Optional[int], None),  # noqa: UP045 - the older spelling is a type of its own
    (int | str, "x"),
    (Literal["a", "b"], "a"),
    (Annotated[int, msgspec.Meta(gt=0)], 5),
    (uuid.UUID, uuid.UUID(int=5)),
    (datetime, datetime(2024, 1, 2, tzinfo=UTC)),
    (Any, {"a": [1, None, "x"]}),
    (object, {"a": 1}),
    (float, 1.5),
    (bool, True),
    (dict, {"a": 1}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: str(value)[:40])
def test_a_value_comes_back_as_it_went_out(kind: Any, value: Any):
    codec = JsonCodec()
    if value is None or isinstance(value, str):
        payload = msgspec.json.encode(value)
    else:
        payload = codec.encode(value)

    assert codec.decoder(kind)(payload) == value


def test_bytes_and_text_travel_as_they_are():
    codec = JsonCodec()

    assert codec.encode(b"\x00\xff") == b"\x00\xff"
    assert codec.encode(bytearray(b"ab")) == b"ab"
    assert codec.encode(memoryview(b"abcd")[::2]) == b"ac"
    assert codec.encode("日本") == "日本".encode()
    assert codec.decoder(bytes)(b"\x00\xff") == b"\x00\xff"
    assert codec.decoder(str)("日本".encode()) == "日本"


def test_text_that_is_no_utf8_does_not_decode():
    with pytest.raises(UnicodeDecodeError):
        JsonCodec().decoder(str)(b"\xff")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Order, b'{"id": "one"}'),
        (Order, b"{}"),
        (Order, b""),
        (Order, b'{"id": 1} trailing'),
        (int, b"1.5"),
        (Customer, b'{"name": "Ada"}'),
        (Basket, b'{"customer": {"name": "Ada"}, "lines": []}'),
        (list[Customer], b"[{}]"),
        (Any, b"nope"),
    ],
    ids=str,
)
def test_what_is_not_of_the_type_does_not_decode(kind: Any, payload: bytes):
    with pytest.raises(ValueError, match=r".+"):
        JsonCodec().decoder(kind)(payload)


@pytest.mark.parametrize(
    "value",
    [Plain(), {"a": Plain()}, [object()], {1, Plain()}],
    ids=["object", "in a dict", "in a list", "in a set"],
)
def test_what_has_no_json_form_is_a_type_error(value: Any):
    with pytest.raises(TypeError, match=r"Plain|object"):
        JsonCodec().encode(value)


def test_an_integer_beyond_64_bits_survives():
    payload = JsonCodec().encode({"n": 2**70})

    assert JsonCodec().decoder(dict[str, int])(payload) == {"n": 2**70}


@pytest.mark.parametrize(
    "kind",
    [
        Plain,
        list[Plain],
        dict[str, Plain],
        Plain | None,
        tuple[int, list[Plain]],
        Annotated[Plain, "note"],
        type,
        5,
    ],
    ids=str,
)
def test_a_type_that_nothing_can_make_is_refused_before_the_first_record(kind: Any):
    with pytest.raises(TypeError):
        JsonCodec().decoder(kind)


def test_a_type_hidden_in_a_field_is_refused_before_the_first_record():
    class Parcel(msgspec.Struct):
        content: Plain

    with pytest.raises(TypeError, match="Plain"):
        JsonCodec().decoder(Parcel)


def test_a_model_that_refers_to_itself_is_looked_at_once():
    codec = JsonCodec()

    assert codec.decoder(Node)(b'{"children": [{"children": []}]}') == Node([Node([])])


class Node(msgspec.Struct):
    children: list[Node]
