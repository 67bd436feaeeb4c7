"""Rewinding, and what is stored of it: through crashes, slow stores, and at whichever moment."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, LeaseState, retry
from ruststream_kinesis.errors import KinesisError
from tests.support.seeking import HORIZON, LATEST, at, killed, moments, noting, row, turns, world
from tests.support.stores import MemorySpyStore, Write
from tests.support.world import World, running, until

# -- what is stored --------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("lease_store")


@pytest.mark.parametrize("position", [HORIZON, at(1), KinesisPosition.timestamp(0.0)])
async def test_a_crash_before_the_first_settle_keeps_the_rewind(position: KinesisPosition):
    it = world()
    seen: list[Any] = []
    again: list[Any] = []
    it.put("orders", 1, 2, 3)
    blocked = asyncio.Event()
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        if blocked.is_set():
            await asyncio.Event().wait()

    async with killed(it, app):
        await until(lambda: seen == [1, 2, 3])
        await turns()
        assert await it.checkpoint() == "3"
        blocked.set()
        await app.seeker("orders").seek(position)
        await until(lambda: len(seen) == 4)
        app.stop()
        app.stop()
    assert (await row(it)).resume_from == position
    async with running(noting(it, again)):
        await until(lambda: again == [1, 2, 3])
    assert (await row(it)).resume_from is None


async def test_a_write_on_its_way_is_awaited_and_the_rewind_is_written_after_it():
    it = world()
    seen: list[Any] = []
    it.put("orders", 1, 2)
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(write: Write) -> None:
        if write.checkpoint == "2":
            arrived.set()
            await go.wait()

    it.store.before = slow
    app = it.app()
    stuck = asyncio.Event()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        if len(seen) > 2:
            await stuck.wait()

    async with running(app):
        await until(lambda: seen == [1, 2])
        await it.clock.advance(1)
        await asyncio.wait_for(arrived.wait(), 5)
        seeking = asyncio.create_task(app.seeker("orders").seek(HORIZON))
        await turns()
        assert not seeking.done()
        go.set()
        await asyncio.wait_for(seeking, 5)
        found = await row(it)
        assert (found.checkpoint, found.resume_from) == ("2", HORIZON)
        stuck.set()
        await until(lambda: seen == [1, 2, 1, 2])


class _Unsure(MemorySpyStore):
    """A store that stores checkpoints and then does not say so, while it is asked to."""

    silent = False

    async def checkpoint(self, held: LeaseState, *arguments: Any, **options: Any) -> None:
        await super().checkpoint(held, *arguments, **options)
        if self.silent:
            raise ConnectionError("the answer was lost")


@pytest.mark.parametrize("lease_store", ["memory"], indirect=True)
async def test_a_rewind_to_the_same_place_undoes_a_write_whose_answer_was_lost():
    it, seen = World(), list[int]()
    it.store = store = _Unsure(clock=it.clock)
    it.stream()
    it.put("orders", 1, 2)
    app, free = it.app(), asyncio.Semaphore(0)

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        await free.acquire()

    async with running(app):
        await until(lambda: seen == [1])
        await app.seeker("orders").seek(HORIZON)
        free.release()
        await until(lambda: seen == [1, 1])
        store.silent = True
        free.release()
        await until(lambda: seen == [1, 1, 2])
        await turns()
        assert await it.checkpoint() == "1"
        store.silent = False
        await app.seeker("orders").seek(HORIZON)
        assert (await row(it)).resume_from == HORIZON
        for _ in range(5):
            free.release()
        await until(lambda: seen == [1, 1, 2, 1, 2])


async def test_a_start_position_is_kept_by_a_shard_that_is_given_up_before_its_first_ack():
    it = world()
    first: list[Any] = []
    second: list[Any] = []
    it.put("orders", 1, 2, 3)
    async with running(noting(it, first, start_at=HORIZON)):
        await until(lambda: first == [1, 2, 3])
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def hold(order: int) -> Any:
        return retry()

    async with running(app):
        await until(lambda: app.counters["orders"].held == 3)
    assert (await row(it)).resume_from == HORIZON
    async with running(noting(it, second)):
        await until(lambda: second == [1, 2, 3])


async def test_shards_found_later_open_where_the_last_rewind_went():
    it = world()
    seen: list[Any] = []
    app = noting(it, seen)
    async with running(app):
        await app.seeker("orders").seek(HORIZON)
        it.streams["orders"]["shardId-000000000001"] = []
        it.put("orders", 10, shard=1)
        await it.clock.advance(15)
        await until(lambda: seen == [10])


# -- at any moment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["horizon", "latest", "sequence"])
@pytest.mark.parametrize("chosen", range(1, 31))
async def test_at_whichever_call_a_rewind_comes_nothing_is_lost(chosen: int, kind: str):
    """Whatever the interleaving: all from the position on is handled, and then stored."""
    it = world()
    seen: list[Any] = []
    rng = random.Random(chosen)
    numbers = [int(n) for n in it.put("orders", *range(1, 101))]
    position = {"horizon": HORIZON, "latest": LATEST, "sequence": at(40)}[kind]
    since: list[int] = []
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON, workers=rng.choice([1, 3]))
    async def handle(order: int) -> None:
        await turns(rng.randrange(3))
        seen.append(order)

    async def move() -> None:
        # As early as a user can: `started` may still be to come.
        while True:
            try:
                await app.seeker("orders").seek(position)
                break
            except KinesisError:
                await asyncio.sleep(0)
        since.append(len(seen))

    tasks = moments(it, chosen, move)
    async with running(app):
        for _ in range(60):
            await it.clock.advance(0.25)
            if not tasks and len(seen) == 100:
                it.put("orders", 0)  # something to call for
        assert tasks
        await asyncio.wait_for(tasks[0], 5)
        last = int(it.put("orders", 101)[0])
        await until(lambda: 101 in seen or bool(it.clock.sleeping), "time to pass")
        for _ in range(20):
            await it.clock.advance(0.25)
    first = {"horizon": 1, "sequence": 40, "latest": 101}[kind]
    # What was moved to was read from there; a handler at work may have begun before the move ended.
    tail = seen[seen.index(first) if kind != "sequence" else len(seen) - seen[::-1].index(40) - 1 :]
    assert set(range(first, 102)) <= set(tail)
    assert numbers[0] == 1
    assert await it.checkpoint() == str(last)
    assert (await row(it)).resume_from is None


@pytest.mark.parametrize("chosen", range(1, 21))
async def test_at_whichever_call_a_crash_comes_after_a_rewind_it_is_kept(chosen: int):
    it = world()
    seen: list[Any] = []
    again: list[Any] = []
    it.put("orders", *range(1, 21))
    app, rewound = it.app(), asyncio.Event()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        if rewound.is_set():
            await asyncio.Event().wait()

    async with killed(it, app):
        await until(lambda: len(seen) >= min(chosen, 20))
        rewound.set()
        await app.seeker("orders").seek(at(5))
        await turns(chosen)
        app.stop()
        app.stop()
    async with running(noting(it, again)):
        await until(lambda: len(again) == 16)
    assert again == list(range(5, 21))
