"""`checkpoint reset`: the next start reads from there, and nobody at work is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey, RustStream
from ruststream_kinesis.cli.resetting import Plan, Resetting
from ruststream_kinesis.errors import ConfigurationError, KinesisError, RequestError
from ruststream_kinesis.leases import SHARD_END
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.stream import StreamRef
from tests.support.families import HORIZON, Family, _Tree, done
from tests.support.tables import Step
from tests.support.world import Call, running

LATEST = KinesisPosition.latest()
PASS = 3.0


def key(shard: int) -> LeaseKey:
    return LeaseKey("orders", f"shardId-{shard:012}")


class Service:
    """A service with leases in a table, and what resets it."""

    def __init__(
        self, parents: Mapping[int, tuple[int, ...]] | None = None, count: int = 1
    ) -> None:
        self.family = Family(parents or {}, count)
        self._parents = parents or {}

    def resetting(self) -> Resetting:
        family = self.family
        transport = _Tree(family.world, self._parents, {})
        store = family.store()
        return Resetting(StreamRef("orders"), None, transport, store, family.world.clock)

    async def runs(self, start_at: KinesisPosition | None = None) -> list[str]:
        """Let an instance run until it is at the tip, and stop it; what it handled."""
        self.family.said.clear()
        async with running(self.app(start_at)):
            await self.family.pass_by(4 * PASS)
        return self.family.numbers

    def app(self, start_at: KinesisPosition | None = None) -> RustStream:
        return self.family.service("A", done, start_at)

    async def reset(self, position: KinesisPosition) -> Plan:
        resetting = self.resetting()
        plan = await resetting.plan(position)
        await resetting.wait_until_quiet(lambda _: None)
        await resetting.apply(plan)
        return plan

    @property
    def rows(self) -> dict[str, Any]:
        return {name: dict(row) for name, row in self.family.table.rows.items()}


async def test_the_next_start_reads_everything_again_parents_first():
    it = Service({1: (0,), 2: (0,)}, 3)
    it.family.put(0, 1)
    it.family.put(1, 2)
    it.family.put(2, 3, key="other")
    assert sorted(await it.runs(HORIZON)) == ["1", "2", "3"]

    plan = await it.reset(HORIZON)

    assert [move.shard_id[-1] for move in plan.moves] == ["0", "1", "2"]
    assert [move.old for move in plan.moves] == ["finished", "after 2", "after 3"]
    again = await it.runs()
    assert again[0] == "1"
    assert sorted(again) == ["1", "2", "3"]
    # What was reset once is not reset by every start.
    assert await it.runs() == []


async def test_a_parent_that_nobody_opened_and_children_without_rows_are_moved_too():
    it = Service({1: (0,)}, 2)
    it.family.put(0, 1)
    it.family.put(1, 2)

    plan = await it.reset(HORIZON)

    assert [move.old for move in plan.moves] == ["not opened yet"] * 2
    assert await it.runs() == ["1", "2"]


async def test_to_the_tip_what_is_there_is_not_read_and_finished_parents_stay_finished():
    it = Service({1: (0,)}, 2)
    it.family.put(0, 1)
    assert await it.runs(HORIZON) == ["1"]

    plan = await it.reset(LATEST)

    assert [move.shard_id[-1] for move in plan.moves] == ["1"]
    assert [name[-1] for name in plan.finished] == ["0"]
    row = await it.family.store().read(key(1))
    assert row is not None
    assert row.resume_from == KinesisPosition.timestamp(it.family.world.clock.time() - 1)
    parent = await it.family.store().read(key(0))
    assert parent is not None
    assert parent.finished


async def test_to_a_record_one_shard_moves_and_that_record_comes_first():
    it = Service(count=2)
    it.family.put(0, 1, 2, 3)
    it.family.put(1, 4, key="other")
    assert sorted(await it.runs(HORIZON)) == ["1", "2", "3", "4"]

    plan = await it.reset(KinesisPosition.sequence(key(0).shard_id, "2"))

    assert [move.shard_id for move in plan.moves] == [key(0).shard_id]
    assert await it.runs() == ["2", "3"]


async def test_a_plan_alone_writes_nothing():
    it = Service()
    it.family.put(0, 1)
    await it.runs(HORIZON)
    before = it.rows

    await it.resetting().plan(HORIZON)

    assert it.rows == before


class TestRefused:
    async def quiet(self, it: Service) -> None:
        going = asyncio.ensure_future(it.resetting().wait_until_quiet(self.watched.append))
        while not going.done():
            await it.family.world.clock.advance(1)
        await going

    @pytest.fixture(autouse=True)
    def _watched(self) -> None:
        self.watched: list[Any] = []

    async def test_while_an_instance_runs(self):
        it = Service()
        async with running(it.app()) as _:
            await it.family.pass_by(PASS)
            with pytest.raises(KinesisError, match="alive"):
                await self.quiet(it)
        assert len(self.watched) == 1

    async def test_while_one_is_alive_that_holds_nothing(self):
        it = Service()
        member = Member("nonce", "idle-1", ("orders",))
        store = it.family.store()

        async def beat(step: Step) -> None:
            if step.call == "pages":
                it.family.table.before = None
                await store.beat(member, duration=7.0)
                it.family.table.before = beat

        await store.beat(member, duration=7.0)
        it.family.table.before = beat

        with pytest.raises(KinesisError, match="idle-1"):
            await self.quiet(it)

    async def test_while_somebody_holds_a_shard_who_is_no_member(self):
        it = Service()
        assert await it.family.store().acquire(key(0), "rust-1", duration=10.0)

        assert await it.resetting().busy() == ["rust-1"]

    async def test_one_that_crashed_is_waited_for_until_its_leases_run_out(self):
        it = Service()
        store = it.family.store()
        await store.beat(Member("nonce", "crashed-1", ("orders",)), duration=7.0)
        assert await store.acquire(key(0), "crashed-1", duration=10.0, member="nonce")

        await self.quiet(it)

        assert self.watched == [["crashed-1"]]
        plan = await it.resetting().plan(HORIZON)
        assert [move.old for move in plan.moves] == ["opened"]

    async def test_a_row_that_changed_since_it_was_shown(self):
        it = Service(count=2)
        it.family.put(0, 1)
        await it.runs(HORIZON)
        resetting = it.resetting()
        plan = await resetting.plan(KinesisPosition.timestamp(5.0))
        store = it.family.store()
        lease = await store.acquire(key(0), "other", duration=10.0)
        assert lease is not None
        await store.release(lease, checkpoint="7", number=1)

        with pytest.raises(KinesisError, match="nothing was moved"):
            await resetting.apply(plan)

        changed, other = await store.read(key(0)), await store.read(key(1))
        assert changed is not None
        assert (changed.owner, changed.checkpoint, changed.resume_from) == (None, "7", None)
        assert other is not None
        # As its service left it.
        assert (other.owner, other.checkpoint, other.resume_from) == (None, None, HORIZON)

    async def test_a_shard_that_somebody_took_at_the_last_moment(self):
        it = Service(count=2)
        resetting = it.resetting()
        plan = await resetting.plan(HORIZON)
        assert await it.family.store().acquire(key(1), "other", duration=10.0)

        with pytest.raises(KinesisError, match="nothing was moved"):
            await resetting.apply(plan)

        # The row that was made for it is gone again, and the other's is its own.
        assert list(it.rows) == [key(1).row]

    async def test_a_lease_that_was_lost_between_taking_and_writing_is_named(self):
        it = Service()
        resetting = it.resetting()
        plan = await resetting.plan(HORIZON)
        rows = it.family.table.rows

        async def steal(step: Step) -> None:
            row = rows.get(key(0).row)
            if step.call == "update" and row is not None:
                row["lease_owner"] = "thief#1"

        it.family.table.before = steal

        with pytest.raises(KinesisError, match="at the last moment"):
            await resetting.apply(plan)

        assert "resume_from" not in rows[key(0).row]

    async def test_a_write_that_fails_after_the_parents_has_moved_too_much_and_never_too_little(
        self,
    ):
        it = Service({1: (0,)}, 2)
        it.family.put(0, 1)
        it.family.put(1, 2)
        await it.runs(HORIZON)
        resetting = it.resetting()
        plan = await resetting.plan(HORIZON)
        updates = 0

        async def fail(step: Step) -> None:
            nonlocal updates
            updates += step.call == "update"
            if updates == 4:  # two leases, the parent, and then the child
                raise OSError("gone")

        it.family.table.before = fail
        with pytest.raises(OSError, match="gone"):
            await resetting.apply(plan)
        it.family.table.before = None

        parent = await it.family.store().read(key(0))
        child = await it.family.store().read(key(1))
        assert parent is not None
        assert child is not None
        assert (parent.checkpoint, parent.resume_from) == (SHARD_END, HORIZON)
        assert (child.checkpoint, child.resume_from) == ("2", None)

    async def test_a_time_that_has_not_come(self):
        it = Service()
        soon = KinesisPosition.timestamp(it.family.world.clock.time() + 3600)

        with pytest.raises(ConfigurationError, match="future"):
            await it.resetting().plan(soon)

    async def test_a_shard_or_a_record_that_is_not_there(self):
        it = Service()

        async def unknown(call: Call) -> None:
            if call.operation == "get_shard_iterator":
                raise RequestError("no", code="InvalidArgumentException", status=400)

        with pytest.raises(ConfigurationError, match="no shard"):
            await it.resetting().plan(KinesisPosition.sequence(key(9).shard_id, "1"))
        it.family.world.hooks.append(unknown)
        with pytest.raises(KinesisError, match="record"):
            await it.resetting().plan(KinesisPosition.sequence(key(0).shard_id, "1"))
