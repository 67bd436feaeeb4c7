"""The channel under random readers, workers, cancellations and rewinds."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ruststream_kinesis.channel import Channel, Run
from tests.support.channels import TURNS, FakeShard, end, feed, page_of, settle

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
        st.tuples(st.just("lose"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("discard"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("take anew"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


class Scenario:
    """One channel under a random schedule, with everything that went in and came out."""

    def __init__(self, lanes: int, capacity: int, keys: int) -> None:
        self.channel = Channel(lanes, capacity)
        self.came_in: dict[str, list[int]] = {}
        """Places by shard, in the order in which they came into the channel."""
        put = self.channel.put

        def noted(run: Run) -> None:
            assert run.shard.generation == run.generation, "what is void came in"
            assert len(run) <= self.channel._free
            places = [run.base + index for index in run.indices]
            self.came_in.setdefault(run.shard.shard_id, []).extend(places)
            put(run)

        self.channel.put = noted  # type: ignore[method-assign]  # on this one object
        self.lanes = lanes
        self.keys = keys
        self.shards = [FakeShard(f"shard-{n}") for n in range(4)]
        self.bases = [0] * 4
        self.gone: list[FakeShard] = []
        """Shards that were lost and taken anew by others, or here."""
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

    async def read(self, shard: FakeShard, keys: list[str], base: int) -> bool:
        """Feed a page, and compare what is said of it with what came in."""
        generation = shard.generation
        whole = await feed(self.channel, shard, page_of(keys), base)
        assert whole == (shard.generation == generation)
        if whole:
            places = self.came_in.get(shard.shard_id, [])
            assert places[len(places) - len(keys) :] == list(range(base, base + len(keys)))
        return whole

    async def step(self, what: str, whom: int, how_much: int) -> None:
        """Do one thing."""
        lane, shard = whom % self.lanes, self.shards[whom]
        match what:
            case "read":
                # One reader for each shard at a time, as in the service.
                if all(task.done() for owner, task in self.readers if owner is shard):
                    base, self.bases[whom] = self.bases[whom], self.bases[whom] + how_much
                    keys = [f"k{(base + n) % self.keys}" for n in range(how_much)]
                    task = asyncio.create_task(self.read(shard, keys, base))
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
            case _:
                self.fate_of(shard, whom, what)

    def fate_of(self, shard: FakeShard, whom: int, what: str) -> None:
        """Do one thing to a shard."""
        if what != "discard":
            shard.generation += 1
        if what in {"rewind", "discard"}:
            # Some time after a shard was lost, the channel is told.
            for each in (shard, *self.gone):
                self.channel.discard(each)
        if what == "take anew":
            # Let go of, with its reader still at work, and held again as another object.
            self.gone.append(shard)
            again = f"shard-{whom}-{len(self.gone)}"
            self.shards[whom], self.bases[whom] = FakeShard(again), 0

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
        for came in self.came_in.values():
            assert came == sorted(set(came))

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
