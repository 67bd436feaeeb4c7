"""Rewinds while handlers of earlier deliveries run: no key is in two places, and nobody waits for itself."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState, RustStream, Seeker
from ruststream_kinesis.leases import SHARD_END
from ruststream_kinesis.leases.tabled import TableLeaseStore
from tests.support.families import HORIZON, Family, done
from tests.support.tables import MemoryTable, Step, lost, refused
from tests.support.world import World, running, until

LATEST = KinesisPosition.latest()
PASS = 3.0


def held(app: RustStream) -> list[str]:
    return [shard.shard_id[-1] for shard in app.state().subscriptions[0].shards]


@pytest.mark.parametrize("position", [HORIZON, KinesisPosition.timestamp(0.0)], ids=str)
@pytest.mark.parametrize("turn", range(4))
async def test_parents_are_not_read_again_while_a_handler_of_a_child_runs(
    turn: int, position: KinesisPosition
):
    """Who has which shard next depends on chance, so it is done several times."""
    parent = turn % 2
    family, gate = Family({1 - parent: (parent,)}), asyncio.Event()
    family.put(parent, 1)
    family.put(1 - parent, 2)

    async def work(number: int, _seeker: Seeker) -> None:
        if number == 2:
            await gate.wait()

    first, second = family.service("A", work, HORIZON), family.service("B", done)
    async with running(first):
        await family.pass_by(2 * PASS)
        assert family.said == ["A begins 1", "A ends 1", "A begins 2"]
        async with running(second):
            await family.pass_by(PASS)
            await family.seek(first, position)
            # As long as it takes until whoever sees a shard free takes it.
            await family.pass_by(10 * PASS)
            assert family.said == ["A begins 1", "A ends 1", "A begins 2"]

            gate.set()
            await family.pass_by(10 * PASS)
    # 2 ended void: it comes again, behind its parent's.
    assert family.numbers == ["1", "2", "1", "2"]
    assert family.clashes == []


async def test_a_parent_waits_for_a_child_that_is_not_listed_here_yet():
    family, late = Family({1: (0,), 2: (0,)}, 3), {1: 3}
    # It is listed at the start, when the parent has ended, and by the seek.
    family.put(0, 1)
    family.put(2, 2)
    app = family.service("A", done, HORIZON, late=late)
    async with running(app):
        await family.pass_by(2 * PASS)
        assert held(app) == ["2"]
        # Another instance has listed it already, and reads it.
        other, key = family.store(), LeaseKey("orders", "shardId-000000000001")
        theirs = await other.acquire(key, "other", duration=10.0, member="other")
        assert theirs is not None
        await family.seek(app)
        await family.pass_by(2 * PASS)
        assert family.numbers == ["1", "2"]

        await other.release(theirs)
        await family.pass_by(4 * PASS)
        assert family.numbers == ["1", "2", "1", "2"]


async def test_a_start_in_the_past_moves_what_it_could_not_take_at_first():
    """Between the first look and the lease of a child, another instance moved its parent."""
    family = Family({1: (0,)})
    family.put(0, 1)
    family.put(1, 2)
    async with running(family.service("A", done, HORIZON)):
        await family.pass_by(2 * PASS)
    assert family.numbers == ["1", "2"]
    parent, child = (LeaseKey("orders", f"shardId-{number:012}") for number in range(2))
    other = family.store()

    async def move_the_parent(key: LeaseKey) -> None:
        if key == child and not moved:
            lease = await other.acquire(parent, "other", duration=10.0, member="other")
            assert lease is not None
            await other.checkpoint(lease, None, number=0, resume_from=LATEST)
            moved.append(lease)

    moved: list[LeaseState] = []
    family.before_acquiring = move_the_parent
    async with running(family.service("B", done, HORIZON)):
        await family.pass_by(PASS)
        assert family.numbers == ["1", "2"]

        await other.release(moved[0], checkpoint=SHARD_END, number=1)
        await family.pass_by(2 * PASS)
    assert family.numbers == ["1", "2", "2"]


@pytest.mark.parametrize("both", [False, True], ids=["one seeks", "both seek"])
async def test_a_parent_waits_for_its_children_on_every_instance(both: bool):
    family, gate = Family({1: (0,), 2: (0,)}, 3), asyncio.Event()
    keys = {1: "x", 2: "y"}
    for child, key in keys.items():
        family.put(0, child, key=key)
        family.put(child, 10 + child, key=key)

    async def work(number: int, _seeker: Seeker) -> None:
        if number == 99:
            await gate.wait()

    first, second = family.service("A", work, HORIZON), family.service("B", work)
    async with running(first):
        await family.pass_by(4 * PASS)
        async with running(second):
            await family.pass_by(10 * PASS)
            (mine,), (theirs,) = held(first), held(second)
            family.put(int(theirs), 99, key=keys[int(theirs)])
            await family.pass_by(PASS)
            assert family.said[-1] == "B begins 99"
            await family.seek(first)
            if both:
                await family.seek(second)
            await family.pass_by(20 * PASS)
            assert family.said[-1] == "B begins 99"

            gate.set()
            await family.pass_by(20 * PASS)
    assert family.clashes == []
    again = family.numbers[family.numbers.index("99") + 1 :]
    # The parent's first. What B did not move goes on behind what it has handled.
    assert set(again[:2]) == {"1", "2"}
    moved = {"1" + mine, "1" + theirs, "99"} if both else {"1" + mine}
    assert set(again[2:]) == moved
    assert len(again) == 2 + len(moved)


@pytest.mark.parametrize("by_handler", [False, True], ids=["from outside", "by its handler"])
async def test_a_parent_waits_for_a_child_that_is_being_handed_over(by_handler: bool):
    family, gate, go = Family({2: (3,)}, 4), asyncio.Event(), asyncio.Event()
    family.put(3, 1)
    family.put(2, 2)

    async def work(number: int, seeker: Seeker) -> None:
        if number == 2 and not gate.is_set():
            if by_handler:
                await go.wait()
                await seeker.seek(HORIZON)
            await gate.wait()

    first, second = family.service("A", work, HORIZON), family.service("B", done)
    async with running(first):
        await family.pass_by(4 * PASS)
        async with running(second):
            await family.pass_by(7)
            go.set()
            if not by_handler:
                await family.seek(first)
            await family.pass_by(20 * PASS)
            assert family.numbers == ["1", "2"]

            gate.set()
            await family.pass_by(20 * PASS)
    assert family.numbers == ["1", "2", "1", "2"]
    assert family.clashes == []


async def test_a_shard_is_not_at_its_end_while_a_handler_of_it_runs():
    family, gate = Family({1: (0,)}), asyncio.Event()
    family.put(0, 1)

    async def work(number: int, _seeker: Seeker) -> None:
        if number == 1:
            await gate.wait()

    def ends() -> list[object]:
        return [row.get("checkpoint") for row in family.table.rows.values()]

    first, second = family.service("A", work, HORIZON), family.service("B", work)
    async with running(first):
        await family.pass_by(4)
        async with running(second):
            await family.pass_by(4)
            await family.seek(first, LATEST)
            family.put(1, 2)
            await family.pass_by(7 * PASS)
            assert family.said == ["A begins 1"]
            assert SHARD_END not in ends()

            gate.set()
            await family.pass_by(3 * PASS)
            assert SHARD_END in ends()
    assert family.numbers == ["1", "2"]
    assert family.clashes == []


@pytest.mark.parametrize("slow", [(0.0, 0.0), (0.02, 0.005), (0.005, 0.02)], ids=str)
async def test_a_start_in_the_past_reads_finished_parents_first(slow: tuple[float, float]):
    family, (store, kinesis) = Family({1: (0,)}), slow
    family.put(0, 1, 2)
    family.put(1, 101, 102)
    async with running(family.service("A", done, HORIZON)):
        await family.pass_by(15)
    family.said.clear()
    clock = family.world.clock

    async def slow_table(_step: Step) -> None:
        await clock.sleep(store)

    async def slow_stream(_call: object) -> None:
        await clock.sleep(kinesis)

    family.table.before = slow_table
    family.world.hooks.append(slow_stream)
    app = family.service("B", done, HORIZON)
    starting = asyncio.create_task(app.run(signals=False))
    await family.pass_by(20)
    assert family.numbers == ["1", "2", "101", "102"]
    app.stop()
    await family.pass_by(5)
    await asyncio.wait_for(starting, 5)


@pytest.mark.parametrize("failing", range(1, 21))
@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "answer lost"])
async def test_a_start_in_the_past_gets_over_a_failure_of_any_call(applied: bool, failing: int):
    family, calls = Family({1: (0,)}), 0
    family.put(0, 1)
    family.put(1, 101)
    async with running(family.service("A", done, HORIZON)):
        await family.pass_by(15)
    family.said.clear()

    async def fail(_step: Step) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise lost() if applied else refused()

    if applied:
        family.table.after = fail
    else:
        family.table.before = fail
    app = family.service("B", done, HORIZON)
    starting = asyncio.create_task(app.run(signals=False))
    await family.pass_by(30)
    assert not starting.done()
    assert calls > failing
    assert family.numbers == ["1", "101"]
    app.stop()
    await family.pass_by(5)
    await asyncio.wait_for(starting, 5)


async def test_what_another_instance_has_read_since_is_not_replayed_for_a_shard_that_was_left():
    """Nor what it reads: a parent in between that is not moved ends the way up."""
    family = Family({1: (0,), 2: (1,)}, 4)
    family.put(0, 1)
    family.put(1, 2, 3)
    gate = asyncio.Event()

    async def work(number: int, _seeker: Seeker) -> None:
        if number == 3:
            await gate.wait()

    first, second = family.service("A", work, HORIZON), family.service("B", done)
    async with running(first):
        await family.pass_by(2 * PASS)
        async with running(second):
            await family.pass_by(3 * PASS)
            # A is at 3, in the middle of the family; B has the shard that is none of it.
            assert held(second) == ["3"]
            await family.seek(second)
            await family.pass_by(4 * PASS)
            gate.set()
            family.put(2, 4)
            await family.pass_by(4 * PASS)
    assert family.numbers == ["1", "2", "3", "4"]
    assert family.clashes == []


async def test_a_handler_of_a_child_may_rewind_again_and_again():
    family, sought = Family({1: (0,)}), list[KinesisPosition]()
    family.put(0, 1)
    family.put(1, 2)

    async def work(number: int, seeker: Seeker) -> None:
        if number == 2 and not sought:
            for position in (HORIZON, LATEST, HORIZON):
                sought.append(position)
                await seeker.seek(position)
            sought.append(LATEST)

    async with running(family.service("A", work, HORIZON)):
        await family.pass_by(2 * PASS)
        assert len(sought) == 4
        await family.pass_by(5 * PASS)
    assert family.numbers == ["1", "2", "1", "2"]


async def test_a_handler_of_a_shard_that_is_handed_over_may_go_to_the_tip():
    family, gate, sought = Family({}), asyncio.Event(), asyncio.Event()
    for shard in range(2):
        family.put(shard, shard, key="ab"[shard])

    async def work(number: int, seeker: Seeker) -> None:
        await gate.wait()
        if number == 1:
            await seeker.seek(LATEST)
            sought.set()

    first, second = family.service("A", work, HORIZON), family.service("B", done)
    async with running(first):
        await family.pass_by(1)
        async with running(second):
            # One of them is on its way to the other instance, and waits for its handler.
            await family.pass_by(2 * PASS)
            gate.set()
            await family.pass_by(2 * PASS)
            await asyncio.wait_for(sought.wait(), 5)
            await family.pass_by(2 * PASS)
            assert (len(held(first)), len(held(second))) == (1, 1)


async def test_a_lease_that_the_stop_cut_off_is_given_back():
    world, table, hit = World(), MemoryTable(), asyncio.Event()
    world.stream("orders", 2)
    app = world.app(store=TableLeaseStore(table, clock=world.clock))

    @app.subscriber("orders")
    async def handle(order: int) -> None: ...

    async def after(step: Step) -> None:
        if step.call == "update" and step.key.startswith("orders:") and not hit.is_set():
            hit.set()
            # It took effect, and its answer never comes.
            await asyncio.Event().wait()

    table.after = after
    service = asyncio.create_task(app.run(signals=False))
    await asyncio.wait_for(hit.wait(), 5)
    app.stop()
    await until(service.done)
    leases = {key: row for key, row in table.rows.items() if ":" in key}
    assert leases
    assert [key for key, row in leases.items() if row.get("lease_owner")] == []
