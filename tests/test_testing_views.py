"""`TestApp`: what a test can see of records and calls."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from ruststream_kinesis import (
    KinesisBroker,
    Outcome,
    RustStream,
    ack,
    drop,
    retry,
)
from ruststream_kinesis.errors import AckUnsupported, ConfigurationError
from ruststream_kinesis.testing import TestApp


class Order(msgspec.Struct, frozen=True):
    id: int


class Confirmation(msgspec.Struct, frozen=True):
    order_id: int


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


async def test_published_shows_the_record_as_it_stands_in_its_stream(app: RustStream) -> None:
    async with TestApp(app) as test:
        await test.publish(Order(1), "orders", partition_key="k", headers={"trace": "t"})
        await test.clock.advance(90)
        await test.publish(b"\x00raw", "orders")
        first, second = test.published("orders")

    assert first.payload == b'{"id":1}'
    assert first.data == b"RSK1\x00\x00\x00\x09trace: t\n" + first.payload
    assert first.headers == {"trace": "t"}
    assert first.partition_key == "k"
    assert first.shard_id == second.shard_id == "shardId-000000000000"
    assert first.decode(dict[str, int]) == {"id": 1}
    assert second.data == second.payload == b"\x00raw"
    assert second.headers == {}
    assert 1 <= len(second.partition_key) <= 256
    assert (second.arrival - first.arrival).total_seconds() == 90
    numbers = [first.sequence_number, second.sequence_number]
    assert all(re.fullmatch("[1-9][0-9]{55}", number) for number in numbers)
    assert int(numbers[0]) < int(numbers[1])


async def test_an_arn_names_the_stream_that_its_name_names(app: RustStream) -> None:
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"

    @app.subscriber(arn)
    async def handle(order: Order) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        await test.publish(Order(2), arn)
        assert test.subscriber(arn).values == test.subscriber("orders").values
        assert len(test.published(arn)) == 2


async def test_the_calls_of_a_subscriber_tell_value_outcome_and_headers(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(order: Order) -> Outcome | None:
        return {0: None, 1: ack(), 2: drop()}[order.id]

    async with TestApp(app) as test:
        for number in range(3):
            await test.publish(Order(number), "orders", headers={"n": f"{number}"})
        subscriber = test.subscriber("orders")

    # After the test, too.
    assert subscriber.values == [Order(0), Order(1), Order(2)]
    assert [call.outcome for call in subscriber.calls] == [ack(), ack(), drop()]
    assert [call.headers["n"] for call in subscriber.calls] == ["0", "1", "2"]
    assert all(call.attempt == 1 and call.settled and not call.held for call in subscriber.calls)
    assert (
        subscriber.calls[0].message.sequence_number == test.published("orders")[0].sequence_number
    )
    assert (subscriber.counters.handled, subscriber.counters.dropped) == (3, 1)


async def test_a_copy_tells_its_attempt(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders", headers={"x-ruststream-retry-count": "2"})
        assert test.subscriber("orders").calls[0].attempt == 3


async def test_a_retry_without_a_cap_is_decided_and_answers_ack_unsupported(
    app: RustStream,
) -> None:
    @app.subscriber("orders")
    async def handle(order: Order) -> Outcome:
        return retry()

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        await test.publish(Order(2), "orders")
        first, second = test.subscriber("orders").calls
        assert app.counters["orders"].held == 2

    assert first.outcome == second.outcome == retry()
    assert isinstance(first.error, AckUnsupported)
    assert first.error.sequence_number == first.record.sequence_number
    assert first.held
    assert not first.settled


async def test_a_handler_that_raises_is_decided_under_the_default_policy(app: RustStream) -> None:
    wrong = ValueError("no such customer")

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise wrong

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        (call,) = test.subscriber("orders").calls

    assert call.outcome is call.error is wrong
    assert call.held


async def test_a_plain_def_handler_that_raises_is_decided(app: RustStream) -> None:
    wrong = ValueError("no such customer")

    @app.subscriber("orders", on_error="drop")
    def handle(order: Order) -> None:
        raise wrong

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        (call,) = test.subscriber("orders").calls

    assert call.outcome is wrong
    assert call.settled


async def test_a_payload_that_does_not_decode_is_decided_without_a_call(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(b"{", "orders")
        subscriber = test.subscriber("orders")

    assert subscriber.calls == []
    assert (subscriber.counters.undecodable, subscriber.counters.dropped) == (1, 1)


async def test_a_reply_that_cannot_be_published_leaves_the_record_open(app: RustStream) -> None:
    @app.subscriber("orders", publish="replies")
    async def handle(order: Order) -> Any:
        return object()

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        (call,) = test.subscriber("orders").calls

    assert call.outcome == retry()
    assert call.held
    assert call.error is None
    assert test.published("replies") == []


async def test_each_group_of_a_stream_gets_every_record(app: RustStream) -> None:
    @app.subscriber("orders", group="bills")
    async def bill(order: Order) -> None:
        pass

    @app.subscriber("orders", group="parcels", workers=2)
    async def pack(order: Order) -> Outcome:
        return drop()

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")
        assert test.subscriber("orders", "bills").calls[0].outcome == ack()
        assert test.subscriber("orders", "parcels").calls[0].outcome == drop()
        with pytest.raises(ConfigurationError, match=r"no subscription to 'orders'.*'bills'"):
            test.subscriber("orders")
