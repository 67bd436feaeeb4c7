"""The lease loop: which shards are read when, what ends them, and who reads them next.

`Stream` is a stream in memory that can be split and made to fail; an `Instance` is everything of a
service between lease store and handlers. Two instances of one store are two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    RustStream,
    drop,
)
from ruststream_kinesis import reader as reader_module
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.errors import AccessDenied, RequestError, StreamNotFound, StreamRecreated
from ruststream_kinesis.leases import SHARD_END, LeaseKey, LeaseState
from ruststream_kinesis.retry import RetryPolicy
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import ShardInfo, ShardListing, StreamInfo
from tests.support.running import Inbox, running
from tests.support.scripted import ScriptedKinesis, Shard, error, page, record

HORIZON = KinesisPosition.horizon()
INFO = StreamInfo("orders", "ACTIVE", created=1000.0)


def denied() -> RequestError:
    """Return a failure that no retry mends."""
    return AccessDenied("made by a test", code="AccessDeniedException", status=400, stream="orders")


def throttled() -> RequestError:
    """Return a failure that passes."""
    return RequestError("made by a test", code="LimitExceededException", status=400)


@dataclass
class Part:
    """One shard of the stream."""

    parents: tuple[str, ...] = ()
    records: list[int] = field(default_factory=list)
    closed: bool = False
    fails: Callable[[], Exception] | None = None
    """Makes the answer to every read, while it is set."""


class Stream:
    """A stream in memory, as a transport."""

    def __init__(self, clock: ManualClock, **parts: Part) -> None:
        self.clock = clock
        self.parts = dict(parts)
        self.hidden: set[str] = set()
        """Shards that are not listed (any more)."""
        self.listing_fails: Callable[[], Exception] | None = None
        self.listing_hangs = False
        self.listing_turns = 1
        """Turns of the loop that each listing takes."""
        self.listings = 0
        self.opened: list[tuple[str, KinesisPosition, bool]] = []
        self.reads: Counter[str] = Counter()
        self.asking = self.most_asking = 0
        """GetShardIterator calls that are on their way, and the most there ever were."""

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """List what is not hidden."""
        self.listings += 1
        for _ in range(self.listing_turns):
            await asyncio.sleep(0)
        if self.listing_hangs:
            await asyncio.Event().wait()
        if self.listing_fails is not None:
            raise self.listing_fails()
        listed = [
            ShardInfo(name, part.parents)
            for name, part in self.parts.items()
            if name not in self.hidden
        ]
        return ShardListing(tuple(listed), self.clock.time())

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Return shard and index. A timestamp means everything: no record has a time here."""
        self.opened.append((shard_id, position, after))
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            self.asking -= 1
        part = self.parts[shard_id]
        if part.fails is not None:
            raise part.fails()
        if position.kind == "latest":
            return f"{shard_id}:{len(part.records)}"
        if position.kind == "sequence":
            number = int(position.sequence_number or "") + after
            return f"{shard_id}:{len([each for each in part.records if each < number])}"
        return f"{shard_id}:0"

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Return up to three records."""
        self.reads[shard_id] += 1
        await asyncio.sleep(0)
        part, first = self.parts[shard_id], int(iterator.rpartition(":")[2])
        if part.fails is not None:
            raise part.fails()
        found = part.records[first : first + 3]
        stop = first + len(found)
        over = part.closed and stop == len(part.records)
        answer = {
            "Records": [record(number) for number in found],
            "NextShardIterator": None if over else f"{shard_id}:{stop}",
            "MillisBehindLatest": len(part.records) - stop,
        }
        return json.dumps(answer).encode()

    async def close(self) -> None:
        """Do nothing."""


class Store(MemoryLeaseStore):
    """A store that notes the checkpoints it was given, and fails on demand."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.written: list[tuple[str, str]] = []
        """(shard, checkpoint) of each checkpoint write."""
        self.fails: Counter[str] = Counter()
        """How many of the next calls of a method raise."""
        self.turns = 0
        """Turns of the loop that each release takes."""
        self.leases_hang = False

    def _maybe_fail(self, method: str) -> None:
        if self.fails[method]:
            self.fails[method] -= 1
            raise ConnectionError(f"{method}: made by a test")

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Note it, then store it."""
        self._maybe_fail("checkpoint")
        await super().checkpoint(held, checkpoint, number=number, resume_from=resume_from)
        if checkpoint is not None:
            self.written.append((held.key.shard_id, checkpoint))

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Take its turns, then release."""
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self._maybe_fail("release")
        await super().release(held, checkpoint=checkpoint, number=number, resume_from=resume_from)

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """List the rows, or hang."""
        if self.leases_hang:
            await asyncio.Event().wait()
        return await super().leases(stream, group)

    async def of(self, shard_id: str) -> LeaseState | None:
        """Return the row of a shard."""
        return await self.read(LeaseKey("orders", shard_id))

    async def checkpoint_of(self, shard_id: str) -> str | None:
        """Return what is stored."""
        row = await self.of(shard_id)
        return None if row is None else row.checkpoint


