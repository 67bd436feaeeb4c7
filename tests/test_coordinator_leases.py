"""The lease loop: what ends the reading of a shard, lost or released, and who reads it next."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ruststream_kinesis import reader as reader_module
from ruststream_kinesis.leases import SHARD_END
from tests.support.coordinating import Part, denied, split_of, world

pytestmark = pytest.mark.usefixtures("lease_store")


async def test_a_shard_taken_by_another_is_not_read_or_settled_any_more():
    async with world(A=Part(records=[1, 2]), B=Part(records=[10])) as it:
        instance = await it.start()
        await it.store.steal("A")
        # Found by the next checkpoint write, before any renewal.
        instance.ack("A", 1)
        await it.clock.advance(0.1)
        assert "A" not in instance.coordinator.holdings
        it.stream.parts["A"].records.append(3)
        instance.ack("A", 2)
        it.stream.parts["B"].records.append(11)
        await it.clock.advance(30)
        assert instance.numbers("A") == [1, 2]
        assert instance.numbers("B") == [10, 11]
        assert await it.store.checkpoint_of("A") is None
        row = await it.store.of("A")
        assert row is not None
        assert row.owner == "somebody#1"


async def test_what_is_queued_of_a_lost_shard_makes_room_at_once_however_slow_the_store_is():
    async with world(A=Part(records=[1])) as it:
        instance = await it.start()
        assert instance.worker is not None
        await instance.supervisor.cancel([instance.worker])
        it.stream.parts["A"].records += [2, 3]
        it.store.faults.leases_hang = True
        # The loop hangs in its pass now; nothing but the lost write itself can free the slots.
        await it.clock.advance(4)
        assert instance.channel.queued == 2
        await it.store.steal("A")
        instance.ack("A", 1)
        await it.clock.advance(0)
        assert instance.channel.queued == 0


async def test_a_lease_found_lost_by_its_renewal_ends_the_shard_too():
    async with world(A=Part(records=[1])) as it:
        instance = await it.start()
        await it.store.steal("A")
        await it.clock.advance(4)
        it.stream.parts["A"].records.append(2)
        await it.clock.advance(10)
        assert instance.coordinator.holdings == {}
        assert instance.numbers("A") == [1]


async def test_a_release_that_fails_is_made_up_for_with_the_final_checkpoint():
    async with world(A=Part(records=[1, 2])) as it:
        instance = await it.start()
        it.store.faults.fails["checkpoint"] = 100
        it.store.faults.fails["release"] = 2
        instance.ack("A", 1)
        it.stream.parts["A"].fails = denied
        await it.clock.advance(1.5)
        assert it.store.faults.fails["release"] == 1
        assert await it.store.checkpoint_of("A") is None
        await it.clock.advance(10)
        assert await it.store.checkpoint_of("A") == "1"


async def test_a_stop_at_any_moment_of_a_release_leaves_every_lease_free_and_its_checkpoint():
    for turns in range(40):
        async with world(A=Part(records=[1, 2]), B=Part(records=[10], closed=True)) as it:
            it.store.faults.turns = 10
            instance = await it.start()
            it.store.faults.fails["checkpoint"] = 1000
            instance.ack("A", 1)
            instance.ack("B", 10)
            it.stream.parts["A"].fails = denied
            moving = asyncio.create_task(it.clock.advance(1.2))
            for _ in range(turns * 8):
                await asyncio.sleep(0)
            await instance.stop()
            await moving
            for shard_id, checkpoint in (("A", "1"), ("B", SHARD_END)):
                row = await it.store.of(shard_id)
                assert row is not None
                assert (row.owner, row.checkpoint) == (None, checkpoint), turns


async def test_a_shard_that_only_holds_at_its_end_is_read_again_from_the_first_held_record(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P", 3)) as it:
        instance = await it.start()
        instance.ack("P", 1)
        shard, place = instance.open["P", 2]
        shard.hold(place)
        await it.clock.advance(3)
        # It is between owners, whoever seeks meanwhile; finished it is not.
        assert instance.coordinator.held.absent.left == {"P"}
        await it.clock.advance(7)
        assert instance.numbers("P")[:3] == [1, 2, 2]
        assert instance.numbers("C") == []
        assert "is finished" not in caplog.text
        instance.ack("P", 2)
        await it.clock.advance(5)
        assert instance.numbers("C") == [3]


async def test_a_shard_that_holds_too_many_is_read_again_from_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reader_module, "MAX_HELD", 4)
    async with world(A=Part(records=list(range(1, 30)))) as it:
        instance = await it.start()
        instance.ack("A", 1)
        shard, place = instance.open["A", 2]
        shard.hold(place)
        instance.ack("A", 3)
        instance.holding = True
        await it.clock.advance(1)
        # What is not handled yet keeps the shard: only then is it let go.
        await it.clock.advance(20)
        restarts = [number for number in instance.numbers("A") if number == 2]
        assert len(restarts) > 1
        assert max(instance.numbers("A")) < 12
        instance.holding, instance.acking = False, True
        await it.clock.advance(120)
        assert await it.store.checkpoint_of("A") == "29"
