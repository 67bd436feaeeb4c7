"""The fair share: balanced, with the fewest moves, stable, and the same for everybody."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis.plan import share

Shards = dict[str, str | None]
Members = dict[str, int | None]


def ids(count: int) -> list[str]:
    """Return shard ids as the service makes them."""
    return [f"shardId-{number:012}" for number in range(count)]


def moves(
    shards: Mapping[str, str | None], plan: Mapping[str, str], members: Mapping[str, int | None]
) -> int:
    """Return how many shards a member has to give away."""
    return sum(owner in members and plan.get(shard) != owner for shard, owner in shards.items())


def sizes(plan: Mapping[str, str], members: Mapping[str, int | None]) -> dict[str, int]:
    """Return how many shards each member gets."""
    found = Counter(plan.values())
    return {nonce: found[nonce] for nonce in members}


def fair(counts: Mapping[str, int], members: Members, count: int) -> bool:
    """Whether these are as many as everybody should have."""
    limits = {n: count if limit is None else min(limit, count) for n, limit in members.items()}
    if any(counts[nonce] > limits[nonce] for nonce in members):
        return False
    if sum(counts.values()) != min(count, sum(limits.values())):
        return False
    most = max(counts.values(), default=0)
    return all(most <= counts[n] + 1 for n in members if counts[n] < limits[n])


def fair_counts(members: Members, count: int) -> Iterator[dict[str, int]]:
    """Try everything."""
    for each in itertools.product(range(count + 1), repeat=len(members)):
        counts = dict(zip(members, each, strict=True))
        if fair(counts, members, count):
            yield counts


@st.composite
def worlds(draw: st.DrawFn, most: int = 40, limits: bool = True) -> tuple[Shards, Members]:
    """Shards of members, of nobody, and of somebody who is gone."""
    nonces = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8 if most > 8 else 4))
    limit = st.none() | st.integers(0, most) if limits else st.none()
    members = {nonce: draw(limit) for nonce in nonces}
    owner = st.sampled_from([*nonces, *nonces, None, "gone"])
    return {shard: draw(owner) for shard in ids(draw(st.integers(0, most)))}, members


@given(worlds())
def test_it_is_balanced_within_one_up_to_the_limits(world: tuple[Shards, Members]) -> None:
    shards, members = world
    assert fair(sizes(share(shards, members), members), members, len(shards))


@given(worlds(most=6))
def test_no_fair_plan_moves_fewer(world: tuple[Shards, Members]) -> None:
    shards, members = world
    held = Counter(owner for owner in shards.values() if owner in members)
    fewest = min(
        sum(max(0, held[nonce] - counts[nonce]) for nonce in members)
        for counts in fair_counts(members, len(shards))
    )
    assert moves(shards, share(shards, members), members) == fewest


@given(worlds())
def test_what_is_carried_out_is_left_alone(world: tuple[Shards, Members]) -> None:
    shards, members = world
    plan = share(shards, members)
    done = {shard: plan.get(shard) for shard in shards}
    assert share(done, members) == plan


@given(worlds(), st.randoms(use_true_random=False))
def test_a_plan_half_carried_out_is_still_the_plan(
    world: tuple[Shards, Members], rng: random.Random
) -> None:
    shards, members = world
    plan = share(shards, members)
    half = dict(shards)
    for shard, owner in shards.items():
        if rng.random() < 0.5:
            # Given up already, taken already, or neither yet.
            half[shard] = plan.get(shard)
        elif plan.get(shard) != owner and rng.random() < 0.5:
            half[shard] = None
    assert share(half, members) == plan


@given(worlds(), st.randoms(use_true_random=False))
def test_everybody_computes_the_same(world: tuple[Shards, Members], rng: random.Random) -> None:
    shards, members = world
    shard_items, member_items = list(shards.items()), list(members.items())
    rng.shuffle(shard_items)
    rng.shuffle(member_items)
    assert share(dict(shard_items), dict(member_items)) == share(shards, members)


def test_who_gets_one_more_does_not_change_on_the_way() -> None:
    members = dict.fromkeys("abc")
    shards = dict.fromkeys(ids(5), "a")
    plan = share(shards, members)
    assert sorted(plan.values()) == ["a", "a", "b", "b", "c"]
    # The last move first: now "c" holds more than "b", which is still to get two.
    assert share({**shards, ids(5)[4]: plan[ids(5)[4]]}, members) == plan


@given(worlds(limits=False), st.data())
def test_nothing_moves_but_the_shards_of_a_member_that_leaves(
    world: tuple[Shards, Members], data: st.DataObject
) -> None:
    shards, members = world
    if not members:
        return
    before = share(shards, members)
    leaving = data.draw(st.sampled_from(sorted(members)))
    after = share(before, {n: limit for n, limit in members.items() if n != leaving})
    assert all(after[s] == owner for s, owner in before.items() if owner != leaving)


def test_one_member_to_four_is_two_each_and_then_nothing_moves() -> None:
    # Case L6.
    shards = share(dict.fromkeys(ids(8)), {"a": None})
    members = dict.fromkeys("abcd")
    plan = share(shards, members)
    assert sizes(plan, members) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert moves(shards, plan, members) == 6
    for _ in range(100):
        assert share(plan, members) == plan


def test_seven_shards_on_three_are_three_two_two() -> None:
    # Case L6.
    for owner in (None, "a", "c"):
        plan = share(dict.fromkeys(ids(7), owner), dict.fromkeys("abc"))
        assert sorted(Counter(plan.values()).values()) == [2, 2, 3]


def test_the_newest_shards_move() -> None:
    shards = dict.fromkeys(ids(4), "b")
    assert share(shards, dict.fromkeys("ab")) == dict(zip(ids(4), "bbaa", strict=True))


def test_limits_leave_no_shard_out_where_there_are_enough_instances() -> None:
    members: Members = {"a": 2, "b": 3, "c": 1, "d": None}
    plan = share(dict.fromkeys(ids(10), "a"), members)
    assert sizes(plan, members) == {"a": 2, "b": 3, "c": 1, "d": 4}
    assert len(share(dict.fromkeys(ids(10)), {"a": 3, "b": 3})) == 6
    assert share(dict.fromkeys(ids(3)), {"a": 0}) == {}
    assert share(dict.fromkeys(ids(3), "gone"), {}) == {}
    assert share({}, members) == {}


def test_a_21st_member_moves_no_more_than_its_share() -> None:
    members: Members = {f"m{number:02}": None for number in range(20)}
    shards = share(dict.fromkeys(ids(1000)), members)
    more: Members = {**members, "m20": None}
    plan = share(shards, more)
    assert moves(shards, plan, more) <= 48
    assert sorted(set(sizes(plan, more).values())) == [47, 48]


@pytest.mark.parametrize("owner", [None, "m05"])
def test_a_plan_of_a_thousand_shards_takes_no_time(owner: str | None) -> None:
    members: Members = {f"m{number:02}": None for number in range(21)}
    shards = dict.fromkeys(ids(1000), owner)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        share(shards, members)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.005