class Instance:
    """A service without handlers: what comes out of the channel is open until the test acks it."""

    def __init__(
        self, stream: Stream, store: Store, start_at: KinesisPosition | None = HORIZON
    ) -> None:
        self.clock = stream.clock
        self.failures: list[BaseException] = []
        self.supervisor = Supervisor(self.failures.append)
        self.connection = Connection(store, None, stream.clock)
        transport: Any = stream
        self.connection.attach(transport)
        self.channel = Channel()
        self.coordinator = Coordinator(
            KinesisStream("orders"),
            None,
            start_at,
            self.connection,
            self.channel,
            Copies(RetryPolicy(), StreamRef("orders"), self.connection),
            self.supervisor,
            1000,
        )
        self.open: dict[tuple[str, int], tuple[HeldShard, int]] = {}
        """Deliveries that were started, by shard and number: shard and place."""
        self.received: list[tuple[str, int]] = []
        self.acking = False
        self.holding = False
        self.worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open, as the service does."""
        self.worker = self.supervisor.spawn("worker", self._work())
        await self.coordinator.open(INFO)

    async def _work(self) -> None:
        while (run := await self.channel.take(0)) is not None:
            shard: Any = run.shard
            for index in run.indices:
                self.channel.release()
                if shard.generation != run.generation:
                    continue
                number = int(run.page.sequence_number(index))
                self.received.append((shard.shard_id, number))
                self.open[shard.shard_id, number] = (shard, run.base + index)
                if self.acking:
                    self.ack(shard.shard_id, number)
                if self.holding:
                    shard.hold(run.base + index)

    def ack(self, shard_id: str, *numbers: int) -> None:
        """Settle records that were received."""
        for number in numbers:
            shard, place = self.open[shard_id, number]
            shard.ack(place)

    def numbers(self, shard_id: str) -> list[int]:
        """Return what came of a shard."""
        return [number for shard, number in self.received if shard == shard_id]

    async def stop(self) -> None:
        """Stop as the service does."""
        await self.coordinator.stop_reading()
        await self.coordinator.release()
        await self.supervisor.close()

    async def kill(self) -> None:
        """End without a word to the store, as a process that is killed."""
        await self.supervisor.close()


class World:
    """A stream, a store, and the instances that a test starts."""

    def __init__(self, **parts: Part) -> None:
        self.clock = ManualClock()
        self.stream = Stream(self.clock, **parts)
        self.store = Store(self.clock)
        self.instances: list[Instance] = []

    async def start(
        self, start_at: KinesisPosition | None = HORIZON, *, acking: bool = False
    ) -> Instance:
        """Start another instance."""
        instance = Instance(self.stream, self.store, start_at)
        instance.acking = acking
        self.instances.append(instance)
        opening = asyncio.create_task(instance.start())
        await self.clock.advance(0)
        if not opening.done():
            await self.clock.advance(1)
        await asyncio.wait_for(opening, 5)
        return instance

    async def end(self) -> None:
        """End whatever still runs; a task that died is the test's failure."""
        for instance in self.instances:
            await instance.supervisor.close()
        for instance in self.instances:
            assert instance.failures == []
            assert instance.supervisor.running == []


@contextlib.asynccontextmanager
async def world(**parts: Part) -> AsyncIterator[World]:
    """Give a stream with these shards."""
    made = World(**parts)
    try:
        yield made
    finally:
        await made.end()


def split_of(parent: str, *records: int) -> Part:
    """Return a child of one parent."""
    return Part((parent,), list(records))


