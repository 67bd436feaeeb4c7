"""Every row of the outcome table, on the in-process log: what is put where, and what is settled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
    retry_after,
)
from ruststream_kinesis.errors import AckUnsupported
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import TestApp
from tests.support.copying import enveloped

COUNT = "x-ruststream-retry-count"


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1")


def always(app: RustStream, outcome: Any, **options: Any) -> None:
    """Declare a handler that says the same of every record."""

    @app.subscriber("orders", **options)
    async def handle(value: bytes) -> Outcome | None:
        if isinstance(outcome, Exception):
            raise outcome
        said: Outcome | None = outcome
        return said


def attempts(test: TestApp) -> list[int]:
    return [call.attempt for call in test.subscriber("orders").calls]


@pytest.mark.parametrize("outcome", [None, ack(), drop()])
async def test_ack_and_drop_settle_and_put_nothing(
    app: RustStream, outcome: Outcome | None, caplog: pytest.LogCaptureFixture
):
    always(app, outcome, max_attempts=3, dead_letter="dead")
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")

        assert test.subscriber("orders").calls[0].settled
        assert len(test.published("orders")) == 1
        assert test.published("dead") == []
    dropped = [each for each in caplog.records if "dropped record" in each.message]
    assert len(dropped) == (outcome is drop())
    for each in dropped:
        assert vars(each).keys() >= {"stream", "shard_id", "sequence_number"}


async def test_retry_without_a_cap_holds_and_puts_nothing(app: RustStream):
    always(app, retry())
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")

        (call,) = test.subscriber("orders").calls
        assert call.held
        assert not call.settled
        assert isinstance(call.error, AckUnsupported)
        assert len(test.published("orders")) == 1


@pytest.mark.parametrize("outcome", [retry(), ValueError("no")])
async def test_below_the_cap_a_copy_goes_to_the_end_and_at_the_cap_to_the_dead_letter(
    app: RustStream, outcome: Any
):
    always(app, outcome, max_attempts=3, dead_letter="dead")
    async with TestApp(app) as test:
        result = await test.publish(b"1", "orders", partition_key="ada", headers={"trace": "7"})

        first, second, third = test.published("orders")
        (dead,) = test.published("dead")
        assert attempts(test) == [1, 2, 3]
        assert second.headers == {"trace": "7", COUNT: "1"}
        assert third.headers == {"trace": "7", COUNT: "2"}
        assert {each.partition_key for each in (first, second, third, dead)} == {"ada"}
        assert all(call.settled for call in test.subscriber("orders").calls)
        error = {"x-ruststream-error": "ValueError: no"} if isinstance(outcome, Exception) else {}
        assert dead.headers == {
            "trace": "7",
            "x-ruststream-origin-stream": "orders",
            "x-ruststream-origin-shard": result.shard_id,
            "x-ruststream-origin-sequence-number": third.sequence_number,
            "x-ruststream-attempts": "3",
            **error,
        }
        assert dead.payload == b"1"


async def test_at_the_cap_without_a_dead_letter_it_is_settled_with_a_warning(
    app: RustStream, caplog: pytest.LogCaptureFixture
):
    always(app, retry(), max_attempts=2)
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")

        assert attempts(test) == [1, 2]
        assert test.subscriber("orders").calls[-1].settled
        counters = test.subscriber("orders").counters
        assert (counters.retried, counters.dropped) == (1, 1)
    (logged,) = (each for each in caplog.records if "gave up record" in each.message)
    assert logged.levelno == logging.WARNING
    assert vars(logged).keys() >= {"stream", "shard_id", "sequence_number"}


@pytest.mark.parametrize("outcome", [retry(), retry_after(3600), ValueError("no")])
async def test_a_dead_letter_alone_means_one_attempt(app: RustStream, outcome: Any):
    always(app, outcome, dead_letter="dead")
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")

        assert attempts(test) == [1]
        assert test.published("dead")[0].headers["x-ruststream-attempts"] == "1"
        assert len(test.published("orders")) == 1


async def test_retry_after_is_always_a_copy_when_the_delay_has_passed(app: RustStream):
    @app.subscriber("orders")
    async def handle(message: KinesisMessage[bytes]) -> Outcome | None:
        return retry_after(3600) if message.attempt < 4 else None

    async with TestApp(app) as test:
        await test.publish(b"1", "orders")
        for attempt in (1, 2, 3):
            call = test.subscriber("orders").calls[-1]
            assert (call.attempt, call.waiting, call.settled) == (attempt, True, False)
            await test.clock.advance(3599)
            assert len(test.published("orders")) == attempt
            await test.clock.advance(1)
            await test.settled()
            assert call.settled

        assert [each.headers.get(COUNT) for each in test.published("orders")] == [
            None, "1", "2", "3"
        ]  # fmt: skip


async def test_retry_after_counts_against_a_cap(app: RustStream):
    always(app, retry_after(10), max_attempts=2, dead_letter="dead")
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")
        await test.clock.advance(10)
        await test.settled()

        assert attempts(test) == [1, 2]
        assert len(test.published("dead")) == 1


@pytest.mark.parametrize(("deferred", "settled"), [("hold", False), ("settle", True)])
async def test_deferred_says_when_the_original_of_a_waiting_copy_is_settled(
    app: RustStream, deferred: str, settled: bool
):
    always(app, retry_after(10), max_attempts=2, deferred=deferred)
    async with TestApp(app) as test:
        await test.publish(b"1", "orders")

        (call,) = test.subscriber("orders").calls
        assert call.settled is settled
        assert len(test.published("orders")) == 1


async def test_a_graceful_stop_puts_waiting_copies_marked_with_their_time(app: RustStream):
    always(app, retry_after(10), max_attempts=2)
    async with TestApp(app) as test:
        await test.publish(b"1", "orders", partition_key="ada")
        due = test.clock.time() + 10

    _, copy = test.published("orders")
    assert copy.partition_key == "ada"
    assert copy.headers == {COUNT: "1", "x-ruststream-not-before": str(int(due * 1000))}
    assert test.subscriber("orders").calls[0].settled


async def test_whoever_receives_a_copy_early_waits_out_the_rest_and_spends_no_attempt(
    app: RustStream,
):
    always(app, None, max_attempts=2)
    async with TestApp(app) as test:
        due = str(int(test.clock.time() * 1000) + 10_000)
        headers = {"trace": "7", COUNT: "1", "x-ruststream-not-before": due}
        await test.publish(b"1", "orders", headers=headers)
        await test.clock.advance(9)
        assert test.subscriber("orders").calls == []
        await test.clock.advance(1)
        await test.settled()

        (call,) = test.subscriber("orders").calls
        assert call.attempt == 2
        assert test.published("orders")[-1].headers == {"trace": "7", COUNT: "1"}


@pytest.mark.parametrize("value", ["soon", "-1", "0", "1" * 14, "1.5", "", "\u0661" * 13])
async def test_a_time_that_is_past_or_none_is_not_waited_for(app: RustStream, value: str):
    always(app, None)
    async with TestApp(app) as test:
        await test.publish(b"1", "orders", headers={"x-ruststream-not-before": value})

        assert attempts(test) == [1]
        assert len(test.published("orders")) == 1


@pytest.mark.parametrize("on_decode_error", ["drop", "retry"])
async def test_what_does_not_decode_goes_to_the_dead_letter_at_once(
    app: RustStream, on_decode_error: Any
):
    @app.subscriber("orders", max_attempts=5, dead_letter="dead", on_decode_error=on_decode_error)
    async def handle(value: int) -> None: ...

    blob = enveloped(b"odd\nno end", b"{\xff")
    async with TestApp(app) as test:
        # As another producer may have written it, past every check of ours.
        await app.broker.connection.transport.put_record(StreamRef.parse("orders"), blob, "key")
        await test.settled()

        (dead,) = test.published("dead")
        assert dead.payload == b"{\xff"
        assert dead.data[8:].startswith(b"odd\nno end\nx-ruststream-origin-stream: orders\n")
        assert dead.headers["x-ruststream-attempts"] == "1"
        assert "\n" not in dead.headers["x-ruststream-error"]
        assert len(test.published("orders")) == 1
        assert test.subscriber("orders").calls == []


async def test_a_record_that_does_not_decode_and_is_dropped_is_one_line(
    app: RustStream, caplog: pytest.LogCaptureFixture
):
    @app.subscriber("orders")
    async def handle(value: int) -> None: ...

    async with TestApp(app) as test:
        await test.publish(b"{", "orders")

        assert app.counters["orders"].dropped == 1
        assert app.counters["orders"].undecodable == 1
    (line,) = [each for each in caplog.messages if each.startswith(("record ", "dropped "))]
    assert "does not decode" in line
    assert "dropped" in line


async def test_an_error_policy_decides_like_a_handler(app: RustStream):
    @app.subscriber(
        "orders",
        max_attempts=2,
        dead_letter="dead",
        on_error=lambda error, message: retry_after(60) if message.attempt == 1 else retry(),
    )
    async def handle(value: int) -> None:
        raise ValueError("no")

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        assert test.published("dead") == []
        await test.clock.advance(60)
        await test.settled()

        assert test.published("dead")[0].headers["x-ruststream-error"] == "ValueError: no"


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("options", "copies", "dead", "unsupported"),
    [({}, 0, 0, 1), ({"max_attempts": 2}, 1, 0, 0), ({"dead_letter": "dead"}, 0, 1, 0)],
)
async def test_nack_returns_when_the_copy_is_in_its_stream(
    app: RustStream,
    in_thread: bool,
    options: dict[str, Any],
    copies: int,
    dead: int,
    unsupported: int,
):
    seen: list[tuple[int, int]] = []
    refused: list[AckUnsupported] = []
    test = TestApp(app)

    async def nack(message: KinesisMessage[int]) -> None:
        if message.attempt > 1:
            return
        try:
            await message.nack(requeue=True)
        except AckUnsupported as error:
            refused.append(error)
        seen.append((len(test.published("orders")) - 1, len(test.published("dead"))))

    if in_thread:

        @app.subscriber("orders", **options)
        def handle_in_thread(message: KinesisMessage[int]) -> None:
            asyncio.run(nack(message))

    else:

        @app.subscriber("orders", **options)
        async def handle(message: KinesisMessage[int]) -> None:
            await nack(message)

    async with test:
        await test.publish(1, "orders")

        assert seen[0] == (copies, dead)
        assert len(refused) == unsupported


async def test_a_nack_that_is_cut_off_says_nothing_and_what_comes_next_counts(
    app: RustStream, monkeypatch: pytest.MonkeyPatch
):
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    @app.subscriber("orders", max_attempts=2)
    async def handle(message: KinesisMessage[int]) -> Outcome | None:
        if message.attempt > 1:
            return None
        with monkeypatch.context() as patch, contextlib.suppress(TimeoutError):
            patch.setattr(app.broker.connection.transport, "put_record", hang)
            await asyncio.wait_for(message.nack(requeue=True), 0.01)
        assert message.outcome is None
        return retry()

    async with TestApp(app) as test:
        await test.publish(1, "orders")

        assert attempts(test) == [1, 2]
        assert all(call.settled for call in test.subscriber("orders").calls)
