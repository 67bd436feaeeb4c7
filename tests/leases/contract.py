"""What every lease store must do: one suite, bound by a subclass for each store.

A subclass gives `store`, and `another` for a second process on the same storage. Expiry is written
so that it also holds for a store that can only watch a row not change: the one who wants the shard
looks at it, lets the lease period pass, and looks again.
"""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState, LeaseStore
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import SHARD_END, Opening
from ruststream_kinesis.testing import ManualClock

KEY = LeaseKey("orders", "shardId-000000000000")
OTHER = LeaseKey("orders", "shardId-000000000001")
HORIZON = KinesisPosition.horizon()
POSITIONS = [
    HORIZON,
    KinesisPosition.timestamp(1_700_000_000.123),
    KinesisPosition.sequence(
        KEY.shard_id, "49650000000000000000000000000000000000000000000000000002"
    ),
]
PERIOD = 10.0
"""Seconds that a lease lives in these tests."""


async def take(store: LeaseStore, owner_id: str = "me", key: LeaseKey = KEY) -> LeaseState:
    lease = await store.acquire(key, owner_id, duration=PERIOD)
    assert lease is not None
    return lease


async def take_over(clock: ManualClock, store: LeaseStore, owner_id: str = "you") -> LeaseState:
    """Take the shard from an owner that renews no more."""
    assert await store.acquire(KEY, owner_id, duration=PERIOD) is None
    await clock.advance(PERIOD + 0.1)
    return await take(store, owner_id)


async def row(store: LeaseStore, key: LeaseKey = KEY) -> LeaseState:
    state = await store.read(key)
    assert state is not None
    return state


