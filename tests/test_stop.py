"""The stop: quick where there is nothing to wait for, whole whatever fails, and honest."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ruststream_kinesis import KinesisBroker, KinesisPublish, RustStream, service
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.errors import HandlerFailed, KinesisError, NotConnected, StopTimeout
from ruststream_kinesis.subscriber import Subscription
from ruststream_kinesis.supervisor import Supervisor
from tests.support.stopping import (
    HORIZON,
    left_over,
    nothing,
    reached,
    running_task,
    world_of_orders,  # noqa: F401 - a fixture
)
from tests.support.stores import Write, spy_store
from tests.support.world import PATIENCE, Call, World, running, until

pytestmark = pytest.mark.usefixtures("lease_store")


async def run(app: RustStream, **options: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        await app.run(signals=False, **options)


class TestStop:
    async def test_before_the_first_step_of_a_run_is_quick_and_connects_nothing(self, world: World):
        """Case X2."""
        app = world.app()
        app.subscriber("orders")(nothing)

        run = asyncio.create_task(app.run(signals=False))
        app.stop()
        async with asyncio.timeout(1):
            await run

        assert world.calls == []
        assert left_over() == set()

    async def test_before_and_after_a_run_there_is_nothing_to_stop_and_the_next_one_runs(
        self, world: World
    ):
        """Case X2: a stop that came too early or too late stops no run that is asked for later."""
        app = world.app()
        app.subscriber("orders")(nothing)

        for _ in range(2):
            app.stop()
            app.stop()
            app.broker.connection.attach(world.broker().connection.transport)
            async with asyncio.timeout(1), running(app) as task:
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not task.done()

        assert left_over() == set()

    async def test_of_a_run_that_was_refused_leaves_the_one_at_work_to_be_stopped(
        self, world: World
    ):
        app = world.app()
        async with running(app) as task:
            refused = app.run(signals=False)
            with pytest.raises(KinesisError, match="runs already"):
                await refused
            app.stop()
            async with asyncio.timeout(1):
                await task

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
        world.store = spy_store(world.clock)
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
