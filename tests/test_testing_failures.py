"""`TestApp` when something goes wrong: it never hangs, and says what is left."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from ruststream_kinesis import KinesisBroker, RustStream
from ruststream_kinesis.errors import (
    ConfigurationError,
    HandlerFailed,
    KinesisError,
    NotConnected,
    StopTimeout,
)
from ruststream_kinesis.testing import TestApp, Undecided

# Real seconds: short, since the tests of the deadline wait them out.
SOON = 0.05


class Bug(BaseException):
    """Stands for a fault that no policy catches."""


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


async def test_a_handler_that_hangs_fails_the_publish_at_the_deadline(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> None:
        await asyncio.Event().wait()

    async with TestApp(app, timeout=SOON) as test:
        with pytest.raises(Undecided, match=r"0\.05 s have passed, and 1 delivery") as caught:
            await test.publish(1, "orders")
        (record,) = test.published("orders")
        assert caught.value.stream == "orders"
        assert caught.value.sequence_number == record.sequence_number
        assert f"record {record.sequence_number} of stream orders: its handler runs" in str(
            caught.value
        )


async def test_the_deadline_names_what_the_record_led_to_and_what_waits(app: RustStream) -> None:
    @app.subscriber("a", publish="b")
    async def first(number: int) -> int:
        return number

    @app.subscriber("b")
    async def second(number: int) -> None:
        await asyncio.Event().wait()

    async with TestApp(app, timeout=SOON) as test:
        with pytest.raises(Undecided, match="of stream b: its handler runs") as caught:
            await test.publish(1, "a")
        assert caught.value.stream == "a"
        # The only worker of `b` is still at the first one.
        with pytest.raises(Undecided, match="of stream b: it waits for its handler"):
            await test.publish(2, "a")
        with pytest.raises(Undecided, match=r"2 delivery.*its handler runs.*it waits"):
            await test.settled()


async def test_a_late_outcome_does_not_disturb_the_next_publish(app: RustStream) -> None:
    gate = asyncio.Event()

    @app.subscriber("orders")
    async def handle(number: int) -> None:
        await gate.wait()

    async with TestApp(app, timeout=SOON) as test:
        with pytest.raises(Undecided):
            await test.publish(1, "orders")
        gate.set()
        await test.publish(2, "orders")
        assert test.subscriber("orders").counters.handled == 2


async def test_on_error_stop_fails_the_publish_and_not_the_exit_again(app: RustStream) -> None:
    @app.subscriber("orders", on_error="stop")
    async def handle(number: int) -> None:
        raise ValueError(number)

    async with TestApp(app) as test:
        with pytest.raises(Undecided, match="the service failed") as caught:
            await test.publish(1, "orders")
        assert isinstance(caught.value.__cause__, HandlerFailed)
        assert caught.value.__cause__.sequence_number == caught.value.sequence_number
        with pytest.raises(NotConnected):
            await test.publish(2, "orders")


async def test_on_decode_error_stop_fails_the_publish(app: RustStream) -> None:
    @app.subscriber("orders", on_decode_error="stop")
    async def handle(number: int) -> None:
        pass

    async with TestApp(app) as test:
        with pytest.raises(Undecided, match="the service failed"):
            await test.publish(b"{", "orders")
        assert test.subscriber("orders").calls == []


async def test_a_failure_that_nobody_waited_for_is_raised_at_the_exit(app: RustStream) -> None:
    called = asyncio.Event()

    @app.subscriber("orders", on_error="stop")
    async def handle(number: int) -> None:
        called.set()
        raise ValueError(number)

    with pytest.raises(HandlerFailed):
        async with TestApp(app):
            await app.publisher().publish(1, "orders")
            await called.wait()


async def test_the_error_of_the_test_itself_comes_first(app: RustStream) -> None:
    called = asyncio.Event()

    @app.subscriber("orders", on_error="stop")
    async def handle(number: int) -> None:
        called.set()
        raise ValueError(number)

    with pytest.raises(AssertionError, match="mine"):
        async with TestApp(app):
            await app.publisher().publish(1, "orders")
            await called.wait()
            raise AssertionError("mine")
    assert not app.broker.connection.connected


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_worker_that_dies_fails_every_waiting_publish(
    app: RustStream, workers: int
) -> None:
    @app.subscriber("orders", workers=workers)
    async def handle(number: int) -> NoReturn:
        await asyncio.sleep(0)
        raise Bug(number)

    async with TestApp(app) as test:
        first, second = await asyncio.gather(
            test.publish(1, "orders"), test.publish(2, "orders"), return_exceptions=True
        )
    for error in (first, second):
        assert isinstance(error, Undecided)
        assert isinstance(error.__cause__, Bug)


async def test_a_handler_that_stops_the_service_is_decided(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> None:
        app.stop()

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        assert test.subscriber("orders").values == [1]


async def test_a_record_that_is_queued_at_the_stop_is_named(app: RustStream) -> None:
    gate = asyncio.Event()

    @app.subscriber("orders")
    async def handle(number: int) -> None:
        app.stop()
        await gate.wait()

    async with TestApp(app) as test:
        running = asyncio.create_task(test.publish(1, "orders"))
        queued = asyncio.create_task(test.publish(2, "orders"))
        await test.clock.advance(0)
        gate.set()
        await running
        with pytest.raises(Undecided, match="the service stopped, and 1 delivery"):
            await queued
        assert test.subscriber("orders").values == [1]


async def test_a_handler_that_never_ends_is_cut_off_at_the_exit_and_named(
    app: RustStream,
) -> None:
    cut = asyncio.Event()

    @app.subscriber("orders")
    async def handle(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    with pytest.raises(StopTimeout, match=r"worker\[orders/0\]"):
        async with TestApp(app, timeout=SOON):
            await app.publisher().publish(1, "orders")
    assert cut.is_set()


async def test_a_startup_hook_that_fails_is_heard_and_leaves_nothing(app: RustStream) -> None:
    before, clock = asyncio.all_tasks(), app.broker.connection.clock

    @app.on_startup
    async def fail() -> None:
        raise LookupError("no database")

    with pytest.raises(LookupError, match="no database"):
        async with TestApp(app):
            pytest.fail("it has not started")
    assert app.broker.connection.clock is clock
    assert not app.broker.connection.connected
    assert asyncio.all_tasks() == before


async def test_a_start_that_is_cancelled_leaves_nothing(app: RustStream) -> None:
    before, clock = asyncio.all_tasks(), app.broker.connection.clock
    reached = asyncio.Event()

    @app.on_startup
    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    async def start() -> None:
        async with TestApp(app, timeout=SOON):
            pytest.fail("it has not started")

    starting = asyncio.create_task(start())
    await reached.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert app.broker.connection.clock is clock
    assert not app.broker.connection.connected
    assert asyncio.all_tasks() == before


async def test_a_service_that_is_stopped_before_it_is_open_says_so(app: RustStream) -> None:
    hurried = [True]

    @app.on_startup
    def change_its_mind() -> None:
        if hurried:
            app.stop()

    with pytest.raises(KinesisError, match="stopped before it was open"):
        async with TestApp(app):
            pytest.fail("it has not started")
    # The next one starts.
    hurried.clear()
    async with TestApp(app):
        assert app.broker.connection.connected


async def test_one_application_runs_once_at_a_time(app: RustStream) -> None:
    async with TestApp(app) as test:
        with pytest.raises(ConfigurationError, match="connected already"):
            async with TestApp(app):
                pytest.fail("it has not started")
        await test.publish(1, "orders")
    with pytest.raises(ConfigurationError):
        async with test:
            pytest.fail("it has not started")


async def test_what_is_refused_leaves_no_record(app: RustStream) -> None:
    async with TestApp(app) as test:
        with pytest.raises(ConfigurationError):
            await test.publish(1, "no such name!")
        with pytest.raises(ValueError, match="partition key"):
            await test.publish(1, "orders", partition_key="")
        assert test.published("orders") == []
        with pytest.raises(ConfigurationError):
            test.published("no such name!")
