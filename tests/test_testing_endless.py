"""`TestApp.advance`: time that never stops setting something off ends the test, with its reason."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisBroker, Outcome, RustStream, retry_after
from ruststream_kinesis.testing import TestApp, Undecided

# Real seconds: short, since the tests wait them out. The other limit is for when there is none.
SOON, PATIENCE = 0.2, 10.0


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


@pytest.mark.parametrize("delay", [0.0, 1e-12, 1.0])
async def test_a_handler_that_always_defers_ends_the_advance(app: RustStream, delay: float) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> Outcome:
        return retry_after(delay)

    async with asyncio.timeout(PATIENCE), TestApp(app, timeout=SOON) as test:
        await app.publisher().publish(1, "orders")
        with pytest.raises(Undecided, match=r"0\.2 s have passed.* of stream orders: "):
            await test.advance(1e9)


async def test_a_hook_that_always_sleeps_again_ends_the_advance(app: RustStream) -> None:
    clock, tasks = app.broker.connection, []

    @app.on_startup
    async def start() -> None:
        async def tick() -> None:
            while True:
                await clock.clock.sleep(1e-12)

        tasks.append(asyncio.create_task(tick()))

    async with asyncio.timeout(PATIENCE), TestApp(app, timeout=SOON) as test:
        for advance in (test.advance, test.clock.advance):
            with pytest.raises(Undecided, match=r"0\.2 s have passed, and time has moved by"):
                await advance(1)
        tasks[0].cancel()
        await test.advance(1)


async def test_a_long_time_in_which_little_happens_is_no_chain(app: RustStream) -> None:
    @app.subscriber("orders")
    async def handle(number: int) -> Outcome:
        return retry_after(86_400)

    async with TestApp(app, timeout=5.0) as test:
        await test.publish(1, "orders")
        await test.advance(10 * 86_400)
        assert test.subscriber("orders").attempts == list(range(1, 12))
