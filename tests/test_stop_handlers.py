"""Handlers at the stop: one that finishes is settled, one that does not is as if it had not begun."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from ruststream_kinesis import KinesisMessage, LeaseKey
from ruststream_kinesis._core import Page
from ruststream_kinesis.errors import StopTimeout
from tests.support.scripted import record
from tests.support.stopping import (
    HORIZON,
    left_over,
    running_task,
    world_of_orders,  # noqa: F401 - a fixture
)
from tests.support.world import World, running, until


class TestHandlersAtTheStop:
    async def test_one_that_takes_longer_than_the_deadline_is_as_if_it_had_not_begun(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        """Case X1: nothing is acked, and all come again with the same attempt number."""
        world.put("orders", 1, 2, 3)
        world.stream("replies")
        begun: list[int] = []
        app = world.app(shutdown_timeout=0.01)

        @app.subscriber("orders", start_at=HORIZON, publish="replies")
        async def handle(value: int) -> int:
            begun.append(value)
            await asyncio.Event().wait()
            return value

        with pytest.raises(StopTimeout, match=r"worker\[orders/0\]"):
            async with running(app):
                await until(lambda: begun == [1])
        assert await world.checkpoint() is None
        assert world.records("replies") == []

        again: list[tuple[int, int]] = []
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle_again(value: int, message: KinesisMessage[int]) -> None:
            again.append((value, message.attempt))

        async with running(app):
            await until(lambda: len(again) == 3)
        assert again == [(1, 1), (2, 1), (3, 1)]

    async def test_one_that_finishes_in_time_is_acked_and_nothing_newer_starts(self, world: World):
        world.put("orders", *range(10))
        begun: list[int] = []
        gate = asyncio.Event()
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.append(value)
            if value == 3:
                app.stop()
                await gate.wait()

        task = asyncio.create_task(app.run(signals=False))
        await until(lambda: 3 in begun)
        for _ in range(50):
            await asyncio.sleep(0)
        gate.set()
        await task

        assert begun == [0, 1, 2, 3]
        assert await world.checkpoint() == "4"

    async def test_one_that_hides_its_cancellation_is_as_if_it_had_not_begun_too(
        self, world: World
    ):
        """Case X1: `except BaseException: log` in a handler must not turn a cut-off into an ack."""
        world.put("orders", 1, 2, 3)
        begun: list[int] = []
        app = world.app(shutdown_timeout=0.01)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.append(value)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        with pytest.raises(StopTimeout, match="worker"):
            async with running(app):
                await until(lambda: begun == [1])

        assert begun == [1]
        assert await world.checkpoint() is None

    async def test_a_lease_is_kept_while_the_handlers_finish(self, world: World):
        """Section 7 of the design: a drain may take longer than a lease lives."""
        world.put("orders", 1)
        begun, gate = asyncio.Event(), asyncio.Event()
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.set()
            await gate.wait()

        async with running_task(app) as task:
            await begun.wait()
            app.stop()
            for _ in range(10):
                await world.clock.advance(2.5)
                key = LeaseKey("orders", "shardId-000000000000")
                assert await world.store.acquire(key, "thief", duration=10) is None
            assert not task.done()
            gate.set()

        task.result()
        assert await world.checkpoint() == "1"

    async def test_a_second_request_to_stop_waits_for_no_handler(self, world: World):
        world.put("orders", 1)
        begun = asyncio.Event()
        app = world.app(shutdown_timeout=1000)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        with pytest.raises(StopTimeout, match=r"worker\[orders/0\]"):
            async with running(app):
                await begun.wait()
                app.stop()
                await asyncio.sleep(0)
                app.stop()

        assert await world.checkpoint() is None
        assert left_over() == set()

    async def test_a_clean_stop_with_eight_workers_repeats_nothing(self, world: World):
        """5 is queued behind a slow key, 6 to 9 are acked: 5 runs in the drain, none comes again."""
        app = world.app()
        slow, gate = asyncio.Event(), asyncio.Event()
        handled: list[int] = []
        lanes = keys_of_lanes(8)
        world.put("orders", 1, 2, 3, key=lanes[1])
        world.put("orders", 4, key=lanes[0])  # the slow one
        world.put("orders", 5, key=lanes[0])  # behind it
        for value, lane in zip((6, 7, 8, 9), (2, 3, 4, 5), strict=True):
            world.put("orders", value, key=lanes[lane])
        world.put("orders", *range(10, 20), key=lanes[0])  # newer, behind the slow one as well

        @app.subscriber("orders", start_at=HORIZON, workers=8)
        async def handle(value: int) -> None:
            if value == 4:
                slow.set()
                await gate.wait()
            handled.append(value)

        async with running_task(app) as task:
            await slow.wait()
            await until(lambda: {1, 2, 3, 6, 7, 8, 9} <= set(handled))
            assert 5 not in handled
            app.stop()
            for _ in range(50):
                await asyncio.sleep(0)
            gate.set()
        task.result()

        assert sorted(handled) == list(range(1, 10))
        assert await world.checkpoint() == "9"
        again: list[int] = []
        app = world.app()

        @app.subscriber("orders")
        async def handle_again(value: int) -> None:
            again.append(value)

        async with running(app):
            await until(lambda: len(again) == 10)
        assert again == list(range(10, 20))


def keys_of_lanes(count: int) -> list[str]:
    """A partition key for each worker."""
    found: dict[int, str] = {}
    numbers = iter(range(10_000))
    while len(found) < count:
        key = f"key-{next(numbers)}"
        found.setdefault(lane_of(key, count), key)
    return [found[lane] for lane in range(count)]


def lane_of(key: str, count: int) -> int:
    body = json.dumps({"Records": [record(1, b"x", key)], "NextShardIterator": "i"}).encode()
    (lane,) = [n for n, chosen in enumerate(Page.parse(body).partitions(0, 1, count)) if chosen]
    return lane
