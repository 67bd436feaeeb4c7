"""Which shards may be read, and where they open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis import KinesisPosition, MemoryLeaseStore
from ruststream_kinesis.errors import StreamRecreated
from ruststream_kinesis.leases import SHARD_END, LeaseKey, LeaseState
from ruststream_kinesis.opening import OpeningRule, Place
from ruststream_kinesis.shards import ancestors, startable
from ruststream_kinesis.transport import ShardInfo, StreamInfo

HORIZON, LATEST = KinesisPosition.horizon(), KinesisPosition.latest()
AT = KinesisPosition.timestamp


def shards(**parents: str) -> list[ShardInfo]:
    """Return shards by name, with their parents as one word each."""
    return [ShardInfo(name, tuple(of.split())) for name, of in parents.items()]


def test_case_s1_children_whose_parents_are_not_listed_start_now():
    assert startable(shards(S2="S0", S3="S1 S0"), set()) == ["S2", "S3"]


def test_case_s1_a_child_waits_for_its_listed_parent_only():
    listed = shards(S1="", S2="S0", S3="S1 S0")
    assert startable(listed, set()) == ["S1", "S2"]
    assert startable(listed, {"S1"}) == ["S2", "S3"]


def test_case_s5_a_merged_child_waits_for_both_parents():
    listed = shards(A="", B="", C="A B")
    assert startable(listed, {"A"}) == ["B"]
    assert startable(listed, {"B"}) == ["A"]
    assert startable(listed, {"A", "B"}) == ["C"]


def test_a_grandchild_waits_for_its_parent_however_finished_the_grandparent_is():
    listed = shards(G="", P="G", C="P")
    assert startable(listed, {"G"}) == ["P"]


def test_a_finished_shard_is_never_started_again():
    assert startable(shards(A="", B="A"), {"A", "B"}) == []


@st.composite
def families(draw: st.DrawFn) -> list[ShardInfo]:
    """Return shards in which each has up to two earlier ones, listed or not, as its parents."""
    count = draw(st.integers(1, 12))
    family = []
    for number in range(count):
        parents = draw(st.sets(st.integers(-3, number - 1), max_size=2)) if number else set()
        family.append(ShardInfo(f"S{number}", tuple(f"S{each}" for each in sorted(parents))))
    return draw(st.permutations(family))


@given(families())
def test_every_shard_is_started_once_and_after_its_listed_parents(family: list[ShardInfo]):
    listed = {shard.shard_id: shard for shard in family}
    finished: list[str] = []
    while ready := startable(family, finished):
        for shard_id in ready:
            parents = listed[shard_id].parents
            assert all(each in finished for each in parents if each in listed)
        finished.append(ready[0])
    assert sorted(finished) == sorted(listed)


# -- where a shard opens ---------------------------------------------------------------------------

INFO = StreamInfo("orders", "ACTIVE", created=1000.0)


def lease(checkpoint: str | None = None, shard_id: str = "S0") -> LeaseState:
    """Return a lease that was just taken."""
    return LeaseState(LeaseKey("orders", shard_id), "me#1", 1, checkpoint)


async def rule(
    start_at: KinesisPosition | None = None,
    *,
    store: MemoryLeaseStore | None = None,
    now: float = 5000.0,
    created: float | None = 1000.0,
) -> OpeningRule:
    """Open the stream at `now` of the service's time."""
    info = StreamInfo("orders", "ACTIVE", created)
    return await OpeningRule.agree(store or MemoryLeaseStore(), info, None, now, start_at)


async def test_a_checkpoint_comes_before_every_rule():
    for start in (None, KinesisPosition.sequence("other", "7")):
        place = (await rule(start)).place(lease("42"), first_pass=True)
        assert place == Place(KinesisPosition.sequence("S0", "42"), after=True)


async def test_the_first_instance_may_open_at_the_tip_and_falls_back_to_the_instant_before_it():
    place = (await rule()).place(lease(), first_pass=True)
    assert place == Place(AT(4999.0), at_tip=True)


async def test_where_others_open_too_the_first_instance_opens_at_the_instant_itself():
    """One that agreed on it may be open already, and a record be put, before a tip is found."""

    class Shared(MemoryLeaseStore):
        shared = True

    place = (await rule(store=Shared())).place(lease(), first_pass=True)
    assert place == Place(AT(4999.0))


async def test_whatever_opens_later_without_a_checkpoint_opens_at_the_first_instant():
    store = MemoryLeaseStore()
    first = await rule(store=store)
    assert first.place(lease(), first_pass=False) == Place(AT(4999.0))
    second = await rule(store=store, now=9000.0)
    assert second.place(lease(), first_pass=True) == Place(AT(4999.0))


@pytest.mark.parametrize("start", [HORIZON, AT(1234.0)])
async def test_start_at_moves_what_the_first_pass_takes_and_what_has_no_checkpoint_later(
    start: KinesisPosition,
):
    opening = await rule(start)
    assert opening.place(lease("42"), first_pass=True) == Place(start, moved=True)
    assert opening.place(lease("42"), first_pass=False).after
    assert opening.place(lease(), first_pass=False) == Place(start)


async def test_start_at_latest_is_the_time_of_this_start_and_not_of_the_first_one():
    store = MemoryLeaseStore()
    await rule(store=store)
    again = await rule(LATEST, store=store, now=9000.0)
    assert again.place(lease("42"), first_pass=True) == Place(AT(8999.0), at_tip=True, moved=True)
    # A child that is found later must not skip what was put in it meanwhile.
    assert again.place(lease(), first_pass=False) == Place(AT(8999.0))


async def test_start_at_a_sequence_number_moves_its_own_shard_only():
    start = KinesisPosition.sequence("S0", "7")
    opening = await rule(start)
    assert opening.place(lease("42"), first_pass=True) == Place(start, moved=True)
    assert opening.place(lease("42", "S1"), first_pass=True).position.sequence_number == "42"


async def test_a_stream_that_was_created_anew_is_an_error_that_says_so():
    store = MemoryLeaseStore()
    await rule(store=store, created=1000.0)
    with pytest.raises(StreamRecreated, match="created anew"):
        await rule(store=store, created=2000.0)


async def test_a_creation_time_that_is_rounded_or_unknown_is_no_new_stream():
    store = MemoryLeaseStore()
    await rule(store=store, created=1000.4)
    await rule(store=store, created=1000.0)
    await rule(store=store, created=None)


async def test_a_service_without_a_time_opens_at_the_epoch_and_not_before_it():
    place = (await rule(now=0.5)).place(lease(), first_pass=True)
    assert place.position == AT(0.0)


def test_the_shared_word_for_a_finished_shard_is_what_the_sibling_writes():
    assert lease(SHARD_END).finished
    assert not lease("42").finished


def test_what_is_to_be_read_again_holds_up_its_whole_family_however_far():
    listed = shards(G="", P="G", C="P", X="")
    assert startable(listed, {"P"}, begun={"G", "C", "X"}) == ["G", "X"]
    # Without a row G was never read: a finished P has been read after it all the same.
    assert startable(listed, {"P"}, begun={"C"}) == ["G", "C", "X"]


def test_what_is_to_be_read_again_waits_while_somebody_holds_what_goes_back_to_it():
    listed = shards(G="", P="G", C="P", X="")
    assert startable(listed, {"P"}, held={"C"}, begun={"G"}) == ["X"]
    assert ancestors(["C"], {each.shard_id: each for each in listed}) == {"P", "G"}
