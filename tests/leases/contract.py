"""What every lease store must do: one suite, bound by a subclass for each store.

A subclass gives `store`, and `another` for a second process on the same storage. Expiry is written
so that it also holds for a store that can only watch a row not change: the one who wants the shard
looks at it, lets the lease period pass, and looks again.
"""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import LeaseKey, LeaseStore
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import Opening
from ruststream_kinesis.testing import ManualClock
from tests.leases.contract_checkpoints import CheckpointContract
from tests.leases.contract_sharing import SharingContract
from tests.support.leasing import KEY, OTHER, PERIOD, row, take, take_over


class LeaseStoreContract(CheckpointContract, SharingContract):
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

    async def test_a_member_takes_anew_what_it_holds_without_knowing_of_it(
        self, store: LeaseStore, another: LeaseStore
    ):
        """The answer to its acquisition was lost; waiting for its own lease would be waste."""
        lost = await store.acquire(KEY, "me", duration=PERIOD, member="m1")
        assert lost is not None
        assert await another.acquire(KEY, "me", duration=PERIOD, member="m2") is None

        lease = await store.acquire(KEY, "me", duration=PERIOD, member="m1")

        assert lease is not None
        assert lease.owner != lost.owner
        with pytest.raises(LeaseLost):
            await store.renew(lost)

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
