"""The lease loop: which shards are read when, and what becomes of the rows of those that are gone."""

from __future__ import annotations

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.leases import SHARD_END, LeaseKey
from tests.support.coordinating import Part, split_of, world

# -- parents and children --------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("lease_store")


async def test_case_s1_children_of_parents_that_are_not_listed_start_now():
    async with world(S2=Part(("S0",), [1]), S3=Part(("S1", "S0"), [2])) as it:
        instance = await it.start(acking=True)
        assert sorted(instance.received) == [("S2", 1), ("S3", 2)]


async def test_case_s3_a_shard_is_finished_by_its_last_open_record_and_only_then_its_child_starts():
    async with world(P=Part(records=[7, 8, 9], closed=True), C=split_of("P", 10)) as it:
        instance = await it.start()
        assert instance.numbers("P") == [7, 8, 9]
        instance.ack("P", 7, 9)
        await it.clock.advance(60)
        assert await it.store.checkpoint_of("P") == "7"
        assert instance.numbers("C") == []
        instance.ack("P", 8)
        # No pass and no listing has to come by itself: the end of the parent asks for them.
        await it.clock.advance(0)
        assert await it.store.checkpoint_of("P") == SHARD_END
        assert instance.numbers("C") == [10]
        await it.clock.advance(60)
        assert it.store.faults.written.count(("P", SHARD_END)) == 1
        assert it.stream.reads["P"] == 1


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_case_s3_what_was_open_when_the_instance_ended_comes_again(how: str):
    async with world(P=Part(records=[7, 8, 9], closed=True), C=split_of("P", 10)) as it:
        first = await it.start()
        first.ack("P", 7, 9)
        await it.clock.advance(1)
        await (first.kill() if how == "killed" else first.stop())
        second = await it.start(None)
        # A killed instance leaves its lease, which must run out.
        await it.clock.advance(15)
        assert second.numbers("P") == [8, 9]
        assert second.numbers("C") == []
        second.ack("P", 8, 9)
        await it.clock.advance(1)
        assert second.numbers("C") == [10]


async def test_case_s4_a_closed_shard_that_is_empty_is_finished():
    async with world(P=Part(closed=True), C=split_of("P", 1)) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(1)
        assert await it.store.checkpoint_of("P") == SHARD_END
        assert instance.numbers("C") == [1]


async def test_case_s5_a_merged_child_waits_for_the_parent_that_another_instance_reads():
    async with world(A=Part(records=[1], closed=True), B=Part(records=[2, 3], closed=True)) as it:
        other = await it.start()
        it.stream.parts["C"] = Part(("A", "B"), [4])
        instance = await it.start()
        other.ack("A", 1)
        other.ack("B", 2)
        await it.clock.advance(30)
        assert await it.store.checkpoint_of("A") == SHARD_END
        assert instance.numbers("C") == other.numbers("C") == []
        other.ack("B", 3)
        await it.clock.advance(3)
        assert instance.numbers("C") + other.numbers("C") == [4]


async def test_a_split_of_a_split_is_read_in_order_of_birth_from_the_first_record():
    parts = {
        "G": Part(records=[1], closed=True),
        "P": Part(("G",), [2], closed=True),
        "C": Part(("P",), [3]),
    }
    async with world(**dict(reversed(parts.items()))) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        assert instance.received == [("G", 1), ("P", 2), ("C", 3)]


async def test_case_s2_a_child_found_late_opens_at_the_opening_of_the_stream_and_never_at_its_tip(
    lease_store: str,
):
    async with world(P=Part(records=[1])) as it:
        instance = await it.start(None, acking=True)
        it.stream.parts["P"].closed = True
        it.stream.parts["C"] = split_of("P", 10, 11)
        # The listing comes when the passes that the end itself asked for are over.
        it.stream.listing_turns = 40
        # One poll of the parent: its end asks for a listing, which is not due for 10 s.
        await it.clock.advance(1.5)
        assert instance.numbers("C") == [10, 11]
        opened = {shard_id: position for shard_id, position, _ in it.stream.opened}
        # Where others may share the leases, nobody asks for a tip.
        assert opened["P"].kind == ("latest" if lease_store == "memory" else "timestamp")
        assert opened["C"] == KinesisPosition.timestamp(it.clock._wall - 1.0)


@pytest.mark.parametrize("lease_store", ["memory"], indirect=True)
async def test_a_shard_that_was_closed_before_the_tip_is_finished_unread_and_its_child_is_read():
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P")) as it:
        instance = await it.start(None, acking=True)
        await it.clock.advance(5)
        it.stream.parts["C"].records.append(3)
        await it.clock.advance(5)
        assert instance.received == [("C", 3)]
        assert await it.store.checkpoint_of("P") == SHARD_END


# -- rows of shards that are gone ------------------------------------------------------------------


async def test_case_s8_the_row_of_a_shard_that_is_gone_is_told_once_and_removed(
    caplog: pytest.LogCaptureFixture,
):
    async with world(A=Part(records=[1]), B=Part(records=[2])) as it:
        first = await it.start(acking=True)
        await it.clock.advance(1)
        await first.stop()
        it.stream.hidden.add("A")
        second = await it.start(acking=True)
        # One listing may be wrong: the second one in a row decides.
        assert await it.store.of("A") is not None
        await it.clock.advance(30)
        assert await it.store.of("A") is None
        assert await it.store.of("B") is not None
        told = [entry for entry in caplog.records if "no longer lists" in entry.getMessage()]
        assert len(told) == 1
        assert "A" in told[0].getMessage()
        assert second.failures == []


async def test_case_s8_a_row_that_is_still_held_stays_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
):
    async with world(A=Part(records=[1]), B=Part()) as it:
        lease = await it.store.acquire(LeaseKey("orders", "gone"), "other", duration=1e3)
        assert lease is not None
        await it.start(acking=True)
        await it.clock.advance(60)
        assert (await it.store.of("gone")) == lease
        told = [entry for entry in caplog.records if "no longer lists" in entry.getMessage()]
        assert len(told) == 1


async def test_case_s8_the_row_that_a_killed_instance_left_is_removed_when_its_lease_ran_out():
    async with world(A=Part(records=[1]), B=Part()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(1)
        await first.kill()
        it.stream.hidden.add("A")
        await it.start(acking=True)
        await it.clock.advance(30)
        assert await it.store.of("A") is None


async def test_a_shard_that_is_hidden_while_it_is_held_is_read_on(
    caplog: pytest.LogCaptureFixture,
):
    async with world(A=Part(records=[1])) as it:
        instance = await it.start(acking=True)
        it.stream.hidden.add("A")
        await it.clock.advance(30)
        it.stream.parts["A"].records.append(2)
        await it.clock.advance(5)
        assert instance.numbers("A") == [1, 2]
        assert "no longer lists" not in caplog.text
