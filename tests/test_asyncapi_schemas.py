"""The schemas of the AsyncAPI document: what a codec writes and reads, in the words of draft 07."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from ruststream_kinesis import Headers, JsonCodec, KinesisMessage
from tests.support.documents import (
    described,
    judge,
    messages,
    payload,
    reading,
    resolve,
    service,
    taking,
)


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    size: Size = Size.SMALL
    discriminator: str = ""
    pair: tuple[int, str] = (1, "a")


class Paid(msgspec.Struct, tag=True):
    order: Order


class Cancelled(msgspec.Struct, tag=True):
    id: int
    why: str | None = None


@dataclasses.dataclass
class Parcel:
    weight: float
    events: list[Paid | Cancelled] = dataclasses.field(default_factory=list)


class Address(TypedDict):
    street: str
    number: NotRequired[int]
    former: list[Address]


class Point(NamedTuple):
    x: int
    y: int = 0


class Compact(msgspec.Struct, array_like=True):
    id: int
    point: Point


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName", min_length=1)
    tags: set[str] = set()

    @pydantic.computed_field
    def initial(self) -> str:
        return self.name[0]


class Account(msgspec.Struct):
    customer: Customer
    anything: object = None


class Opaque:
    """Known to its codec only."""


class OpaqueCodec:
    content_type = "application/x-opaque"

    def encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        del kind
        raise_: Callable[[bytes], Any] = self.encode
        return raise_


VALUES = [
    (Order, Order(1, Size.LARGE)),
    (Parcel, Parcel(1.5, [Paid(Order(1)), Cancelled(2)])),
    (Address, {"street": "s", "former": [{"street": "t", "former": []}]}),
    (Point, Point(1, 2)),
    (Compact, Compact(1, Point(2))),
    (dict[str, list[Order]], {"a": [Order(1)]}),
    (Literal["a", 2], 2),
    (int | None, None),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: str(value)[:30])
def test_what_the_codec_writes_and_reads_is_what_the_schema_says(kind, value):
    document = reading(kind)
    (message,) = messages(document, "receive_orders")
    written = JsonCodec().encode(value)

    assert JsonCodec().decoder(kind)(written) == value
    assert judge(document, message, msgspec.json.decode(written)) == []
    assert judge(document, message, {"none": "of them"}) != []


def test_a_tagged_union_of_classes_is_a_message_each():
    document = reading(Paid | Cancelled)

    assert messages(document, "receive_orders") == ["Paid", "Cancelled"]
    assert judge(document, "Paid", {"type": "Paid", "order": {"id": 1}}) == []
    assert judge(document, "Cancelled", {"type": "Paid", "order": {"id": 1}}) != []


def test_a_model_is_read_by_its_aliases_and_written_by_its_names():
    document = reading(Customer, returns=Customer | Account, publish="done")
    read, (written, within) = (
        messages(document, "receive_orders"),
        messages(document, "reply_orders"),
    )

    assert judge(document, read[0], {"fullName": "Ada"}) == []
    assert judge(document, written, {"name": "Ada", "initial": "A"}) == []
    assert judge(document, written, {"fullName": "Ada"}) != []
    model = {"name": "Ada", "initial": "A"}
    assert judge(document, within, {"customer": model, "anything": None}) == []


def test_classes_of_one_name_have_components_of_their_own():
    app = service()
    other = msgspec.defstruct("Order", [("total", float)], module="elsewhere")
    model = pydantic.create_model("Order", amount=(int, ...))
    ours = msgspec.defstruct("KinesisHeaders", [("x", int)], module="elsewhere")
    for group, kind in enumerate((Order, other, model, ours)):
        app.subscriber("orders", group=f"g{group}")(taking(kind))
    document = described(app)

    required = {
        tuple(payload(document, messages(document, f"receive_orders_g{n}")[0])["required"])
        for n in range(4)
    }
    assert required == {("id",), ("total",), ("amount",), ("x",)}
    headers = document["components"]["messages"]["elsewhere.Order"]["headers"]
    assert "partition-key" in resolve(document, headers["$ref"])["properties"]


def test_a_type_that_only_its_codec_knows_has_an_open_schema_with_a_note():
    document = reading(Opaque, codec=OpaqueCodec())
    message = document["components"]["messages"]["orders_message"]

    assert message["contentType"] == "application/x-opaque"
    assert message["description"] == "Encoded by OpaqueCodec."
    assert message["payload"] == {"description": "Opaque has no schema."}
    assert judge(document, "orders_message", {"any": "thing"}) == []


def test_a_type_that_cannot_be_described_at_all_does_not_spoil_the_rest():
    app = service()

    class Broken(pydantic.BaseModel):
        call: Callable[[], int]

    app.subscriber("broken")(taking(Broken))
    app.subscriber("mixed", codec=OpaqueCodec())(taking(Literal[b"x"]))
    app.subscriber("orders")(taking(Order))
    document = described(app)

    for name in ("broken_message", "mixed_message"):
        assert "Its type has no schema." in document["components"]["messages"][name]["description"]
    assert "id" in payload(document, "Order")["properties"]


def test_defaults_that_json_does_not_have_are_left_out():
    kind = msgspec.defstruct("Limits", [("most", float, float("inf")), ("least", float, 0.5)])
    document = reading(kind)

    fields = payload(document, "Limits")["properties"]
    assert ["default" in fields[name] for name in ("most", "least")] == [False, True]


def test_a_message_alone_is_bytes_or_what_it_says():
    app = service()
    app.subscriber("a")(taking(KinesisMessage))
    app.subscriber("b")(taking(KinesisMessage[Order]))
    app.subscriber("c")(taking(Headers))
    document = described(app)

    assert document["components"]["messages"]["a_message"]["payload"]["format"] == "binary"
    assert messages(document, "receive_b") == ["Order"]
    assert messages(document, "receive_c") == ["c_message"]
