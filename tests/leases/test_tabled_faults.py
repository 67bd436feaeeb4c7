"""`TableLeaseStore` when calls fail, answers are lost or late, and others write in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ruststream_kinesis import KinesisPosition, LeaseState, LeaseStore
from ruststream_kinesis.errors import KinesisError, LeaseLost, LeaseTableUnreachable
from ruststream_kinesis.leases import Opening
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.leases.table import Value
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import KEY, PERIOD, row, take, take_over
from tests.support.tables import MemoryTable, Step, lost, refused

HOUR = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def store(table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
    return TableLeaseStore(table, clock=clock)


@pytest.fixture
def another(table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
    return TableLeaseStore(table, clock=clock)


def once(error: Exception, *, times: int = 1) -> Callable[[Step], Awaitable[None]]:
    """Fail the next writes, and no later ones."""
    left = times

    async def hook(step: Step) -> None:
        nonlocal left
        if step.writes and left:
            left -= 1
            raise error

    return hook


class Gate:
    """Holds the first call of a kind until it is opened."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, step: Step) -> None:
        if step.call == self.call and not self.reached.is_set():
            self.reached.set()
            await self.open.wait()


# -- lost answers (case L3) ------------------------------------------------------------------------

FIRST = Opening(100.0, 50.0)
MEMBER = Member("m1", "me", ("orders",))


async def _acquire(store: LeaseStore, _: LeaseState) -> None:
    other = await store.acquire(KEY.__class__("bills", "shardId-1"), "me", duration=PERIOD)
    assert other is not None
    await store.renew(other)


async def _renew(store: LeaseStore, held: LeaseState) -> None:
    await store.renew(held)


async def _checkpoint(store: LeaseStore, held: LeaseState) -> None:
    await store.checkpoint(held, "5", number=1)
    assert (await row(store)).checkpoint == "5"


async def _rewind(store: LeaseStore, held: LeaseState) -> None:
    await store.checkpoint(held, None, number=1, resume_from=KinesisPosition.horizon())
    assert (await row(store)).resume_from == KinesisPosition.horizon()


async def _release(store: LeaseStore, held: LeaseState) -> None:
    await store.release(held, checkpoint="5", number=1, successor="m2")
    state = await row(store)
    assert (state.free, state.checkpoint, state.successor) == (True, "5", "m2")


async def _beat(store: LeaseStore, _: LeaseState) -> None:
    await store.beat(MEMBER, duration=PERIOD)
    assert (await store.survey("orders")).members == (MEMBER,)


async def _leave(store: LeaseStore, _: LeaseState) -> None:
    await store.leave("m0")
    assert (await store.survey("orders")).members == ()


async def _opening(store: LeaseStore, _: LeaseState) -> None:
    assert await store.opening("orders", None, FIRST) is FIRST


async def _delete(store: LeaseStore, held: LeaseState) -> None:
    await store.release(held)
    await store.delete(KEY)
    assert await store.read(KEY) is None


CALLS = [_acquire, _renew, _checkpoint, _rewind, _release, _beat, _leave, _opening, _delete]


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_case_l3_a_write_whose_answer_was_lost_succeeds(
    store: TableLeaseStore,
    table: MemoryTable,
    call: Callable[[LeaseStore, LeaseState], Awaitable[None]],
    *,
    applied: bool,
):
    await store.beat(Member("m0", "me", ("orders",)), duration=PERIOD)
    if call is not _leave:
        await store.leave("m0")
    held = await take(store)

    hook = once(lost())
    if applied:
        table.after = hook
    else:
        table.before = hook
    await call(store, held)


async def test_an_acquisition_that_was_lost_and_taken_by_another_is_not_ours(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable
):
    async def overtaken(step: Step) -> None:
        if step.call == "update":
            table.before = None
            await take(another, "you")
            raise lost()

    table.before = overtaken
    assert await store.acquire(KEY, "me", duration=PERIOD) is None


@pytest.mark.parametrize("how", ["lost", "cancelled"])
async def test_case_l2_an_acquisition_that_nobody_heard_of_is_taken_at_the_next_try(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable, how: str
):
    """It would otherwise be held by nobody for a whole period."""
    if how == "lost":
        table.after = once(lost(), times=2)
        with pytest.raises(LeaseTableUnreachable):
            await take(store)
    else:
        table.after = gate = Gate("update")
        taking = asyncio.create_task(take(store))
        await gate.reached.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
    assert await another.acquire(KEY, "you", duration=PERIOD) is None

    lease = await take(store)

    assert (await row(another)).owner == lease.owner
    # Only once: what is held now is held by somebody.
    assert await store.acquire(KEY, "me", duration=PERIOD) is None
    await store.renew(lease)


async def test_an_acquisition_whose_answer_is_still_awaited_is_not_taken_by_the_same_store(
    store: TableLeaseStore, table: MemoryTable
):
    table.after = gate = Gate("update")
    taking = asyncio.create_task(take(store))
    await gate.reached.wait()
    assert await store.acquire(KEY, "me", duration=PERIOD) is None
    gate.open.set()
    await store.renew(await taking)


async def test_a_row_that_another_removed_and_we_made_anew_is_ours_in_every_survey(
    store: TableLeaseStore, another: TableLeaseStore
):
    """Its counter starts anew, so it cannot tell which is the later one."""
    lease = await take(store)
    for _ in range(5):
        await store.renew(lease)
    await store.release(lease)
    await store.survey("orders", max_age=HOUR)
    await another.delete(KEY)

    lease = await take(store)

    assert (await store.survey("orders", max_age=HOUR)).leases == (lease,)


