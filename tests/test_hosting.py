"""`app.running()`: a service within a host, and what the host hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

import ruststream_kinesis
from ruststream_kinesis import KinesisPosition, RustStream
from ruststream_kinesis.errors import HandlerFailed, KinesisError, StopTimeout, StreamNotFound
from tests.support.servers import ROOT
from tests.support.stopping import left_over
from tests.support.world import PATIENCE, World, until
from tests.test_docs import blocks

HORIZON = KinesisPosition.horizon()


@pytest.fixture(name="world")
def world_of_orders() -> World:
    """Make a world with one stream."""
    world = World()
    world.stream("orders")
    return world


async def read(world: World, true: Any) -> None:
    """Let time pass until something holds: what was put is read at the next poll."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await world.clock.advance(0.5)


def an_app(world: World, **options: Any) -> tuple[RustStream, list[int]]:
    """An application that notes its records, and stops with an error at a negative one."""
    app, seen = world.app(**options), []

    @app.subscriber("orders", start_at=HORIZON, on_error="stop")
    async def handle(value: int) -> None:
        if value < 0:
            raise ValueError(value)
        seen.append(value)

    return app, seen


async def test_the_block_begins_when_it_reads_and_its_end_stops_it(world: World):
    app, seen = an_app(world)
    async with app.running() as running:
        assert running is app
        assert app.state().running
        assert await world.owner() is not None
        world.put("orders", 1)
        await read(world, lambda: seen == [1])
    assert not app.state().running
    assert await world.owner() is None
    assert await world.checkpoint() == "1"
    assert left_over() == set()


async def test_an_error_of_the_start_is_raised_before_the_block():
    app, _ = an_app(World())
    with pytest.raises(StreamNotFound):
        async with app.running():
            pytest.fail("the block has begun")
    assert left_over() == set()


async def test_a_service_that_fails_cancels_the_block_and_its_error_takes_the_place(world: World):
    app, _ = an_app(world)
    ended: list[type[BaseException]] = []
    with pytest.raises(HandlerFailed):
        async with app.running():
            world.put("orders", -1)
            try:
                await read(world, lambda: False)
            except BaseException as error:
                ended.append(type(error))
                raise
    assert ended == [asyncio.CancelledError]
    # The host itself is not cancelled: it goes on.
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
    assert left_over() == set()


async def test_a_block_that_hides_the_cancellation_ends_with_the_error_too(world: World):
    app, _ = an_app(world)
    with pytest.raises(HandlerFailed):
        async with app.running():
            world.put("orders", -1)
            with contextlib.suppress(asyncio.CancelledError):
                await read(world, lambda: False)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_error_of_the_block_comes_first(world: World, caplog):
    app, _ = an_app(world)
    with pytest.raises(LookupError):
        async with app.running():
            raise LookupError
    assert await world.owner() is None

    app, _ = an_app(world)
    with pytest.raises(LookupError):
        async with app.running():
            world.put("orders", -1)
            try:
                await read(world, lambda: False)
            finally:
                raise LookupError
    assert "the service failed, its host is told" in caplog.text
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_stop_of_the_service_alone_leaves_the_host_in_its_block(world: World):
    app, _ = an_app(world)
    async with app.running():
        app.stop()
        await until(lambda: not app.state().running)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_stop_before_it_is_open_is_an_error(world: World):
    app, _ = an_app(world)
    app.on_startup(app.stop)
    with pytest.raises(KinesisError, match="stopped before it was open"):
        async with app.running():
            pytest.fail("the block has begun")


async def test_what_the_stop_could_not_finish_is_raised_at_the_end(world: World, caplog):
    app = world.app(shutdown_timeout=0.01)
    begun = asyncio.Event()
    world.put("orders", 1)

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(StopTimeout, match="worker"):
        async with app.running():
            await begun.wait()
    assert "its host is told" not in caplog.text


