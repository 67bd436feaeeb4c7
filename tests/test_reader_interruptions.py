"""One reader, interrupted at every await: cut off, rewound, or without its shard."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from tests.support.reading import HORIZON, SHARD, Bench, bench, body


class Log:
    """A shard of twenty records, read three at a time, with some turns of the loop in each call."""

    count = 20

    def __init__(self) -> None:
        self.turns = 3

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Return the place as text."""
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if position.kind == "horizon":
            return "1"
        return str(int(position.sequence_number or "") + after)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Return three records from there, and no iterator at the end."""
        for _ in range(self.turns):
            await asyncio.sleep(0)
        first = int(iterator)
        stop = min(first + 3, self.count + 1)
        return body(range(first, stop), 1, str(stop) if stop <= self.count else None)


EVERYTHING = [str(number) for number in range(1, Log.count + 1)]
TURNS = 90
"""More turns of the loop than the whole log takes."""


async def turn(it: Bench, turns: int) -> None:
    """Let the loop turn so often, with time moving as fast as it may."""
    for _ in range(turns):
        for _, _, woken in it.clock._sleepers:
            if not woken.done():
                woken.set_result(None)
        await asyncio.sleep(0)


@pytest.mark.parametrize("capacity", [2, 64])
async def test_a_reader_cut_off_at_any_await_leaves_position_and_places_that_skip_nothing(
    capacity: int,
):
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            it.channel._capacity = it.channel._free = capacity
            it.channel._enough = max(1, capacity // 2)
            await turn(it, turns)
            it.task.cancel()
            await asyncio.gather(it.task, return_exceptions=True)
            shard = it.shard
            taken = shard.watermark.next_place
            position = shard.read_from.sequence_number
            assert (int(position) if position else 0) == taken
            await turn(it, 10)
            # What was queued is handled, and the checkpoint covers that and not more.
            assert it.received == EVERYTHING[: len(it.received)]
            assert shard.watermark.position == (it.received[-1] if it.received else None)
            before = list(it.received)
        start = KinesisPosition.sequence(SHARD, before[-1]) if before else HORIZON
        async with bench(transport=Log(), opening=start, after=bool(before)) as again:
            await turn(again, 2 * TURNS)
            assert before + again.received == EVERYTHING
            assert again.shard.finished


async def test_a_rewind_at_any_await_gives_exactly_what_follows_the_new_position():
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            await turn(it, turns)
            if it.shard.ended:
                continue
            it.shard.void()
            it.shard.read_from, it.shard.read_after = KinesisPosition.sequence(SHARD, "5"), False
            it.channel.discard(it.shard)
            await turn(it, 2 * TURNS)
            new = [
                number
                for number, generation in zip(it.received, it.generations, strict=True)
                if generation == 1
            ]
            assert new == EVERYTHING[4:]
            assert it.shard.finished


@pytest.mark.parametrize("capacity", [2, 64])
async def test_a_shard_lost_at_any_await_gets_no_further_delivery_and_its_reader_ends(
    capacity: int,
):
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            it.channel._capacity = it.channel._free = capacity
            it.channel._enough = max(1, capacity // 2)
            await turn(it, turns)
            if it.shard.ended:
                continue
            before = list(it.received)
            it.shard.lose()
            it.channel.discard(it.shard)
            await turn(it, 2 * TURNS)
            assert it.received == before
            assert it.task.done()
            assert it.channel.queued == 0
