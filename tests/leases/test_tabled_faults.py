"""`TableLeaseStore` when calls fail, answers are lost or late, and others write in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ruststream_kinesis import KinesisPosition, LeaseState, LeaseStore
from ruststream_kinesis.errors import LeaseLost, LeaseTableUnreachable
from ruststream_kinesis.leases import Opening
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import KEY, PERIOD, row, take, take_over
from tests.support.tables import Gate, MemoryTable, Step, lost, once, refused

HOUR = 3600.0


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


async def test_a_table_that_tried_for_long_is_not_asked_again(
    store: TableLeaseStore, table: MemoryTable, clock: ManualClock
):
    """The caller's time is nearly up: it is to hear the table's own error."""
    lease = await take(store)

    async def slowly(step: Step) -> None:
        await clock.advance(3.5)
        raise lost()

    table.before = slowly
    with pytest.raises(LeaseTableUnreachable):
        await store.renew(lease)
    assert len(table.writes("update")) == 2  # the acquisition, and this


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


async def test_a_scan_made_while_a_write_stayed_uncertain_is_not_used_again(
    store: TableLeaseStore, table: MemoryTable
):
    lease = await take(store)
    gate = Gate("pages")

    async def trouble(step: Step) -> None:
        await gate(step)
        if step.writes:
            raise lost()

    table.after = trouble
    looking = asyncio.create_task(store.survey("orders", max_age=HOUR))
    await gate.reached.wait()
    with pytest.raises(LeaseTableUnreachable):
        await store.checkpoint(lease, "5", number=1)
    gate.open.set()
    await looking

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
