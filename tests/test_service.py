"""The start, what is left when it does not succeed, and failures of a running service."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisStream,
    RustStream,
)
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.errors import (
    AccessDenied,
    HandlerFailed,
    KinesisError,
    NotConnected,
    StreamNotFound,
)
from tests.support.scripted import ScriptedKinesis
from tests.support.stores import Write, spy_store
from tests.support.world import PATIENCE, Call, World, running, until

HORIZON = KinesisPosition.horizon()


pytestmark = pytest.mark.usefixtures("lease_store")


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


class TestStart:
    async def test_a_stream_that_does_not_exist_stops_the_service_with_its_name(self, world: World):
        app = world.app()
        app.subscriber("missing")(nothing)

        with pytest.raises(StreamNotFound, match="missing"):
            await run(app)

        assert left_over() == set()

    @pytest.mark.parametrize(("target", "warned"), [("orders", True), ("others", False)])
    async def test_replies_to_the_stream_that_is_read_are_warned_of_at_the_start(
        self, world: World, caplog: pytest.LogCaptureFixture, target: str, warned: bool
    ):
        world.stream("others")
        app = world.app()
        app.subscriber("orders", publish=target)(nothing)

        await run(app, started=app.stop)

        assert any("to the stream that it reads" in line for line in caplog.messages) is warned

    async def test_a_stream_of_dead_letters_may_be_made_by_its_own_subscription(self, world: World):
        """Whichever of the two is declared first."""
        app = world.app()
        app.subscriber("orders", dead_letter="dead")(nothing)
        app.subscriber(KinesisStream("dead", create_if_missing=2))(nothing)

        async def pass_by() -> None:
            await until(lambda: "dead" in world.streams)
            await world.clock.advance(1)

        await asyncio.gather(run(app, started=app.stop), pass_by())

        assert len(world.streams["dead"]) == 2

    async def test_one_missing_stream_of_two_leaves_nothing_of_the_other(self, world: World):
        app = world.app()
        app.subscriber("orders")(nothing)
        app.subscriber("missing")(nothing)

        with pytest.raises(StreamNotFound, match="missing"):
            await run(app)

        assert left_over() == set()
        assert await world.owner() is None

    async def test_one_that_cannot_open_does_not_wait_for_one_that_hangs(self, world: World):
        world.stream("bills")
        hanging = asyncio.Event()

        async def answer(call: Call) -> None:
            if call.operation == "list_shards" and call.stream == "orders":
                hanging.set()
                await asyncio.Event().wait()
            elif call.operation == "list_shards":
                await hanging.wait()
                raise AccessDenied("no", code="AccessDeniedException", status=400)

        world.hooks.append(answer)
        app = world.app()
        app.subscriber("orders")(nothing)
        app.subscriber("bills")(nothing)

        with pytest.raises(AccessDenied):
            await run(app)

        assert left_over() == set()

    @pytest.mark.parametrize("lease_store", ["memory"], indirect=True)
    async def test_a_record_published_after_the_start_is_read_although_it_opens_at_the_tip(
        self, world: World
    ):
        world.put("orders", "old")
        seen: list[str] = []
        app = world.app()

        @app.subscriber("orders")
        async def handle(value: str) -> None:
            seen.append(value)

        async with running(app):
            world.put("orders", b"new")
            await world.clock.advance(5)
            await until(lambda: seen == ["new"])

    async def test_hooks_run_in_order_around_the_handlers_with_publishers_that_work(
        self, world: World
    ):
        world.put("orders", 1)
        world.stream("log")
        app = world.app()
        publisher = app.publisher()
        order: list[str] = []

        @app.on_startup
        async def up() -> None:
            await publisher.publish(b"up", "log")
            order.append("up")

        @app.on_startup
        def also_up() -> None:
            order.append("also up")

        @app.on_shutdown
        async def down() -> None:
            await publisher.publish(b"down", "log")
            order.append("down")

        @app.on_shutdown
        def also_down() -> None:
            order.append("also down")

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            order.append("handled")

        async with running(app):
            await until(lambda: "handled" in order)

        assert order == ["up", "also up", "handled", "down", "also down"]
        assert [each.data for each in world.records("log")] == [b"up", b"down"]

    @pytest.mark.parametrize("kind", ["async", "plain"])
    async def test_a_startup_hook_that_raises_stops_the_service_with_its_error(
        self, world: World, kind: str
    ):
        app = world.app()
        app.subscriber("orders")(nothing)

        async def fail() -> None:
            raise RuntimeError("no database")

        def fail_at_once() -> None:
            raise RuntimeError("no database")

        app.on_startup(fail if kind == "async" else fail_at_once)

        with pytest.raises(RuntimeError, match="no database"):
            await run(app)

        assert left_over() == set()
        assert world.transports[0].closed

    async def test_what_started_raises_ends_the_service_with_it(self, world: World):
        app = world.app()
        app.subscriber("orders")(nothing)

        def started() -> None:
            raise RuntimeError("started")

        with pytest.raises(RuntimeError, match="started"):
            await run(app, started=started)

        assert left_over() == set()
        assert await world.owner() is None

    async def test_an_application_without_subscribers_runs_and_publishes(self, world: World):
        app = world.app()
        async with running(app):
            await app.publisher().publish(b"x", "orders")

        assert len(world.records("orders")) == 1


async def nothing(value: bytes) -> None: ...


class TestCancelledStart:
    """Case X3: whatever the start awaits when it is cancelled, nothing is left running."""

    def application(self, world: World) -> RustStream:
        app = world.app(shutdown_timeout=1)

        @app.on_startup
        async def up() -> None:
            await asyncio.sleep(0)

        for stream in ("orders", "bills"):
            app.subscriber(stream, workers=2, start_at=HORIZON)(nothing)
        return app

    async def cancel_after(self, turns: int) -> bool:
        """Cancel the start after so many turns of the loop; False when it had completed."""
        world = World()
        world.store = spy_store(world.clock)
        world.store.before = one_turn
        world.stream("orders", 2)
        world.stream("bills")
        world.put("orders", 1, 2, 3)
        app = self.application(world)
        started = asyncio.Event()
        task = asyncio.create_task(app.run(signals=False, started=started.set))
        for _ in range(turns):
            await asyncio.sleep(0)
        completed = started.is_set()

        task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({task})

        assert task.cancelled(), f"after {turns} turns: {task}"
        # One turn: what was cancelled but never awaited by anybody ends in it.
        await asyncio.sleep(0)
        assert left_over() == set(), f"after {turns} turns"
        assert world.transports[0].closed
        for shard in range(2):
            assert await world.owner("orders", shard) is None, f"after {turns} turns"
        with pytest.raises(NotConnected):
            _ = app.broker.connection.transport
        return not completed

    async def test_at_every_turn_of_the_loop(self):
        # None would cancel it before its first step, which is no start.
        turns = 1
        while await self.cancel_after(turns):
            turns += 1

        assert turns > 15, "the start has that many awaits at least"

    async def test_at_every_call_to_the_service(self):
        async with ScriptedKinesis() as server:
            # The client itself takes many turns, and sockets: those are counted by call.
            for target in ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"):
                await self.cancel_at(server, target)

    async def cancel_at(self, server: ScriptedKinesis, target: str) -> None:
        threads = threading.active_count()
        broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
        app = RustStream(broker, title="t", version="0", shutdown_timeout=1)
        app.subscriber("orders")(nothing)
        arrived = asyncio.Event()

        async def arrive(call: Any) -> Any:
            arrived.set()
            await asyncio.Event().wait()

        rule = server.on(target, arrive)
        before = left_over()
        task = asyncio.create_task(app.run(signals=False))
        async with asyncio.timeout(PATIENCE):
            await arrived.wait()
            task.cancel()
            await asyncio.wait({task})
        rule.remove()

        assert task.cancelled(), target
        assert not broker.connection.connected
        await until(lambda: ours(left_over() - before) == set(), target)
        assert threading.active_count() <= threads + 1, "the loop's own executor at most"

    async def test_while_the_client_is_being_made(self, monkeypatch: pytest.MonkeyPatch):
        closed: list[AwsTransport] = []
        reached = asyncio.Event()
        close = AwsTransport.close

        async def made(self: AwsTransport, *_: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

        async def noted(self: AwsTransport) -> None:
            await close(self)
            closed.append(self)

        monkeypatch.setattr(AwsTransport, "_made", made)
        monkeypatch.setattr(AwsTransport, "close", noted)
        broker = KinesisBroker(endpoint_url="http://127.0.0.1:1", test_credentials=True)
        app = RustStream(broker, title="t", version="0")
        task = asyncio.create_task(app.run(signals=False))
        async with asyncio.timeout(PATIENCE):
            await reached.wait()
            task.cancel()
            await asyncio.wait({task})

        assert task.cancelled()
        assert len(closed) == 1
        assert "kinesis-client" not in left_over()


async def one_turn(write: Write) -> None:
    await asyncio.sleep(0)


def ours(names: set[str]) -> set[str]:
    """Without the tasks of the scripted server, which run on the same loop."""
    return {name for name in names if not name.startswith("Task-")}


class TestFailuresWhileRunning:
    async def test_a_worker_that_dies_stops_the_service_with_its_error(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        world.put("orders", 1)
        app = world.app()

        class Odd(BaseException):
            pass

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            raise Odd

        with pytest.raises(Odd):
            await run(app)

        assert await world.checkpoint() is None
        assert await world.owner() is None
        assert left_over() == set()

    async def test_a_task_of_ours_that_the_handler_cancels_stops_the_service(self, world: World):
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        with pytest.raises(KinesisError, match=r"worker\[orders/0\]"):
            await run(app)

        assert await world.checkpoint() is None

    async def test_a_coordinator_that_dies_stops_the_service_with_its_error(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        app = world.app()
        app.subscriber("orders")(nothing)

        class Odd(BaseException):
            pass

        async def fail(self: Coordinator, look: float) -> None:
            raise Odd

        with pytest.raises(Odd):
            async with running(app) as task:
                monkeypatch.setattr(Coordinator, "_pass", fail)
                await world.clock.advance(5)
                await asyncio.wait({task})
        assert await world.owner() is None

    async def test_the_first_failure_is_the_one_that_is_raised(self, world: World):
        world.stream("bills")
        world.put("orders", 1)
        app = world.app()
        app.subscriber("bills")(nothing)

        @app.subscriber("orders", start_at=HORIZON, on_error="stop")
        async def handle(value: int) -> None:
            raise RuntimeError("the first")

        @app.on_shutdown
        async def fail() -> None:
            raise RuntimeError("a later one")

        with pytest.raises(HandlerFailed) as caught:
            await run(app)

        assert isinstance(caught.value.__cause__, RuntimeError)
        assert caught.value.sequence_number == "1"
        assert caught.value.stream == "orders"