async def test_a_refusal_is_the_callers_to_try_again(store: TableLeaseStore, table: MemoryTable):
    lease = await take(store)
    table.before = once(refused())
    with pytest.raises(LeaseTableUnreachable):
        await store.renew(lease)
    # Once, not twice: nothing was written, so there is nothing to find out.
    assert len(table.writes("update")) == 2
    await store.renew(lease)


async def test_what_stays_uncertain_is_told_and_the_last_scan_is_not_used_again(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    await store.survey("orders", max_age=HOUR)

    async def every(step: Step) -> None:
        if step.writes:
            raise lost()

    table.after = every
    with pytest.raises(LeaseTableUnreachable):
        await store.checkpoint(lease, "5", number=1)
    table.after = None

    (seen,) = (await store.survey("orders", max_age=HOUR)).leases
    assert seen.checkpoint == "5"


async def test_a_write_that_is_cancelled_may_have_been_applied(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    await store.survey("orders", max_age=HOUR)
    table.after = gate = Gate("update")
    writing = asyncio.create_task(store.checkpoint(lease, "5", number=1))
    await gate.reached.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    (seen,) = (await store.survey("orders", max_age=HOUR)).leases
    assert seen.checkpoint == "5"


# -- late writes -----------------------------------------------------------------------------------


async def test_case_w1_a_checkpoint_that_lands_after_a_newer_one_is_ignored(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    table.before = gate = Gate("update")
    late = asyncio.create_task(store.checkpoint(lease, "2", number=1))
    await gate.reached.wait()
    await store.checkpoint(lease, "5", number=2)
    gate.open.set()
    await late
    assert (await row(store)).checkpoint == "5"


async def test_a_checkpoint_that_lands_after_the_release_is_lost(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    table.before = gate = Gate("update")
    late = asyncio.create_task(store.checkpoint(lease, "2", number=1))
    await gate.reached.wait()
    await store.release(lease, checkpoint="5", number=2)
    gate.open.set()
    with pytest.raises(LeaseLost):
        await late
    assert (await row(store)).checkpoint == "5"


async def test_a_take_over_fails_when_the_owner_writes_at_the_last_moment(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable, clock: ManualClock
):
    lease = await take(store)
    assert await another.acquire(KEY, "you", duration=PERIOD) is None
    await clock.advance(PERIOD + 1)
    table.before = gate = Gate("update")
    taking = asyncio.create_task(another.acquire(KEY, "you", duration=PERIOD))
    await gate.reached.wait()
    await store.renew(lease)
    gate.open.set()

    assert await taking is None
    await store.renew(lease)


async def test_a_row_that_is_taken_at_the_last_moment_is_not_deleted(
    store: TableLeaseStore, another: TableLeaseStore, table: MemoryTable
):
    await store.release(await take(store))
    table.before = gate = Gate("delete")
    deleting = asyncio.create_task(store.delete(KEY))
    await gate.reached.wait()
    held = await take(another, "you")
    gate.open.set()
    await deleting
    assert await row(store) == held


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


# -- many things at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
async def test_case_l2_whatever_fails_a_lease_that_was_renewed_is_its_owners_alone(seed: int):
    """Failures at every call: nobody takes what was renewed, and no checkpoint goes back."""
    rng, table, clock = random.Random(seed), MemoryTable(), ManualClock()

    async def before(step: Step) -> None:
        if rng.random() < 0.25:
            raise lost() if step.writes and rng.random() < 0.5 else refused()

    async def after(_: Step) -> None:
        if rng.random() < 0.25:
            raise lost()

    stores = [TableLeaseStore(table, clock=clock) for _ in range(3)]
    held: dict[int, tuple[LeaseState, float]] = {}
    confirmed, numbers = 0, 0

    async def act(n: int) -> None:
        nonlocal confirmed, numbers
        sent = clock.monotonic()
        if n not in held:
            lease = await stores[n].acquire(KEY, f"o{n}", duration=PERIOD)
            if lease is not None:
                for other, (_, until) in list(held.items()):
                    assert sent >= until, f"taken from o{other}, which had renewed it"
                assert int(lease.checkpoint or 0) >= confirmed
                held[n] = (lease, sent + PERIOD)
            return
        lease, until = held[n]
        try:
            numbers += 1
            match rng.randrange(8):
                case 0:
                    held[n] = (lease, sent)  # whatever its answer, it acts on the lease no more
                    await stores[n].release(lease, checkpoint=str(numbers), number=numbers)
                    held.pop(n)
                case 1 | 2:
                    await stores[n].checkpoint(lease, str(numbers), number=numbers)
                    confirmed = max(confirmed, numbers)
                case _:
                    await stores[n].renew(lease)
                    held[n] = (lease, sent + PERIOD)
        except LeaseLost:
            assert sent >= until, "lost while it was renewed"
            held.pop(n)

    table.before, table.after = before, after
    for _ in range(150):
        n = rng.randrange(3)
        try:
            await act(n)
        except LeaseTableUnreachable:
            if n in held and clock.monotonic() >= held[n][1]:
                held.pop(n)
        await clock.advance(rng.choice([0.0, 1.0, 3.0, 6.0]))
        stored = table.rows.get(KEY.row, {}).get("checkpoint")
        assert int(str(stored or 0)) >= confirmed

    # Once it works again, two looks a period apart are enough for somebody to have it.
    table.before = table.after = None
    newcomer = TableLeaseStore(table, clock=clock)
    if await newcomer.acquire(KEY, "new", duration=PERIOD) is None:
        await take_over(clock, newcomer, "new")


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
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert table.closed == 1
