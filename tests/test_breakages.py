"""Faults that an attack on the service found, each as the smallest test that shows it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.config import AioConfig

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    LeaseState,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    Seeker,
    ack,
    aws,
    copies,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import ConfigurationError, HandlerFailed, KinesisError
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock, TestApp, Undecided
from ruststream_kinesis.thin import ThinTransport
from tests.support.scripted import ScriptedKinesis, hang_after_headers, held
from tests.support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

POOL = 8


pytestmark = pytest.mark.usefixtures("lease_store")


def settings(url: str) -> ClientSettings:
    config = AioConfig(max_pool_connections=POOL)
    return ClientSettings(endpoint_url=url, test_credentials=True, config=config)


@pytest.mark.parametrize("way", [ThinTransport, AwsTransport])
async def test_reads_that_hang_leave_connections_for_everything_else(way: type[AwsTransport]):
    """With as many slow reads as you like, a put and a new iterator are answered."""
    stream = StreamRef("orders")
    async with ScriptedKinesis() as server:
        slow = held()
        server.on("GetRecords", slow)
        transport = way(settings(server.url), SystemClock())
        await transport.open()
        reads = [
            asyncio.create_task(transport.get_records(stream, "shardId-000000000000", "it", 1))
            for _ in range(5 * POOL)
        ]
        try:
            await slow.reached.wait()
            async with asyncio.timeout(10):
                await transport.put_record(stream, b"data", "key")
                await transport.get_shard_iterator(
                    stream, "shardId-000000000000", KinesisPosition.horizon()
                )
            assert len(server.calls("GetRecords")) < POOL
        finally:
            slow.release()
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            await transport.close()


@pytest.mark.parametrize("way", [ThinTransport, AwsTransport])
async def test_a_put_that_waits_for_others_has_not_been_sent_and_is_not_late(
    way: type[AwsTransport],
):
    """Its deadline starts with its turn: a thousand at once are not sent twice."""
    stream = StreamRef("orders")
    async with ScriptedKinesis() as server:
        slow = held()
        server.on("PutRecord", slow)
        transport = way(settings(server.url), SystemClock())
        await transport.open()
        puts = [
            asyncio.create_task(transport.put_record(stream, b"data", "key"))
            for _ in range(5 * POOL)
        ]
        try:
            await slow.reached.wait()
            async with asyncio.timeout(10):
                # Others find a connection all the while.
                await transport.list_shards(stream)
            assert len(server.calls("PutRecord")) <= POOL // 2
            slow.release()
            async with asyncio.timeout(10):
                await asyncio.gather(*puts)
        finally:
            slow.release()
            for put in puts:
                put.cancel()
            await asyncio.gather(*puts, return_exceptions=True)
            await transport.close()
        assert len(server.calls("PutRecord")) == 5 * POOL


async def test_one_put_that_is_never_answered_does_not_hold_its_record(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(aws._DEADLINES, "put_record", 0.2)
    async with ScriptedKinesis() as server:
        server.on("PutRecord", [hang_after_headers()])
        broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
        app = RustStream(broker, title="orders", version="1")
        published = asyncio.Event()

        @app.on_startup
        async def put() -> None:
            await app.publisher().publish(b"1", "orders")
            published.set()

        app.subscriber("orders")(_nothing)
        running = asyncio.create_task(app.run(signals=False))
        async with asyncio.timeout(20):
            await published.wait()
        app.stop()
        await running
        assert len(server.calls("PutRecord")) == 2


async def _nothing(payload: bytes) -> None:
    """Handles a record."""


async def test_a_signal_stops_every_service_of_its_loop():
    async with ScriptedKinesis() as server:
        apps, tasks, started = [], [], []
        for name in ("one", "two"):
            broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
            app = RustStream(broker, title=name, version="1")
            app.subscriber(KinesisStream("orders"))(_nothing)
            event = asyncio.Event()
            apps.append(app)
            started.append(event)
            tasks.append(asyncio.create_task(app.run(started=event.set)))
        for event in started:
            await event.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)


@pytest.mark.parametrize("function", [retry, drop])
async def test_an_outcome_that_was_not_called_is_the_handlers_error(function: Callable[..., Any]):
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders")
    async def handle(payload: bytes):
        return function

    async with TestApp(app) as test:
        await test.publish(b"1", "orders")
        (call,) = test.subscriber("orders").calls
        assert call.held
        assert not call.settled


async def test_what_was_said_of_a_message_cannot_be_set():
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders", on_error="drop")
    async def handle(message: KinesisMessage[bytes]):
        message.outcome = drop()  # type: ignore[misc]  # what is tested

    async with TestApp(app) as test:
        await test.publish(b"1", "orders")
        (call,) = test.subscriber("orders").calls
        assert isinstance(call.error, AttributeError)
        assert call.settled


async def test_an_error_that_cannot_be_shown_stops_the_service_as_declared():
    class Shy(Exception):
        def __repr__(self) -> str:
            raise ValueError("no repr")

        __str__ = __repr__

    world = World()
    world.stream("orders")
    world.put("orders", 1)
    app = world.app()

    @app.subscriber("orders", on_error="stop", start_at=KinesisPosition.horizon())
    async def handle(payload: bytes):
        raise Shy

    with pytest.raises(HandlerFailed, match="Shy"):
        await app.run(signals=False)


def test_more_workers_than_anybody_needs_are_refused():
    app = RustStream(KinesisBroker(), title="orders", version="1")
    with pytest.raises(ConfigurationError, match="at most 1024"):
        app.subscriber("orders", workers=70_000)


async def test_leases_are_renewed_while_a_shard_is_slow_to_open():
    """One iterator that hangs holds up the start, and no lease of the others."""

    class Counting(MemoryLeaseStore):
        renewals = 0

        async def renew(self, held: LeaseState) -> None:
            self.renewals += 1
            await super().renew(held)

    clock = ManualClock()
    store = Counting(clock=clock)
    async with ScriptedKinesis(["shardId-000000000000", "shardId-000000000001"]) as server:
        slow = hang_after_headers()
        server.on("GetShardIterator", slow, shard="shardId-000000000001")
        broker = KinesisBroker(
            endpoint_url=server.url, test_credentials=True, lease_store=store, clock=clock
        )
        app = RustStream(broker, title="orders", version="1")
        app.subscriber("orders")(_nothing)
        started = asyncio.Event()
        running = asyncio.create_task(app.run(signals=False, started=started.set))
        await slow.reached.wait()

        await clock.advance(10.0)

        assert store.renewals >= 4
        assert not started.is_set()
        running.cancel()
        await asyncio.wait([running])
        slow.release()


@pytest.mark.parametrize("outcome", ["reply to itself", "retry at once", "seek"])
async def test_a_handler_that_never_comes_to_an_end_ends_the_test(outcome: str):
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders", publish="orders")
    async def handle(number: int, seeker: Seeker) -> int | Outcome:
        if outcome == "seek":
            await seeker.seek(KinesisPosition.horizon())
            return ack()
        return number if outcome == "reply to itself" else retry_after(0)

    with pytest.raises(Undecided):
        async with TestApp(app, timeout=0.2) as test:
            await test.publish(1, "orders")


async def test_a_startup_hook_that_never_ends_ends_the_test():
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.on_startup
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(KinesisError, match="startup hook"):
        async with TestApp(app, timeout=0.1):
            raise AssertionError("unreachable")


@pytest.mark.parametrize("kind", [map, set])
async def test_a_batch_whose_result_is_no_list_is_the_handlers_error(kind: Any):
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders", batch=1)
    async def handle(numbers: list[int]):
        return map(lambda _: retry(), numbers) if kind is map else kind([retry()])  # noqa: C417

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        (call,) = test.subscriber("orders").calls
        assert not call.settled


async def test_a_tuple_of_outcomes_is_as_good_as_a_list():
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders", batch=1)
    async def handle(numbers: list[int]):
        return tuple(retry() for _ in numbers)

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        (call,) = test.subscriber("orders").calls
        assert call.held


async def test_what_came_early_waits_for_room_and_is_not_put_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(copies, "MAX_WAITING", 2)
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders")
    async def handle(number: int, message: KinesisMessage[int]) -> Outcome:
        return retry_after(60) if message.attempt == 1 else ack()

    async with TestApp(app) as test:
        for number in range(4):
            put = asyncio.ensure_future(test.publish(number, "orders"))
            for _ in range(100):
                await asyncio.sleep(0)
            put.cancel()
        await test.clock.advance(30)
        # Four, and the two that had no room once more: not twice, however often they look.
        assert len(test.published("orders")) <= 6
        await test.advance(120)
        done = {call.value for call in test.subscriber("orders").calls if call.attempt == 2}
        assert done == {0, 1, 2, 3}


async def test_a_stop_does_not_wait_for_room_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(copies, "MAX_WAITING", 1)
    app = RustStream(KinesisBroker(), title="orders", version="1")

    @app.subscriber("orders")
    async def handle(number: int) -> Outcome:
        return retry_after(60)

    async with TestApp(app) as test:
        put = [asyncio.ensure_future(test.publish(number, "orders")) for number in range(2)]
        for _ in range(200):
            await asyncio.sleep(0)
        # One waits; the other came early, found no room, and its worker waits for it.
        assert app.state().subscriptions[0].waiting_copies == 1
        assert app.state().subscriptions[0].shards[0].open == 2
        leaving = asyncio.ensure_future(test.__aexit__(None, None, None))
        for _ in range(200):
            await asyncio.sleep(0)
        await test.clock.advance(1.0)
        async with asyncio.timeout(5):
            await leaving
        for each in put:
            each.cancel()
        early = [r for r in test.published("orders") if "x-ruststream-not-before" in r.headers]
        assert {record.decode(int) for record in early} == {0, 1}