class LeaseStoreContract:
    """The promises of `LeaseStore`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> LeaseStore:
        raise NotImplementedError

    @pytest.fixture
    def another(self, store: LeaseStore) -> LeaseStore:
        """A second process on the same storage; the same object where there can be no second."""
        return store

    # -- who holds a shard ---------------------------------------------------------------------

    async def test_nothing_is_known_of_a_shard_that_nobody_took(self, store: LeaseStore):
        assert await store.read(KEY) is None
        assert await store.leases("orders") == []

    async def test_a_free_shard_is_taken_with_a_token_behind_the_owner(self, store: LeaseStore):
        lease = await take(store)

        assert lease.key == KEY
        assert lease.owner is not None
        assert lease.owner.startswith("me#")
        assert len(lease.owner) > len("me#")
        assert lease.checkpoint is None
        assert not lease.finished
        assert await row(store) == lease

    async def test_a_held_shard_is_not_taken(self, store: LeaseStore, another: LeaseStore):
        lease = await take(store)

        assert await another.acquire(KEY, "you", duration=PERIOD) is None
        assert (await row(store)).owner == lease.owner

    async def test_two_processes_of_one_owner_id_are_two_owners(
        self, store: LeaseStore, another: LeaseStore
    ):
        """Case L8 at the store: the second waits like any other."""
        await take(store, "twin")

        assert await another.acquire(KEY, "twin", duration=PERIOD) is None

    async def test_of_many_who_ask_at_once_exactly_one_gets_it(
        self, store: LeaseStore, another: LeaseStore
    ):
        asked = [(store, another)[n % 2].acquire(KEY, f"o{n}", duration=PERIOD) for n in range(20)]

        answers = await asyncio.gather(*asked)

        (winner,) = [answer for answer in answers if answer is not None]
        assert (await row(store)).owner == winner.owner

    async def test_each_acquisition_has_a_token_of_its_own(self, store: LeaseStore):
        first = await take(store)
        await store.release(first)

        assert (await take(store)).owner != first.owner

    async def test_other_shards_streams_and_groups_are_other_leases(self, store: LeaseStore):
        for key in (
            KEY,
            OTHER,
            LeaseKey("bills", KEY.shard_id),
            LeaseKey("orders", KEY.shard_id, "g"),
        ):
            await take(store, key=key)

        assert {each.key for each in await store.leases("orders")} == {KEY, OTHER}
        assert [each.key.group for each in await store.leases("orders", "g")] == ["g"]
        assert [each.key.stream for each in await store.leases("bills")] == ["bills"]

    # -- for how long --------------------------------------------------------------------------

    async def test_a_lease_that_is_renewed_is_kept(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        lease = await take(store)
        for _ in range(5):
            assert await another.acquire(KEY, "you", duration=PERIOD) is None
            await clock.advance(PERIOD * 0.6)
            await store.renew(lease)

        assert await another.acquire(KEY, "you", duration=PERIOD) is None

    async def test_a_lease_that_is_not_renewed_runs_out(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        await take(store)

        lease = await take_over(clock, another)

        assert (await row(store)).owner == lease.owner

    async def test_how_long_a_lease_lives_is_what_its_owner_said(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        await store.acquire(KEY, "me", duration=3 * PERIOD)

        assert await another.acquire(KEY, "you", duration=1.0) is None
        await clock.advance(2 * PERIOD)
        assert await another.acquire(KEY, "you", duration=1.0) is None

    async def test_a_released_lease_is_free_at_once(self, store: LeaseStore, another: LeaseStore):
        """Case L7 at the store: the next owner does not wait for the lease period."""
        lease = await take(store)
        await store.checkpoint(lease, "7", number=1)

        await store.release(lease)

        assert (await row(store)).owner is None
        assert (await take(another, "you")).checkpoint == "7"

    # -- checkpoints ---------------------------------------------------------------------------

    async def test_a_checkpoint_is_there_for_whoever_reads_it(
        self, store: LeaseStore, another: LeaseStore
    ):
        lease = await take(store)

        await store.checkpoint(lease, "49590338271490256608559692538361571095921", number=1)

        assert (await row(another)).checkpoint == "49590338271490256608559692538361571095921"

    async def test_a_write_that_arrives_late_undoes_nothing(self, store: LeaseStore):
        """Case W1: the number decides, and a lower one is ignored without an error."""
        lease = await take(store)
        await store.checkpoint(lease, "5", number=3)

        await store.checkpoint(lease, "2", number=2)

        assert (await row(store)).checkpoint == "5"

    async def test_numbers_decide_never_the_text_of_the_checkpoint(self, store: LeaseStore):
        """Case W3: "100" is the smaller text; and a rewind stores what is really smaller."""
        lease = await take(store)
        await store.checkpoint(lease, "99", number=1)
        await store.checkpoint(lease, "100", number=2)
        assert (await row(store)).checkpoint == "100"

        await store.checkpoint(lease, "7", number=3)

        assert (await row(store)).checkpoint == "7"

    async def test_numbers_start_anew_with_each_acquisition(self, store: LeaseStore):
        first = await take(store)
        await store.checkpoint(first, "5", number=50)
        await store.release(first)
        second = await take(store)

        await store.checkpoint(second, "6", number=1)

        assert (await row(store)).checkpoint == "6"

    async def test_the_end_of_a_shard_is_a_checkpoint(self, store: LeaseStore):
        lease = await take(store)

        await store.checkpoint(lease, SHARD_END, number=1)

        assert (await row(store)).finished
        assert [each.finished for each in await store.leases("orders")] == [True]

    async def test_a_release_carries_the_final_checkpoint(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)

        await store.release(lease, checkpoint="6", number=2)

        assert (await row(store)).checkpoint == "6"
        assert (await row(store)).owner is None

    async def test_a_release_without_checkpoint_keeps_the_stored_one(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)

        await store.release(lease, checkpoint=None, number=2)

        assert (await row(store)).checkpoint == "5"

    async def test_a_release_that_is_late_frees_the_shard_and_undoes_nothing(
        self, store: LeaseStore
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=3)

        await store.release(lease, checkpoint="2", number=2)

        assert (await row(store)).checkpoint == "5"
        assert (await row(store)).owner is None

    # -- where a rewind went -------------------------------------------------------------------

    @pytest.mark.parametrize("position", POSITIONS, ids=str)
    async def test_a_position_is_stored_beside_the_checkpoint(
        self, store: LeaseStore, another: LeaseStore, position: KinesisPosition
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)
        await store.checkpoint(lease, None, number=2, resume_from=position)

        stored = await another.read(KEY)
        assert stored is not None
        assert (stored.checkpoint, stored.resume_from) == ("5", position)
        assert [each.resume_from for each in await another.leases("orders")] == [position]

    async def test_a_position_is_there_without_a_checkpoint_and_for_the_next_owner(
        self, store: LeaseStore
    ):
        lease = await take(store)
        await store.checkpoint(lease, None, number=1, resume_from=HORIZON)
        await store.release(lease)

        again = await take(store)
        assert (again.checkpoint, again.resume_from) == (None, HORIZON)

    @pytest.mark.parametrize("checkpoint", ["5", "6", SHARD_END])
    async def test_the_next_checkpoint_makes_a_position_void_whatever_it_is(
        self, store: LeaseStore, checkpoint: str
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)
        await store.checkpoint(lease, None, number=2, resume_from=HORIZON)
        await store.checkpoint(lease, checkpoint, number=3)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == (checkpoint, None)

    async def test_a_checkpoint_that_arrives_late_does_not_undo_a_rewind(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, None, number=2, resume_from=HORIZON)
        await store.checkpoint(lease, "5", number=1)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == (None, HORIZON)

    async def test_a_release_carries_a_position_or_keeps_the_stored_one(self, store: LeaseStore):
        first = await take(store)
        await store.release(first, checkpoint="5", number=1)
        second = await take(store)
        await store.release(second, number=1, resume_from=HORIZON)
        third = await take(store)
        assert (third.checkpoint, third.resume_from) == ("5", HORIZON)
        await store.release(third)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == ("5", HORIZON)

    async def test_a_finished_shard_that_was_rewound_is_not_finished(self, store: LeaseStore):
        lease = await take(store)
        await store.release(lease, checkpoint=SHARD_END, number=1)
        assert (await row(store)).finished
        lease = await take(store)
        await store.release(lease, number=1, resume_from=HORIZON)

        stored = await row(store)
        assert stored.checkpoint == SHARD_END
        assert not stored.finished

    async def test_a_stale_owner_rewinds_nothing(
        self, clock: ManualClock, store: LeaseStore, another: LeaseStore
    ):
        lease = await take(store)
        await take_over(clock, another)

        with pytest.raises(LeaseLost):
            await store.checkpoint(lease, None, number=1, resume_from=HORIZON)
        await store.release(lease, number=2, resume_from=HORIZON)
        assert (await row(another)).resume_from is None

    async def test_every_write_moves_the_counter_by_one(self, store: LeaseStore):
        lease = await take(store)
        counters = [lease.counter]
        for write in (
            store.renew(lease),
            store.checkpoint(lease, "5", number=1),
            store.renew(lease),
            store.release(lease, checkpoint="6", number=2),
        ):
            await write
            counters.append((await row(store)).counter)

        first = counters[0]
        assert counters == [first, first + 1, first + 2, first + 3, first + 4]
        assert (await take(store)).counter == first + 5

    # -- what a stale owner may do: nothing ----------------------------------------------------

    async def test_a_stale_owner_cannot_renew(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        stale = await take(store)
        held = await take_over(clock, another)

        with pytest.raises(LeaseLost) as caught:
            await store.renew(stale)

        assert (caught.value.stream, caught.value.shard_id) == (KEY.stream, KEY.shard_id)
        assert await row(store) == held

    async def test_a_stale_owner_cannot_write_a_checkpoint(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        """Case W1: a stale owner's 2 after 5 is refused, however high its number."""
        stale = await take(store)
        held = await take_over(clock, another)
        await another.checkpoint(held, "5", number=1)

        with pytest.raises(LeaseLost):
            await store.checkpoint(stale, "2", number=1000)

        assert (await row(store)).checkpoint == "5"

    async def test_a_stale_owner_releases_nothing_and_hears_no_error(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        stale = await take(store)
        held = await take_over(clock, another)

        await store.release(stale, checkpoint="2", number=1000)

        assert await row(store) == held

    async def test_an_owner_that_released_is_stale(self, store: LeaseStore):
        lease = await take(store)
        await store.release(lease, checkpoint="5", number=1)
        before = await row(store)

        with pytest.raises(LeaseLost):
            await store.renew(lease)
        with pytest.raises(LeaseLost):
            await store.checkpoint(lease, "6", number=2)
        await store.release(lease, checkpoint="7", number=3)

        assert await row(store) == before

    async def test_an_owner_that_took_its_shard_anew_is_stale_by_its_old_token(
        self, store: LeaseStore, clock: ManualClock
    ):
        stale = await take(store, "me")
        held = await take_over(clock, store, "me")

        with pytest.raises(LeaseLost):
            await store.checkpoint(stale, "2", number=1000)
        await store.checkpoint(held, "3", number=1)

        assert (await row(store)).checkpoint == "3"

    async def test_an_owner_whose_row_is_gone_is_stale(self, store: LeaseStore):
        lease = await take(store)
        await store.release(lease)
        await store.delete(KEY)

        with pytest.raises(LeaseLost):
            await store.checkpoint(lease, "2", number=1)
        await store.release(lease, checkpoint="2", number=2)

        assert await store.read(KEY) is None

    # -- rows that are not needed any more -----------------------------------------------------

    async def test_the_row_of_a_shard_that_is_gone_can_be_deleted(self, store: LeaseStore):
        """Case S8 at the store."""
        await store.release(await take(store))

        await store.delete(KEY)
        await store.delete(OTHER)  # nobody knows it: no error

        assert await store.read(KEY) is None
        assert await store.leases("orders") == []

    async def test_a_held_row_is_not_deleted(self, store: LeaseStore):
        lease = await take(store)

        await store.delete(KEY)

        assert await row(store) == lease

    # -- the opening of a stream ---------------------------------------------------------------

    async def test_the_first_opening_is_kept_and_known_to_be_the_first(
        self, store: LeaseStore, another: LeaseStore
    ):
        first, second = Opening(100.0, 50.0), Opening(200.0, 50.0)

        assert await store.opening("orders", None, first) is first
        later = await another.opening("orders", None, second)

        assert later == first
        assert later is not second

    async def test_an_opening_equal_to_the_stored_one_is_not_the_first(
        self, store: LeaseStore, another: LeaseStore
    ):
        await store.opening("orders", None, Opening(100.0, 50.0))
        same = Opening(100.0, 50.0)

        assert await another.opening("orders", None, same) is not same

    async def test_a_stream_without_creation_time_is_opened_all_the_same(self, store: LeaseStore):
        await store.opening("orders", None, Opening(100.0, None))

        assert await store.opening("orders", None, Opening(200.0, 50.0)) == Opening(100.0, None)

    async def test_openings_of_other_streams_and_groups_are_their_own(self, store: LeaseStore):
        openings = [Opening(float(n), None) for n in range(3)]

        assert await store.opening("orders", None, openings[0]) is openings[0]
        assert await store.opening("orders", "g", openings[1]) is openings[1]
        assert await store.opening("bills", None, openings[2]) is openings[2]

    async def test_an_opening_is_no_lease(self, store: LeaseStore):
        await store.opening("orders", None, Opening(100.0, None))

        assert await store.leases("orders") == []
