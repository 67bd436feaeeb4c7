"""One reader: its pace and its ends. Time is the test's own, so that it can be exact.

What needs a real socket or a whole service is in `test_reader_service.py`, on a scripted server,
and in `live/test_reading.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis import reader as reader_module
from tests.support.reading import EXPIRED, SHARD, Asked, bench, body, refusal
from tests.support.scripted import record

# -- pace ------------------------------------------------------------------------------------------


async def test_case_r1_a_shard_that_lags_is_read_on_at_the_floor_and_an_idle_one_is_not():
    async with bench(
        body((), 60_000), body((), 30_000), body((1, 2, 3), 5_000), body((), 0), body((), 0)
    ) as it:
        await it.clock.advance(10)
        assert it.transport.times == [0, 0.2, 0.4, 0.6, 1.6, 2.6]
        assert it.received == ["1", "2", "3"]


async def test_case_r2_empty_pages_with_lag_are_followed_at_five_a_second_and_keep_the_position():
    pages = [body((), lag, f"i-{lag}") for lag in range(1, 21)]
    async with bench(body((7,), 50), *pages, refusal(EXPIRED), body()) as it:
        await it.clock.advance(10)
        followed = [iterator for _, iterator in it.transport.reads]
        assert followed[:22] == ["new-1", "next", *(f"i-{lag}" for lag in range(1, 21))]
        times = [when for when, _ in it.transport.reads][:22]
        assert all(later - earlier > 0.199 for earlier, later in itertools.pairwise(times))
        # What the position is shows when an iterator has to be built from it.
        assert it.transport.asked[1:] == [Asked(KinesisPosition.sequence(SHARD, "7"), after=True)]


async def test_records_without_a_lag_mean_that_there_may_be_more():
    async with bench(body((1,), None), body((), None), body((), None)) as it:
        await it.clock.advance(5)
        assert it.transport.times == [0, 0.2, 1.2, 2.2]
        assert it.shard.lag_ms is None
        assert it.received == ["1"]


async def test_time_spent_waiting_for_handlers_counts_towards_the_pause():
    async with bench(body(range(1, 201), 10), body((), 0)) as it:
        it.worker.cancel()
        await it.clock.advance(7)
        assert it.transport.times == [0]
        it.worker = asyncio.create_task(it._work())
        await it.clock.advance(0)
        assert it.transport.times == [0, 7]


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [body((8, 9), 0, None), body((8, 9), 0, "")])
async def test_a_shard_ends_where_its_iterators_do_and_the_last_records_are_delivered(last: bytes):
    async with bench(body((7,), 1), last) as it:
        await it.clock.advance(1)
        assert it.task.done()
        assert it.received == ["7", "8", "9"]
        assert it.shard.finished


async def test_a_shard_that_ends_empty_is_finished_at_once():
    async with bench(body((), 0, None)) as it:
        await it.clock.advance(0)
        assert it.shard.finished
        assert it.moves == 1


async def test_a_shard_that_holds_too_many_records_back_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reader_module, "MAX_HELD", 3)
    async with bench(*[body((number,), 100) for number in range(1, 9)]) as it:
        it.acking = False
        for place in range(8):
            await it.clock.advance(0.2)
            it.shard.hold(place)
        assert it.task.done()
        # One was on its way when the fourth was refused.
        assert it.received == ["1", "2", "3", "4", "5"]
        assert it.shard.watermark.drained


async def test_a_large_page_is_read_beside_the_loop_and_delivered_whole():
    records = [record(number, b"x" * 40_000) for number in range(1, 41)]
    large = json.dumps({"Records": records, "NextShardIterator": None}).encode()
    assert len(large) > 1024 * 1024
    async with bench(large) as it:
        await asyncio.wait_for(it.task, 10)
        await it.clock.advance(0)
        assert it.received == [str(number) for number in range(1, 41)]
