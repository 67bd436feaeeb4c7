"""Several workers: one handles everything while no handler waits, and each its keys once one does."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_kinesis.channel import CAPACITY
from tests.support.channels import end, keys_of_two_lanes, settle
from tests.support.dispatching import BASE, Bench, Told

A, B = keys_of_two_lanes()
"""A key of each of two partitions."""

CALM = 8 * CAPACITY
"""Deliveries without a wait after which they are dealt no more."""


def various(count: int) -> list[str]:
    """Keys of every lane."""
    return [f"key-{n % 50}" for n in range(count)]


async def test_while_no_handler_waits_one_worker_handles_all_in_the_order_of_the_page():
    seen: list[int] = []
    tasks = set[object]()

    async def handle(number: int) -> None:
        seen.append(number)
        tasks.add(asyncio.current_task())

    bench = Bench(handle, lanes=8)
    assert await bench.feed(various(200))
    await settle()
    assert seen == list(range(200))
    assert len(tasks) == 1
    assert {name for name, *_ in bench.shard.calls} == {"ack_range"}
    assert bench.settled == seen
    assert bench.channel.queued == 0
    await end(*bench.workers)


async def test_a_handler_that_waits_holds_up_its_own_key_and_no_other():
    seen: list[int] = []
    gate = asyncio.Event()

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 4:
            await gate.wait()

    # The waiting one is of the second partition: its worker had the first one until now.
    bench = Bench(handle, lanes=2)
    assert await bench.feed([A, B, A, A, B, A, B, B, A, A])
    await settle()
    assert seen == [0, 1, 2, 3, 4, 5, 8, 9]
    assert sorted(bench.settled) == [0, 1, 2, 3, 5, 8, 9]
    assert bench.channel.queued == 2
    # What comes later follows what is there, in either lane.
    assert await bench.feed([B, A], first=10)
    await settle()
    assert seen[8:] == [11]
    gate.set()
    await settle()
    assert seen[9:] == [6, 7, 10]
    assert sorted(bench.settled) == list(range(12))
    assert bench.channel.queued == 0
    assert bench.counters.handled == 12
    await end(*bench.workers)


async def test_what_was_queued_behind_a_run_is_dealt_with_the_rest_of_it():
    seen: list[int] = []
    gate = asyncio.Event()

    async def handle(number: int) -> None:
        if number == 0:
            # In this very step: they are queued as the loop goes round.
            for first in (2, 4, 6):
                assert await bench.feed([A, B], first=first)
            await gate.wait()
        seen.append(number)

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A, B])
    await settle()
    assert seen == [1, 3, 5, 7]
    gate.set()
    await settle()
    assert seen[4:] == [0, 2, 4, 6]
    await end(*bench.workers)


async def test_a_single_record_that_waits_holds_up_no_other_key_either():
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 0:
            await asyncio.Event().wait()

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A])
    await settle()
    assert await bench.feed([B, A, B], first=1)
    await settle()
    assert seen == [0, 1, 3]
    await end(*bench.workers)


async def test_lanes_that_get_nothing_of_what_is_dealt_are_a_reason_to_read():
    quick: list[int] = []

    async def handle(number: int) -> None:
        if number < 40:
            await asyncio.Event().wait()
        quick.append(number)

    bench, other = Bench(handle, lanes=2), Told(shard_id="other")
    assert await bench.feed([A] * 40)
    reader = asyncio.create_task(bench.feed([B] * 30, first=40, shard=other))
    await settle()
    assert quick == list(range(40, 70))
    assert reader.done()
    assert bench.channel.queued == 39
    await end(*bench.workers)


async def test_a_handler_that_always_waits_is_not_tried_again():
    dealt: list[bool] = []

    async def handle(number: int) -> None:
        await asyncio.sleep(0)

    bench = Bench(handle, lanes=8)
    deal = bench.channel.deal
    bench.channel.deal = lambda *at: dealt.append(deal(*at)) or dealt[-1]  # type: ignore[method-assign,func-returns-value]  # on this one object
    assert await bench.feed(various(5 * CALM))
    async with asyncio.timeout(10):
        while bench.counters.handled < 5 * CALM:
            await settle()
    assert dealt.count(True) == 1
    assert dealt[0]
    # Nor is it asked for all the time.
    assert len(dealt) < 5 * CALM / 20
    await end(*bench.workers)


async def test_when_no_handler_has_waited_for_long_one_worker_handles_all_again():
    tasks: dict[int, object] = {}

    async def handle(number: int) -> None:
        tasks[number] = asyncio.current_task()
        if number in (0, 3 * CALM):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    bench = Bench(handle, lanes=4)
    assert await bench.feed(various(4 * CALM))
    await settle()
    assert sorted(bench.settled) == list(range(4 * CALM))
    assert len({tasks[n] for n in range(1, CALM)}) == 4
    assert len({tasks[n] for n in range(CALM + 2 * CAPACITY, 3 * CALM)}) == 1
    assert len({tasks[n] for n in range(3 * CALM + CAPACITY, 4 * CALM)}) == 4
    await end(*bench.workers)


async def test_while_one_handler_still_waits_the_others_go_on_however_many_they_are():
    gate = asyncio.Event()

    async def handle(number: int) -> None:
        if number == 0:
            await gate.wait()

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A])
    await settle()
    assert await bench.feed([B] * 3 * CALM, first=1)
    await settle()
    assert bench.settled == list(range(1, 3 * CALM + 1))
    gate.set()
    await settle()
    assert bench.settled[-1] == 0
    await end(*bench.workers)


async def test_what_is_dealt_already_keeps_its_place_when_nothing_more_is_dealt():
    running = 0

    async def handle(number: int) -> None:
        nonlocal running
        if number == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elif number >= CALM:
            running += 1
            assert running == 1, "one key twice at once"
            await asyncio.sleep(0)
            running -= 1

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A])
    await settle()
    assert await bench.feed([B] * (CALM - 1), first=1)
    await settle()
    # The last one that is dealt, and the next slice while it is still queued.
    for first in (CALM, CALM + 4):
        assert await bench.feed([B] * 4, first=first)
    await settle()
    assert bench.settled == list(range(CALM + 8))
    await end(*bench.workers)


async def test_what_is_left_when_the_channel_closes_is_handled_although_other_workers_have_ended():
    gate, seen = asyncio.Event(), list[int]()

    async def handle(number: int) -> None:
        if number == 1:
            bench.channel.close()
            await gate.wait()
        seen.append(number)

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A, A, B, A, B])
    await settle()
    gate.set()
    await asyncio.wait_for(asyncio.gather(*bench.workers), 5)
    assert seen == list(range(5))
    assert bench.settled == seen
    assert bench.channel.queued == 0


async def test_what_is_dealt_and_void_or_above_the_ceiling_is_not_handled():
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 0:
            await asyncio.Event().wait()
        if number == 3:
            bench.channel.limit([bench.shard])

    bench, other = Bench(handle, lanes=2), Told(shard_id="other")
    assert await bench.feed([A, B, A, B, A, B])
    assert await bench.feed([B, B], first=100, shard=other)
    other.generation += 1
    await settle()
    assert seen == [0, 1, 3]
    assert bench.shard.ceiling == BASE + 3
    assert bench.channel.queued == 2
    await end(*bench.workers)


async def test_a_worker_cut_off_after_its_rest_was_dealt_frees_no_slot_twice():
    async def handle(number: int) -> None:
        await asyncio.Event().wait()

    bench = Bench(handle, lanes=2)
    assert await bench.feed([A, B, A, B])
    await settle()
    assert bench.channel.queued == 2
    await end(bench.workers[0])
    assert bench.channel.queued == 2
    await end(*bench.workers)


Page = tuple[int, list[tuple[int, int]]]
"""A shard, and the records of a page: which key, and how many loop turns its handler waits."""

waits = st.one_of(st.just(0), st.just(0), st.just(0), st.integers(0, 4))
pages = st.lists(
    st.tuples(
        st.integers(0, 2), st.lists(st.tuples(st.integers(0, 9), waits), min_size=1, max_size=90)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(lanes=st.integers(1, 5), plan=pages, rewinds=st.sets(st.integers(0, 7), max_size=2))
def test_whoever_waits_a_key_is_never_handled_twice_at_once_and_keeps_its_order(
    lanes: int, plan: list[Page], rewinds: set[int]
):
    keys: dict[int, str] = {}
    turns: dict[int, int] = {}
    owner: dict[int, int] = {}
    running: set[str] = set()
    done: dict[tuple[int, str], list[int]] = defaultdict(list)

    async def handle(number: int) -> None:
        key = keys[number]
        assert key not in running, "one key twice at once"
        running.add(key)
        for _ in range(turns[number]):
            await asyncio.sleep(0)
        done[owner[number], key].append(number)
        running.remove(key)

    async def play() -> None:
        bench, first, readers = Bench(handle, lanes), 0, dict[int, asyncio.Task[None]]()
        shards = [bench.shard, Told(shard_id="one"), Told(shard_id="two")]
        void: set[int] = set()

        async def read(
            before: asyncio.Task[None] | None, page: list[str], first: int, shard: Told
        ) -> None:
            # A shard is read by one, page after page.
            if before is not None:
                await before
            await bench.feed(page, first, shard)

        for at, (whom, records) in enumerate(plan):
            numbers = range(first, first + len(records))
            for number, (key, wait) in zip(numbers, records, strict=True):
                keys[number], turns[number], owner[number] = f"key-{key}", wait, whom
            page = [keys[number] for number in numbers]
            readers[whom] = asyncio.create_task(read(readers.get(whom), page, first, shards[whom]))
            for _ in range(records[0][1]):
                await asyncio.sleep(0)
            assert 0 <= bench.channel.queued <= CAPACITY
            if at in rewinds:
                # What of them was handled before does not matter here.
                void.update(number for number in owner if owner[number] == whom)
                shards[whom].generation += 1
                bench.channel.discard(shards[whom])
            first += len(records)
        await asyncio.wait_for(asyncio.gather(*readers.values()), 10)
        async with asyncio.timeout(10):
            while bench.channel.queued or running:
                await settle()
        await settle()
        assert bench.dispatcher.running == []
        for number, places in enumerate(shards):
            mine = sorted(n for (whom, _), seen in done.items() if whom == number for n in seen)
            assert set(places.settled) <= set(mine)
            wanted = [n for n in owner if owner[n] == number]
            assert [n for n in mine if n not in void] == [n for n in wanted if n not in void]
            assert set(wanted) - set(places.settled) <= void
            assert len(mine) == len(set(mine))
        for seen in done.values():
            assert seen == sorted(seen)
        assert all(not worker.done() for worker in bench.workers)
        await end(*bench.workers)

    asyncio.run(play())
