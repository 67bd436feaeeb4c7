"""`TestApp`: what a publish waits for, where it starts, and the life of the application."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import msgspec
import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublisher,
    RustStream,
    ack,
    drop,
)
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import NotConnected
from ruststream_kinesis.testing import TestApp


class Order(msgspec.Struct, frozen=True):
    id: int


class Confirmation(msgspec.Struct, frozen=True):
    order_id: int


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


# What a publish waits for


async def test_publish_returns_when_the_handler_has_ended(app: RustStream) -> None:
    steps: list[str] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        steps.append("began")
        for _ in range(5):
            await asyncio.sleep(0)
        steps.append("ended")

    async with TestApp(app) as test:
        put = await test.publish(Order(1), "orders")
        assert steps == ["began", "ended"]
        assert app.counters["orders"].handled == 1

    assert put.sequence_number == test.published("orders")[0].sequence_number


async def test_publish_waits_through_replies_and_further_streams(app: RustStream) -> None:
    @app.subscriber("a", publish="b")
    async def first(number: int) -> int:
        return number + 1

    @app.subscriber("b")
    async def second(number: int, publisher: KinesisPublisher) -> None:
        await asyncio.sleep(0)
        for more in range(3):
            await publisher.publish(number + more, "c")

    @app.subscriber("c", workers=2, publish="d")
    def third(number: int) -> str:
        return f"<{number}>"

    async with TestApp(app) as test:
        await test.publish(1, "a")
        assert sorted(each.payload for each in test.published("d")) == [b"<2>", b"<3>", b"<4>"]


async def test_publish_waits_for_what_a_task_of_the_handler_published(app: RustStream) -> None:
    @app.subscriber("a")
    async def first(number: int, publisher: KinesisPublisher) -> None:
        publisher.publish_nowait(number, "b")

    @app.subscriber("b")
    async def second(number: int) -> None:
        await asyncio.sleep(0)

    async with TestApp(app) as test:
        await test.publish(1, "a")
        assert test.subscriber("b").values == [1]


async def test_publish_waits_for_what_a_handler_thread_published_on_its_own_loop(
    app: RustStream,
) -> None:
    publisher = app.publisher()

    @app.subscriber("a")
    def first(number: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        put = asyncio.run(publisher.publish(number + 1, "b"))
        assert put.shard_id == "shardId-000000000000"

    @app.subscriber("b", publish="c")
    async def second(number: int) -> int:
        return number + 1

    async with TestApp(app) as test:
        await test.publish(1, "a")
        assert [each.payload for each in test.published("c")] == [b"3"]


async def test_publish_does_not_wait_for_what_another_one_caused(app: RustStream) -> None:
    gate = asyncio.Event()

    @app.subscriber("slow")
    async def slow(order: Order) -> None:
        await gate.wait()

    @app.subscriber("quick")
    async def quick(order: Order) -> None:
        pass

    async with TestApp(app) as test:
        waiting = asyncio.create_task(test.publish(Order(1), "slow"))
        await test.publish(Order(2), "quick")
        assert test.subscriber("quick").values == [Order(2)]
        assert not waiting.done()
        gate.set()
        await waiting


async def test_many_publishes_at_once_are_all_handled_in_order(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        await asyncio.sleep(0)

    async with TestApp(app) as test:
        # More than the 64 that may wait in the channel of a subscription.
        await asyncio.gather(*(test.publish(Order(n), "orders") for n in range(300)))
        assert test.subscriber("orders").values == [Order(n) for n in range(300)]
        assert app.counters["orders"].handled == 300


async def test_a_handler_may_publish_more_than_fits_into_a_channel(app: RustStream) -> None:
    @app.subscriber("start")
    async def fan_out(count: int, publisher: KinesisPublisher) -> None:
        for number in range(count):
            await publisher.publish(number, "numbers")

    @app.subscriber("numbers", workers=3)
    async def handle(number: int) -> None:
        await asyncio.sleep(0)

    async with TestApp(app) as test:
        await test.publish(500, "start")
        assert sorted(test.subscriber("numbers").values) == list(range(500))


async def test_a_stream_that_nobody_reads_takes_records(app: RustStream) -> None:
    async with TestApp(app) as test:
        await test.publish(Order(1), "nobody")
        assert test.published("nobody")[0].decode(Order) == Order(1)
        assert test.published("empty") == []


async def test_a_publish_within_a_handler_does_not_wait(app: RustStream) -> None:
    test = TestApp(app)

    @app.subscriber("orders")
    async def handle(number: int) -> None:
        if number:
            # Waiting would never end: this worker is what has to handle it.
            await test.publish(number - 1, "orders")

    async with test:
        await test.publish(3, "orders")
        assert test.subscriber("orders").values == [3, 2, 1, 0]


async def test_settled_waits_for_what_others_published(app: RustStream) -> None:
    @app.subscriber("orders", publish="confirmations")
    async def handle(order: Order) -> Confirmation:
        await asyncio.sleep(0)
        return Confirmation(order.id)

    async with TestApp(app) as test:
        await test.settled()
        await app.publisher().publish(Order(1), "orders")
        assert test.published("confirmations") == []
        await test.settled()
        assert test.published("confirmations")[0].decode(Confirmation) == Confirmation(1)


async def test_settling_early_through_the_message_does_not_end_the_wait(app: RustStream) -> None:
    ended: list[str] = []

    @app.subscriber("orders")
    async def handle(kind: str, message: KinesisMessage[str]) -> None:
        if kind == "ack":
            await message.ack()
        else:
            await message.nack(requeue=False)
        await asyncio.sleep(0)
        ended.append(kind)

    async with TestApp(app) as test:
        await test.publish("ack", "orders")
        assert ended == ["ack"]
        await test.publish("drop", "orders")
        assert ended == ["ack", "drop"]
        assert [call.outcome for call in test.subscriber("orders").calls] == [ack(), drop()]


# Where a subscription starts


@pytest.mark.parametrize(
    ("start_at", "expected"),
    [
        (None, [4]),
        (KinesisPosition.latest(), [4]),
        (KinesisPosition.horizon(), [1, 2, 3, 4]),
        (KinesisPosition.timestamp(datetime(2023, 11, 14, 22, 13, 30, tzinfo=UTC)), [2, 3, 4]),
        (KinesisPosition.timestamp(datetime(2033, 1, 1, tzinfo=UTC)), [4]),
    ],
    ids=["default", "latest", "horizon", "timestamp", "future"],
)
async def test_start_at_decides_about_records_from_before_the_start(
    app: RustStream, start_at: KinesisPosition | None, expected: list[int]
) -> None:
    test = TestApp(app)

    @app.subscriber("numbers", start_at=start_at)
    async def handle(number: int) -> None:
        pass

    @app.on_startup
    async def fill() -> None:
        for number in (1, 2, 3):
            await app.publisher().publish(number, "numbers")
            await test.clock.advance(10)

    async with test:
        await test.publish(4, "numbers")
        assert test.subscriber("numbers").values == expected


async def test_start_at_a_sequence_number_begins_with_that_record(app: RustStream) -> None:
    other = RustStream(KinesisBroker(), title="orders", version="1.0")
    async with TestApp(other) as test:
        # Every test numbers its records alike.
        second = [await test.publish(number, "numbers") for number in (1, 2, 3)][1]

    @app.subscriber(
        "numbers", start_at=KinesisPosition.sequence(second.shard_id, second.sequence_number)
    )
    async def handle(number: int) -> None:
        pass

    @app.on_startup
    async def fill() -> None:
        for number in (1, 2, 3):
            await app.publisher().publish(number, "numbers")

    async with TestApp(app) as test:
        await test.settled()
        assert test.subscriber("numbers").values == [2, 3]


# The life of the application


async def test_hooks_run_with_a_connection_that_publishes(app: RustStream) -> None:
    publisher = app.publisher()

    @app.on_startup
    async def started() -> None:
        await publisher.publish("started", "life")

    @app.on_shutdown
    async def stopped() -> None:
        await publisher.publish("stopped", "life")

    async with TestApp(app) as test:
        assert [each.payload for each in test.published("life")] == [b"started"]

    assert [each.payload for each in test.published("life")] == [b"started", b"stopped"]


async def test_the_application_is_as_it_was_afterwards(app: RustStream) -> None:
    connection = app.broker.connection
    clock, publisher = connection.clock, app.publisher()

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        pass

    with pytest.raises(NotConnected):
        await TestApp(app).publish(Order(0), "orders")
    for number in range(2):
        async with TestApp(app) as test:
            assert connection.clock is test.clock
            await test.publish(Order(number), "orders")
            assert test.subscriber("orders").values == [Order(number)]
        assert connection.clock is clock
        assert isinstance(clock, SystemClock)
        assert not connection.connected
        assert connection.max_record_bytes == {}
        assert app.counters == {}
        with pytest.raises(NotConnected):
            await test.publish(Order(number), "orders")
        with pytest.raises(NotConnected):
            await publisher.publish(Order(number), "orders")


async def test_the_service_lives_by_the_clock_of_the_test(app: RustStream) -> None:
    arrivals: list[datetime | None] = []

    @app.subscriber("orders")
    async def handle(order: Order, message: KinesisMessage[Order]) -> None:
        arrivals.append(message.arrival)
        await app.broker.connection.clock.sleep(3600)

    async with TestApp(app) as test:
        waiting = asyncio.create_task(test.publish(Order(1), "orders"))
        await test.clock.advance(3599)
        assert not waiting.done()
        await test.clock.advance(1)
        await waiting

    assert arrivals == [datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)]


async def test_nothing_is_left_running(app: RustStream) -> None:
    before = asyncio.all_tasks()

    @app.subscriber("orders", workers=3)
    async def handle(order: Order) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(Order(1), "orders")

    assert asyncio.all_tasks() == before