# -- parents and children --------------------------------------------------------------------------


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
        assert it.store.written.count(("P", SHARD_END)) == 1
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


async def test_case_s2_a_child_found_late_opens_at_the_opening_of_the_stream_and_never_at_its_tip():
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
        assert opened["P"].kind == "latest"
        assert opened["C"] == KinesisPosition.timestamp(it.clock._wall - 1.0)


async def test_a_shard_that_was_closed_before_the_tip_is_finished_unread_and_its_child_is_read():
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P")) as it:
        instance = await it.start(None, acking=True)
        await it.clock.advance(5)
        it.stream.parts["C"].records.append(3)
        await it.clock.advance(5)
        assert instance.received == [("C", 3)]
        assert await it.store.checkpoint_of("P") == SHARD_END


# -- one shard's trouble is its own ----------------------------------------------------------------


async def test_case_s6_2500_shards_are_all_read():
    names = {f"shardId-{number:012}": Part(records=[number]) for number in range(1, 2501)}
    async with world(**names) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(1)
        assert len(instance.received) == 2500
        assert it.stream.most_asking <= 32


@pytest.mark.parametrize("how", [denied, throttled])
async def test_case_s7_one_of_700_shards_fails_for_ever_and_699_start_in_bounded_waves(
    how: Callable[[], RequestError],
):
    names = {f"S{number}": Part(records=[number]) for number in range(1, 701)}
    names["S5"].fails = how
    async with world(**names) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        assert len(instance.received) == 699
        assert it.stream.most_asking <= 32
        assert instance.failures == []


async def test_a_shard_that_may_not_be_read_is_tried_again_later_from_its_checkpoint(
    caplog: pytest.LogCaptureFixture,
):
    async with world(A=Part(records=[1, 2, 3, 4, 5]), B=Part(records=[10])) as it:
        instance = await it.start()
        instance.ack("A", 1)
        await it.clock.advance(1)
        it.stream.parts["A"].fails = denied
        await it.clock.advance(60)
        tries = len([shard_id for shard_id, _, _ in it.stream.opened if shard_id == "A"])
        # Growing pauses of 2 s and more: neither given up for good nor asked all the time.
        assert 4 < tries < 12
        assert any("other shards go on" in entry.getMessage() for entry in caplog.records)
        it.stream.parts["B"].records.append(11)
        it.stream.parts["A"].fails = None
        before = len(instance.received)
        await it.clock.advance(90)
        assert instance.received[before:].count(("B", 11)) == 1
        assert [number for name, number in instance.received[before:] if name == "A"] == [
            2,
            3,
            4,
            5,
        ]
        assert instance.failures == []


async def test_a_mistake_of_ours_in_a_reader_costs_its_shard_a_pause_and_no_record():
    async with world(A=Part(records=[1, 2]), B=Part(records=[10])) as it:
        instance = await it.start(acking=True)
        it.stream.parts["A"].fails = lambda: RuntimeError("a mistake")
        await it.clock.advance(2)
        it.stream.parts["A"].fails = None
        it.stream.parts["A"].records += [3, 4]
        await it.clock.advance(10)
        assert instance.numbers("A") == [1, 2, 3, 4]


async def test_a_listing_that_fails_or_hangs_keeps_every_lease():
    for trouble in ("fails", "hangs"):
        async with world(A=Part(records=[1])) as it:
            first = await it.start(acking=True)
            if trouble == "fails":
                it.stream.listing_fails = throttled
            else:
                it.stream.listing_hangs = True
            await it.clock.advance(30)
            listings = it.stream.listings
            owner = (await it.store.of("A")).owner  # type: ignore[union-attr]  # it is there
            it.stream.listing_fails, it.stream.listing_hangs = None, False
            second = await it.start(acking=True)
            it.stream.parts["A"].records.append(2)
            await it.clock.advance(30)
            assert (await it.store.of("A")).owner == owner  # type: ignore[union-attr]  # as above
            assert first.numbers("A") == [1, 2]
            assert second.numbers("A") == []
            if trouble == "fails":
                # Tried again, with pauses: not once, and not all the time.
                assert 5 <= listings <= 12


async def test_a_listing_that_is_throttled_at_the_start_does_not_end_the_service():
    async with world(A=Part(records=[1])) as it:
        tries = 0

        def once() -> Exception:
            nonlocal tries
            tries += 1
            if tries == 2:
                it.stream.listing_fails = None
            return throttled()

        it.stream.listing_fails = once
        instance = await it.start(acking=True)
        assert instance.numbers("A") == [1]


