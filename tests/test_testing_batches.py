"""`TestApp` with batch handlers: what a call is about, and that a publish to one does not hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    Outcome,
    RustStream,
    ack,
    drop,
    retry,
)
from ruststream_kinesis.errors import AckUnsupported
from ruststream_kinesis.testing import TestApp


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


async def test_a_publish_moves_time_by_the_window_of_the_batch_it_waits_for(
    app: RustStream,
) -> None:
    @app.subscriber("orders", batch=100, batch_window=30)
    async def handle(orders: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        assert test.subscriber("orders").values == [1]
        assert test.clock.monotonic() == 30


async def test_publishes_at_once_fill_a_batch(app: RustStream) -> None:
    @app.subscriber("orders", batch=3)
    async def handle(orders: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await asyncio.gather(*(test.publish(number, "orders") for number in range(8)))
        calls = test.subscriber("orders")

    assert [[each.value for each in batch] for batch in calls.batches] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]
    assert calls.values == list(range(8))
    assert calls.counters.handled == 8


async def test_a_full_batch_needs_no_time(app: RustStream) -> None:
    @app.subscriber("orders", batch=2)
    async def handle(orders: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await asyncio.gather(test.publish(1, "orders"), test.publish(2, "orders"))
        assert test.clock.monotonic() == 0


async def test_each_element_has_its_own_outcome_and_attempt(app: RustStream) -> None:
    @app.subscriber("orders", batch=3, max_attempts=2, dead_letter="dead")
    async def handle(orders: list[int]) -> list[Outcome | None]:
        return [{1: None, 2: drop(), 3: retry()}[number] for number in orders]

    async with TestApp(app) as test:
        await asyncio.gather(*(test.publish(number, "orders") for number in (1, 2, 3)))
        calls = test.subscriber("orders")

        assert calls.values == [1, 2, 3, 3]
        assert calls.outcomes == [ack(), drop(), retry(), retry()]
        assert calls.attempts == [1, 1, 1, 2]
        assert all(call.settled and call.error is None for call in calls.calls)
        assert [record.payload for record in test.published("dead")] == [b"3"]


async def test_an_element_that_nothing_was_said_of_is_held_and_not_refused(
    app: RustStream,
) -> None:
    @app.subscriber("orders", batch=2)
    async def handle(orders: list[int]) -> list[Outcome]:
        return [retry()]

    async with TestApp(app) as test:
        await asyncio.gather(test.publish(1, "orders"), test.publish(2, "orders"))
        refused, unsaid = test.subscriber("orders").calls

    assert refused.outcome == retry()
    assert isinstance(refused.error, AckUnsupported)
    assert refused.held
    assert (unsaid.outcome, unsaid.error, unsaid.held) == (None, None, True)


async def test_a_list_that_is_too_long_says_nothing(app: RustStream) -> None:
    @app.subscriber("orders", batch=2)
    async def handle(orders: list[int]) -> list[Outcome]:
        return [ack()] * (len(orders) + 1)

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        (call,) = test.subscriber("orders").calls

    assert (call.outcome, call.held) == (None, True)


async def test_a_batch_handler_that_raises_is_decided_for_every_element(app: RustStream) -> None:
    wrong = ValueError("no")

    @app.subscriber("orders", batch=2, on_error="drop")
    async def handle(orders: list[int]) -> None:
        raise wrong

    async with TestApp(app) as test:
        await asyncio.gather(test.publish(1, "orders"), test.publish(2, "orders"))
        calls = test.subscriber("orders")

    assert calls.outcomes == [wrong, wrong]
    assert all(call.settled for call in calls.calls)


async def test_what_does_not_decode_is_in_no_call(app: RustStream) -> None:
    @app.subscriber("orders", batch=2)
    async def handle(orders: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await asyncio.gather(test.publish(b"{", "orders"), test.publish(2, "orders"))
        assert test.subscriber("orders").values == [2]
        assert test.subscriber("orders").counters.undecodable == 1


async def test_the_reply_of_a_batch_goes_back_to_every_element(app: RustStream) -> None:
    heard = asyncio.Event()

    @app.subscriber("orders", batch=2, publish="sums")
    async def handle(orders: list[int]) -> int:
        return sum(orders)

    @app.subscriber("sums")
    async def hear(total: int) -> None:
        await asyncio.sleep(0)
        heard.set()

    async with TestApp(app) as test:
        first = asyncio.create_task(test.publish(1, "orders"))
        await test.publish(2, "orders")
        assert heard.is_set()
        await first
        assert test.subscriber("sums").values == [3]


async def test_a_plain_batch_handler_settles_through_its_messages(app: RustStream) -> None:
    @app.subscriber("orders", batch=2)
    def handle(orders: list[int], messages: list[KinesisMessage[int]]) -> None:
        asyncio.run(messages[0].nack(requeue=False))

    async with TestApp(app) as test:
        await asyncio.gather(test.publish(1, "orders"), test.publish(2, "orders"))
        assert test.subscriber("orders").outcomes == [drop(), ack()]


async def test_batches_with_several_workers_and_windows_are_all_closed(app: RustStream) -> None:
    @app.subscriber("orders", batch=10, workers=3, publish="sums")
    async def handle(orders: list[int]) -> int:
        return sum(orders)

    @app.subscriber("sums", batch=10, batch_window=5)
    async def hear(sums: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await asyncio.gather(
            *(test.publish(number, "orders", partition_key=f"{number}") for number in range(9))
        )
        assert sorted(test.subscriber("orders").values) == list(range(9))
        assert sum(test.subscriber("sums").values) == 36


async def test_settled_closes_a_batch_that_others_published_to(app: RustStream) -> None:
    @app.subscriber("orders", batch=10)
    async def handle(orders: list[int]) -> None:
        pass

    async with TestApp(app) as test:
        await app.publisher().publish(1, "orders")
        await test.settled()
        assert test.subscriber("orders").values == [1]


async def test_time_does_not_run_away_while_a_batch_is_held_up(app: RustStream) -> None:
    gate, calls = asyncio.Event(), list[Any]()

    @app.subscriber("orders", batch=1)
    async def handle(orders: list[int]) -> None:
        calls.append(orders)
        if len(calls) == 1:
            await gate.wait()

    async with TestApp(app) as test:
        first = asyncio.create_task(test.publish(1, "orders"))
        second = asyncio.create_task(test.publish(2, "orders"))
        for _ in range(1000):
            await asyncio.sleep(0)
        # The second waits behind the first, not for a window: one that is moved does not help it.
        assert test.clock.monotonic() <= 0.05
        gate.set()
        await asyncio.gather(first, second)

    assert calls == [[1], [2]]
