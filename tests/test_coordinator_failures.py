"""The lease loop in trouble: one shard's trouble is its own, and a failed listing costs no lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardListing
from tests.support.coordinating import Part, denied, split_of, throttled, world

pytestmark = pytest.mark.usefixtures("lease_store")


async def test_case_s6_2500_shards_are_all_read():
    names = {f"shardId-{number:012}": Part(records=[number]) for number in range(1, 2501)}
    async with world(**names) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(1)
        assert len(instance.received) == 2500
        assert it.stream.most_asking <= 32


@pytest.mark.parametrize("how", [denied, throttled])
async def test_case_s7_one_of_700_shards_fails_for_ever_and_699_start_in_bounded_waves(
    how: Callable[[], RequestError],
):
    names = {f"S{number}": Part(records=[number]) for number in range(1, 701)}
    names["S5"].fails = how
    async with world(**names) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        assert len(instance.received) == 699
        assert it.stream.most_asking <= 32
        assert instance.failures == []


async def test_a_shard_that_may_not_be_read_is_tried_again_later_from_its_checkpoint(
    caplog: pytest.LogCaptureFixture,
):
    async with world(A=Part(records=[1, 2, 3, 4, 5]), B=Part(records=[10])) as it:
        instance = await it.start()
        instance.ack("A", 1)
        await it.clock.advance(1)
        it.stream.parts["A"].fails = denied
        await it.clock.advance(60)
        tries = len([shard_id for shard_id, _, _ in it.stream.opened if shard_id == "A"])
        # Growing pauses of 2 s and more: neither given up for good nor asked all the time.
        assert 4 < tries < 12
        assert any("other shards go on" in entry.getMessage() for entry in caplog.records)
        it.stream.parts["B"].records.append(11)
        it.stream.parts["A"].fails = None
        before = len(instance.received)
        await it.clock.advance(90)
        assert instance.received[before:].count(("B", 11)) == 1
        assert [number for name, number in instance.received[before:] if name == "A"] == [
            2,
            3,
            4,
            5,
        ]
        assert instance.failures == []


async def test_a_mistake_of_ours_in_a_reader_costs_its_shard_a_pause_and_no_record():
    async with world(A=Part(records=[1, 2]), B=Part(records=[10])) as it:
        instance = await it.start(acking=True)
        it.stream.parts["A"].fails = lambda: RuntimeError("a mistake")
        await it.clock.advance(2)
        it.stream.parts["A"].fails = None
        it.stream.parts["A"].records += [3, 4]
        await it.clock.advance(10)
        assert instance.numbers("A") == [1, 2, 3, 4]


async def test_a_listing_that_fails_or_hangs_keeps_every_lease():
    for trouble in ("fails", "hangs"):
        async with world(A=Part(records=[1])) as it:
            first = await it.start(acking=True)
            if trouble == "fails":
                it.stream.listing_fails = throttled
            else:
                it.stream.listing_hangs = True
            await it.clock.advance(30)
            listings = it.stream.listings
            owner = (await it.store.of("A")).owner  # type: ignore[union-attr]  # it is there
            it.stream.listing_fails, it.stream.listing_hangs = None, False
            second = await it.start(acking=True)
            it.stream.parts["A"].records.append(2)
            await it.clock.advance(30)
            assert (await it.store.of("A")).owner == owner  # type: ignore[union-attr]  # as above
            assert first.numbers("A") == [1, 2]
            assert second.numbers("A") == []
            if trouble == "fails":
                # Tried again, with pauses: not once, and not all the time.
                assert 5 <= listings <= 12


async def test_a_listing_that_is_throttled_at_the_start_does_not_end_the_service():
    async with world(A=Part(records=[1])) as it:
        tries = 0

        def once() -> Exception:
            nonlocal tries
            tries += 1
            if tries == 2:
                it.stream.listing_fails = None
            return throttled()

        it.stream.listing_fails = once
        instance = await it.start(acking=True)
        assert instance.numbers("A") == [1]


async def test_a_listing_that_was_asked_for_earlier_does_not_undo_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
):
    async with world(A=Part(records=[1])) as it:
        instance = await it.start(acking=True)
        discovery = instance.coordinator._discovery
        go, list_shards = asyncio.Event(), it.stream.list_shards

        async def slow(stream: StreamRef) -> ShardListing:
            listing = await list_shards(stream)
            await go.wait()
            return listing

        monkeypatch.setattr(it.stream, "list_shards", slow)
        early = asyncio.create_task(discovery.look())
        await it.clock.advance(0)
        monkeypatch.setattr(it.stream, "list_shards", list_shards)
        it.stream.parts["B"] = split_of("A", 2)
        await discovery.look()
        shown = discovery.shown
        go.set()
        await asyncio.wait_for(early, 5)
        assert set(discovery.shards) == {"A", "B"}
        assert discovery.shown == shown
