"""A hand-over between two whole services, while handlers run and batches form."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisMessage, KinesisPosition, RustStream
from ruststream_kinesis.stream import StreamRef
from tests.support.coordinating import denied
from tests.support.world import FakeTransport, World, running

HORIZON = KinesisPosition.horizon()
PASS = 3.0


pytestmark = pytest.mark.usefixtures("lease_store")


def held(app: RustStream) -> int:
    return len(app.state().subscriptions[0].shards)


@pytest.mark.parametrize("batch", [None, 5], ids=["one", "batch"])
async def test_a_rewind_does_not_end_a_hand_over_while_a_handler_runs(batch: int | None):
    """Its delivery is void, but the successor would handle the same record beside it."""
    world = World()
    world.stream("orders", 2)
    for shard in range(2):
        world.put("orders", shard, key="ab"[shard], shard=shard)
    at_work: dict[int, int] = {}
    most = 0
    gate = asyncio.Event()

    async def work(number: int, *, slow: bool) -> None:
        nonlocal most
        at_work[number] = at_work.get(number, 0) + 1
        most = max(most, at_work[number])
        if slow:
            await gate.wait()
        at_work[number] -= 1

    def service(*, slow: bool) -> RustStream:
        app = world.app()
        if batch is None:

            @app.subscriber("orders", start_at=HORIZON, workers=2)
            async def handle(message: KinesisMessage[int]) -> None:
                await work(message.payload, slow=slow)

        else:

            @app.subscriber("orders", start_at=HORIZON, workers=2, batch=batch)
            async def handle_all(orders: list[int]) -> None:
                for order in orders:
                    await work(order, slow=slow)

        return app

    first, second = service(slow=True), service(slow=False)
    async with running(first):
        await world.clock.advance(1)
        assert at_work == {0: 1, 1: 1}
        async with running(second):
            await world.clock.advance(PASS)
            await asyncio.gather(first.seeker("orders").seek(HORIZON), world.clock.advance(1))
            await world.clock.advance(4 * PASS)
            assert (held(first), held(second)) == (2, 0)

            gate.set()
            await world.clock.advance(2 * PASS)
            assert (held(first), held(second)) == (1, 1)
            await world.clock.advance(PASS)
    assert most == 1


async def test_a_hand_over_does_not_wait_until_the_window_of_a_batch_is_over():
    world = World()
    world.stream("orders", 2)
    sizes: list[int] = []

    def service() -> RustStream:
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, workers=2, batch=100, batch_window=600)
        async def handle(orders: list[int]) -> None:
            sizes.append(len(orders))

        return app

    first, second = service(), service()
    # Of each shard some older records stay with a worker whose batch is not full.
    for shard in range(2):
        for number in range(300):
            world.put("orders", number, key=f"key-{number % 40}", shard=shard)
    async with running(first):
        await world.clock.advance(PASS)
        assert sizes
        assert set(sizes) == {100}
        async with running(second):
            await world.clock.advance(3 * PASS)
            assert (held(first), held(second)) == (1, 1)


class Denied(FakeTransport):
    """A transport that is not allowed to read one of the shards."""

    shard_id: str | None = None

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        if shard_id == self.shard_id:
            raise denied()
        return await super().get_records(stream, shard_id, iterator, limit)


async def test_a_shard_that_cannot_be_read_any_more_is_not_given_up_while_a_handler_of_it_runs():
    world = World()
    world.stream("orders", 1)
    gate = asyncio.Event()
    said: list[str] = []

    def service(name: str) -> RustStream:
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(order: int) -> None:
            said.append(f"{name} begins {order}")
            if name == "A":
                await gate.wait()
            said.append(f"{name} ends {order}")

        return app

    first, second = service("A"), service("B")
    transport = Denied(world)
    first.broker.connection.attach(transport)
    async with running(first), running(second):
        world.put("orders", 1)
        await world.clock.advance(2)
        assert said == ["A begins 1"]
        transport.shard_id = "shardId-000000000000"
        # As long as it takes until whoever sees the shard free takes it.
        await world.clock.advance(10 * PASS)
        assert said == ["A begins 1"]

        gate.set()
        world.put("orders", 2)
        await world.clock.advance(30 * PASS)
    assert said == ["A begins 1", "A ends 1", "B begins 2", "B ends 2"]
