"""Acks that are told together: which, when, and what cuts a stretch short."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import Outcome, retry
from tests.support.channels import end, settle
from tests.support.coordinating import Part, world
from tests.support.dispatching import BASE, COUNT, Bench


async def test_silent_acks_of_a_run_are_told_in_one_call():
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        assert bench.shard.calls == []

    bench = Bench(handle)
    assert await bench.feed()
    await settle()

    assert seen == list(range(COUNT))
    assert bench.shard.calls == [("ack_range", BASE, BASE + COUNT)]
    assert bench.counters.handled == COUNT
    assert bench.channel.queued == 0
    assert bench.shard.started == BASE + COUNT - 1
    await end(*bench.workers)


async def test_a_handler_that_waits_keeps_no_ack_and_no_slot_of_others_back():
    gate = asyncio.Event()

    async def handle(number: int) -> None:
        if number in (3, 5):
            await gate.wait()
            gate.clear()

    bench = Bench(handle)
    assert await bench.feed()
    await settle()
    assert bench.settled == [0, 1, 2]
    assert bench.channel.queued == COUNT - 4
    assert bench.counters.handled == 3

    gate.set()
    await settle()
    # Its own, and those behind it up to the next that waits: each told before that one waited.
    assert bench.settled == [0, 1, 2, 3, 4]
    assert bench.channel.queued == COUNT - 6

    gate.set()
    await settle()
    assert bench.settled == list(range(COUNT))
    assert bench.counters.handled == COUNT
    assert bench.channel.queued == 0
    await end(*bench.workers)


async def test_after_a_wait_each_ack_is_told_before_the_next_handler_is_called():
    async def handle(number: int) -> None:
        if number == 2:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if number > 2:
            assert bench.settled == list(range(number))

    bench = Bench(handle)
    assert await bench.feed()
    await settle()
    assert bench.settled == list(range(COUNT))
    await end(*bench.workers)


async def test_catching_up_tells_what_was_acked_and_not_what_runs():
    async def handle(number: int) -> None:
        if number == 4:
            bench.channel.catch_up()
            assert bench.settled == [0, 1, 2, 3]
            bench.channel.catch_up()

    bench = Bench(handle)
    assert await bench.feed()
    await settle()
    assert bench.shard.calls == [("ack_range", BASE, BASE + 4), ("ack_range", BASE + 4, BASE + 8)]
    await end(*bench.workers)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_record_that_is_not_acked_is_left_out_of_its_stretch(waits: bool):
    async def handle(number: int) -> Outcome | None:
        if waits and number == 1:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if number == 6:
            raise ValueError(number)
        return retry() if number == 3 else None

    bench = Bench(handle)
    assert await bench.feed()
    await settle()
    assert bench.settled == [0, 1, 2, 4, 5, 7]
    held = [place - BASE for name, place, *_ in bench.shard.calls if name == "hold"]
    assert held == [3, 6]
    assert bench.counters.handled == COUNT - 1
    assert bench.channel.queued == 0
    await end(*bench.workers)


async def test_what_became_void_within_a_stretch_is_neither_handled_nor_acked():
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 3:
            bench.shard.generation += 1

    bench = Bench(handle)
    assert await bench.feed()
    await settle()
    assert seen == [0, 1, 2, 3]
    assert bench.shard.calls == []
    assert bench.channel.queued == 0
    await end(*bench.workers)


async def test_nothing_above_a_ceiling_that_comes_down_within_a_stretch_is_started():
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 3:
            bench.dispatcher.close([bench.shard])

    bench = Bench(handle)
    assert await bench.feed()
    await asyncio.wait_for(asyncio.gather(*bench.workers), 5)
    assert seen == [0, 1, 2, 3]
    assert bench.settled == [0, 1, 2, 3]
    assert bench.shard.ceiling == BASE + 3
    assert bench.channel.queued == 0


async def test_a_handler_that_is_cut_off_is_not_acked_and_those_before_it_are():
    async def handle(number: int) -> None:
        if number == 3:
            # In this very step, before the loop could go round.
            bench.workers[0].cancel()
            await asyncio.Event().wait()

    bench = Bench(handle)
    assert await bench.feed()
    await asyncio.wait(bench.workers)
    assert bench.settled == [0, 1, 2]
    assert bench.channel.queued == 0
    assert bench.shard.started == BASE + 3


async def test_stretches_of_lanes_are_told_together_too():
    async def handle(number: int) -> None:
        if number == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    bench = Bench(handle, lanes=2)
    assert await bench.feed("".join(chr(ord("a") + n % 16) for n in range(48)))
    await settle()
    assert sorted(bench.settled) == list(range(48))
    # The one that waited, and what was dealt then.
    assert [name for name, *_ in bench.shard.calls].count("ack_all") == 2
    assert len(bench.shard.calls) == 3
    assert bench.channel.queued == 0
    await end(*bench.workers)


async def test_the_end_of_a_holding_counts_what_was_acked_and_not_told_yet():
    async with world(a=Part(records=[1, 2, 3])) as there:
        instance = await there.start()
        (holding,) = instance.coordinator.holdings.values()
        shard_id = holding.shard.shard_id
        instance.channel.catch_up = lambda: instance.ack(shard_id, 1, 2)
        instance.coordinator.cut_off()
        assert holding.final is not None
        assert holding.final.checkpoint == "2"