# -- lost and released -----------------------------------------------------------------------------


async def test_a_shard_taken_by_another_is_not_read_or_settled_any_more():
    async with world(A=Part(records=[1, 2]), B=Part(records=[10])) as it:
        instance = await it.start()
        row = it.store._rows[LeaseKey("orders", "A")]
        row.owner, row.renewed = "somebody#1", it.clock.monotonic()
        row.duration = 1e9
        # Found by the next checkpoint write, before any renewal.
        instance.ack("A", 1)
        await it.clock.advance(0.1)
        assert "A" not in instance.coordinator.holdings
        it.stream.parts["A"].records.append(3)
        instance.ack("A", 2)
        it.stream.parts["B"].records.append(11)
        await it.clock.advance(30)
        assert instance.numbers("A") == [1, 2]
        assert instance.numbers("B") == [10, 11]
        assert await it.store.checkpoint_of("A") is None
        assert row.owner == "somebody#1"


async def test_what_is_queued_of_a_lost_shard_makes_room_at_once_however_slow_the_store_is():
    async with world(A=Part(records=[1])) as it:
        instance = await it.start()
        assert instance.worker is not None
        await instance.supervisor.cancel([instance.worker])
        it.stream.parts["A"].records += [2, 3]
        it.store.leases_hang = True
        # The loop hangs in its pass now; nothing but the lost write itself can free the slots.
        await it.clock.advance(4)
        assert instance.channel.queued == 2
        it.store._rows[LeaseKey("orders", "A")].owner = "somebody#1"
        instance.ack("A", 1)
        await it.clock.advance(0)
        assert instance.channel.queued == 0


async def test_a_lease_found_lost_by_its_renewal_ends_the_shard_too():
    async with world(A=Part(records=[1])) as it:
        instance = await it.start()
        row = it.store._rows[LeaseKey("orders", "A")]
        row.owner, row.duration, row.renewed = "somebody#1", 1e9, 0.0
        await it.clock.advance(4)
        it.stream.parts["A"].records.append(2)
        await it.clock.advance(10)
        assert instance.coordinator.holdings == {}
        assert instance.numbers("A") == [1]


async def test_a_release_that_fails_is_made_up_for_with_the_final_checkpoint():
    async with world(A=Part(records=[1, 2])) as it:
        instance = await it.start()
        it.store.fails["checkpoint"] = 100
        it.store.fails["release"] = 2
        instance.ack("A", 1)
        it.stream.parts["A"].fails = denied
        await it.clock.advance(1.5)
        assert it.store.fails["release"] == 1
        assert await it.store.checkpoint_of("A") is None
        await it.clock.advance(10)
        assert await it.store.checkpoint_of("A") == "1"


async def test_a_stop_at_any_moment_of_a_release_leaves_every_lease_free_and_its_checkpoint():
    for turns in range(40):
        async with world(A=Part(records=[1, 2]), B=Part(records=[10], closed=True)) as it:
            it.store.turns = 10
            instance = await it.start()
            it.store.fails["checkpoint"] = 1000
            instance.ack("A", 1)
            instance.ack("B", 10)
            it.stream.parts["A"].fails = denied
            moving = asyncio.create_task(it.clock.advance(1.2))
            for _ in range(turns * 8):
                await asyncio.sleep(0)
            await instance.stop()
            await moving
            for shard_id, checkpoint in (("A", "1"), ("B", SHARD_END)):
                row = await it.store.of(shard_id)
                assert row is not None
                assert (row.owner, row.checkpoint) == (None, checkpoint), turns


async def test_a_shard_that_only_holds_at_its_end_is_read_again_from_the_first_held_record():
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P", 3)) as it:
        instance = await it.start()
        instance.ack("P", 1)
        shard, place = instance.open["P", 2]
        shard.hold(place)
        await it.clock.advance(10)
        assert instance.numbers("P")[:3] == [1, 2, 2]
        assert instance.numbers("C") == []
        instance.ack("P", 2)
        await it.clock.advance(5)
        assert instance.numbers("C") == [3]


