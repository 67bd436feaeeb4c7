"""Rewinding a stream that was split: parents first, on whichever instance, through any crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, LeaseState
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.leases import SHARD_END
from tests.support.coordinating import HORIZON, Part, World, split_of, throttled, world

LATEST = KinesisPosition.latest()
ALL = {("G", 1), ("G", 2), ("P", 3), ("P", 4), ("C", 5), ("C", 6)}


def family() -> dict[str, Part]:
    """Return three generations, of which the last is open."""
    return {
        "G": Part(records=[1, 2], closed=True),
        "P": Part(("G",), [3, 4], closed=True),
        "C": split_of("P", 5, 6),
    }


async def seek(it: World, position: KinesisPosition, instance: int = 0) -> None:
    """Seek, while time passes."""
    seeking = asyncio.create_task(it.instances[instance].coordinator.seek(position))
    for _ in range(20):
        await it.clock.advance(0.5)
        if seeking.done():
            break
    await asyncio.wait_for(seeking, 5)


pytestmark = pytest.mark.usefixtures("lease_store")


async def test_a_replay_reads_finished_parents_that_are_listed_before_their_children():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(60)
        assert set(instance.received) == ALL
        assert list(instance.coordinator.holdings) == ["C"]
        instance.received.clear()
        await seek(it, HORIZON)
        await it.clock.advance(60)
        assert [number for _, number in instance.received] == [1, 2, 3, 4, 5, 6]
        for shard, checkpoint in (("G", SHARD_END), ("P", SHARD_END), ("C", "6")):
            found = await it.store.of(shard)
            assert found is not None
            assert (found.checkpoint, found.resume_from) == (checkpoint, None)


async def test_a_child_waits_for_its_parents_replay_to_be_settled():
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P", 3)) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(60)
        instance.received.clear()
        instance.acking = False
        await seek(it, HORIZON)
        await it.clock.advance(60)
        assert instance.received == [("P", 1), ("P", 2)]
        instance.ack("P", 1, 2)
        await it.clock.advance(10)
        assert instance.received == [("P", 1), ("P", 2), ("C", 3)]


async def test_a_replay_survives_a_crash_right_after_it_was_asked_for():
    async with world(**family()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(60)
        first.acking = False
        await seek(it, HORIZON)
        await first.kill()
        await it.clock.advance(11)
        second = await it.start(None, acking=True)
        await it.clock.advance(60)
        assert [number for _, number in second.received] == [1, 2, 3, 4, 5, 6]


async def test_a_second_replay_before_the_first_one_has_begun_moves_what_waits_for_it():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(60)
        instance.received.clear()
        instance.acking = False
        await seek(it, KinesisPosition.timestamp(5.0))
        await seek(it, HORIZON)
        for shard in ("P", "C"):
            found = await it.store.of(shard)
            assert found is not None
            assert found.resume_from == HORIZON


async def test_the_tip_moves_what_is_held_and_opens_no_parent():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(60)
        instance.received.clear()
        await seek(it, LATEST)
        await it.clock.advance(30)
        assert instance.received == []
        it.stream.parts["C"].records.append(7)
        await it.clock.advance(5)
        assert instance.received == [("C", 7)]
        assert await it.store.checkpoint_of("P") == SHARD_END


async def test_a_parent_that_ended_and_is_not_settled_yet_is_read_again():
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P", 3)) as it:
        instance = await it.start()
        await it.clock.advance(5)
        instance.ack("P", 1)
        old = dict(instance.open)
        await seek(it, HORIZON)
        await it.clock.advance(5)
        assert instance.received == [("P", 1), ("P", 2)] * 2
        for shard, place in old.values():
            shard.ack(place)
        await it.clock.advance(10)
        assert await it.store.checkpoint_of("P") == "1"
        instance.ack("P", 1, 2)
        await it.clock.advance(10)
        assert instance.received[4:] == [("C", 3)]


async def test_start_at_replays_parents_too_where_nobody_else_is_at_work():
    async with world(**family()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(60)
        await first.stop()
        second = await it.start(HORIZON, acking=True)
        await it.clock.advance(60)
        assert [number for _, number in second.received] == [1, 2, 3, 4, 5, 6]


async def test_start_at_moves_nothing_that_a_live_instance_holds_or_has_read():
    parts = {"P": Part(records=[1], closed=True), "C": split_of("P", 2), "D": split_of("P", 3)}
    async with world(**parts) as it:
        first = await it.start(acking=True)
        await it.clock.advance(60)
        holding = first.coordinator.holdings["D"]
        await first.coordinator.held._let_go(holding)
        second = await it.start(HORIZON, acking=True)
        await it.clock.advance(1)
        assert second.received == [("D", 3)]
        assert await it.store.checkpoint_of("P") == SHARD_END


async def test_a_shard_taken_over_from_a_dead_instance_is_not_moved_by_start_at():
    async with world(A=Part(records=[1, 2])) as it:
        first = await it.start(acking=True)
        await it.clock.advance(5)
        second = await it.start(HORIZON, acking=True)
        await first.kill()
        await it.clock.advance(20)
        assert list(second.coordinator.holdings) == ["A"]
        assert second.received == []


async def test_a_listing_that_fails_moves_nothing():
    async with world(A=Part(records=[1, 2])) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        it.stream.listing_fails = throttled
        seeking = asyncio.create_task(instance.coordinator.seek(HORIZON))
        await it.clock.advance(60)
        with pytest.raises(RequestError):
            await seeking
        it.stream.listing_fails = None
        await it.clock.advance(20)
        assert instance.received == [("A", 1), ("A", 2)]


async def test_a_shard_that_is_given_up_reopens_where_it_was_moved():
    async with world(A=Part(records=[1, 2, 3])) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.acking, instance.holding = False, True
        await seek(it, KinesisPosition.sequence("A", "2"))
        await it.clock.advance(5)
        await instance.coordinator.held._let_go(instance.coordinator.holdings["A"])
        found = await it.store.of("A")
        assert found is not None
        assert (found.checkpoint, found.resume_from) == ("3", KinesisPosition.sequence("A", "2"))
        instance.received.clear()
        await it.clock.advance(5)
        assert instance.received == [("A", 2), ("A", 3)]


async def test_a_child_waits_although_the_end_of_its_rewound_parent_was_stored_late(
    monkeypatch: pytest.MonkeyPatch,
):
    async with world(P=Part(records=[1], closed=True), C=split_of("P", 2)) as it:
        instance = await it.start()
        await it.clock.advance(1)
        store, arrived, go = it.store.checkpoint, asyncio.Event(), asyncio.Event()
        failing = list(range(4))

        async def slow(held: LeaseState, checkpoint: str | None, **options: Any) -> None:
            if checkpoint == SHARD_END:
                arrived.set()
                await go.wait()
            elif checkpoint is None and failing:
                raise ConnectionError(f"made by a test, {failing.pop()} to come")
            await store(held, checkpoint, **options)

        monkeypatch.setattr(it.store, "checkpoint", slow)
        instance.ack("P", 1)
        await it.clock.advance(1)
        assert arrived.is_set()
        seeking = asyncio.create_task(instance.coordinator.seek(HORIZON))
        await it.clock.advance(1)
        # The end is stored, and the rewind that comes after it cannot be, for a while.
        go.set()
        await it.clock.advance(20)
        assert instance.received == [("P", 1), ("P", 1)]
        await asyncio.wait_for(seeking, 5)
        instance.ack("P", 1)
        await it.clock.advance(10)
        assert instance.received[2:] == [("C", 2)]
