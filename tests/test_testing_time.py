"""`TestApp`: copies that wait for their time, and publishes that fail when asked to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPublisher,
    Outcome,
    RustStream,
    ack,
    retry,
    retry_after,
)
from ruststream_kinesis.errors import (
    AccessDenied,
    AckUnsupported,
    ConfigurationError,
    KinesisError,
    PublishError,
    RequestError,
)
from ruststream_kinesis.testing import LiveClock, TestApp


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


# Waiting copies


async def test_a_waiting_copy_is_decided_and_comes_when_its_hour_has_passed(
    app: RustStream,
) -> None:
    @app.subscriber("orders", max_attempts=3)
    async def handle(number: int, message: KinesisMessage[int]) -> Outcome:
        return retry_after(3600) if message.attempt == 1 else ack()

    async with TestApp(app) as test:
        await test.publish(1, "orders", headers={"trace": "t"})
        (first,) = test.subscriber("orders").calls
        assert (first.waiting, first.settled, first.held) == (True, False, False)
        assert first.outcome == retry_after(3600)

        await test.advance(3599)
        assert test.subscriber("orders").attempts == [1]
        await test.advance(1)

        calls = test.subscriber("orders")
        assert calls.attempts == [1, 2]
        assert calls.outcomes == [retry_after(3600), ack()]
        assert (first.waiting, first.settled) == (False, True)
        assert calls.calls[1].headers["trace"] == "t"


async def test_moving_the_clock_and_waiting_is_what_advance_does(app: RustStream) -> None:
    @app.subscriber("orders", publish="done")
    async def handle(number: int, message: KinesisMessage[int]) -> Outcome | str:
        return retry_after(60) if message.attempt == 1 else "done"

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        await test.clock.advance(60)
        await test.settled()
        assert [record.payload for record in test.published("done")] == [b"done"]


async def test_a_copy_that_waits_at_the_end_goes_out_early_with_its_time(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> Outcome:
        return retry_after(3600)

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        assert len(test.published("orders")) == 1

    _, copy = test.published("orders")
    assert copy.headers["x-ruststream-not-before"] == "1700003600000"


async def test_a_record_that_came_early_waits_out_the_rest(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> None:
        pass

    async with TestApp(app) as test:
        await test.publish(1, "orders", headers={"x-ruststream-not-before": "1700000060000"})
        await test.settled()
        assert test.subscriber("orders").calls == []
        await test.advance(60)
        assert test.subscriber("orders").attempts == [1]


async def test_settled_waits_for_a_copy_that_is_due_and_throttled(app: RustStream) -> None:
    @app.subscriber("orders", max_attempts=2)
    async def handle(number: int, message: KinesisMessage[int]) -> Outcome | None:
        return retry_after(60) if message.attempt == 1 else None

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        test.fail_publish("orders", times=3)
        await test.advance(60)
        assert test.subscriber("orders").attempts == [1, 2]


async def test_retries_and_dead_letters_are_seen_with_their_attempts(app: RustStream) -> None:
    @app.subscriber("orders", max_attempts=3, dead_letter="orders.dead")
    async def handle(number: int) -> Outcome:
        return retry()

    async with TestApp(app) as test:
        await test.publish(1, "orders", partition_key="ada")
        assert test.subscriber("orders").attempts == [1, 2, 3]
        assert all(call.settled for call in test.subscriber("orders").calls)
        (dead,) = test.published("orders.dead")

    assert (dead.payload, dead.partition_key) == (b"1", "ada")
    assert dead.headers["x-ruststream-attempts"] == "3"
    assert dead.headers["x-ruststream-origin-stream"] == "orders"


# Failures of publishing


async def test_a_reply_that_is_throttled_is_tried_again_and_time_moves_by_itself(
    app: RustStream,
) -> None:
    @app.subscriber("orders", publish="confirmations")
    async def handle(number: int) -> int:
        return number

    async with TestApp(app) as test:
        fault = test.fail_publish("confirmations", times=2)
        await test.publish(1, "orders")
        assert [record.payload for record in test.published("confirmations")] == [b"1"]
        assert (fault.hits, fault.left) == (2, 0)
        # Between half of and the whole of 0.1 and 0.2 s.
        assert 0.15 <= test.clock.monotonic() <= 0.3
        assert test.subscriber("orders").outcomes == [ack()]


async def test_a_reply_that_is_refused_leaves_its_record_open_and_is_no_refused_retry(
    app: RustStream,
) -> None:
    @app.subscriber("orders", publish="confirmations")
    async def handle(number: int) -> int:
        return number

    async with TestApp(app) as test:
        test.fail_publish("confirmations", error="terminal")
        await test.publish(1, "orders")
        await test.publish(2, "orders")
        first, second = test.subscriber("orders").calls

        assert (first.outcome, first.error, first.held) == (retry(), None, True)
        assert not first.refused
        assert second.outcome == ack()
        assert [record.payload for record in test.published("confirmations")] == [b"2"]


async def test_a_copy_that_is_refused_leaves_its_record_open(app: RustStream) -> None:
    @app.subscriber("orders", max_attempts=2, dead_letter="dead")
    async def handle(number: int) -> Outcome:
        return retry()

    async with TestApp(app) as test:
        with test.fail_publish("dead", times=None, error="terminal"):
            await test.publish(1, "orders")
        first, last = test.subscriber("orders").calls

        assert first.settled
        assert (last.outcome, last.error, last.held) == (retry(), None, True)
        assert test.published("dead") == []


async def test_the_publish_of_the_test_itself_fails_as_asked(app: RustStream) -> None:
    wrong = RequestError("as told", code="Odd", status=418, stream="orders")
    async with TestApp(app) as test:
        with (
            test.fail_publish("orders", times=None, error="terminal"),
            pytest.raises(PublishError) as caught,
        ):
            await test.publish(1, "orders")
        assert isinstance(caught.value.__cause__, AccessDenied)
        test.fail_publish("orders", error=wrong)
        with pytest.raises(PublishError) as caught:
            await test.publish(1, "orders")
        assert caught.value.__cause__ is wrong
        await test.publish(1, "orders")
        assert len(test.published("orders")) == 1


async def test_a_publish_that_is_throttled_for_ever_ends_at_its_deadline(app: RustStream) -> None:
    async with TestApp(app) as test:
        with test.fail_publish("orders", times=None) as fault, pytest.raises(PublishError):
            await test.publish(1, "orders")
        assert fault.hits > 5
        # 30 s of the service's time.
        assert 20 < test.clock.monotonic() <= 30


async def test_a_throttled_publish_of_a_handler_thread_is_tried_again(app: RustStream) -> None:
    publisher = app.publisher()

    @app.subscriber("orders")
    def handle(number: int) -> None:
        asyncio.run(publisher.publish(number, "more"))

    async with TestApp(app) as test:
        test.fail_publish("more", times=2)
        await test.publish(1, "orders")
        assert len(test.published("more")) == 1
        assert test.clock.monotonic() > 0


async def test_time_that_moves_for_a_retry_does_not_move_a_handler_that_sleeps(
    app: RustStream,
) -> None:
    @app.subscriber("orders")
    async def handle(number: int, publisher: KinesisPublisher) -> None:
        await publisher.publish(number, "more")
        await app.broker.connection.clock.sleep(3600)

    async with TestApp(app) as test:
        test.fail_publish("more")
        waiting = asyncio.create_task(test.publish(1, "orders"))
        await test.clock.advance(0)
        assert test.clock.monotonic() < 1
        await test.clock.advance(3599)
        assert not waiting.done()
        await test.clock.advance(1)
        await waiting


@pytest.mark.parametrize(
    "ask",
    [
        lambda test: test.fail_publish("orders", times=0),
        lambda test: test.fail_publish("orders", times=True),
        lambda test: test.fail_publish("no such name!"),
        lambda test: test.fail_publish("orders", error="odd"),
        lambda test: test.fail_publish("orders", error=ValueError("mine")),
    ],
    ids=["no times", "a flag", "a bad name", "a bad kind", "no error of ours"],
)
async def test_an_odd_failure_is_refused(app: RustStream, ask: Callable[[TestApp], object]) -> None:
    with pytest.raises(ConfigurationError):
        ask(TestApp(app))


# What a plain handler settles by itself


@pytest.mark.parametrize("requeue", [None, False, True])
async def test_a_plain_handler_that_settles_through_its_message_is_decided(
    app: RustStream, requeue: bool | None
) -> None:
    @app.subscriber("orders")
    def handle(number: int, message: KinesisMessage[int]) -> None:
        if requeue is None:
            asyncio.run(message.ack())
        else:
            asyncio.run(message.nack(requeue=requeue))

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        (call,) = test.subscriber("orders").calls

    assert call.held is bool(requeue)
    assert call.settled is not call.held
    assert isinstance(call.error, AckUnsupported) is bool(requeue)


async def test_real_time_cannot_be_moved_far() -> None:
    clock = LiveClock(limit=1.0)
    await clock.advance(0)
    with pytest.raises(ConfigurationError, match="on a server time is real"):
        await clock.advance(3600)
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance(-1)
    assert issubclass(ConfigurationError, KinesisError)
