"""`RustStream`: the declarations of a service, and its life as its host sees it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from ruststream_kinesis import KinesisBroker, KinesisPosition, RustStream
from ruststream_kinesis.errors import ConfigurationError, StreamNotFound
from ruststream_kinesis.settlement import Counters
from tests.support.world import PATIENCE, World, running, until

HORIZON = KinesisPosition.horizon()


def test_it_keeps_what_it_is_called():
    broker = KinesisBroker()

    app = RustStream(broker, title="orders", version="1.2", description="Takes orders.")

    assert app.broker is broker
    assert (app.title, app.version, app.description) == ("orders", "1.2", "Takes orders.")
    assert app.subscribers == ()
    assert app.counters == {}


@pytest.mark.parametrize("broker", [None, "broker", "http://127.0.0.1:4567"])
def test_what_is_no_broker_is_refused_with_its_value(broker: Any):
    with pytest.raises(ConfigurationError) as caught:
        RustStream(broker, title="t", version="0")

    assert repr(broker) in str(caught.value)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), None, True, "30"])
def test_a_shutdown_timeout_that_is_no_time_is_refused(timeout: Any):
    with pytest.raises(ConfigurationError, match="shutdown_timeout"):
        RustStream(KinesisBroker(), title="t", version="0", shutdown_timeout=timeout)


def test_making_one_starts_no_task_and_needs_no_loop():
    app = World().app()
    app.subscriber("orders")(nothing)
    app.publisher()

    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


async def nothing(value: bytes) -> None: ...


def test_hooks_are_returned_as_they_are():
    app = World().app()

    @app.on_startup
    async def up() -> None: ...

    @app.on_shutdown
    async def down() -> None: ...

    assert asyncio.iscoroutinefunction(up)
    assert asyncio.iscoroutinefunction(down)


async def test_started_is_called_once_when_every_subscription_is_open():
    world = World()
    world.stream("orders")
    world.stream("bills")
    app = world.app()
    app.subscriber("orders")(nothing)
    app.subscriber("bills")(nothing)
    opened: list[int] = []

    def started() -> None:
        opened.append(len([c for c in world.calls if c.operation == "get_shard_iterator"]))
        app.stop()

    async with asyncio.timeout(PATIENCE):
        await app.run(signals=False, started=started)

    assert opened == [2]


async def test_counters_tell_what_became_of_the_deliveries_of_each_subscription():
    world = World()
    world.stream("orders")
    world.stream("bills")
    world.put("orders", 1, b"{nope", 3, 4)
    app = world.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        if value == 3:
            raise RuntimeError("it broke")

    app.subscriber("bills")(nothing)
    app.subscriber("bills", group="audit")(nothing)

    async with running(app):
        await until(lambda: app.counters["orders"].failed == 1)
        await until(lambda: app.counters["orders"].undecodable == 1)
        assert set(app.counters) == {"orders", "bills", "bills@audit"}
        assert app.counters["bills"] == Counters()
        seen = app.counters["orders"]

    assert (seen.handled, seen.failed, seen.undecodable, seen.dropped, seen.held) == (2, 1, 1, 1, 1)
    assert app.counters == {}


async def test_two_subscriptions_to_a_stream_each_get_every_record_and_keep_their_own_place():
    world = World()
    world.stream("orders")
    world.put("orders", 1, 2)
    app = world.app()
    main: list[int] = []
    audit: list[int] = []

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        main.append(value)

    @app.subscriber("orders", group="audit", start_at=HORIZON)
    async def handle_too(value: int) -> None:
        audit.append(value)
        if value == 2:
            raise RuntimeError("it broke")

    async with running(app):
        await until(lambda: len(main) == len(audit) == 2)

    rows = {
        row.key.group: row.checkpoint
        for group in (None, "audit")
        for row in await world.store.leases("orders", group)
    }
    assert rows == {None: "2", "audit": "1"}


async def test_an_application_lives_within_a_host_that_cancels_it():
    world = World()
    world.stream("orders")
    world.put("orders", 1)
    app = world.app()
    seen: list[int] = []

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(value: int) -> None:
        seen.append(value)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        service = group.create_task(app.run(signals=False))
        await until(lambda: seen == [1])
        service.cancel()

    assert service.cancelled()
    assert await world.checkpoint() == "1"


async def test_a_host_that_runs_several_applications_shares_a_store_and_the_shards():
    world = World()
    world.stream("orders")
    world.put("orders", 1, 2, 3)
    seen: list[tuple[str, int]] = []
    async with contextlib.AsyncExitStack() as stack:
        for name in ("a", "b"):
            app = world.app()

            async def handle(value: int, name: str = name) -> None:
                seen.append((name, value))

            app.subscriber("orders", start_at=HORIZON)(handle)
            await stack.enter_async_context(running(app))
        await until(lambda: len(seen) == 3)
        await world.clock.advance(30)

    assert seen == [("a", 1), ("a", 2), ("a", 3)], "one reader a shard"


async def test_a_run_that_failed_may_be_run_again():
    world = World()
    app = world.app()
    app.subscriber("orders")(nothing)
    with pytest.raises(StreamNotFound):
        await app.run(signals=False)

    world.stream("orders")
    app.broker.connection.attach(world.broker().connection.transport)
    async with running(app):
        pass
