"""Handler parameters: resolved once, at registration, and refused there by name.

The annotations of this module are text, which is how most services write them today.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest

from ruststream_kinesis import (
    Headers,
    JsonCodec,
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublisher,
    Outcome,
    Router,
    RustStream,
)
from ruststream_kinesis.errors import HandlerError, TransactionsUnsupported
from ruststream_kinesis.handlers import Handler, resolve_handler

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


class Order(msgspec.Struct):
    id: int


class Nested(pydantic.BaseModel):
    order: dict[str, int]


class Plain:
    """Nothing can make it from JSON."""


def resolve(function: Callable[..., Any]) -> Handler:
    return resolve_handler(function, JsonCodec())


def refusal(function: Callable[..., Any]) -> str:
    with pytest.raises(HandlerError) as caught:
        resolve(function)
    return str(caught.value)


class TestWhatIsTaken:
    def test_the_first_free_parameter_is_the_payload(self):
        async def handle(order: Order): ...

        handler = resolve(handle)

        assert handler.payload_type is Order
        assert handler.decode(b'{"id": 3}') == Order(3)
        assert handler.sources is None, "nothing is made per call for the plainest handler"
        assert handler.is_async
        assert not handler.wants_message

    def test_the_payload_may_come_after_what_is_injected(self):
        async def handle(
            headers: Headers,
            publisher: KinesisPublisher,
            order: Order,
            message: KinesisMessage[Order],
            position: KinesisPosition,
        ): ...

        handler = resolve(handle)

        assert handler.payload_type is Order
        assert handler.sources is not None
        assert len(handler.sources) == 5
        assert handler.wants_message

    def test_a_publisher_alone_needs_no_message(self):
        async def handle(order: Order, publisher: KinesisPublisher): ...

        assert not resolve(handle).wants_message

    def test_a_handler_of_the_message_alone_gets_bytes(self):
        async def handle(message: KinesisMessage): ...

        assert resolve(handle).payload_type is bytes

    def test_a_handler_of_a_typed_message_alone_gets_that_type(self):
        async def handle(message: KinesisMessage[Order]): ...

        handler = resolve(handle)

        assert handler.payload_type is Order
        assert handler.decode(b'{"id": 3}') == Order(3)

    def test_a_payload_beside_the_message_is_the_one_that_counts(self):
        async def handle(message: KinesisMessage[Any], raw: bytes): ...

        assert resolve(handle).payload_type is bytes

    def test_a_message_whose_type_is_open_gets_bytes(self):
        async def handle(message: KinesisMessage[T]): ...

        assert resolve(handle).payload_type is bytes

    def test_what_is_injected_may_be_annotated_further(self):
        async def handle(order: Order, message: Annotated[KinesisMessage[Order], "note"]): ...

        assert resolve(handle).wants_message

    def test_a_pydantic_model_is_a_payload(self):
        async def handle(nested: Nested): ...

        assert resolve(handle).decode(b'{"order": {"a": 1}}') == Nested(order={"a": 1})

    def test_a_plain_def_is_no_coroutine(self):
        def handle(order: Order) -> None: ...

        assert not resolve(handle).is_async

    def test_a_parameter_with_a_default_after_the_payload_keeps_it(self):
        async def handle(order: Order, limit: int = 5, *, loud: bool = False): ...

        assert resolve(handle).sources is None

    def test_a_method_and_an_object_that_is_called_are_handlers(self):
        class Desk:
            async def take(self, order: Order, message: KinesisMessage[Order]): ...

            async def __call__(self, order: Order) -> None: ...

        for handle in (Desk().take, Desk()):
            handler = resolve(handle)
            assert handler.payload_type is Order
            assert handler.is_async

    def test_a_partial_is_the_function_it_wraps(self):
        async def handle(limit: int, order: Order): ...

        handler = resolve(functools.partial(handle, 5))

        assert handler.payload_type is Order
        assert handler.is_async

    def test_a_wrapped_function_keeps_its_signature(self):
        def traced(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> None:
                await function(*args, **kwargs)

            return call

        @traced
        async def handle(order: Order, message: KinesisMessage[Order]) -> None: ...

        handler = resolve(handle)

        assert handler.payload_type is Order
        assert handler.wants_message
        assert handler.is_async


class TestWhatIsRefused:
    def test_a_parameter_without_annotation_is_named(self):
        async def handle(order): ...

        assert "'order'" in refusal(handle)
        assert "no annotation" in refusal(handle)

    def test_an_annotation_that_names_nothing_is_named_with_its_parameter(self):
        async def handle(message: KinesisMessage[Any], order: Missing): ...  # type: ignore[name-defined]  # noqa: F821 - what is tested

        said = refusal(handle)

        assert "'order'" in said
        assert "Missing" in said

    def test_a_type_imported_for_type_checkers_only_is_named_with_its_parameter(self):
        async def handle(total: Decimal): ...

        assert "'total'" in refusal(handle)
        assert "Decimal" in refusal(handle)

    def test_a_name_within_an_annotation_that_is_no_text_is_named_with_its_parameter(self):
        async def handle(first: Order, orders: Any): ...

        handle.__annotations__["orders"] = list["Missing"]  # type: ignore[name-defined]  # noqa: F821 - as without the import

        assert "'orders'" in refusal(handle)
        assert "Missing" in refusal(handle)

    def test_text_that_is_no_type_is_named_with_its_parameter(self):
        async def handle(order: 5 + 5): ...  # type: ignore[valid-type]  # what is tested

        assert "'order'" in refusal(handle)

    def test_text_that_is_no_expression_is_named_with_its_parameter(self):
        async def handle(order: Any): ...

        handle.__annotations__["order"] = "List[int"

        assert "'order'" in refusal(handle)

    def test_a_return_annotation_that_names_nothing_is_said_to_be_it(self):
        async def handle(order: Order) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821 - what is tested

        assert "return" in refusal(handle)
        assert "Missing" in refusal(handle)

    def test_a_variadic_parameter_is_named(self):
        async def listed(order: Order, *rest: int): ...

        async def named(order: Order, **rest: int): ...

        assert "'rest'" in refusal(listed)
        assert "'rest'" in refusal(named)
        assert "variadic" in refusal(named)

    def test_a_keyword_only_parameter_is_named(self):
        async def handle(order: Order, *, message: KinesisMessage[Order]): ...

        assert "'message'" in refusal(handle)
        assert "keyword-only" in refusal(handle)

    def test_a_second_payload_is_named(self):
        async def handle(order: Order, total: float): ...

        assert "'total'" in refusal(handle)
        assert "earlier parameter" in refusal(handle)

    def test_a_handler_without_parameter_is_told_so(self):
        async def handle(): ...

        assert "takes no parameter" in refusal(handle)

    @pytest.mark.parametrize("kind", [Plain, list[Plain], type, 5, KinesisMessage[Plain]], ids=str)
    def test_a_type_that_nothing_can_make_is_named_with_its_parameter(self, kind: Any):
        async def handle(order: Any): ...

        handle.__annotations__["order"] = kind

        assert "'order'" in refusal(handle)

    def test_an_optional_message_is_no_payload(self):
        async def handle(order: Order, message: KinesisMessage[Order] | None): ...

        async def alone(message: KinesisMessage[Order] | None): ...

        assert "'message'" in refusal(handle)
        assert "'message'" in refusal(alone)

    @pytest.mark.parametrize("name", ["Transaction", "ReplyTo"])
    def test_what_kinesis_does_not_have_is_a_clear_error(self, name: str):
        async def handle(order: Order, wanted: Any): ...

        handle.__annotations__["wanted"] = type(name, (), {})

        with pytest.raises(TransactionsUnsupported, match=f"'wanted'.*{name}"):
            resolve(handle)

    def test_a_generator_is_no_handler_since_calling_it_runs_nothing(self):
        async def agen(order: Order):
            yield order

        def gen(order: Order):
            yield order

        assert "agen" in refusal(agen)
        assert "gen" in refusal(gen)

    @pytest.mark.parametrize("handle", [5, None, "handle", Order(1)])
    def test_what_is_no_function_is_refused(self, handle: Any):
        assert "function" in refusal(handle)

    def test_a_class_is_no_handler(self):
        assert "Order" in refusal(Order)

    def test_a_builtin_without_signature_is_refused(self):
        assert "signature" in refusal(min)


class TestWhereNamesAreLookedUp:
    def test_a_local_type_is_found_where_the_handler_is_declared(self):
        class Local(msgspec.Struct):
            x: int

        router = Router()

        @router.subscriber("orders")
        async def handle(local: Local): ...

        assert router.subscribers[0].handler.payload_type is Local

    def test_a_local_type_is_found_by_an_application_too(self):
        class Local(msgspec.Struct):
            x: int

        app = RustStream(KinesisBroker(), title="t", version="0")

        @app.subscriber("orders")
        async def handle(local: list[Local]): ...

        assert app.subscribers[0].handler.payload_type == list[Local]

    def test_a_local_type_comes_before_one_of_the_module_by_the_same_name(self):
        class Order(msgspec.Struct):
            local: bool

        router = Router()

        @router.subscriber("orders")
        async def handle(order: Order): ...

        assert router.subscribers[0].handler.payload_type is Order

    def test_a_handler_from_elsewhere_sees_its_own_module_not_the_registering_place(self):
        elsewhere = ModuleType("elsewhere")
        sys.modules["elsewhere"] = elsewhere
        source = (
            "from __future__ import annotations\n"
            "class Shape(dict[str, int]): ...\n"
            "Order = int\n"
            "async def handle(order: Order): ...\n"
        )
        exec(source, vars(elsewhere))
        Order = msgspec.defstruct("Order", [("id", int)])  # noqa: N806, F841 - the trap
        router = Router()

        router.subscriber("orders")(elsewhere.handle)

        assert router.subscribers[0].handler.payload_type is int

    def test_a_type_of_the_registering_place_helps_a_handler_that_cannot_find_it(self):
        def make() -> Callable[..., Any]:
            async def handle(order: Late): ...  # type: ignore[valid-type]  # known below

            return handle

        Late = msgspec.defstruct("Late", [("id", int)])  # noqa: N806
        router = Router()

        router.subscriber("orders")(make())

        assert router.subscribers[0].handler.payload_type is Late


class TestReplies:
    @pytest.mark.parametrize(
        "annotation",
        [None, Outcome, Outcome | None, Any, type(None)],
    )
    def test_an_outcome_or_nothing_needs_no_stream(self, annotation: Any):
        async def handle(order: Order): ...

        handle.__annotations__["return"] = annotation

        assert not resolve(handle).replies

    def test_a_handler_that_says_nothing_about_its_value_needs_no_stream(self):
        async def handle(order: Order): ...

        assert not resolve(handle).replies

    @pytest.mark.parametrize("annotation", [Order, Order | None, Outcome | Order, bytes, "Order"])
    def test_a_value_is_a_reply(self, annotation: Any):
        async def handle(order: Order): ...

        handle.__annotations__["return"] = annotation

        assert resolve(handle).replies

    def test_a_value_without_a_stream_for_it_is_refused_at_registration(self):
        router = Router()
        with pytest.raises(HandlerError, match=r"publish= names no stream.*orders"):

            @router.subscriber("orders")
            async def handle(order: Order) -> Order:
                return order

        assert router.subscribers == ()


class Envelope(msgspec.Struct, Generic[T]):
    content: T


def test_a_generic_payload_is_made_with_its_argument():
    async def handle(envelope: Envelope[Order]): ...

    assert resolve(handle).decode(b'{"content": {"id": 1}}') == Envelope(Order(1))
