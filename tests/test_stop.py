"""The stop: quick where there is nothing to wait for, whole whatever fails, and honest."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    LeaseKey,
    RustStream,
    service,
)
from ruststream_kinesis._core import Page
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.errors import (
    HandlerFailed,
    KinesisError,
    NotConnected,
    StopTimeout,
)
from ruststream_kinesis.subscriber import Subscription
from ruststream_kinesis.supervisor import Supervisor
from tests.support.scripted import record
from tests.support.stores import SpyStore, Write
from tests.support.world import PATIENCE, Call, World, running, until

HORIZON = KinesisPosition.horizon()


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    return world


def left_over() -> set[str]:
    """Names of the tasks beside the test's own."""
    return {t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()}


async def run(app: RustStream, **options: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        await app.run(signals=False, **options)


async def nothing(value: bytes) -> None: ...


def reached(seen: list[int], count: int) -> bool:
    return len(seen) >= count


class TestStop:
    async def test_before_the_start_is_quick_and_connects_nothing(self, world: World):
        """Case X2."""
        app = world.app()
        app.subscriber("orders")(nothing)

        app.stop()
        async with asyncio.timeout(1):
            await app.run(signals=False)

        assert world.calls == []
        assert left_over() == set()

    async def test_twice_is_quick(self, world: World):
        """Case X2."""
        app = world.app()
        app.subscriber("orders")(nothing)

        async with asyncio.timeout(1), running(app):
            app.stop()
            app.stop()

        assert left_over() == set()

    async def test_without_a_shard_is_quick(self, world: World):
        """Case X2."""
        world.streams["orders"].clear()
        app = world.app()
        app.subscriber("orders")(nothing)

        async with asyncio.timeout(1), running(app):
            pass

        assert left_over() == set()

    async def test_in_the_middle_of_a_start_that_hangs_is_quick(self, world: World):
        """Case X2: the stop does not wait for the start."""
        reached = asyncio.Event()

        async def hang(call: Call) -> None:
            reached.set()
            await asyncio.Event().wait()

        world.hooks.append(hang)
        app = world.app()
        app.subscriber("orders")(nothing)
        task = asyncio.create_task(app.run(signals=False))
        await reached.wait()

        app.stop()
        async with asyncio.timeout(1):
            await task

        assert left_over() == set()

    async def test_an_application_runs_again_after_its_stop(self, world: World):
        app = world.app()
        seen: list[int] = []

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            seen.append(value)

        for count in (1, 3):
            world.put("orders", count)
            app.broker.connection.attach(world.broker().connection.transport)
            async with running(app):
                await until(functools.partial(reached, seen, count))

        assert seen == [1, 1, 3]

    async def test_it_cannot_run_twice_at_once(self, world: World):
        app = world.app()
        async with running(app):
            with pytest.raises(KinesisError, match="runs already"):
                await app.run(signals=False)

    async def test_after_it_every_handle_says_not_connected(self, world: World):
        app = world.app()
        app.subscriber("orders")(nothing)
        publisher = app.publisher(KinesisPublish(partition_key="k"))

        async with running(app):
            await publisher.publish(b"x", "orders")

        for each in (publisher, app.publisher()):
            with pytest.raises(NotConnected):
                await each.publish(b"x", "orders")
            with pytest.raises(NotConnected):
                await each.publish_nowait(b"x", "orders")
        with pytest.raises(NotConnected):
            _ = app.broker.connection.transport


Break = Callable[[pytest.MonkeyPatch, RustStream, BaseException], None]


def breaks(owner: type, name: str) -> Break:
    def apply(monkeypatch: pytest.MonkeyPatch, app: RustStream, error: BaseException) -> None:
        async def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(owner, name, fail)

    return apply


def breaks_hook(monkeypatch: pytest.MonkeyPatch, app: RustStream, error: BaseException) -> None:
    async def hook() -> None:
        raise error

    app.on_shutdown(hook)


def breaks_plain_hook(
    monkeypatch: pytest.MonkeyPatch, app: RustStream, error: BaseException
) -> None:
    def hook() -> None:
        raise error

    app.on_shutdown(hook)


STEPS: dict[str, tuple[Break, str]] = {
    "stop reading": (breaks(Coordinator, "stop_reading"), "stop reading orders"),
    "drain": (breaks(Subscription, "drain"), "drain"),
    "release": (breaks(Coordinator, "release"), "release leases of orders"),
    "hook": (breaks_hook, "shutdown hook"),
    "plain hook": (breaks_plain_hook, "shutdown hook"),
    "end tasks": (breaks(Supervisor, "close"), "end remaining tasks"),
    "close": (breaks(KinesisBroker, "close"), "close clients"),
}


class TestStepsOfTheStop:
    """Case X4: each closing step raises in turn, and all others still run."""

    @pytest.mark.parametrize("error", [OSError("it broke"), asyncio.CancelledError()], ids=repr)
    @pytest.mark.parametrize("broken", STEPS)
    async def test_one_that_raises_is_named_and_stops_no_other(
        self,
        world: World,
        monkeypatch: pytest.MonkeyPatch,
        broken: str,
        error: BaseException,
    ):
        app = world.app()
        ran: list[str] = []
        app.subscriber("orders")(nothing)
        # First ours that breaks, then one that must still run.
        apply, name = STEPS[broken]
        apply(monkeypatch, app, error)
        app.on_shutdown(lambda: ran.append("hook"))
        for owner, method in (
            (Coordinator, "stop_reading"),
            (Subscription, "drain"),
            (Coordinator, "release"),
            (Supervisor, "close"),
            (KinesisBroker, "close"),
        ):
            note(monkeypatch, owner, method, ran)

        with pytest.raises(StopTimeout, match=name):
            async with running(app):
                pass

        steps = ["stop_reading", "drain", "release", "hook", "close", "close"]
        assert [step for step in ran if step in steps] == steps
        if broken == "close":
            await world.transports[0].close()
        else:
            assert world.transports[0].closed
        monkeypatch.undo()
        await asyncio.gather(*[cancel(task) for task in asyncio.all_tasks() if is_ours(task)])

    async def test_one_that_takes_for_ever_is_cut_off_and_named(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(service, "_STEP_TIMEOUT", 0.01)
        app = world.app()
        app.subscriber("orders")(nothing)

        async def forever() -> None:
            await asyncio.Event().wait()

        app.on_shutdown(forever)

        with pytest.raises(StopTimeout, match=r"shutdown hook .*forever.*TimeoutError"):
            async with running(app):
                pass

        assert world.transports[0].closed
        assert await world.owner() is None

    async def test_a_store_that_hangs_is_named_and_the_clients_are_closed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(service, "_STEP_TIMEOUT", 0.01)
        world.store = SpyStore(clock=world.clock)
        app = world.app()
        app.subscriber("orders")(nothing)

        async def hang(write: Write) -> None:
            await asyncio.Event().wait()

        with pytest.raises(StopTimeout, match="release leases of orders"):
            async with running(app):
                world.store.before = hang

        assert world.transports[0].closed
        assert left_over() == set()

    async def test_the_error_that_ended_the_service_is_not_hidden_by_a_stop_that_fails(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, on_error="stop")
        async def handle(value: int) -> None:
            raise RuntimeError("the reason")

        @app.on_shutdown
        async def fail() -> None:
            raise OSError("it broke")

        with pytest.raises(HandlerFailed, match="the reason"):
            await run(app)

        assert "shutdown hook" in caplog.text

    async def test_a_cancellation_is_not_hidden_by_a_stop_that_fails(self, world: World):
        app = world.app()

        @app.on_shutdown
        async def fail() -> None:
            raise OSError("it broke")

        async with running_task(app) as task:
            task.cancel()

        assert task.cancelled()

    async def test_cancelling_the_stop_hurries_it_and_skips_no_step(self, world: World):
        """A host that loses its patience must not leave leases and sockets behind."""
        world.put("orders", 1)
        app = world.app(shutdown_timeout=1000)
        begun = asyncio.Event()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with running_task(app) as task:
            await begun.wait()
            task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done(), "it waits for the handler"
            task.cancel()

        assert task.cancelled()
        assert left_over() == set()
        assert world.transports[0].closed
        assert await world.owner() is None
        assert await world.checkpoint() is None, "cancellation is no outcome"


def running_task(app: RustStream) -> Any:
    """Like `running`, for a block that ends the task itself, however."""
    return _RunningTask(app)


class _RunningTask:
    def __init__(self, app: RustStream) -> None:
        self.app = app

    async def __aenter__(self) -> asyncio.Task[None]:
        started = asyncio.Event()
        self.task = asyncio.create_task(self.app.run(signals=False, started=started.set))
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        return self.task

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.task.cancel()  # whatever the block waited for did not happen
            self.task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({self.task})


def note(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, ran: list[str]) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def noted(*args: Any, **kwargs: Any) -> Any:
        ran.append(name)
        return await real(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)


def is_ours(task: asyncio.Task[Any]) -> bool:
    return "[" in task.get_name()


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


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
