"""Rewinds while handlers of earlier deliveries run: no key is in two places, and nobody waits for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from ruststream_kinesis import KinesisMessage, KinesisPosition, RustStream, Seeker
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, ShardListing
from tests.support.tables import MemoryTable, Step
from tests.support.world import FakeTransport, World, running, until

HORIZON = KinesisPosition.horizon()
PASS = 3.0
SHARDS = ("shardId-000000000000", "shardId-000000000001")
Work = Callable[[int, Seeker], Awaitable[None]]


pytestmark = pytest.mark.usefixtures("lease_store")


class Split(FakeTransport):
    """One shard that is closed, and its child."""

    parent, child = SHARDS

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        shards = (ShardInfo(self.parent), ShardInfo(self.child, (self.parent,)))
        return ShardListing(shards, self.world.clock.time())

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        body = json.loads(await super().get_records(stream, shard_id, iterator, limit))
        if shard_id == self.parent:
            body["NextShardIterator"] = None
        return json.dumps(body).encode()


class Family:
    """Services on a stream that was split; one key, its record 1 in the parent and 2 in the child.

    Of two shards that one instance has too many, the plan moves that with the higher id.
    """

    def __init__(self, parent: int = 0) -> None:
        self.world = World()
        self.world.stream("orders", 2)
        self.world.put("orders", 1, key="k", shard=parent)
        self.world.put("orders", 2, key="k", shard=1 - parent)
        self.parent = parent
        self.said: list[str] = []
        self.running = 0
        self.most = 0

    def service(self, name: str, work: Work) -> RustStream:
        app = self.world.app()
        transport = Split(self.world)
        transport.parent, transport.child = SHARDS[self.parent], SHARDS[1 - self.parent]
        app.broker.connection.attach(transport)

        @app.subscriber("orders", start_at=None if name == "B" else HORIZON, workers=2)
        async def handle(message: KinesisMessage[int], seeker: Seeker) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            self.said.append(f"{name} begins {message.payload}")
            try:
                await work(message.payload, seeker)
            finally:
                self.running -= 1
                self.said.append(f"{name} ends {message.payload}")

        return app


async def done(_number: int, _seeker: Seeker) -> None:
    """Handle a record at once."""


@pytest.mark.parametrize("position", [HORIZON, KinesisPosition.timestamp(0.0)], ids=str)
@pytest.mark.parametrize("turn", range(4))
async def test_parents_are_not_read_again_while_a_handler_of_a_child_runs(
    turn: int, position: KinesisPosition
):
    """Who has which shard next depends on chance, so it is done several times."""
    family, gate = Family(parent=turn % 2), asyncio.Event()

    async def work(number: int, _seeker: Seeker) -> None:
        if number == 2:
            await gate.wait()

    first, second = family.service("A", work), family.service("B", done)
    clock = family.world.clock
    async with running(first):
        await clock.advance(2 * PASS)
        assert family.said == ["A begins 1", "A ends 1", "A begins 2"]
        async with running(second):
            await clock.advance(PASS)
            await asyncio.gather(first.seeker("orders").seek(position), clock.advance(1))
            # As long as it takes until whoever sees a shard free takes it.
            await clock.advance(10 * PASS)
            assert family.said == ["A begins 1", "A ends 1", "A begins 2"]

            gate.set()
            await clock.advance(10 * PASS)
    numbers = [said.split()[-1] for said in family.said]
    # 2 ended void: it comes again, behind its parent's.
    assert numbers == ["1", "1", "2", "2", "1", "1", "2", "2"]
    assert family.most == 1


async def test_a_handler_of_a_child_may_rewind_again_and_again():
    family, sought = Family(), list[KinesisPosition]()

    async def work(number: int, seeker: Seeker) -> None:
        if number == 2 and not sought:
            for position in (HORIZON, KinesisPosition.latest(), HORIZON):
                sought.append(position)
                await seeker.seek(position)
            sought.append(KinesisPosition.latest())

    service = family.service("A", work)
    async with running(service):
        await family.world.clock.advance(2 * PASS)
        assert len(sought) == 4
        await family.world.clock.advance(5 * PASS)
    numbers = [said.split()[-1] for said in family.said]
    assert numbers == ["1", "1", "2", "2", "1", "1", "2", "2"]


async def test_a_handler_of_a_shard_that_is_handed_over_may_go_to_the_tip():
    world, sought, gate = World(), asyncio.Event(), asyncio.Event()
    world.stream("orders", 2)
    for shard in range(2):
        world.put("orders", shard, key="ab"[shard], shard=shard)
    first, second = world.app(), world.app()

    @first.subscriber("orders", start_at=HORIZON, workers=2)
    async def handle(order: int, seeker: Seeker) -> None:
        await gate.wait()
        if order == 1:
            await seeker.seek(KinesisPosition.latest())
            sought.set()

    @second.subscriber("orders")
    async def handle_other(order: int) -> None: ...

    async with running(first):
        await world.clock.advance(1)
        async with running(second):
            # One of them is on its way to the other instance, and waits for its handler.
            await world.clock.advance(2 * PASS)
            gate.set()
            await world.clock.advance(2 * PASS)
            await asyncio.wait_for(sought.wait(), 5)
            await world.clock.advance(2 * PASS)
            counts = [len(app.state().subscriptions[0].shards) for app in (first, second)]
            assert counts == [1, 1]


async def test_a_lease_that_the_stop_cut_off_is_given_back():
    world, table, hit = World(), MemoryTable(), asyncio.Event()
    world.stream("orders", 2)
    store = TableLeaseStore(table, clock=world.clock)
    app = world.app(store=store)

    @app.subscriber("orders")
    async def handle(order: int) -> None: ...

    async def after(step: Step) -> None:
        if step.call == "update" and step.key.startswith("orders:") and not hit.is_set():
            hit.set()
            # It took effect, and its answer never comes.
            await asyncio.Event().wait()

    table.after = after
    service = asyncio.create_task(app.run(signals=False))
    await asyncio.wait_for(hit.wait(), 5)
    app.stop()
    await until(service.done)
    leases = {key: row for key, row in table.rows.items() if ":" in key}
    assert leases
    assert [key for key, row in leases.items() if row.get("lease_owner")] == []
