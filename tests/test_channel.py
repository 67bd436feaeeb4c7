"""The channel: never more than its slots, in order, and no wake-up lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ruststream_kinesis.channel import CAPACITY, Channel, Run
from tests.support.channels import (
    FakeShard,
    channel_of,
    end,
    feed,
    keys_of_two_lanes,
    page,
    page_of,
    settle,
    work,
)


async def test_a_reader_waits_when_the_slots_are_full_and_not_one_delivery_earlier():
    channel, shard = channel_of(), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(CAPACITY + 1)))
    await settle()
    assert channel.queued == shard.fed == CAPACITY
    assert not reader.done()
    worker = asyncio.create_task(work(channel))
    assert await asyncio.wait_for(reader, 5)
    await settle()
    assert shard.taken == list(range(CAPACITY + 1))
    assert channel.queued == 0
    await end(worker)


async def test_a_taken_delivery_keeps_its_slot_until_it_is_started():
    channel, shard = Channel(capacity=4), FakeShard()
    assert await feed(channel, shard, page(4))
    await channel.take(0)
    assert channel.queued == 4
    channel.release()
    assert channel.queued == 3


async def test_a_slice_is_cut_for_half_a_channel_and_not_for_each_slot():
    channel, shard = channel_of(capacity=8), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    run = await channel.take(0)
    assert run is not None
    channel.release(3)
    await settle()
    assert shard.fed == 8
    channel.release()
    # At once: no reader has to be woken for it.
    assert shard.fed == 12
    assert await reader


async def test_an_idle_lane_gets_what_there_is_room_for_while_a_slow_lane_keeps_most_slots():
    channel, shard, other = Channel(lanes=2, capacity=8), FakeShard(), FakeShard("shard-2")
    slow, quick = keys_of_two_lanes()
    assert await feed(channel, shard, page_of([slow] * 8))
    idle = asyncio.create_task(work(channel, 1))
    blocked = asyncio.create_task(feed(channel, other, page_of([quick])))
    await settle()
    # The slow lane started one delivery and hangs in it: one slot is free, far from half of them.
    assert await channel.take(0) is not None
    channel.release()
    await settle()
    assert blocked.done()
    assert other.taken == [0]
    await end(idle)


async def test_a_lane_that_becomes_idle_is_a_reason_to_read_too():
    channel, shard, other = Channel(lanes=2, capacity=8), FakeShard(), FakeShard("shard-2")
    slow, quick = keys_of_two_lanes()
    assert await feed(channel, shard, page_of([slow] * 6 + [quick] * 2))
    blocked = asyncio.create_task(feed(channel, other, page_of([quick])))
    await settle()
    assert not blocked.done()
    # It starts its two, which frees too few slots for a slice, and then has nothing to do.
    quickly = asyncio.create_task(work(channel, 1))
    await settle()
    assert other.taken == [0]
    await end(quickly, blocked)


async def test_no_shard_starves_beside_others_while_handlers_never_pause():
    channel = Channel(capacity=8)
    shards = [FakeShard(f"shard-{n}") for n in range(5)]
    content, order = page(8), Counter[str]()

    async def read(shard: FakeShard) -> None:
        base = 0
        while await feed(channel, shard, content, base):
            base += len(content)

    readers = [asyncio.create_task(read(shard)) for shard in shards]

    enough = asyncio.Event()

    def handled(shard: FakeShard) -> None:
        order[shard.shard_id] += 1
        if order.total() >= 4000:
            enough.set()

    worker = asyncio.create_task(work(channel, handled=handled))
    await asyncio.wait_for(enough.wait(), 10)
    await end(worker, *readers)
    assert min(order[shard.shard_id] for shard in shards) > 0.8 * 4000 / 5


async def test_readers_are_served_in_the_order_in_which_they_asked():
    channel, first = Channel(capacity=4), FakeShard()
    assert await feed(channel, first, page(4))
    shards = [FakeShard(f"shard-{n}") for n in range(6)]
    served: list[str] = []

    async def read(shard: FakeShard) -> None:
        assert await feed(channel, shard, page(4))
        served.append(shard.shard_id)

    readers = [asyncio.create_task(read(shard)) for shard in shards]
    await settle()
    worker = asyncio.create_task(work(channel))
    await asyncio.wait_for(asyncio.gather(*readers), 5)
    assert served == [shard.shard_id for shard in shards]
    await end(worker)


async def test_a_reader_that_comes_while_another_is_woken_does_not_overtake_it():
    channel, shard, late = Channel(capacity=4), FakeShard(), FakeShard("late")
    assert await feed(channel, shard, page(4))
    waiting = asyncio.create_task(feed(channel, shard, page(4)))
    await settle()
    # Its first step comes before that of the reader that is woken here.
    overtaking = asyncio.create_task(feed(channel, late, page(4)))
    channel._lanes[0].clear()
    channel.release(4)
    await settle()
    assert waiting.done()
    assert not overtaking.done()
    await end(overtaking)


async def test_a_void_reader_on_a_full_channel_is_woken_and_the_next_one_has_its_turn():
    full, void, other = FakeShard(), FakeShard("void"), FakeShard("other")
    channel = Channel(capacity=4)
    assert await feed(channel, full, page(4))
    blocked = asyncio.create_task(feed(channel, void, page(1)))
    behind = asyncio.create_task(feed(channel, other, page(1)))
    await settle()
    void.generation += 1
    channel.discard(void)
    await settle()
    assert blocked.done()
    assert not await blocked
    assert not behind.done()
    channel.release(2)
    await settle()
    assert behind.done()


async def test_discarding_drops_the_old_stamps_only_and_frees_their_slots():
    channel, moved, other = Channel(capacity=8), FakeShard(), FakeShard("other")
    assert await feed(channel, moved, page(2))
    assert await feed(channel, other, page(2))
    moved.generation += 1
    assert await feed(channel, moved, page(1), base=2)
    channel.discard(moved)
    assert channel.queued == 3
    worker = asyncio.create_task(work(channel))
    await settle()
    assert moved.taken == [2]
    assert other.taken == [0, 1]
    assert moved.stale == []
    await end(worker)


async def test_a_page_of_a_void_generation_is_refused_even_when_slots_are_free():
    channel, shard = channel_of(), FakeShard()
    shard.generation = 1
    assert not await channel.feed(Run(shard, 0, page(1), 0, range(1)))
    assert channel.queued == 0


async def test_a_page_without_records_is_in_at_once():
    channel, shard, full = Channel(capacity=1), FakeShard(), FakeShard("full")
    assert await feed(channel, full, page(1))
    assert await feed(channel, shard, page(0))


async def test_a_rewind_while_a_page_is_half_in_leaves_the_rest_out():
    channel, shard = channel_of(capacity=4), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    assert shard.fed == 4
    shard.generation += 1
    channel.discard(shard)
    assert channel.queued == 0
    worker = asyncio.create_task(work(channel))
    assert not await asyncio.wait_for(reader, 5)
    await settle()
    assert shard.fed == 4
    assert shard.taken == shard.stale == []
    await end(worker)


async def test_a_lost_shard_that_nobody_discarded_yet_gets_nothing_more_in():
    channel, shard = channel_of(capacity=4), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    shard.generation += 1
    channel.release(4)
    assert not await asyncio.wait_for(reader, 5)
    assert shard.fed == 4


async def test_a_page_that_became_void_after_its_last_slice_is_not_said_to_be_in():
    """Its reader would take the end of the old read for the end of the rewound shard."""
    channel, shard = channel_of(capacity=4), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(8)))
    await settle()
    channel.release(4)
    assert shard.fed == 8
    assert not reader.done()
    shard.generation += 1
    channel.discard(shard)
    assert not await reader


async def test_the_rest_of_a_cancelled_page_stays_out():
    channel, shard = channel_of(capacity=4), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    reader.cancel()
    # Before the reader has run: what is freed meanwhile is not for it.
    channel.release(4)
    await settle()
    assert reader.cancelled()
    assert shard.fed == 4
    assert not channel._waiting


async def test_a_closed_channel_takes_nothing_more_in():
    channel, shard = channel_of(capacity=4), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    channel.close()
    worker = asyncio.create_task(work(channel))
    await asyncio.wait_for(worker, 5)
    assert shard.taken == [0, 1, 2, 3]
    assert not reader.done()
    await end(reader)
    assert not channel._waiting


async def test_a_long_page_leaves_every_other_reader_its_turn():
    channel, long, short = channel_of(capacity=4), FakeShard("long"), FakeShard("short")
    readers = [
        asyncio.create_task(feed(channel, long, page(400))),
        asyncio.create_task(feed(channel, short, page(4))),
    ]
    await settle()
    assert (long.fed, short.fed) == (4, 0)
    for fed in ((8, 0), (8, 4), (12, 4)):
        run = await channel.take(0)
        assert run is not None
        channel.release(len(run))
        assert (long.fed, short.fed) == fed
    await end(*readers)


async def test_handlers_that_never_wait_leave_the_loop_its_turns():
    channel, shard, turns, meanwhile = channel_of(), FakeShard(), 0, 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def busy(_: FakeShard) -> None:
        nonlocal meanwhile
        meanwhile = turns
        until = asyncio.get_running_loop().time() + 0.0002
        while asyncio.get_running_loop().time() < until:
            pass

    beside = asyncio.create_task(others())
    worker = asyncio.create_task(work(channel, handled=busy))
    assert await feed(channel, shard, page(640))
    await settle()
    assert len(shard.taken) == 640
    # A turn for each slice at least, since each takes longer than the loop is held for.
    assert meanwhile >= 640 // CAPACITY - 1
    await end(worker, beside)


@pytest.mark.parametrize("when", ["waiting", "in"])
async def test_a_cancelled_reader_leaves_its_turn_to_the_next(when: str):
    channel, full = channel_of(capacity=4), FakeShard()
    assert await feed(channel, full, page(4))
    cancelled = asyncio.create_task(feed(channel, FakeShard("a"), page(4)))
    following = asyncio.create_task(feed(channel, FakeShard("b"), page(4)))
    await settle()
    if when == "in":
        # All of its page is in, although it has not run since.
        channel.release(4)
    cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    assert not following.done()
    channel.release(4)
    await settle()
    assert following.done()


async def test_a_worker_cancelled_as_it_is_woken_leaves_the_run_in_its_lane():
    channel, shard = Channel(), FakeShard()
    worker = asyncio.create_task(work(channel))
    await settle()
    assert await feed(channel, shard, page(3))
    worker.cancel()
    await settle()
    assert channel.queued == 3
    following = asyncio.create_task(work(channel))
    await settle()
    assert shard.taken == [0, 1, 2]
    await end(following)


async def test_a_cancelled_worker_is_no_idle_lane_any_more():
    channel, shard = Channel(lanes=1, capacity=8), FakeShard()
    worker = asyncio.create_task(work(channel))
    await settle()
    await end(worker)
    assert await feed(channel, shard, page(8))
    blocked = asyncio.create_task(feed(channel, shard, page(1)))
    await settle()
    channel.release()
    await settle()
    assert not blocked.done()
    await end(blocked)


async def test_a_closed_channel_is_drained_and_then_ends_every_worker():
    channel, shard = Channel(lanes=3), FakeShard()
    assert await feed(channel, shard, page(30))
    waiting = asyncio.create_task(Channel(lanes=3).take(2))
    workers = [asyncio.create_task(work(channel, lane)) for lane in range(3)]
    channel.close()
    await asyncio.wait_for(asyncio.gather(*workers), 5)
    assert sorted(shard.taken) == list(range(30))
    assert channel.queued == 0
    await end(waiting)


async def test_closing_wakes_workers_that_wait():
    channel = Channel(lanes=2)
    workers = [asyncio.create_task(channel.take(lane)) for lane in range(2)]
    await settle()
    channel.close()
    assert await asyncio.wait_for(asyncio.gather(*workers), 5) == [None, None]
