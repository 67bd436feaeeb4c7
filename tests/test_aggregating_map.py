"""Aggregated publishing: when shards are listed, and what a listing that is old costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis.errors import (
    AccessDenied,
    KinesisError,
    PublishError,
)
from ruststream_kinesis.limits import LAST_HASH_KEY
from ruststream_kinesis.transport import PutEntry, PutResult, ShardInfo
from tests.support.aggregates import halves, held, keys_in
from tests.support.putting import Sink, throttled


@pytest.fixture
def sink() -> Sink:
    return Sink()


async def turns(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestTheMap:
    async def test_shards_are_listed_at_the_first_record_and_again_after_some_minutes(
        self, sink: Sink
    ):
        own = sink.publisher(aggregate=True)
        assert sink.listed == 0
        for _ in range(4):
            own.publish_nowait(b"x", "orders")
            await sink.clock.advance(60)
        assert sink.listed == 1

        await sink.clock.advance(70)
        own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)
        assert sink.listed == 2

    async def test_an_answer_from_another_shard_makes_it_list_them_again(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        own.publish_nowait(b"x", "orders")
        await sink.clock.advance(2)
        sink.shards = halves(parent="shardId-0")

        futures = [
            own.publish_nowait(b"%d" % n, "orders", partition_key=f"k{n}") for n in range(20)
        ]
        await sink.clock.advance(0.05)
        # By the old map, and in the stream all the same.
        assert len(sink.requests[1]) == 1
        assert all(each.done() for each in futures)

        for n in range(20):
            own.publish_nowait(b"%d" % n, "orders", partition_key=f"k{n}")
        await sink.clock.advance(0.05)

        assert len(sink.requests[2]) == 2
        assert sink.listed == 2

    async def test_nothing_more_goes_to_a_shard_in_doubt_until_the_shards_are_listed(
        self, sink: Sink
    ):
        own = sink.publisher(aggregate=True, deadline=3)
        own.publish_nowait(b"0", "orders")
        await sink.clock.advance(0.05)
        sink.shards = halves(parent="shardId-0")
        listed, list_shards = asyncio.Event(), sink.list_shards

        async def slowly(stream: Any) -> Any:
            await listed.wait()
            return await list_shards(stream)

        vars(sink)["list_shards"] = slowly
        key = next(keys_in(low=True))
        own.publish_nowait(b"1", "orders", partition_key=key)
        await sink.clock.advance(0.05)
        second = own.publish_nowait(b"2", "orders", partition_key=key)
        await sink.clock.advance(0.5)
        assert len(sink.requests) == 2

        listed.set()
        await turns()
        assert len(sink.requests) == 3
        assert second.result().shard_id == "low"

        # Not beyond a deadline.
        listed.clear()
        sink.shards = halves("low2", "high2", parent="shardId-0")
        own.publish_nowait(b"3", "orders", partition_key=key)
        await sink.clock.advance(0.05)
        fourth = own.publish_nowait(b"4", "orders", partition_key=key)
        for _ in range(10):
            await sink.clock.advance(0.5)
        assert isinstance(fourth.exception(), PublishError)
        listed.set()
        await sink.clock.advance(0.5)

    async def test_a_map_that_never_fits_is_not_asked_for_at_every_answer(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        vars(sink)["shard_of"] = lambda _: "elsewhere"
        for _ in range(600):
            own.publish_nowait(b"x", "orders")
            await sink.clock.advance(0.1)
        # After 1, 2, 4, 8, … seconds.
        assert 5 <= sink.listed <= 8

    async def test_a_key_whose_shard_has_changed_keeps_its_order(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        first = own.publish_nowait(b"0", "orders")
        await sink.clock.advance(2)
        assert first.done()
        sink.shards = halves(parent="shardId-0")
        keys = [next(keys_in(low=True)), next(keys_in(low=False))]
        # One is taken, which says that there is another map; the other is refused and rests.
        own.publish_nowait(b"1", "orders", partition_key=keys[0])
        await sink.clock.advance(0.05)
        times = iter([throttled()])
        sink.refuse = lambda entry: next(times, None) if entry[1] == keys[1] else None
        futures = [own.publish_nowait(b"2", "orders", partition_key=keys[1])]
        await turns()
        await sink.clock.advance(0.05)
        futures += [own.publish_nowait(b"3", "orders", partition_key=keys[1])]
        for _ in range(10):
            await sink.clock.advance(0.1)

        assert [data for each in sink.taken() for data in held(PutEntry(each, ""))][2:] == [
            b"2",
            b"3",
        ]
        assert all(each.result().shard_id == "high" for each in futures)

    @pytest.mark.parametrize("low_rests", [True, False])
    async def test_nothing_goes_by_a_new_map_before_what_went_by_the_old_one_is_decided(
        self, sink: Sink, *, low_rests: bool
    ):
        own = sink.publisher(aggregate=True)
        sink.shards = halves()
        rests, goes = next(keys_in(low=low_rests)), next(keys_in(low=not low_rests))
        own.publish_nowait(b"0", "orders", partition_key=goes)
        await sink.clock.advance(2)
        # Merged; the next answer says so, while the other shard's record is refused and rests.
        sink.shards = [ShardInfo("all", hash_keys=("0", LAST_HASH_KEY))]
        times = iter([throttled(), throttled()])
        sink.refuse = lambda entry: next(times, None) if entry[1] == rests else None
        own.publish_nowait(b"r1", "orders", partition_key=rests)
        own.publish_nowait(b"g1", "orders", partition_key=goes)
        await sink.clock.advance(0.05)
        own.publish_nowait(b"r2", "orders", partition_key=rests)
        own.publish_nowait(b"g2", "orders", partition_key=goes)
        await sink.clock.advance(0.05)
        assert [held(each) for each in sink.requests[-1]] == [[b"r1"], [b"g1"]]
        for _ in range(20):
            await sink.clock.advance(0.1)

        assert [data for each in sink.taken() for data in held(PutEntry(each, ""))] == [
            b"0", b"g1", b"r1", b"r2", b"g2",
        ]  # fmt: skip
        assert len(sink.requests[-1]) == 1

    async def test_without_a_map_nothing_is_sent_until_there_is_one(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        error: list[KinesisError] = [throttled() for _ in range(3)]
        sink.fail_listing = lambda: error.pop() if error else None
        future = own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)
        assert sink.requests == []
        for _ in range(20):
            await sink.clock.advance(0.5)

        assert future.result() == PutResult("shardId-0", "1")
        assert sink.listed == 4

    async def test_a_record_does_not_wait_for_a_map_beyond_its_deadline(self, sink: Sink):
        own = sink.publisher(aggregate=True, deadline=3)
        sink.fail_listing = throttled
        future = own.publish_nowait(b"x", "orders")
        for _ in range(10):
            await sink.clock.advance(0.5)

        error = future.exception()
        assert isinstance(error, PublishError)
        assert error.__cause__ is not None
        assert sink.requests == []
        assert await sink.connection.collectors.flush(1) == ""

    async def test_a_listing_with_a_range_that_is_none_is_asked_for_again(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        good, sink.shards = sink.shards, [ShardInfo("shardId-0", hash_keys=("0", "all"))]
        future = own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)
        assert not future.done()
        sink.shards = good
        await sink.clock.advance(1)
        assert future.result().shard_id == "shardId-0"

    async def test_a_single_shard_without_a_range_takes_everything(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        vars(sink)["shard_of"] = lambda _: "the one"
        sink.shards = [ShardInfo("the one"), ShardInfo("old", ended=True)]
        for n in range(3):
            own.publish_nowait(b"%d" % n, "orders")
        await sink.clock.advance(0.05)
        assert [held(entry) for each in sink.requests for entry in each] == [[b"0", b"1", b"2"]]
        assert sink.listed == 1

    async def test_where_shards_may_not_be_listed_the_record_says_so_at_once(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        sink.fail_listing = lambda: AccessDenied("no", code="AccessDeniedException", status=400)
        future = own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)

        error = future.exception()
        assert isinstance(error, PublishError)
        assert isinstance(error.__cause__, AccessDenied)

    async def test_a_map_that_cannot_be_had_again_does_not_stop_publishing(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)
        sink.fail_listing = lambda: AccessDenied("no", code="AccessDeniedException", status=400)
        await sink.clock.advance(400)
        futures = [own.publish_nowait(b"x", "orders") for _ in range(2)]
        await sink.clock.advance(0.05)

        assert all(each.result().sequence_number == "2" for each in futures)
        assert sink.listed == 2

    async def test_a_stop_ends_a_listing_that_goes_on_after_the_records(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        own.publish_nowait(b"x", "orders")
        await sink.clock.advance(400)
        hung = asyncio.Event()

        async def hang(_stream: object) -> Any:
            await hung.wait()

        vars(sink)["list_shards"] = hang
        future = own.publish_nowait(b"x", "orders")
        await sink.clock.advance(0.05)
        assert future.done()
        assert len(asyncio.all_tasks()) == 2

        assert await sink.connection.collectors.flush(1) == ""
        sink.connection.collectors.close()
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
