"""Acks become one checkpoint a shard: never past an open delivery, never backwards, never lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey
from ruststream_kinesis._core import Page
from ruststream_kinesis.checkpoints import Checkpointer
from ruststream_kinesis.leases import SHARD_END, deadline
from ruststream_kinesis.leases.deadline import PunctualStore
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.testing import ManualClock
from tests.support.checkpointing import FIRST, SECOND, STREAM, THIRD, keep_moving
from tests.support.stores import SpyStore, Write, spy_store
from tests.support.world import until

pytestmark = pytest.mark.usefixtures("lease_store")


class Held:
    """A held shard with its checkpointer, and nobody who reads it."""

    def __init__(
        self,
        shard: HeldShard,
        checkpointer: Checkpointer,
        over: list[HeldShard],
        clock: ManualClock,
    ) -> None:
        self.clock = clock
        self.shard = shard
        self.checkpointer = checkpointer
        self.over = over

    def deliver(self, *numbers: int) -> int:
        records = [{"SequenceNumber": str(n), "Data": "", "PartitionKey": "k"} for n in numbers]
        page = {"Records": records, "NextShardIterator": "i", "MillisBehindLatest": 0}
        return self.shard.deliver(Page.parse(json.dumps(page).encode()))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> SpyStore:
    return spy_store(clock)


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
async def supervisor(failures: list[BaseException]):
    supervisor = Supervisor(failures.append)
    yield supervisor
    await supervisor.close()
    assert failures == []


async def hold(
    clock: ManualClock, store: SpyStore, supervisor: Supervisor, shard_id: str = FIRST
) -> Held:
    lease = await store.acquire(LeaseKey(STREAM, shard_id), "me", duration=10.0)
    assert lease is not None
    over: list[HeldShard] = []
    shard = HeldShard(
        lease,
        KinesisPosition.horizon(),
        after=False,
        clock=clock,
        moved=lambda _: checkpointer.moved(),
    )
    checkpointer = Checkpointer(shard, PunctualStore(store), clock, supervisor, over.append)
    return Held(shard, checkpointer, over, clock)


@pytest.fixture
async def held(clock: ManualClock, store: SpyStore, supervisor: Supervisor) -> Held:
    return await hold(clock, store, supervisor)


class TestWhatIsStored:
    async def test_acks_out_of_order_store_nothing_then_1_then_3(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case W1."""
        base = held.deliver(1, 2, 3)

        held.shard.ack(base + 2)
        await clock.advance(1)
        assert store.checkpoints() == []
        held.shard.ack(base)
        await clock.advance(1)
        assert store.checkpoints() == ["1"]
        held.shard.ack(base + 1)
        await clock.advance(1)

        assert store.checkpoints() == ["1", "3"]

    async def test_an_ack_twice_or_late_changes_nothing(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case W2."""
        base = held.deliver(1, 2)
        for place in (base, base, base + 1, base, base + 1):
            held.shard.ack(place)
            await clock.advance(1)

        assert store.checkpoints() == ["1", "2"]
        assert len(store.asked) == 2

    async def test_an_ack_of_what_was_read_before_a_rewind_changes_nothing(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case W2: not even when new deliveries were read meanwhile."""
        old = held.deliver(7, 8, 9)
        held.shard.void()
        new = held.deliver(1, 2, 3)

        for place in (old, old + 1, old + 2):
            held.shard.ack(place)
        held.shard.hold(old)
        await clock.advance(1)
        assert store.checkpoints() == []
        held.shard.ack(new)
        await clock.advance(1)

        assert store.checkpoints() == ["1"]

    async def test_99_comes_before_100(self, held: Held, store: SpyStore, clock: ManualClock):
        """Case W3: by text it would be the other way round."""
        base = held.deliver(99, 100)

        held.shard.ack(base)
        await clock.advance(1)
        held.shard.ack(base + 1)
        await clock.advance(1)

        assert store.checkpoints() == ["99", "100"]

    async def test_a_held_delivery_holds_everything_after_it(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        base = held.deliver(1, 2, 3)
        held.shard.ack(base)
        held.shard.hold(base + 1)
        held.shard.ack(base + 2)

        await clock.advance(100)

        assert store.checkpoints() == ["1"]

    async def test_the_end_of_a_shard_is_stored_once_and_only_when_all_is_settled(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case S3 at the checkpoint."""
        base = held.deliver(7, 8, 9)
        held.shard.end()
        held.shard.ack(base)
        held.shard.ack(base + 2)
        await clock.advance(1)
        assert store.checkpoints() == ["7"]

        held.shard.ack(base + 1)
        await clock.advance(100)

        assert store.checkpoints() == ["7", SHARD_END]
        assert held.over == [held.shard]

    async def test_an_empty_shard_ends_without_a_single_delivery(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case S4 at the checkpoint."""
        held.shard.end()
        await clock.advance(1)

        assert store.checkpoints() == [SHARD_END]
        assert held.over == [held.shard]

    async def test_a_shard_that_is_lost_has_no_end(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        held.deliver(7)
        held.shard.end()

        held.shard.lose()
        await clock.advance(100)

        assert store.asked == []
        assert held.shard.checkpoint is None


class TestWhenItIsStored:
    async def test_at_once_when_quiet(self, held: Held, store: SpyStore):
        base = held.deliver(1)

        held.shard.ack(base)
        await until(lambda: store.checkpoints() == ["1"])  # no time passes

    async def test_at_most_five_times_a_second_when_busy(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        base = held.deliver(*range(100))
        for place in range(100):
            held.shard.ack(base + place)
            await clock.advance(0.01)

        assert len(store.asked) <= 6
        await clock.advance(1)
        assert store.checkpoints()[-1] == "99"

    async def test_what_moves_during_a_write_goes_out_as_one_and_the_newest(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        gate = asyncio.Event()
        at_once = 0
        most = 0

        async def slowly(write: Write) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await gate.wait()
            at_once -= 1

        store.before = slowly
        base = held.deliver(1, 2, 3, 4)
        for place in range(4):
            held.shard.ack(base + place)
            await clock.advance(5)
        gate.set()
        await clock.advance(5)

        assert store.checkpoints() == ["1", "4"]
        assert most == 1

    async def test_numbers_grow_with_every_attempt(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        async def fail_twice(write: Write) -> None:
            if len(store.asked) <= 2:
                raise OSError("the store is away")

        store.before = fail_twice
        base = held.deliver(1, 2)
        held.shard.ack(base)
        await clock.advance(10)
        held.shard.ack(base + 1)
        await clock.advance(10)

        numbers = [write.number for write in store.asked]
        assert numbers == sorted(set(numbers))
        assert held.checkpointer.next_number() > numbers[-1]


class TestStoresThatFail:
    async def test_three_shards_flush_and_the_first_write_fails(
        self, clock: ManualClock, store: SpyStore, supervisor: Supervisor
    ):
        """Case W5: the others are stored, the first is tried again, and what is newer survives."""
        shards = [await hold(clock, store, supervisor, each) for each in (FIRST, SECOND, THIRD)]
        gate = asyncio.Event()

        async def first_fails(write: Write) -> None:
            if write.shard_id == FIRST and write.number == 1:
                await gate.wait()
                raise OSError("the store is away")

        store.before = first_fails
        bases = [each.deliver(1, 2) for each in shards]
        for each, base in zip(shards, bases, strict=True):
            each.shard.ack(base)
        await clock.advance(1)
        assert store.checkpoints(SECOND) == store.checkpoints(THIRD) == ["1"]

        shards[0].shard.ack(bases[0] + 1)  # in the middle of the write that will fail
        gate.set()
        await clock.advance(1)

        assert store.checkpoints(FIRST) == ["2"]

    async def test_a_store_that_is_away_is_asked_less_and_less_and_said_once_a_minute(
        self, held: Held, store: SpyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ):
        async def fail(write: Write) -> None:
            raise OSError("the store is away")

        store.before = fail
        base = held.deliver(1, 2, 3)
        held.shard.ack(base)
        await clock.advance(59)
        asked = len(store.asked)
        held.shard.ack(base + 1)
        store.before = None
        await clock.advance(11)

        assert 5 < asked < 25
        assert store.checkpoints() == ["2"]
        warnings = [r for r in caplog.records if "cannot store checkpoint" in r.getMessage()]
        assert len(warnings) == 1
        assert STREAM in warnings[0].getMessage()
        assert FIRST in warnings[0].getMessage()

    async def test_a_write_that_never_returns_is_given_up_and_made_again(
        self,
        held: Held,
        store: SpyStore,
        monkeypatch: pytest.MonkeyPatch,
    ):
        # A deadline is real time: loops that stand still have no other.
        monkeypatch.setattr(deadline, "STORE_DEADLINE", 0.01)
        never = asyncio.Event()

        async def hang_once(write: Write) -> None:
            if write.number == 1:
                await never.wait()

        store.before = hang_once
        base = held.deliver(1, 2)
        held.shard.ack(base)
        await until(lambda: len(store.asked) == 1)
        held.shard.ack(base + 1)
        moving = asyncio.create_task(keep_moving(held.clock))
        await until(lambda: store.checkpoints() == ["2"])
        moving.cancel()

    async def test_a_lost_lease_in_the_middle_of_a_write_ends_all_writing(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        """Case W1: a stale owner is refused; case L4: late acks do nothing."""
        base = held.deliver(1, 2, 3)
        generation = held.shard.generation
        held.shard.ack(base)
        await clock.advance(1)
        thief = await store.steal(held.shard.lease.key, clock)
        await SpyStore.checkpoint(store, thief, "9", number=1)

        held.shard.ack(base + 1)
        await clock.advance(1)
        assert held.shard.lost
        assert held.shard.generation > generation, "what is queued is void"
        assert held.over == [held.shard]
        asked = len(store.asked)
        held.shard.ack(base + 2)
        held.shard.hold(base + 2)
        await clock.advance(100)

        assert len(store.asked) == asked
        assert store.checkpoints() == ["1", "9"]

    async def test_stopping_ends_a_write_that_hangs_and_starts_none_after_it(
        self, held: Held, store: SpyStore, clock: ManualClock
    ):
        reached = asyncio.Event()

        async def hang(write: Write) -> None:
            reached.set()
            await asyncio.Event().wait()

        store.before = hang
        base = held.deliver(1, 2)
        held.shard.ack(base)
        await reached.wait()
        held.shard.ack(base + 1)

        await held.checkpointer.stop()
        await clock.advance(100)

        assert len(store.asked) == 1
        assert store.checkpoints() == []

    async def test_stopping_a_checkpointer_that_never_wrote_is_quick(self, held: Held):
        await held.checkpointer.stop()
        await held.checkpointer.stop()
