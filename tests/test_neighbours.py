"""What the log says of the other instances, and when a subscription reads nothing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState
from ruststream_kinesis.leases.base import Member, Survey
from ruststream_kinesis.neighbours import Neighbours
from tests.support.coordinating import Instance, Part, world

PASS = 3.0
A, B = (Member(nonce, f"host-{nonce}", ("orders",)) for nonce in "ab")


def lease(shard_id: str, holder: str | None, *, free: bool = False) -> LeaseState:
    owner = None if holder is None else f"host-{holder}#{holder}.1"
    return LeaseState(LeaseKey("orders", shard_id), owner, 1, None, free=free or owner is None)


def owner(instance: Instance) -> str:
    return instance.connection.owner_id


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ruststream_kinesis")


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [line for line in caplog.messages if part in line]


def test_owners_are_as_the_store_says_but_for_what_is_held_here():
    known = Neighbours("orders", "a")
    rows = (lease("1", "b"), lease("2", "a"), lease("3", "a"), lease("4", "b", free=True))
    known.look(Survey(rows, (A, B)), {"1", "2", "3", "4", "5"})
    found = known.owners(["1", "2", "3", "4", "5"], {"2": "77"}, {"4": "AccessDenied"}, "me")

    # 3 was let go of since then; 4 has an owner whose lease is over; 5 has no row.
    assert [each.owner for each in found] == ["host-b", "me", None, None, None]
    assert [each.mine for each in found] == [False, True, False, False, False]
    assert (found[1].checkpoint, found[3].error) == ("77", "AccessDenied")
    assert known.members == ("host-b",)


def test_who_is_gone_is_said_once_with_what_it_held(caplog: pytest.LogCaptureFixture):
    others = Neighbours("orders@g", "a")
    rows = (lease("1", "b"), lease("2", "b"), lease("3", "a"))
    others.look(Survey(rows, (A, B)), ())
    assert caplog.messages == []

    for _ in range(2):
        others.look(Survey((lease("1", "b", free=True), *rows[1:]), (A,)), ())

    (line,) = caplog.messages
    assert "host-b of orders@g has left, or died" in line
    assert "2 shard(s)" in line


def test_who_leaves_with_nothing_has_left(caplog: pytest.LogCaptureFixture):
    others = Neighbours("orders", "a")
    others.look(Survey((lease("1", "b"),), (A, B)), ())
    others.look(Survey((lease("1", None),), (A,)), ())
    assert caplog.messages == ["instance host-b of orders has left"]


def test_checkpoints_that_are_gone_are_an_error_once(caplog: pytest.LogCaptureFixture):
    others = Neighbours("orders", "a")
    rows = tuple(replace(lease(n, "a"), checkpoint=f"10{n}") for n in "123")
    others.look(Survey(rows, (A,)), "123")
    assert caplog.messages == []

    # 1 is as it was, 2 is not listed any more, and 3 has lost what it said.
    for _ in range(2):
        others.look(Survey((rows[0], lease("3", "a")), (A,)), "13")

    (line,) = caplog.messages
    assert "1 checkpoint(s) of orders are gone" in line
    assert "3 (was 103)" in line
    assert caplog.records[0].levelno == logging.ERROR


def test_the_previous_owner_is_known_until_somebody_else_is():
    others = Neighbours("orders", "a")
    assert others.previous(lease("1", None)) is None

    others.look(Survey((lease("1", "b"), lease("2", "a")), (A, B)), ())
    others.look(Survey((lease("1", None), lease("2", None)), (A, B)), ())
    assert others.previous(lease("1", None)) == "host-b"
    assert others.previous(lease("2", None)) is None  # it was ours


async def test_a_hand_over_names_both_sides(caplog: pytest.LogCaptureFixture):
    async with world(S0=Part(records=[1]), S1=Part(records=[2])) as it:
        first = await it.start(acking=True)
        second = await it.start(acking=True)
        await it.clock.advance(3 * PASS)

        (begun,) = lines(caplog, "handing shard")
        (done,) = lines(caplog, "is handed over")
        assert owner(second) in begun
        assert owner(second) in done
        (taken,) = lines(caplog, "taken over from")
        assert owner(first) in taken


async def test_a_killed_instance_is_named_by_the_others(caplog: pytest.LogCaptureFixture):
    async with world(S0=Part(records=[1]), S1=Part(records=[2])) as it:
        first = await it.start(acking=True)
        await it.start(acking=True)
        await it.clock.advance(3 * PASS)
        await first.kill()
        await it.clock.advance(6 * PASS)

        (gone,) = lines(caplog, "has left, or died")
        assert owner(first) in gone
        assert "1 shard(s)" in gone


async def test_a_seek_says_how_many_shards_others_hold(caplog: pytest.LogCaptureFixture):
    async with world(**{f"S{n}": Part(records=[n]) for n in range(3)}) as it:
        first = await it.start(acking=True)
        await it.start(acking=True)
        await it.clock.advance(3 * PASS)
        mine = len(first.coordinator.holdings)
        seeking = asyncio.create_task(first.coordinator.seek(KinesisPosition.horizon()))
        await it.clock.advance(PASS)
        await seeking

        (line,) = lines(caplog, "moved ")
        assert f"moved {mine} shard(s)" in line
        assert f"{3 - mine} shard(s) of it are held by other instances" in line


async def test_reading_nothing_for_want_of_renewals_is_one_error_and_its_end_one_line(
    caplog: pytest.LogCaptureFixture,
):
    async with world(S0=Part(), S1=Part(), S2=Part()) as it:
        await it.start(acking=True)
        it.store.faults.fails.update(renew=1000, release=1000, acquire=1000)
        for _ in range(40):
            await it.clock.advance(PASS)

        (error,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "NOTHING of orders" in error.getMessage()
        assert owner(it.instances[0]) in error.getMessage()
        # What is lost is not held, however long its release takes.
        assert it.instances[0].coordinator.state == ()
        # All three fail at each pass; a line a minute is enough.
        assert 1 <= len(lines(caplog, "cannot release a lease")) <= 3
        assert lines(caplog, "read here again") == []

        it.store.faults.fails.clear()
        await it.clock.advance(5 * PASS)
        (again,) = lines(caplog, "read here again")
        assert "orders" in again


async def test_one_lease_that_is_anothers_is_not_nothing(caplog: pytest.LogCaptureFixture):
    async with world(S0=Part()) as it:
        instance = await it.start(acking=True)
        (holding,) = instance.coordinator.holdings.values()
        if holding.tenure.end("another has it"):
            holding.tenure.tell()

        assert lines(caplog, "is lost")
        assert lines(caplog, "NOTHING") == []


async def test_a_stop_without_a_start_tells_nobody(caplog: pytest.LogCaptureFixture):
    async with world(S0=Part()) as it:
        instance = Instance(it.stream, it.store)
        it.store.faults.fails.update(leave=5)
        await instance.stop()

        assert caplog.messages == []
