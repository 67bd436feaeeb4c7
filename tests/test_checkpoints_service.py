"""The checkpoints of a whole service: exact after a stop, and where the next one goes on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import pytest

from ruststream_kinesis import KinesisPosition
from tests.support.checkpointing import FIRST, STREAM, keep_moving
from tests.support.stores import Write, spy_store
from tests.support.world import PATIENCE, World, running, until

pytestmark = pytest.mark.usefixtures("lease_store")


async def ack_then_stop(seed: int) -> None:
    """Run a service whose handler asks for the stop at some record, with a store at some pace."""
    rng = random.Random(seed)
    world = World()
    world.store = store = spy_store(world.clock)
    world.stream(STREAM)
    count, workers = rng.randint(1, 12), rng.choice((1, 1, 2, 4))
    for value in range(count):
        world.put(STREAM, value, key=rng.choice("abcd"))
    last = rng.randrange(count)

    async def pause() -> None:
        for _ in range(rng.choice((0, 0, 1, 3, 10))):
            await asyncio.sleep(0)

    async def at_some_pace(write: Write) -> None:
        await pause()
        if write.kind == "checkpoint" and rng.random() < 0.2:
            raise OSError("the store is away")

    store.before = at_some_pace
    app = world.app()
    handled: list[int] = []

    @app.subscriber(STREAM, start_at=KinesisPosition.horizon(), workers=workers)
    async def handle(value: int) -> None:
        await pause()
        handled.append(value)
        if value == last:
            app.stop()
        await pause()

    async with asyncio.timeout(PATIENCE):
        await app.run(signals=False)  # the handler stops it, maybe before the start is over

    stored = await world.checkpoint(STREAM)
    assert stored is not None, f"seed {seed}: nothing was stored, but {handled} were handled"
    # Numbers are 1, 2, 3, …: the checkpoint is the count of what it covers.
    assert sorted(handled) == list(range(int(stored))), f"seed {seed}: {stored} is stored"
    assert await world.owner(STREAM) is None


@pytest.mark.parametrize("block", range(10))
async def test_the_checkpoint_after_a_stop_is_exactly_what_was_acked(
    block: int, caplog: pytest.LogCaptureFixture
):
    """Case W6: 1,000 interleavings of acks, a stop, and a store that is slow and fails."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(block * 100, block * 100 + 100):
        await ack_then_stop(seed)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_release_that_fails_at_the_stop_is_tried_again(failures: int):
    """Case W6 with case W5: the last ack is in the write that fails."""
    world = World()
    world.store = store = spy_store(world.clock)
    world.stream(STREAM)
    world.put(STREAM, 1)
    left = failures
    handled = asyncio.Event()

    async def fail(write: Write) -> None:
        nonlocal left
        if write.kind == "checkpoint":
            raise OSError("the store is away")
        if write.kind == "release" and left:
            left -= 1
            raise OSError("the store is away")

    store.before = fail
    app = world.app()

    @app.subscriber(STREAM, start_at=KinesisPosition.horizon())
    async def handle(value: int) -> None:
        handled.set()

    moving = asyncio.create_task(keep_moving(world.clock))
    async with running(app):
        await handled.wait()
    moving.cancel()

    assert await world.checkpoint(STREAM) == "1"
    assert await world.owner(STREAM) is None


class TestRestart:
    """What the next service reads."""

    async def run(
        self,
        world: World,
        handle: Callable[[int], None],
        done: Callable[[], bool],
        **options: object,
    ) -> None:
        app = world.app()

        @app.subscriber(STREAM, **options)  # type: ignore[arg-type]  # passed through as given
        async def handler(value: int) -> None:
            handle(value)

        async with running(app):
            await until(done)

    async def test_a_record_that_failed_holds_the_checkpoint_and_comes_again(self):
        """Case W7, its first half: 5 raises, 6…10 ack; 4 is stored, 5 comes again."""
        world = World()
        world.stream(STREAM)
        world.put(STREAM, *range(1, 11))
        first: list[int] = []
        second: list[int] = []

        def fails_at_five(value: int) -> None:
            first.append(value)
            if value == 5:
                raise RuntimeError("five")

        await self.run(
            world,
            fails_at_five,
            lambda: len(first) == 10,
            start_at=KinesisPosition.sequence(FIRST, "1"),
        )
        assert await world.checkpoint(STREAM) == "4"
        await self.run(world, second.append, lambda: len(second) == 6)

        assert first == list(range(1, 11))
        assert second == [5, 6, 7, 8, 9, 10]
        assert await world.checkpoint(STREAM) == "10"

    async def test_the_next_instance_reads_at_its_first_pass(self):
        """Case L7: the owner is cleared, the checkpoint stays, no lease period is waited for."""
        world = World()
        world.stream(STREAM)
        world.put(STREAM, 1, 2)
        seen: list[int] = []
        await self.run(
            world, seen.append, lambda: len(seen) == 2, start_at=KinesisPosition.horizon()
        )
        assert await world.owner(STREAM) is None
        assert await world.checkpoint(STREAM) == "2"
        world.put(STREAM, 3)
        now = world.clock.monotonic()

        await self.run(world, seen.append, lambda: len(seen) == 3)

        assert seen == [1, 2, 3]
        assert world.clock.monotonic() == now, "no time passed at all"