async def test_or_logged_where_the_block_has_an_error_of_its_own(world: World, caplog):
    app = world.app(shutdown_timeout=0.01)
    begun = asyncio.Event()
    world.put("orders", 1)

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(LookupError):
        async with app.running():
            await begun.wait()
            raise LookupError
    assert "the service failed, too: the stop did not finish" in caplog.text
    assert "its host is told" not in caplog.text


@pytest.mark.parametrize("when", ["starting", "within", "stopping"])
async def test_a_host_that_is_cancelled_stops_it_and_is_cancelled(world: World, when: str):
    reached, gate = asyncio.Event(), asyncio.Event()
    app = world.app()
    world.put("orders", 1)

    @app.on_startup
    async def starting() -> None:
        if when == "starting":
            reached.set()
            await gate.wait()

    begun = asyncio.Event()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        begun.set()
        if when == "stopping":
            await gate.wait()

    async def host() -> None:
        async with app.running():
            await begun.wait()
            reached.set()
            if when == "within":
                await gate.wait()

    task = asyncio.create_task(host())
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert await world.owner() is None
    assert left_over() == set()


async def test_the_page_on_hosting_hosts_one(world: World, monkeypatch):
    """Its application, on a stream without sockets."""
    monkeypatch.setattr(ruststream_kinesis, "KinesisBroker", world.broker)
    modules: dict[str, ModuleType] = {}
    for block in blocks(ROOT / "docs" / "hosting.md"):
        if block.name is not None:
            modules[block.name] = module = ModuleType(block.name)
            monkeypatch.setitem(sys.modules, block.name, module)
            exec(compile(block.source, block.name, "exec"), vars(module))
    service, web = modules["service"].app, Web(modules["web"].web)

    assert await web.get("/ready") == (503, b'{"running":false}')
    assert await web.tell("startup") == "lifespan.startup.complete"
    assert await web.get("/ready") == (200, b'{"running":true}')
    database = service.context["db"]
    world.put("orders", {"id": 1})
    await read(world, lambda: database.orders == [{"id": 1}])
    assert await web.tell("shutdown") == "lifespan.shutdown.complete"
    assert await web.get("/ready") == (503, b'{"running":false}')
    await web.task
    assert await world.checkpoint() == "1"


class Web:
    """The life of a web application, as its server drives it."""

    def __init__(self, application: Starlette) -> None:
        self._application = application
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.task = asyncio.create_task(application(scope, self._events.get, self.said.put))

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        said: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            said.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        await self._application(scope, receive, send)
        return said[0]["status"], b"".join(each.get("body", b"") for each in said)

    async def tell(self, kind: str) -> str:
        """Send an event; what the application answers."""
        self._events.put_nowait({"type": f"lifespan.{kind}"})
        async with asyncio.timeout(PATIENCE):
            return str((await self.said.get())["type"])


def a_web_application(app: RustStream) -> Starlette:
    """One that hosts a service, as the page on hosting shows."""

    @contextlib.asynccontextmanager
    async def lifespan(web: Starlette) -> AsyncIterator[None]:
        async with app.running():
            yield

    return Starlette(lifespan=lifespan)


async def test_a_starlette_application_hosts_it(world: World):
    app, seen = an_app(world)
    web = Web(a_web_application(app))
    assert await web.tell("startup") == "lifespan.startup.complete"
    world.put("orders", 1)
    await read(world, lambda: seen == [1])
    assert await web.tell("shutdown") == "lifespan.shutdown.complete"
    await web.task
    assert await world.checkpoint() == "1"


async def test_a_starlette_application_says_that_it_does_not_start_or_that_it_has_failed(
    world: World,
):
    missing, _ = an_app(World())
    web = Web(a_web_application(missing))
    assert await web.tell("startup") == "lifespan.startup.failed"
    with pytest.raises(StreamNotFound):
        await web.task

    app, _ = an_app(world)
    web = Web(a_web_application(app))
    assert await web.tell("startup") == "lifespan.startup.complete"
    world.put("orders", -1)
    await read(world, lambda: not web.said.empty())
    assert web.said.get_nowait()["type"] == "lifespan.shutdown.failed"
    with pytest.raises(HandlerFailed):
        await web.task
