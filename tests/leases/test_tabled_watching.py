"""`TableLeaseStore` as one who watches: clocks, shared scans, rows of others, what is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from ruststream_kinesis.errors import KinesisError, LeaseTableUnreachable
from ruststream_kinesis.leases import Opening
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.leases.table import Value
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import KEY, PERIOD, row, take
from tests.support.tables import Gate, MemoryTable, Step, refused

MEMBER = Member("m1", "me", ("orders",))


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [60.0, -60.0, 1e6])
async def test_case_l5_wall_clocks_steal_nothing(
    table: MemoryTable, store: TableLeaseStore, clock: ManualClock, skew: float
):
    skewed = ManualClock(clock.time() + skew)
    another = TableLeaseStore(table, clock=skewed)
    lease = await take(store)
    for _ in range(20):
        assert await another.acquire(KEY, "you", duration=PERIOD) is None
        await clock.advance(3)
        await skewed.advance(3)
        await store.renew(lease)


async def test_a_lease_whose_expiry_passed_is_held_until_it_was_watched_for_its_period(
    table: MemoryTable, store: TableLeaseStore, clock: ManualClock
):
    table.rows[KEY.row] = {"lease_owner": "sibling", "lease_expiry": 1, "lease_counter": 5}
    assert await store.acquire(KEY, "me", duration=PERIOD) is None
    await clock.advance(9.9)
    assert await store.acquire(KEY, "me", duration=PERIOD) is None
    await clock.advance(0.2)
    assert (await take(store)).counter == 6


async def test_a_row_made_anew_is_watched_anew_though_its_counter_is_the_same(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable, clock: ManualClock
):
    await take(store)
    assert await another.acquire(KEY, "you", duration=PERIOD) is None
    await clock.advance(PERIOD - 1)
    table.rows.clear()
    assert (await take(store)).counter == 1
    await clock.advance(2)
    assert await another.acquire(KEY, "you", duration=PERIOD) is None


async def test_every_read_is_a_sighting(
    store: TableLeaseStore, another: TableLeaseStore, clock: ManualClock
):
    await take(store)
    for read in (
        lambda: another.read(KEY),
        lambda: another.leases("orders"),
        lambda: another.survey("bills"),
    ):
        await read()
        await clock.advance(4)
    assert (await take(another, "you")).owner != "me"


# -- scans -----------------------------------------------------------------------------------------


async def test_subscriptions_share_one_scan(store: TableLeaseStore, table: MemoryTable):
    table.before = gate = Gate("pages")
    asked = [asyncio.create_task(store.survey(name, max_age=3.0)) for name in ("a", "b", "c")]
    await gate.reached.wait()
    asked[0].cancel()
    gate.open.set()
    await asyncio.gather(*asked[1:])
    await store.survey("d", max_age=3.0)
    assert len(table.steps) == 1


async def test_a_scan_that_is_too_old_is_made_anew(
    store: TableLeaseStore, table: MemoryTable, clock: ManualClock
):
    await store.survey("orders", max_age=3.0)
    await clock.advance(2.9)
    await store.survey("orders", max_age=3.0)
    assert len(table.steps) == 1
    await clock.advance(0.2)
    await store.survey("orders", max_age=3.0)
    assert len(table.steps) == 2
    await store.leases("orders")
    assert len(table.steps) == 3


async def test_another_application_that_closes_the_store_cancels_nobody_who_waits_for_a_scan(
    store: TableLeaseStore, table: MemoryTable
):
    await take(store)
    table.before = gate = Gate("pages")
    waiting = asyncio.create_task(store.survey("orders", max_age=2.7))
    await gate.reached.wait()

    await store.close()

    with pytest.raises(LeaseTableUnreachable, match="closed"):
        await waiting
    assert [row.key for row in (await store.survey("orders", max_age=2.7)).leases] == [KEY]


async def test_one_who_waits_for_a_scan_and_is_cancelled_as_the_store_is_closed_ends(
    store: TableLeaseStore, table: MemoryTable
):
    table.before = gate = Gate("pages")
    waiting = asyncio.create_task(store.survey("orders", max_age=2.7))
    await gate.reached.wait()

    waiting.cancel()
    await store.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_scan_on_its_way_in_another_event_loop_is_nobodys_here(
    store: TableLeaseStore, table: MemoryTable
):
    await take(store)
    table.before = gate = Gate("pages")
    waiting = asyncio.create_task(store.survey("orders", max_age=2.7))
    await gate.reached.wait()

    there = await asyncio.to_thread(lambda: asyncio.run(store.survey("orders", max_age=2.7)))

    assert [row.key for row in there.leases] == [KEY]
    gate.open.set()
    assert (await waiting).leases == there.leases


async def test_a_scan_that_fails_is_heard_by_all_who_wait_and_made_again(
    store: TableLeaseStore, table: MemoryTable
):
    async def fail(_: Step) -> None:
        raise refused()

    table.before = fail
    asked = [store.survey(name, max_age=3.0) for name in ("a", "b")]
    heard = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in heard] == [LeaseTableUnreachable] * 2
    table.before = None
    assert (await store.survey("a", max_age=3.0)).leases == ()


async def test_what_is_written_while_a_scan_is_made_is_in_it(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    table.after = gate = Gate("pages")
    looking = asyncio.create_task(store.survey("orders"))
    await gate.reached.wait()
    # Read already, and not yet answered.
    await store.checkpoint(lease, "5", number=1)
    await store.beat(MEMBER, duration=PERIOD)
    gate.open.set()
    survey = await looking
    assert [each.checkpoint for each in survey.leases] == ["5"]
    assert survey.members == (MEMBER,)


async def test_a_row_that_is_removed_while_a_scan_is_made_is_not_in_it(
    store: TableLeaseStore, table: MemoryTable
):
    await store.release(await take(store))
    await store.beat(MEMBER, duration=PERIOD)
    table.after = gate = Gate("pages")
    looking = asyncio.create_task(store.survey("orders"))
    await gate.reached.wait()
    await store.delete(KEY)
    await store.leave("m1")
    gate.open.set()
    survey = await looking
    assert (survey.leases, survey.members) == ((), ())


async def test_what_is_remembered_is_bounded_by_the_rows_there_are(
    store: TableLeaseStore, table: MemoryTable
):
    for n in range(200):
        key = KEY.__class__("orders", f"shardId-{n}")
        await store.release(await take(store, key=key))
        await store.delete(key)
        table.rows[f"bills:shardId-{n}"] = {}
        await store.leases("bills")
        del table.rows[f"bills:shardId-{n}"]
    await store.leases("bills")
    assert store._notebook.size == (0, 0)
    assert store._notebook._known == {}
    assert store._notebook._periods == {}
    assert store._notebook._unheard == {}


async def test_rows_of_members_that_never_left_are_removed_in_the_end(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable, clock: ManualClock
):
    await store.beat(MEMBER, duration=PERIOD)
    await another.survey("orders")
    await clock.advance(10 * PERIOD)
    await another.survey("orders")
    assert "member/m1" in table.rows
    await clock.advance(30 * PERIOD)
    await another.survey("orders")
    assert table.rows == {}


# -- rows that are not ours ------------------------------------------------------------------------


async def test_rows_of_something_else_are_left_alone_with_one_warning_each_kind(
    store: TableLeaseStore, table: MemoryTable, caplog: pytest.LogCaptureFixture
):
    strangers: dict[str, dict[str, Value]] = {"config/x": {"a": 1}}
    strangers |= {f"shardId-{n}": {"checkpoint": "5"} for n in range(5)}
    table.rows |= {key: dict(each) for key, each in strangers.items()}
    for _ in range(3):
        assert await store.leases("orders") == []
    assert table.rows == strangers
    assert table.writes() == []
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


async def test_a_row_that_cannot_be_understood_costs_its_own_shard_and_no_other(
    store: TableLeaseStore, table: MemoryTable, caplog: pytest.LogCaptureFixture
):
    spoiled = KEY.__class__("orders", "shardId-9")
    await take(store)
    before: dict[str, Value] = {"checkpoint": "LATEST", "lease_counter": 1}
    table.rows[spoiled.row] = dict(before)
    for _ in range(3):
        assert [each.key for each in await store.leases("orders")] == [KEY]
    (record,) = caplog.records
    assert "'orders:shardId-9'" in record.getMessage()
    assert "'LATEST'" in record.getMessage()
    for call in (
        lambda: store.acquire(spoiled, "me", duration=PERIOD),
        lambda: store.read(spoiled),
        lambda: store.delete(spoiled),
    ):
        with pytest.raises(KinesisError, match="LATEST"):
            await call()
    assert table.rows[spoiled.row] == before


async def test_an_owner_whose_row_somebody_spoiled_keeps_its_lease(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    table.rows[KEY.row]["checkpoint"] = "LATEST"
    await store.renew(lease)
    await store.checkpoint(lease, "5", number=1)
    assert (await row(store)).checkpoint == "5"


async def test_a_member_of_another_owner_is_not_overwritten(
    store: TableLeaseStore, table: MemoryTable
):
    await store.beat(MEMBER, duration=PERIOD)
    with pytest.raises(KinesisError, match="'member/m1'"):
        await store.beat(Member("m1", "you", ()), duration=PERIOD)
    assert table.rows["member/m1"]["owner_id"] == "me"


# -- closing ---------------------------------------------------------------------------------------


async def test_a_store_closes_its_table_and_the_store_of_a_renewer_does_not(
    store: TableLeaseStore, table: MemoryTable
):
    renewer = store.renewer()
    assert isinstance(renewer, TableLeaseStore)
    await renewer.close()
    assert table.closed == 0
    table.before = Gate("pages")
    looking = asyncio.create_task(store.survey("orders", max_age=1.0))
    await table.before.reached.wait()
    await store.close()
    with pytest.raises(LeaseTableUnreachable):
        await looking
    assert table.closed == 1


# -- what it costs ---------------------------------------------------------------------------------


async def test_a_call_is_one_request_and_an_acquisition_two(
    store: TableLeaseStore, table: MemoryTable
):
    async def cost(call: Awaitable[object]) -> list[str]:
        begun = len(table.steps)
        await call
        return [step.call for step in table.steps[begun:]]

    table.rows["orders:shardId-1"] = {}
    assert await cost(store.opening("orders", None, Opening(1.0, None))) == ["get", "put"]
    assert await cost(store.opening("orders", None, Opening(2.0, None))) == ["get"]
    assert await cost(take(store)) == ["get", "update"]
    lease = await store.read(KEY)
    assert lease is not None
    assert await cost(store.acquire(KEY, "you", duration=PERIOD)) == ["get"]
    assert await cost(store.renew(lease)) == ["update"]
    assert await cost(store.checkpoint(lease, "5", number=3)) == ["update"]
    assert await cost(store.checkpoint(lease, "2", number=2)) == ["update"]
    assert await cost(store.beat(MEMBER, duration=PERIOD)) == ["update"]
    assert await cost(store.survey("orders")) == ["pages", "pages"]  # four rows, three a page
    assert await cost(store.survey("orders", max_age=3.0)) == []
    assert await cost(store.leave("m1")) == ["delete"]
    assert await cost(store.release(lease, checkpoint="6", number=4)) == ["update"]
    assert await cost(store.read(KEY)) == ["get"]
    assert await cost(store.delete(KEY)) == ["get", "delete"]
