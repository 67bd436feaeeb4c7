"""A stop, and a hand-over, in the middle of an aggregate: its rest is handled first, so that nothing repeats."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from ruststream_kinesis import RustStream, Seeker
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.errors import StopTimeout
from tests.reference import aggregate
from tests.support.families import HORIZON, Family, done
from tests.support.seeking import turns, world
from tests.support.world import World, running, until

PASS = 3.0


def several(*values: int) -> bytes:
    """An aggregate whose records have one key each."""
    return aggregate([(f"key-{each}", None, json.dumps(each).encode()) for each in values])


def service(
    it: World, seen: list[int], options: dict[str, Any], stuck_at: int | None = None
) -> Any:
    """A service that is stuck at one of the orders, until its gate is opened; else it goes on."""
    start_at = None if stuck_at is None else HORIZON
    app, stuck, gate = it.app(), asyncio.Event(), asyncio.Event()

    async def handle(orders: list[int]) -> None:
        seen.extend(orders)
        if stuck_at in orders:
            stuck.set()
            await gate.wait()

    if "batch" in options:

        @app.subscriber("orders", start_at=start_at, **options)
        async def handle_all(orders: list[int]) -> None:
            await handle(orders)

    else:

        @app.subscriber("orders", start_at=start_at, **options)
        async def handle_one(order: int) -> None:
            await handle([order])

    return app, stuck, gate


OPTIONS: list[dict[str, Any]] = [{}, {"workers": 3}, {"batch": 4}, {"batch": 4, "workers": 3}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
# One that fits into the channel, one that is longer, and one of which the first slice is not over.
@pytest.mark.parametrize(("size", "at"), [(6, 3), (300, 200), (300, 10)])
async def test_a_clean_stop_within_an_aggregate_repeats_nothing(
    options: dict[str, Any], size: int, at: int
):
    it = world()
    it.put("orders", 1, several(*range(2, size + 2)), several(*range(size + 2, 2 * size + 2)))
    seen: list[int] = []
    app, stuck, gate = service(it, seen, options, at)
    async with running(app) as service_task:
        await asyncio.wait_for(stuck.wait(), 10)
        app.stop()
        await turns()
        gate.set()
        await asyncio.wait_for(asyncio.shield(service_task), 10)
    first = list(seen)
    if "workers" not in options:
        # No more than the aggregate that was begun.
        assert seen == list(range(1, size + 2))
    app, _, _ = service(it, seen, {})
    it.put("orders", 0)
    async with running(app):
        await until(lambda: seen[-1] == 0)
    assert sorted(seen) == list(range(2 * size + 2)), first


async def test_workers_without_a_key_of_the_rest_end_with_it():
    it = world()
    one_key = aggregate([("key", None, json.dumps(each).encode()) for each in range(2, 302)])
    it.put("orders", 1, several(*range(302, 602)), one_key)
    seen: list[int] = []
    app, stuck, gate = service(it, seen, {"workers": 3}, 2)
    async with running(app) as service_task:
        await asyncio.wait_for(stuck.wait(), 10)
        app.stop()
        await turns()
        gate.set()
        await asyncio.wait_for(asyncio.shield(service_task), 10)
    assert sorted(seen) == list(range(1, 602))


@pytest.mark.parametrize("options", [{"workers": 3}, {"workers": 3, "batch": 4}], ids=str)
async def test_a_lease_that_is_lost_meanwhile_ends_the_waiting_for_the_rest(
    options: dict[str, Any],
):
    it = world()
    it.put("orders", 1, aggregate([("key", None, b"%d" % n) for n in range(2, 302)]))
    seen: list[int] = []
    app, stuck, gate = service(it, seen, options, 20)
    async with running(app) as service_task:
        await asyncio.wait_for(stuck.wait(), 10)
        assert app._service is not None
        coordinator = cast("Coordinator", app._service.subscriptions[0]._source)
        app.stop()
        await turns()
        (holding,) = coordinator.holdings.values()
        coordinator.held.lost(holding.shard, "by the test")
        gate.set()
        await asyncio.wait_for(asyncio.shield(service_task), 10)
    assert len(seen) < 100


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_a_stop_that_waits_for_no_handler_leaves_the_rest_of_an_aggregate(
    options: dict[str, Any],
):
    it = world()
    it.put("orders", 1, several(*range(2, 302)))
    seen: list[int] = []
    app, stuck, _ = service(it, seen, options, 200)
    with pytest.raises(StopTimeout):
        async with running(app):
            await asyncio.wait_for(stuck.wait(), 10)
            app.stop()
            await turns()
    assert await it.checkpoint() in (None, "1")
    assert 301 not in seen or "workers" in options


def _gated(family: Family, gate: asyncio.Event, at: int) -> RustStream:
    async def work(number: int, _seeker: Seeker) -> None:
        if number == at:
            await gate.wait()

    return family.service("A", work, HORIZON, workers=1)


@pytest.mark.parametrize(("size", "at"), [(6, 3), (300, 200)])
async def test_a_hand_over_within_an_aggregate_repeats_nothing(size: int, at: int):
    """Of two shards, that with the higher id goes to the second instance."""
    family, gate = Family({}, 2), asyncio.Event()
    family.world.put("orders", 1, several(*range(2, size + 2)), size + 2, shard=1)
    first, second = _gated(family, gate, at), family.service("B", done)
    async with running(first):
        await until(lambda: f"A begins {at}" in family.said)
        async with running(second):
            await family.pass_by(2 * PASS)
            assert not any(said.startswith("B") for said in family.said)
            gate.set()
            await family.pass_by(4 * PASS)
            assert f"B begins {size + 2}" in family.said
    assert sorted(map(int, family.numbers)) == list(range(1, size + 3))
    assert family.clashes == []


async def test_a_child_that_stands_back_for_a_replay_leaves_the_rest_of_an_aggregate():
    """All of it comes again after its parent."""
    family, gate = Family({1: (0,), 2: (0,)}, 3), asyncio.Event()
    family.put(0, 1)
    family.world.put("orders", several(*range(100, 400)), shard=1)
    family.put(2, 2)
    first, second = _gated(family, gate, 105), family.service("B", done)
    async with running(first):
        await family.pass_by(4 * PASS)
        async with running(second):
            await family.pass_by(3 * PASS)
            assert family.said[-3:] == ["A begins 105", "B begins 2", "B ends 2"]
            await family.seek(second)
            await family.pass_by(PASS)
            gate.set()
            await family.pass_by(10 * PASS)
            again = family.numbers.index("1", 1)
            assert "106" not in family.numbers[:again]
            assert "106" in family.numbers[again:]
    assert family.clashes == []
