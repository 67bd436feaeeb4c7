"""Several instances on one stream: fair share, hand-over, and what a stop means to the others."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from ruststream_kinesis import KinesisPosition
from tests.support.coordinating import Instance, Part, World, world

PASS = 3.0


def held(instance: Instance) -> set[str]:
    return set(instance.coordinator.holdings)


def counts(it: World) -> list[int]:
    return [len(held(instance)) for instance in it.instances]


def parts(count: int) -> dict[str, Part]:
    return {f"S{n}": Part(records=[10 * n + 1]) for n in range(count)}


pytestmark = pytest.mark.usefixtures("lease_store")


async def test_case_l6_eight_shards_from_one_to_four_instances_end_at_two_each_and_rest():
    async with world(**parts(8)) as it:
        await it.start(acking=True)
        assert counts(it) == [8]
        for _ in range(3):
            await it.start(acking=True)
        await it.clock.advance(4 * PASS)
        assert counts(it) == [2, 2, 2, 2]
        before = [held(instance) for instance in it.instances]

        for _ in range(100):
            await it.clock.advance(PASS)
            assert [held(instance) for instance in it.instances] == before


async def test_case_l6_seven_shards_on_three_instances():
    async with world(**parts(7)) as it:
        for _ in range(3):
            await it.start(acking=True)
        await it.clock.advance(4 * PASS)

        assert sorted(counts(it)) == [2, 2, 3]


async def test_a_shard_that_is_handed_over_in_peace_repeats_nothing_and_misses_nothing():
    async with world(**parts(4)) as it:
        first = await it.start(acking=True)
        second = await it.start(acking=True)
        for n in range(2, 9):
            for shard in range(4):
                it.stream.parts[f"S{shard}"].records.append(10 * shard + n)
            await it.clock.advance(1.1)
        await it.clock.advance(3)

        assert counts(it) == [2, 2]
        for shard in range(4):
            got = first.numbers(f"S{shard}") + second.numbers(f"S{shard}")
            assert got == [10 * shard + n for n in range(1, 9)]


async def test_a_shard_is_handed_over_only_after_what_was_started_has_ended():
    async with world(**parts(2)) as it:
        first = await it.start()
        second = await it.start(acking=True)
        await it.clock.advance(10 * PASS)
        assert counts(it) == [2, 0]
        assert second.received == []

        for shard_id, number in list(first.open):
            first.ack(shard_id, number)
        await it.clock.advance(2 * PASS)

        assert counts(it) == [1, 1]
        assert second.received == []


async def test_a_record_that_is_held_does_not_keep_its_shard_from_being_handed_over():
    async with world(**parts(2)) as it:
        first = await it.start()
        for shard, place in list(first.open.values()):
            shard.hold(place)
        second = await it.start(acking=True)

        await it.clock.advance(3 * PASS)

        (moved,) = held(second)
        assert second.numbers(moved) == first.numbers(moved)


async def test_what_was_queued_and_not_started_is_the_successors():
    async with world(A=Part(records=[1]), B=Part(records=[101])) as it:
        first = await it.start()
        assert first.worker is not None
        await first.supervisor.cancel([first.worker])
        for part, base in (("A", 0), ("B", 100)):
            it.stream.parts[part].records += [base + n for n in range(2, 6)]
        await it.clock.advance(2)
        for shard_id, number in list(first.open):
            first.ack(shard_id, number)
        second = await it.start(acking=True)
        await it.clock.advance(3 * PASS)

        (moved,) = held(second)
        base = {"A": 0, "B": 100}[moved]
        assert second.numbers(moved) == [base + n for n in range(2, 6)]


async def test_a_clean_stop_leaves_its_shards_to_the_others_within_a_pass():
    """Case L7: at the next pass, not after the lease period."""
    async with world(**parts(4)) as it:
        first = await it.start(acking=True)
        second = await it.start(acking=True)
        await it.clock.advance(3 * PASS)

        await first.stop()
        await it.clock.advance(PASS + 0.1)

        assert len(held(second)) == 4
        everything = Counter(itertools.chain(first.received, second.received))
        assert max(everything.values()) == 1


async def test_the_shards_of_a_killed_instance_are_read_within_a_lease_and_two_passes():
    async with world(**parts(4)) as it:
        first = await it.start(acking=True)
        second = await it.start(acking=True)
        await it.clock.advance(3 * PASS)

        await first.kill()
        await it.clock.advance(10 + 2 * PASS + 1)

        assert len(held(second)) == 4


async def test_case_l8_two_instances_of_one_owner_id_share_like_any_two():
    async with world(**parts(1)) as it:
        await it.start(acking=True)
        await it.start(acking=True)
        await it.clock.advance(30 * PASS)

        assert counts(it) == [1, 0]


async def test_a_rewind_while_a_shard_is_handed_over_goes_to_its_successor():
    async with world(**parts(2)) as it:
        first = await it.start()
        second = await it.start(acking=True)
        await it.clock.advance(2 * PASS)
        leaving = {
            shard_id
            for shard_id, holding in first.coordinator.holdings.items()
            if holding.successor is not None
        }
        assert len(leaving) == 1
        it.stream.parts[min(leaving)].records.append(99)

        seek = first.supervisor.spawn("seek", first.coordinator.seek(KinesisPosition.horizon()))
        await it.clock.advance(3 * PASS)
        await seek

        assert held(second) == leaving
        (moved,) = leaving
        assert second.numbers(moved)[-1] == 99
        assert len(second.numbers(moved)) == 2
