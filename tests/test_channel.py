"""The channel: never more than its slots, in order, and no wake-up lost.

Readers and workers here are the loops that `reader.py` and `dispatch.py` run, without what surrounds
them: `room` and `put` in one breath, `take` and one `release` per delivery.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ruststream_kinesis._core import Page
from ruststream_kinesis.channel import CAPACITY, Channel, Run

TURNS = 20
"""Loop turns after which everything that can happen without the test has happened."""


@dataclass(eq=False)
class FakeShard:
    """What the channel looks at."""

    shard_id: str = "shardId-000000000000"
    stream: str = "orders"
    generation: int = 0
    ceiling: float = float("inf")
    started: int = -1
    ended: bool = False
    lost: bool = False
    taken: list[int] = field(default_factory=list)
    """Places that came out for this shard, in order."""
    stale: list[int] = field(default_factory=list)
    """Places that came out of the channel with an old stamp."""
    fed: int = 0
    """Places whose run was put."""

    def ack(self, place: int) -> None:
        """Not used here."""

    def ack_range(self, start: int, stop: int) -> None:
        """Not used here."""

    def defer(self, place: int) -> None:
        """Not used here."""

    def hold(self, place: int) -> None:
        """Not used here."""


def page_of(keys: list[str]) -> Page:
    """Return a page with one record for each key."""
    records = [
        {"SequenceNumber": str(n + 1), "PartitionKey": key, "Data": ""}
        for n, key in enumerate(keys)
    ]
    return Page.parse(json.dumps({"Records": records, "NextShardIterator": "i"}).encode())


def page(count: int) -> Page:
    """Return a page of records with different keys."""
    return page_of([f"key-{n}" for n in range(count)])


def keys_of_two_lanes() -> tuple[str, str]:
    """Return a key of lane 0 and one of lane 1, of two."""
    lane_of = {key: page_of([key]).partitions(0, 1, 2).index([0]) for key in map(str, range(20))}
    first, second = (
        next(key for key, lane in lane_of.items() if lane == wanted) for wanted in (0, 1)
    )
    return first, second


async def feed(channel: Channel, shard: FakeShard, content: Page, base: int = 0) -> bool:
    """Put a page as a reader does; False when it became void."""
    generation, start = shard.generation, 0
    while start < len(content):
        room = await channel.room(shard, generation)
        if not room:
            return False
        assert shard.generation == generation
        stop = min(len(content), start + room)
        channel.put(Run(shard, generation, content, base, range(start, stop)))
        assert channel.queued <= channel._capacity
        shard.fed += stop - start
        start = stop
    return True


async def work(
    channel: Channel, lane: int = 0, handled: Callable[[FakeShard], Any] = lambda _: None
) -> None:
    """Take as a worker does, without a pause unless `handled` returns something to await."""
    while (run := await channel.take(lane)) is not None:
        shard: Any = run.shard
        for index in run.indices:
            channel.release()
            (shard.taken if shard.generation == run.generation else shard.stale).append(
                run.base + index
            )
            if (pause := handled(shard)) is not None:
                await pause


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_reader_waits_when_the_slots_are_full_and_not_one_delivery_earlier():
    channel, shard = Channel(), FakeShard()
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


async def test_a_reader_is_woken_for_half_a_channel_and_not_for_each_slot():
    channel, shard = Channel(capacity=8), FakeShard()
    reader = asyncio.create_task(feed(channel, shard, page(12)))
    await settle()
    run = await channel.take(0)
    assert run is not None
    channel.release(3)
    await settle()
    assert shard.fed == 8
    channel.release()
    await settle()
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
    # It starts its two, which frees too few slots to wake a reader, and then has nothing to do.
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


async def test_room_for_a_void_generation_is_refused_even_when_slots_are_free():
    channel, shard = Channel(), FakeShard()
    shard.generation = 1
    assert await channel.room(shard, 0) == 0


@pytest.mark.parametrize("when", ["waiting", "woken"])
async def test_a_cancelled_reader_leaves_its_turn_to_the_next(when: str):
    channel, full = Channel(capacity=4), FakeShard()
    assert await feed(channel, full, page(4))
    cancelled = asyncio.create_task(feed(channel, FakeShard("a"), page(4)))
    following = asyncio.create_task(feed(channel, FakeShard("b"), page(4)))
    await settle()
    if when == "woken":
        channel.release(4)
    cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    if when == "waiting":
        assert not following.done()
        channel.release(4)
        await settle()
    assert following.done()


async def test_a_worker_cancelled_as_it_is_woken_leaves_the_run_in_its_lane():
    channel, shard = Channel(), FakeShard()
    worker = asyncio.create_task(work(channel))
    await settle()
    room = await channel.room(shard, 0)
    assert room == CAPACITY
    channel.put(Run(shard, 0, page(3), 0, range(3)))
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


# -- random readers, workers, cancellations, discards --------------------------------------------

Step = tuple[str, int, int]
"""(what, whom, how much)"""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("turn"), st.just(0), st.integers(0, 4)),
        st.tuples(st.just("pause"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("go on"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("cancel reader"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("cancel worker"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("rewind"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


class Scenario:
    """One channel under a random schedule, with everything that went in and came out."""

    def __init__(self, lanes: int, capacity: int, keys: int) -> None:
        self.channel = Channel(lanes, capacity)
        self.lanes = lanes
        self.keys = keys
        self.shards = [FakeShard(f"shard-{n}") for n in range(4)]
        self.bases = [0] * 4
        self.readers: list[tuple[FakeShard, asyncio.Task[bool]]] = []
        self.gates = [asyncio.Event() for _ in range(lanes)]
        for gate in self.gates:
            gate.set()
        self.out: dict[tuple[int, str], list[tuple[int, int]]] = {}
        """(generation, place) by lane and shard, in the order taken."""
        self.workers = [self.worker(lane) for lane in range(lanes)]

    def worker(self, lane: int) -> asyncio.Task[None]:
        """Start a worker that stands still while its gate is closed."""
        return asyncio.create_task(self.work(lane))

    async def work(self, lane: int) -> None:
        """Take, and note what comes; a cancelled worker starts what it had taken, as the stop does."""
        while (run := await self.channel.take(lane)) is not None:
            shard: Any = run.shard
            for place, index in enumerate(run.indices):
                try:
                    await self.gates[lane].wait()
                except asyncio.CancelledError:
                    self.channel.release(len(run) - place)
                    raise
                self.channel.release()
                if shard.generation == run.generation:
                    self.out.setdefault((lane, shard.shard_id), []).append(
                        (run.generation, run.base + index)
                    )

    async def step(self, what: str, whom: int, how_much: int) -> None:
        """Do one thing."""
        channel, lane, shard = self.channel, whom % self.lanes, self.shards[whom]
        match what:
            case "read":
                # One reader for each shard at a time, as in the service.
                if all(task.done() for owner, task in self.readers if owner is shard):
                    base, self.bases[whom] = self.bases[whom], self.bases[whom] + how_much
                    content = page_of([f"k{(base + n) % self.keys}" for n in range(how_much)])
                    task = asyncio.create_task(feed(channel, shard, content, base))
                    self.readers.append((shard, task))
            case "turn":
                for _ in range(how_much):
                    await asyncio.sleep(0)
            case "pause":
                self.gates[lane].clear()
            case "go on":
                self.gates[lane].set()
            case "cancel reader":
                for owner, task in self.readers:
                    if owner is shard:
                        task.cancel()
            case "cancel worker":
                self.workers[lane].cancel()
                await asyncio.sleep(0)
                await asyncio.gather(self.workers[lane], return_exceptions=True)
                self.workers[lane] = self.worker(lane)
            case "rewind":
                shard.generation += 1
                channel.discard(shard)

    def check(self) -> None:
        """What holds after each step."""
        queued = sum(len(run) for lane in self.channel._lanes for run in lane)
        assert queued <= self.channel.queued <= self.channel._capacity

    async def check_quiet(self) -> None:
        """What holds once everything ran that can: nobody waits for what is there."""
        # With one slot, a page of twelve needs more than one round of turns.
        for _ in range(TURNS):
            await settle()
        self.check()
        waiting = any(not task.done() for _, task in self.readers)
        free = self.channel._capacity - self.channel.queued
        idle = any(taker is not None for taker in self.channel._takers)
        if waiting:
            assert free < max(1, self.channel._capacity // 2)
            assert not (idle and free)

    async def finish(self) -> None:
        """Let everything go on: all readers end, everything put is out or was discarded."""
        for gate in self.gates:
            gate.set()
        tasks = [task for _, task in self.readers]
        async with asyncio.timeout(5):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        await settle()
        assert self.channel.queued == 0
        assert not self.channel._waiting
        assert self.channel._idle == self.lanes
        self.channel.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self.workers)
        for places in self.out.values():
            assert places == sorted(set(places))

    async def run(self, plan: list[Step]) -> None:
        """Play a plan, checking as it goes."""
        try:
            for what, whom, how_much in plan:
                await self.step(what, whom, how_much)
                self.check()
            await self.check_quiet()
            await self.finish()
        finally:
            await end(*self.workers, *(task for _, task in self.readers))


@settings(max_examples=400, deadline=None)
@given(
    lanes=st.integers(1, 3),
    capacity=st.integers(1, 10),
    keys=st.integers(1, 6),
    plan=steps,
)
@example(
    lanes=2,
    capacity=8,
    keys=1,
    plan=[("pause", 0, 0), ("pause", 1, 0), ("read", 0, 12), ("read", 1, 12), ("rewind", 0, 0)],
)
def test_whatever_happens_everything_put_is_taken_in_order_and_nobody_waits_for_room_that_is_there(
    lanes: int, capacity: int, keys: int, plan: list[Step]
):
    async def play() -> None:
        await Scenario(lanes, capacity, keys).run(plan)

    asyncio.run(play())


@settings(max_examples=100, deadline=None)
@given(lanes=st.integers(1, 3), capacity=st.integers(1, 10), plan=steps)
def test_without_cancellations_and_rewinds_nothing_that_was_read_is_missing(
    lanes: int, capacity: int, plan: list[Step]
):
    harmless = [step for step in plan if step[0] in {"read", "turn", "pause", "go on"}]

    async def play() -> None:
        scenario = Scenario(lanes, capacity, keys=5)
        await scenario.run(harmless)
        for number, shard in enumerate(scenario.shards):
            out = [
                place
                for (_, shard_id), places in scenario.out.items()
                for _, place in places
                if shard_id == shard.shard_id
            ]
            assert sorted(out) == list(range(scenario.bases[number]))

    asyncio.run(play())
