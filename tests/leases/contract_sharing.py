"""What every lease store must tell instances that share the shards of a stream."""

from __future__ import annotations

from ruststream_kinesis import LeaseStore
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import KEY, OTHER, PERIOD, row, take, take_over

HOUR = 3600.0


def member(nonce: str = "m1", *subscriptions: str, **more: int) -> Member:
    return Member(nonce, "me", subscriptions or ("orders",), **more)


class SharingContract:
    """The promises of `LeaseStore` about members; the fixtures are those of its contract."""

    # -- who may be asked for what -------------------------------------------------------------

    async def test_a_held_lease_is_not_free_and_a_released_one_is(
        self, store: LeaseStore, another: LeaseStore
    ):
        lease = await take(store)
        assert not lease.free
        assert not (await row(another)).free

        await store.release(lease)

        assert (await row(another)).free
        assert [each.free for each in await another.leases("orders")] == [True]

    async def test_a_lease_that_ran_out_is_free_and_still_names_its_last_owner(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        lease = await store.acquire(KEY, "me", duration=PERIOD, member="m1")
        assert lease is not None
        assert (await row(another)).member == "m1"

        await clock.advance(PERIOD + 0.1)

        left = await row(another)
        assert left.free
        assert left.owner == lease.owner
        assert left.member is None
        (listed,) = (await another.survey("orders")).leases
        assert listed == left

    async def test_a_lease_says_which_member_holds_it(self, store: LeaseStore):
        with_member = await store.acquire(KEY, "me", duration=PERIOD, member="m1")
        without = await take(store, key=OTHER)

        assert with_member is not None
        assert with_member.member == "m1"
        assert without.member is None
        assert [each.member for each in await store.leases("orders")] == ["m1", None]

    async def test_a_lease_is_handed_to_a_successor(self, store: LeaseStore, another: LeaseStore):
        await store.release(await take(store), checkpoint="5", number=1, successor="m2")

        handed = await row(another)
        assert (handed.successor, handed.checkpoint, handed.free) == ("m2", "5", True)
        assert [each.successor for each in await another.leases("orders")] == ["m2"]

    async def test_a_successor_is_named_until_somebody_takes_the_lease(self, store: LeaseStore):
        await store.release(await take(store), successor="m2")

        lease = await take(store)

        assert lease.successor is None
        await store.release(lease)
        assert (await row(store)).successor is None

    async def test_a_late_release_hands_over_all_the_same(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=3)

        await store.release(lease, checkpoint="2", number=2, successor="m2")

        handed = await row(store)
        assert (handed.successor, handed.checkpoint) == ("m2", "5")

    async def test_a_stale_owner_hands_nothing_over(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        stale = await take(store)
        await take_over(clock, another)

        await store.release(stale, successor="m2")

        assert (await row(another)).successor is None

    # -- who is there --------------------------------------------------------------------------

    async def test_a_survey_tells_the_rows_and_the_members_of_one_subscription(
        self, store: LeaseStore, another: LeaseStore
    ):
        await take(store)
        await take(store, key=OTHER)
        everywhere = member("m2", "g/orders", "orders", max_shards=3)
        for each in (everywhere, member("m1"), member("m3", "bills")):
            await store.beat(each, duration=PERIOD)

        survey = await another.survey("orders")

        assert {each.key for each in survey.leases} == {KEY, OTHER}
        assert survey.members == (member("m1"), everywhere)
        assert (await another.survey("orders", "g")).members == (everywhere,)
        assert (await another.survey("orders", "g")).leases == ()
        assert (await another.survey("bills")).members == (member("m3", "bills"),)

    async def test_a_member_that_beats_is_there(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        for _ in range(5):
            await store.beat(member(), duration=PERIOD)
            assert (await another.survey("orders")).members == (member(),)
            await clock.advance(PERIOD * 0.6)

    async def test_a_member_that_beats_no_more_is_gone(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        await store.beat(member(), duration=PERIOD)
        assert (await another.survey("orders")).members == (member(),)

        await clock.advance(PERIOD + 0.1)

        assert (await another.survey("orders")).members == ()
        await store.beat(member(), duration=PERIOD)
        assert (await another.survey("orders")).members == (member(),)

    async def test_a_member_that_left_is_gone_at_once(self, store: LeaseStore, another: LeaseStore):
        await store.beat(member(), duration=PERIOD)

        await store.leave("m1")
        await store.leave("m1")  # nobody knows it: no error

        assert (await another.survey("orders")).members == ()

    async def test_a_member_may_read_something_else_from_now_on(self, store: LeaseStore):
        await store.beat(member("m1", "orders", max_shards=3), duration=PERIOD)
        await store.beat(member("m1", "bills"), duration=PERIOD)

        assert (await store.survey("orders")).members == ()
        assert (await store.survey("bills")).members == (member("m1", "bills"),)

    async def test_members_and_openings_are_no_leases(self, store: LeaseStore):
        await store.beat(member(), duration=PERIOD)

        assert await store.leases("orders") == []

    # -- how old a survey may be ---------------------------------------------------------------

    async def test_what_another_wrote_is_in_a_survey_that_may_not_be_old(
        self, store: LeaseStore, another: LeaseStore
    ):
        await another.survey("orders", max_age=HOUR)

        lease = await take(store)

        assert (await another.survey("orders")).leases == (lease,)
        assert (await another.survey("orders", max_age=0.0)).leases == (lease,)

    async def test_what_this_store_wrote_is_in_a_survey_however_old(self, store: LeaseStore):
        async def seen() -> tuple[object, ...]:
            survey = await store.survey("orders", max_age=HOUR)
            return (*survey.leases, *survey.members)

        assert await seen() == ()
        lease = await take(store)
        assert await seen() == (lease,)
        await store.beat(member(), duration=PERIOD)
        assert await seen() == (lease, member())
        await store.renew(lease)
        assert await seen() == (await row(store), member())
        await store.checkpoint(lease, "5", number=1)
        assert await seen() == (await row(store), member())
        await store.release(lease, checkpoint="6", number=2, successor="m1")
        assert await seen() == (await row(store), member())
        await store.leave("m1")
        assert await seen() == (await row(store),)
        await store.delete(KEY)
        assert await seen() == ()

    async def test_what_the_renewer_wrote_is_known_to_the_store(self, store: LeaseStore):
        await store.survey("orders", max_age=HOUR)
        lease = await take(store)
        renewer = store.renewer() or store

        await renewer.renew(lease)
        await renewer.beat(member(), duration=PERIOD)

        survey = await store.survey("orders", max_age=HOUR)
        assert survey.members == (member(),)
        assert [each.counter for each in survey.leases] == [lease.counter + 1]
        assert (await row(store)).counter == lease.counter + 1
