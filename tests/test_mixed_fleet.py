"""Beside the Rust sibling, which opens a child without a checkpoint at the tip."""

from __future__ import annotations

import pytest

from ruststream_kinesis import LeaseKey, MemoryLeaseStore
from ruststream_kinesis.leases import SHARD_END
from tests.support.coordinating import Part, World, split_of, world


async def sibling(it: World, shard_id: str) -> None:
    """Hold a shard as somebody who has no member row."""
    held = await MemoryLeaseStore.acquire(
        it.store, LeaseKey("orders", shard_id), "sibling", duration=1e9
    )
    assert held is not None


def family() -> dict[str, Part]:
    child = split_of("P", 11, 12)
    child.starts = "10"
    return {"P": Part(records=[1], closed=True), "C": child, "F": Part(records=[100])}


async def test_a_child_is_checkpointed_at_its_start_before_anything_of_it_is_settled():
    async with world(**family()) as it:
        await sibling(it, "F")
        instance = await it.start()
        instance.ack("P", 1)
        await it.clock.advance(4)

        assert instance.numbers("C") == [11, 12]
        assert await it.store.checkpoint_of("C") == "10"
        instance.ack("C", 11)
        await it.clock.advance(1)
        assert await it.store.checkpoint_of("C") == "11"


async def test_among_ourselves_a_child_has_no_checkpoint_before_something_is_settled():
    async with world(**family()) as it:
        instance = await it.start()
        instance.ack("P", 1)
        await it.clock.advance(4)
        assert await it.store.checkpoint_of("P") == SHARD_END

        assert instance.numbers("C") == [11, 12]
        assert await it.store.checkpoint_of("C") is None


async def test_a_shard_without_listed_parents_opens_as_ever():
    async with world(F=Part(records=[100]), A=Part(records=[1], starts="0")) as it:
        await sibling(it, "F")
        instance = await it.start()

        assert instance.numbers("A") == [1]
        assert await it.store.checkpoint_of("A") is None


@pytest.mark.parametrize("passes", [1, 30])
async def test_what_the_sibling_holds_is_left_to_it(passes: int):
    async with world(**family()) as it:
        await sibling(it, "F")
        instance = await it.start(acking=True)
        await it.clock.advance(3 * passes)

        assert instance.numbers("F") == []
