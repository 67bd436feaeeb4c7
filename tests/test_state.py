"""What `app.state()` says of a service at work."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisBroker, KinesisPosition, RustStream, retry, retry_after
from ruststream_kinesis.leases import deadline
from ruststream_kinesis.leases.base import LeaseKey
from ruststream_kinesis.leases.deadline import PunctualStore
from ruststream_kinesis.leases.memory import MemoryLeaseStore
from ruststream_kinesis.testing import ManualClock, TestApp
from tests.support.world import World


def test_an_application_that_does_not_run_says_so():
    app = RustStream(KinesisBroker(), title="orders", version="1")

    state = app.state()

    assert (state.title, state.version, state.running) == ("orders", "1", False)
    assert state.subscriptions == ()


async def test_copies_that_wait_show_up():
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders")
    async def handle(number: int):
        return retry_after(3600)

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        (subscription,) = app.state().subscriptions

        assert subscription.waiting_copies == 1
        assert subscription.counters.retried == 1
        assert subscription.running == ()


async def test_held_records_show_up_with_their_age():
    clock = ManualClock()
    world = World(clock=clock)
    world.stream("orders")
    for number in range(3):
        world.put("orders", number)
    app = world.app()
    seen = asyncio.Event()

    @app.subscriber("orders", start_at=KinesisPosition.horizon())
    async def handle(number: int):
        if number == 2:
            seen.set()
            return None
        return retry()

    running = asyncio.create_task(app.run(signals=False))
    await seen.wait()
    await clock.advance(7.0)
    (subscription,) = app.state().subscriptions
    (shard,) = subscription.shards

    assert (shard.open, shard.held, shard.checkpoint) == (2, 2, None)
    assert shard.held_for is not None
    assert shard.held_for >= 7.0
    app.stop()
    stopping = asyncio.create_task(clock.advance(60.0))
    await running
    await stopping
    assert not app.state().running


async def test_a_store_that_never_answers_fails_like_any_other(monkeypatch: pytest.MonkeyPatch):
    class Silent(MemoryLeaseStore):
        async def leases(self, stream: str, group: str | None = None):
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    monkeypatch.setattr(deadline, "STORE_DEADLINE", 0.01)
    store = PunctualStore(Silent())

    with pytest.raises(TimeoutError, match="leases of orders"):
        await store.leases("orders")
    assert await store.read(LeaseKey("orders", "shardId-000000000000")) is None
