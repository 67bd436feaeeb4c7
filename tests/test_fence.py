"""A process that was paused or suspended starts nothing of a shard that may be another's by now."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis import KinesisMessage, KinesisPosition, LeaseState, MemoryLeaseStore
from ruststream_kinesis.batches import _Part
from ruststream_kinesis.channel import Run
from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.testing import ManualClock
from tests.support.channels import FakeShard, end, page, settle
from tests.support.dispatching import Bench
from tests.support.running import running
from tests.support.world import World, until

HORIZON = KinesisPosition.horizon()


class Stopped(MemoryLeaseStore):
    """Leases that are not renewed while `paused`: as if nothing of this process ran."""

    paused = False
    acquired = 0

    async def acquire(self, *args: Any, **options: Any) -> LeaseState | None:
        self.acquired += 1
        return await super().acquire(*args, **options)

    async def renew(self, held: Any) -> None:
        if self.paused:
            raise ConnectionError("made by a test")
        await super().renew(held)


def jump(clock: ManualClock, seconds: float) -> None:
    """Let time pass without anything of this process having its turn."""
    clock._now += seconds


@pytest.mark.parametrize("options", [{}, {"workers": 3}], ids=["one worker", "three"])
async def test_nothing_is_started_after_the_lease_ran_out_in_a_handler(options: dict[str, Any]):
    world = World()
    world.stream("orders", 1)
    world.put("orders", *range(10))
    store = Stopped(clock=world.clock)
    app = world.app(store=store)
    seen: list[tuple[int, int]] = []

    @app.subscriber("orders", start_at=HORIZON, **options)
    async def handle(order: int) -> None:
        seen.append((order, store.acquired))
        if len(seen) == 4:
            store.paused = True
            jump(world.clock, LEASE_DURATION + 1)

    async with running(app):
        await until(lambda: len(seen) == 10)
    # It lets go of the shard, and takes it again like anybody. All that was handled before is
    # settled where the row is ours still, so that nothing is repeated.
    assert seen == [(n, 1 if n < 4 else 2) for n in range(10)]


@pytest.mark.parametrize("batch", [None, 2], ids=["one", "batch"])
async def test_what_the_renewing_thread_found_out_counts_before_the_loop_has_gone_round(
    batch: int | None,
):
    world = World()
    world.stream("orders", 1)
    world.put("orders", *range(10))
    store = Stopped(clock=world.clock)
    app = world.app(store=store)
    seen: list[tuple[int, int]] = []

    def note(message: KinesisMessage[int]) -> None:
        seen.append((message.payload, store.acquired))
        if message.payload == 3:
            # As the thread does while a handler blocks the loop: the telling is still to come.
            fence: Any = message.run.shard.fence
            assert fence.end("another has it")

    if batch is None:

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(message: KinesisMessage[int]) -> None:
            note(message)

    else:

        @app.subscriber("orders", start_at=HORIZON, batch=batch)
        async def handle_all(orders: list[int], messages: list[KinesisMessage[int]]) -> None:
            for message in messages:
                note(message)

    async with running(app):
        # A page of two each second: the third comes before a pass, which would notice.
        await world.clock.advance(8)
        await until(lambda: len(seen) == 10)
    assert seen == [(n, 1 if n < 4 else 2) for n in range(10)]


async def test_a_batch_that_was_formed_before_the_lease_ran_out_does_not_start():
    world = World()
    world.stream("orders", 1)
    store = Stopped(clock=world.clock)
    app = world.app(store=store)
    seen: list[tuple[list[int], int]] = []

    @app.subscriber("orders", start_at=HORIZON, batch=5, batch_window=1.2)
    async def handle(orders: list[int]) -> None:
        seen.append((orders, store.acquired))

    async with running(app):
        world.put("orders", 1, 2)
        await world.clock.advance(1.5)
        assert seen == []
        store.paused = True
        jump(world.clock, LEASE_DURATION + 1)
        # Its window is over now.
        await world.clock.advance(0.1)
        store.paused = False
        await world.clock.advance(5)
        await until(lambda: seen == [([1, 2], 2)])


async def test_a_lease_that_was_renewed_meanwhile_is_no_reason_to_stop():
    world = World()
    world.stream("orders", 1)
    world.put("orders", *range(10))
    app = world.app()
    seen: list[int] = []

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        await world.clock.sleep(2.0)

    async with running(app):
        for _ in range(10):
            await world.clock.advance(2.0)
        await until(lambda: seen == list(range(10)))


class Ended:
    """A lease that the heartbeat's thread found at its end; the shard has not been told yet."""

    until = float("inf")

    def expire(self, now: float) -> bool:
        """Nothing new."""
        return now >= self.until


async def test_nothing_is_started_between_the_end_of_a_lease_and_the_shard_hearing_of_it():
    fence, seen = Ended(), list[int]()

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 3:
            fence.until = float("-inf")

    bench = Bench(handle)
    bench.shard.fence = fence
    assert await bench.feed()
    await settle()
    assert seen == bench.settled == [0, 1, 2, 3]
    assert bench.channel.queued == 0
    await end(*bench.workers)


def test_nor_is_a_batch():
    fence, shard, content = Ended(), FakeShard(), page(2)
    shard.fence = fence
    part = _Part(Run(shard, 0, content, 0, range(2)), range(2), [0, 1])
    assert part.trim(1.0)
    fence.until = float("-inf")
    assert not part.trim(1.0)