async def test_a_shard_that_holds_too_many_is_read_again_from_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reader_module, "MAX_HELD", 4)
    async with world(A=Part(records=list(range(1, 30)))) as it:
        instance = await it.start()
        instance.ack("A", 1)
        shard, place = instance.open["A", 2]
        shard.hold(place)
        instance.ack("A", 3)
        instance.holding = True
        await it.clock.advance(1)
        # What is not handled yet keeps the shard: only then is it let go.
        await it.clock.advance(20)
        restarts = [number for number in instance.numbers("A") if number == 2]
        assert len(restarts) > 1
        assert max(instance.numbers("A")) < 12
        instance.holding, instance.acking = False, True
        await it.clock.advance(120)
        assert await it.store.checkpoint_of("A") == "29"


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
        lease = await it.store.acquire(LeaseKey("orders", "gone"), "other", duration=1e9)
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


# -- a whole service on a scripted server ----------------------------------------------------------

SHARD = "shardId-000000000000"
CHILD = "shardId-000000000001"


def service(
    server: ScriptedKinesis, store: MemoryLeaseStore, clock: ManualClock, **options: Any
) -> RustStream:
    """Return an application on a scripted server."""
    broker = KinesisBroker(
        endpoint_url=server.url, test_credentials=True, lease_store=store, clock=clock
    )
    return RustStream(broker, title="test", version="0", **options)


@pytest.mark.parametrize("last", ["nothing", "dropped", "undecodable"])
async def test_case_s4_a_closed_shard_is_finished_whatever_became_of_its_last_record(last: str):
    shards = [
        Shard(SHARD, ending_sequence_number="900"),
        Shard(CHILD, parent=SHARD),
    ]
    pages = {
        "nothing": page([], 0, None),
        "dropped": page([record(1, b'{"id": 1}')], 0, None),
        "undecodable": page([record(1, b"{")], 0, None),
    }
    clock, inbox = ManualClock(), Inbox()
    store = MemoryLeaseStore(clock=clock)
    async with ScriptedKinesis(shards) as server:
        server.on("GetRecords", [pages[last]], shard=SHARD)
        server.on("GetRecords", [page([record(2, b'{"id": 2}')])], shard=CHILD)
        app = service(server, store, clock)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(order: dict[str, int]) -> Any:
            inbox.put(str(order["id"]).encode())
            return drop()

        async with running(app) as it:
            await it.drive(clock, lambda: b"2" in inbox.items)
        row = await store.read(LeaseKey("orders", SHARD))
        assert row is not None
        assert row.finished


async def test_a_missing_stream_stops_the_service_at_the_start_with_its_name():
    async with ScriptedKinesis() as server:
        server.missing.add("orders")
        app = service(server, MemoryLeaseStore(), ManualClock())

        @app.subscriber("orders")
        async def handle(payload: bytes) -> None:
            """Never called."""

        with pytest.raises(StreamNotFound, match="stream orders does not exist"):
            await app.run(signals=False)


async def test_a_stream_that_was_made_anew_under_its_name_stops_the_service_and_says_so():
    clock, store = ManualClock(), MemoryLeaseStore()
    async with ScriptedKinesis() as server:
        for created in (1_600_000_000.0, 1_600_009_000.0):
            server.created = created
            app = service(server, store, clock)

            @app.subscriber("orders")
            async def handle(payload: bytes) -> None:
                """Never called."""

            if created == 1_600_000_000.0:
                async with running(app):
                    pass
            else:
                with pytest.raises(StreamRecreated, match="created anew"):
                    await app.run(signals=False)


async def test_a_shard_that_is_denied_leaves_the_others_reading_and_is_tried_again():
    clock, inbox = ManualClock(), Inbox()
    async with ScriptedKinesis([SHARD, CHILD]) as server:
        rule = server.on("GetRecords", error("AccessDeniedException"), shard=SHARD)
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 9), shard=CHILD)
        app = service(server, MemoryLeaseStore(clock=clock), clock)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(payload: bytes) -> None:
            inbox.put(payload)

        async with running(app) as it:
            await it.drive(clock, lambda: len(server.calls("GetRecords", shard=SHARD)) == 3)
            assert inbox.items.count(b"other") > 5
            rule.remove()
            server.on("GetRecords", [page([record(1, b"mended")])], shard=SHARD)
            await it.drive(clock, lambda: b"mended" in inbox.items)
