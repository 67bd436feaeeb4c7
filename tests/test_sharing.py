"""What the common plan means to one member: what it takes, and what it hands over to whom."""

from __future__ import annotations

import pytest

from ruststream_kinesis import LeaseKey, LeaseState
from ruststream_kinesis.leases.base import Member, Survey
from ruststream_kinesis.sharing import Decision, Sharing
from ruststream_kinesis.testing import ManualClock

A, B, C = (Member(nonce, f"host-{nonce}", ("orders",)) for nonce in "abc")


def lease(shard_id: str, holder: str | None, successor: str | None = None) -> LeaseState:
    owner = None if holder is None else f"host-{holder}#{holder}.1"
    return LeaseState(
        LeaseKey("orders", shard_id), owner, 1, None, free=holder is None, successor=successor
    )


def decide(
    sharing: Sharing, me: Member, members: tuple[Member, ...], *leases: LeaseState
) -> Decision:
    shards = [each.key.shard_id for each in leases]
    held = [each.key.shard_id for each in leases if each.member == me.nonce]
    return sharing.decide(me, Survey(leases, members), shards, held)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sharing(clock: ManualClock) -> Sharing:
    return Sharing(clock)


def test_who_is_alone_takes_everything(sharing: Sharing):
    decision = decide(sharing, A, (A,), lease("1", None), lease("2", None))

    assert sorted(decision.take) == ["1", "2"]
    assert decision.hand_over == {}


def test_who_asks_counts_even_where_its_own_row_is_not_seen(sharing: Sharing):
    assert decide(sharing, A, (), lease("1", None)).take == ("1",)


def test_a_newcomer_waits_and_the_holder_hands_over_the_excess(clock: ManualClock):
    leases = [lease(str(n), "a") for n in range(4)]

    assert decide(Sharing(clock), B, (A, B), *leases) == Decision((), {})
    assert sorted(decide(Sharing(clock), A, (A, B), *leases).hand_over.values()) == ["b", "b"]


def test_what_is_handed_over_is_taken_by_its_successor_alone(clock: ManualClock):
    leases = [lease("1", "a"), lease("2", None, successor="b")]

    assert decide(Sharing(clock), A, (A, B, C), *leases).take == ()
    assert decide(Sharing(clock), B, (A, B, C), *leases).take == ("2",)
    assert decide(Sharing(clock), C, (A, B, C), *leases).take == ()


def test_a_successor_that_is_gone_is_nobody(clock: ManualClock):
    leases = [lease("1", "a"), lease("2", None, successor="gone")]

    assert decide(Sharing(clock), B, (A, B), *leases).take == ("2",)


async def test_what_stays_free_for_two_passes_is_anybodys_and_is_kept_for_a_while(
    clock: ManualClock, sharing: Sharing
):
    leases = [lease("1", "a"), lease("2", None, successor="b")]
    assert decide(sharing, A, (A, B), *leases).take == ()
    await clock.advance(5.9)
    assert decide(sharing, A, (A, B), *leases).take == ()
    await clock.advance(0.1)

    assert decide(sharing, A, (A, B), *leases).take == ("2",)

    taken = [lease("1", "a"), lease("2", "a")]
    await clock.advance(3)
    assert decide(sharing, A, (A, B), *taken).hand_over == {}
    await clock.advance(60)
    assert list(decide(sharing, A, (A, B), *taken).hand_over.values()) == ["b"]


async def test_what_was_taken_for_one_that_did_not_come_goes_to_another_at_once(
    clock: ManualClock, sharing: Sharing
):
    decide(sharing, A, (A, B), lease("1", "a"), lease("2", None, successor="b"))
    await clock.advance(6)
    assert decide(sharing, A, (A, B), lease("1", "a"), lease("2", None, successor="b")).take == (
        "2",
    )

    assert decide(sharing, A, (A, C), lease("1", "a"), lease("2", "a")).hand_over == {"2": "c"}


async def test_a_shard_that_was_taken_between_is_not_free_for_two_passes(
    clock: ManualClock, sharing: Sharing
):
    decide(sharing, A, (A, B), lease("1", "a"), lease("2", None, successor="b"))
    await clock.advance(4)
    decide(sharing, A, (A, B), lease("1", "a"), lease("2", "b"))
    await clock.advance(4)

    again = decide(sharing, A, (A, B), lease("1", "a"), lease("2", None, successor="b"))

    assert again.take == ()


def test_what_a_member_held_that_died_just_now_makes_no_mixed_fleet(sharing: Sharing):
    assert decide(sharing, A, (A,), lease("1", "a"), lease("2", "b")) == Decision((), {})


def test_a_live_owner_that_is_no_member_keeps_its_shard_out_of_the_plan(sharing: Sharing):
    foreign = LeaseState(LeaseKey("orders", "9"), "sibling#f00", 1, None)

    decision = decide(sharing, A, (A, B), foreign, lease("1", "a"), lease("2", "b"))

    assert decision == Decision((), {}, mixed=True)


async def test_nobody_takes_more_than_its_limit_however_long_it_is_free(
    clock: ManualClock, sharing: Sharing
):
    me = Member("a", "host-a", ("orders",), max_shards=2)
    leases = [lease("1", "a"), lease("2", None), lease("3", None)]
    assert decide(sharing, me, (me,), *leases).take == ("2",)
    await clock.advance(60)

    assert len(decide(sharing, me, (me,), *leases).take) == 1


def test_what_is_handed_over_waits_until_there_is_room(sharing: Sharing):
    """Between two passes a shard that was meant for us met one that we took ourselves."""
    me = Member("a", "host-a", ("orders",), max_shards=2)
    handed = lease("2", None, successor="a")

    full = decide(sharing, me, (me,), handed, lease("4", "a"), lease("5", "a"))
    assert full.take == ()

    assert decide(sharing, me, (me,), handed, lease("4", "a")).take == ("2",)


def test_a_lease_that_we_hold_without_knowing_of_it_is_taken_again(sharing: Sharing):
    """The answer to its acquisition was lost."""
    mine = lease("1", "a")

    assert sharing.decide(A, Survey((mine,), (A,)), ["1"], []).take == ("1",)
