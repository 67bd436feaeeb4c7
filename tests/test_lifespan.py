"""The lifespan: when it is entered and left, what it shares, and whose error is whose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from ruststream_kinesis import (
    Context,
    KinesisBroker,
    KinesisPosition,
    Router,
    RustStream,
    service,
)
from ruststream_kinesis.errors import ConfigurationError, HandlerError, NotConnected, StopTimeout
from ruststream_kinesis.testing import TestApp
from tests.support.world import World, running, until

HORIZON = KinesisPosition.horizon()


class Database:
    def __init__(self) -> None:
        self.rows: list[int] = []


def an_app(lifespan: Any = None) -> RustStream:
    return RustStream(KinesisBroker(), title="test", version="0", lifespan=lifespan)


class TestOrder:
    async def test_it_stands_around_everything_but_the_connection(self):
        told: list[str] = []

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            await app.publisher().publish("up", "log")
            told.append("up")
            yield
            assert app.state().subscriptions[0].running == ()
            await app.publisher().publish("down", "log")
            told.append("down")

        app = an_app(lifespan)
        app.on_startup(lambda: told.append("startup"))
        app.on_shutdown(lambda: told.append("shutdown"))

        @app.subscriber("orders")
        async def handle(value: int) -> None:
            told.append("handler")

        async with TestApp(app) as test:
            await test.publish(1, "orders")
        assert told == ["up", "startup", "handler", "shutdown", "down"]
        assert [each.payload for each in test.published("log")] == [b"up", b"down"]
        with pytest.raises(NotConnected):
            await app.publisher().publish(1, "log")

    async def test_it_is_left_after_the_last_handler(self):
        world = World()
        world.stream()
        world.put("orders", 1)
        told: list[str] = []
        begun, gate = asyncio.Event(), asyncio.Event()

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            yield
            told.append("down")

        app = world.app(lifespan=lifespan)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            begun.set()
            await gate.wait()
            told.append("handler")

        async with running(app):
            await begun.wait()
            app.stop()
            for _ in range(50):
                await asyncio.sleep(0)
            assert told == []
            gate.set()
        assert told == ["handler", "down"]

    async def test_what_it_holds_knows_its_task(self):
        """A task group is entered and left in one task, and an error in it ends the service."""
        world = World()
        world.stream()
        fail = asyncio.Event()

        async def background() -> None:
            await fail.wait()
            raise OSError("the background work broke")

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            async with asyncio.TaskGroup() as group:
                work = group.create_task(background())
                yield
                work.cancel()

        def app() -> RustStream:
            app = world.app(lifespan=lifespan)
            app.subscriber("orders")(nothing)
            return app

        async with running(app()):
            pass
        with pytest.raises(ExceptionGroup) as caught:
            async with running(app()) as task:
                fail.set()
                await asyncio.wait({task})
        assert isinstance(caught.value.exceptions[0], OSError)


async def nothing(value: bytes) -> None: ...


class TestContext:
    async def test_handlers_get_what_they_name_whatever_its_type(self):
        database = Database()

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[dict[str, Any]]:
            yield {"db": database, "limit": 3}

        app, router = an_app(lifespan), Router()

        @router.subscriber("orders")
        async def handle(
            db: Annotated[Database, Context()], value: int, most: Annotated[int, Context("limit")]
        ) -> None:
            db.rows.append(value * most)

        @router.subscriber("bills")
        def in_a_thread(value: int, db: Annotated[Database, Context()]) -> None:
            db.rows.append(value)

        @router.subscriber("batches", batch=1)
        async def many(values: list[int], db: Annotated[Database, Context()]) -> None:
            db.rows += values

        app.include(router)
        assert app.context == {}
        for _ in range(2):  # again, when the run is over
            database.rows.clear()
            async with TestApp(app) as test:
                assert app.context["db"] is database
                await test.publish(1, "orders")
                await test.publish(2, "bills")
                await test.publish(5, "batches")
                assert database.rows == [3, 2, 5]
            assert app.context == {}

    async def test_a_wrong_name_is_found_at_the_start(self):
        left: list[int] = []

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[dict[str, Any]]:
            yield {"database": 1, "limit": 2}
            left.append(1)

        app = an_app(lifespan)

        @app.subscriber("orders")
        async def handle(value: int, db: Annotated[Any, Context()]) -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            async with TestApp(app):
                pass
        assert "handle asks for 'db'" in str(caught.value)
        assert "'database', 'limit'" in str(caught.value)
        assert left == [1]

    async def test_without_a_lifespan_too(self):
        app = an_app()

        @app.subscriber("orders")
        async def handle(value: int, db: Annotated[Any, Context()]) -> None: ...

        with pytest.raises(ConfigurationError, match="has yielded nothing"):
            async with TestApp(app):
                pass

    def test_a_name_that_is_not_there_is_named(self):
        with pytest.raises(ConfigurationError, match="no 'db'"):
            _ = an_app().context["db"]
        assert an_app().context.get("db") is None

    def test_a_mark_in_the_wrong_place_is_refused(self):
        app, mark = an_app(), Context()

        async def default(value: int, db: Any = mark) -> None: ...

        async def bare(value: int, db: Context) -> None: ...

        async def unmade(value: int, db: Annotated[Any, Context]) -> None: ...

        for wrong in (default, bare, unmade):
            with pytest.raises(HandlerError, match=r"Annotated\[T, Context\(\)\]"):
                app.subscriber("orders")(wrong)
        with pytest.raises(ConfigurationError, match="is text"):
            Context(1)  # type: ignore[arg-type]  # what is refused


class TestErrors:
    async def test_one_before_the_yield_fails_the_start_and_nothing_is_read(self):
        world = World()
        world.stream()
        told: list[str] = []

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            if world.streams:
                raise OSError("no database")
            yield

        app = world.app(lifespan=lifespan)
        app.on_startup(lambda: told.append("startup"))
        app.subscriber("orders", start_at=HORIZON)(nothing)
        with pytest.raises(OSError, match="no database"):
            await app.run(signals=False)
        assert told == []
        assert "get_records" not in {call.operation for call in world.calls}

    async def test_one_after_the_yield_is_named_at_the_stop_and_the_rest_still_runs(self):
        world = World()
        world.stream()

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            yield
            raise OSError("cannot close")

        app = world.app(lifespan=lifespan)
        app.subscriber("orders")(nothing)
        with pytest.raises(StopTimeout, match=r"hook lifespan \(OSError\)"):
            async with running(app):
                pass
        assert await world.owner() is None
        assert not app.broker.connection.connected

    async def test_one_that_does_not_end_is_named_and_cancelled(self, monkeypatch):
        world = World()
        world.stream()
        cancelled = asyncio.Event()
        monkeypatch.setattr(service, "_STEP_TIMEOUT", 0.01)

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            yield
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        app = world.app(lifespan=lifespan)
        app.shutdown_timeout = 0.01
        app.subscriber("orders")(nothing)

        with pytest.raises(StopTimeout, match=r"hook lifespan \(TimeoutError\)"):
            async with running(app):
                pass
        assert cancelled.is_set()

    async def test_a_stop_while_it_is_entered_ends_the_start(self):
        world = World()
        world.stream()
        entering, ended = asyncio.Event(), []

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            entering.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)
            yield

        app = world.app(lifespan=lifespan)
        app.subscriber("orders")(nothing)
        task = asyncio.create_task(app.run(signals=False))
        await entering.wait()
        app.stop()
        await task
        assert ended == [1]

    async def test_a_failing_startup_hook_leaves_it(self):
        told: list[str] = []

        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[None]:
            told.append("up")
            yield
            told.append("down")

        app = an_app(lifespan)

        @app.on_startup
        def fail() -> None:
            raise OSError("the hook broke")

        with pytest.raises(OSError, match="the hook broke"):
            async with TestApp(app):
                pass
        assert told == ["up", "down"]

    async def test_what_is_no_mapping_is_refused(self):
        @contextlib.asynccontextmanager
        async def lifespan(app: RustStream) -> AsyncIterator[Any]:
            yield ["db"]

        with pytest.raises(ConfigurationError, match="yields a mapping"):
            async with TestApp(an_app(lifespan)):
                pass

    def test_what_is_no_lifespan_is_refused_where_it_is_declared(self):
        async def undecorated(app: RustStream) -> AsyncIterator[None]:
            yield

        with pytest.raises(ConfigurationError, match="undecorated is an async generator"):
            an_app(undecorated)
        with pytest.raises(ConfigurationError, match="function of the application"):
            an_app("lifespan")


async def test_a_handler_sees_the_context_until_it_has_ended():
    world = World()
    world.stream()
    world.put("orders", 1)
    seen: list[Any] = []
    gate, begun = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(app: RustStream) -> AsyncIterator[dict[str, Any]]:
        yield {"db": "open"}

    app = world.app(lifespan=lifespan)

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        begun.set()
        await gate.wait()
        seen.append(app.context["db"])

    async with running(app):
        await until(begun.is_set)
        app.stop()
        gate.set()
    assert seen == ["open"]
