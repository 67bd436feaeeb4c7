"""Services that publish in batches: replies, copies and dead letters, and the stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisPublish,
    KinesisPublisher,
    Outcome,
    Router,
    RustStream,
    retry,
)
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    HandlerError,
    RequestError,
    StopTimeout,
)
from ruststream_kinesis.testing import TestApp
from ruststream_kinesis.transport import PutEntry
from tests.support.world import Call, FakeTransport, World, running, until

HORIZON = KinesisPosition.horizon()


@pytest.fixture
def world() -> World:
    world = World(clock=SystemClock())
    for name in ("orders", "replies", "dead"):
        world.stream(name)
    return world


def puts(world: World) -> list[str]:
    """The streams of the requests that put something, in order."""
    return [call.stream for call in world.calls if call.operation.startswith("put_")]


class TestReplies:
    async def test_replies_of_one_worker_share_requests(self, world: World):
        world.put("orders", *range(40))
        app = world.app()

        @app.subscriber(
            "orders", start_at=HORIZON, publish=KinesisPublish(to="replies", batch=500, linger=0.02)
        )
        async def double(number: int) -> int:
            return 2 * number

        async with running(app):
            await until(lambda: len(world.records("replies")) == 40)
            await until(lambda: app.counters["orders"].replies == 40)

        assert {each.data for each in world.records("replies")} == {
            b"%d" % (2 * n) for n in range(40)
        }
        assert len(puts(world)) < 4
        assert await world.checkpoint() == "40"

    async def test_a_record_is_not_settled_before_its_reply_is_in_the_stream(self, world: World):
        held = asyncio.Event()

        async def hold(call: Call) -> None:
            if call.operation == "put_records":
                await held.wait()

        world.hooks.append(hold)
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, publish=KinesisPublish(to="replies", batch=1))
        async def double(number: int) -> int:
            return 2 * number

        async with running(app):
            await until(lambda: "replies" in puts(world))
            assert app.state().subscriptions[0].shards[0].open == 1
            held.set()
            await until(lambda: app.state().subscriptions[0].shards[0].open == 0)

    async def test_the_replies_of_a_key_keep_its_order_though_one_is_refused(self, world: World):
        world.put("orders", *range(6), key="k")
        app = world.app()
        refuse_once(world.transports[-1], b"2")

        @app.subscriber(
            "orders",
            start_at=HORIZON,
            publish=KinesisPublish(to="replies", batch=500, linger=0.01, partition_key="k"),
        )
        async def same(number: int) -> int:
            return number

        async with running(app):
            await until(lambda: len(world.records("replies")) == 6)

        assert [each.data for each in world.records("replies")] == [b"%d" % n for n in range(6)]

    async def test_a_reply_that_is_refused_leaves_its_record_open_and_no_other(self, world: World):
        world.put("orders", 1, 2, 3)
        app = world.app()
        denied = AccessDenied("no", code="AccessDeniedException", status=400)
        refuse_once(world.transports[-1], b"2", denied)

        @app.subscriber("orders", start_at=HORIZON, publish=KinesisPublish(to="replies", batch=3))
        async def same(number: int) -> int:
            return number

        async with running(app):
            await until(lambda: app.counters["orders"].held == 1)
            await until(lambda: app.counters["orders"].replies == 2)
        assert await world.checkpoint() == "1"

    async def test_the_stop_waits_for_replies_on_their_way(self, world: World):
        world.put("orders", 1, 2)
        app = world.app()

        @app.subscriber(
            "orders", start_at=HORIZON, publish=KinesisPublish(to="replies", batch=500, linger=0.2)
        )
        async def same(number: int) -> int:
            return number

        async with running(app):
            await until(lambda: app.counters["orders"].handled == 2)
            assert world.records("replies") == []

        assert len(world.records("replies")) == 2
        assert await world.checkpoint() == "2"

    @pytest.mark.parametrize("batch", [None, 10])
    async def test_a_worker_is_not_done_before_its_replies_are(
        self, world: World, batch: int | None
    ):
        async def hang(call: Call) -> None:
            if call.operation == "put_records":
                await asyncio.Event().wait()

        world.hooks.append(hang)
        world.put("orders", 1)
        app = world.app(shutdown_timeout=0.1)

        async def same(number: int) -> int:
            return number

        async def all_same(numbers: list[int]) -> list[int]:
            return numbers

        app.subscriber(
            "orders", start_at=HORIZON, batch=batch, publish=KinesisPublish(to="replies", batch=1)
        )(same if batch is None else all_same)
        with pytest.raises(StopTimeout, match=r"worker\[orders/0\]"):
            async with running(app):
                await until(lambda: "replies" in puts(world))
        assert await world.checkpoint() is None

    async def test_the_replies_of_a_batch_share_requests(self, world: World):
        world.put("orders", *range(100))
        app = world.app()

        @app.subscriber(
            "orders",
            start_at=HORIZON,
            batch=100,
            publish=KinesisPublish(to="replies", batch=500, linger=0.02),
        )
        async def same(numbers: list[int]) -> list[int]:
            return numbers

        async with running(app):
            await until(lambda: len(world.records("replies")) == 100)
            await until(lambda: app.counters["orders"].replies == 100)
        assert len(puts(world)) < 6
        assert await world.checkpoint() == "100"


def refuse_once(transport: FakeTransport, data: bytes, error: RequestError | None = None) -> None:
    """Let one entry of a batch be refused, once."""
    put_records, left = transport.put_records, [data]

    async def put(stream: Any, entries: Sequence[PutEntry]) -> list[Any]:
        kept = [entry for entry in entries if not (left and entry[0] == left[0])]
        results = iter(await put_records(stream, kept))
        found: list[Any] = []
        for entry in entries:
            if left and entry[0] == left[0]:
                found.append(error or RequestError("slow", code="ThrottlingException", status=400))
            else:
                found.append(next(results))
        if len(kept) < len(entries):
            left.clear()
        return found

    vars(transport)["put_records"] = put


class TestCopies:
    async def test_copies_and_dead_letters_share_requests_and_settle_their_originals(
        self, world: World
    ):
        world.put("orders", *range(30))
        app = world.app()

        @app.subscriber(
            "orders",
            start_at=HORIZON,
            max_attempts=2,
            dead_letter="dead",
            publish=KinesisPublish(batch=500, linger=0.02),
        )
        async def never(number: int) -> Outcome:
            return retry()

        async with running(app):
            await until(lambda: len(world.records("dead")) == 30)
            await until(lambda: app.counters["orders"].dead_lettered == 30)
            await until(lambda: app.state().subscriptions[0].shards[0].open == 0)

        # By one key, of which each request takes one record: the key is kept, and its order.
        dead = [decode_envelope(each.data)[1] for each in world.records("dead")]
        assert dead == [b"%d" % n for n in range(30)]
        assert await world.checkpoint() == "60"

    async def test_many_keys_make_few_requests(self, world: World):
        for number in range(50):
            world.put("orders", number, key=f"k{number}")
        app = world.app()

        @app.subscriber(
            "orders",
            start_at=HORIZON,
            dead_letter="dead",
            publish=KinesisPublish(batch=500, linger=0.02),
        )
        async def never(number: int) -> Outcome:
            return retry()

        async with running(app):
            await until(lambda: app.counters["orders"].dead_lettered == 50)
        assert len(puts(world)) < 4
        assert await world.checkpoint() == "50"

    async def test_the_stop_waits_for_copies_that_wait_for_others(self, world: World):
        world.put("orders", 1, 2)
        app = world.app()

        @app.subscriber(
            "orders",
            start_at=HORIZON,
            dead_letter="dead",
            publish=KinesisPublish(batch=500, linger=0.2),
        )
        async def never(number: int) -> Outcome:
            return retry()

        async with running(app):
            await until(lambda: app.counters["orders"].handled == 2)
        assert len(world.records("dead")) == 2
        assert await world.checkpoint() == "2"

    def test_a_policy_without_a_stream_is_for_copies_and_needs_a_batch(self):
        router = Router()
        router.subscriber("orders", publish=KinesisPublish(batch=10))
        with pytest.raises(ConfigurationError, match="batch="):
            router.subscriber("orders", publish=KinesisPublish(partition_key="k"))

    def test_a_handler_that_answers_needs_a_stream_all_the_same(self):
        async def double(number: int) -> int:
            return 2 * number

        with pytest.raises(HandlerError, match="names no stream"):
            Router().subscriber("orders", publish=KinesisPublish(batch=10))(double)


class TestTheStop:
    @pytest.mark.parametrize("batch", [None, 500])
    async def test_it_returns_in_time_and_names_what_was_not_sent(
        self, world: World, batch: int | None
    ):
        """Case P7."""

        async def down(call: Call) -> None:
            if call.operation.startswith("put_"):
                raise RequestError("connection refused", code="ClientConnectorError")

        world.hooks.append(down)
        app = world.app(shutdown_timeout=0.3)
        publisher = app.publisher(KinesisPublish(batch=batch))
        began = 0.0
        with pytest.raises(
            StopTimeout, match=r"10 record\(s\) for stream orders, .* k0, k1"
        ) as late:
            async with running(app):
                futures = [
                    publisher.publish_nowait(b"x", "orders", partition_key=f"k{n}")
                    for n in range(10)
                ]
                await until(lambda: len(puts(world)) > 0)
                began = time.monotonic()
        assert 0.25 < time.monotonic() - began < 1.0
        assert "k9" in str(late.value)
        for future in futures:
            if batch is None:
                future.cancel()
        await asyncio.wait(futures)

    async def test_what_was_published_without_waiting_is_sent_before_the_leases_go(
        self, world: World
    ):
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(number: int) -> None:
            later.append(publisher.publish_nowait(b"x", "replies"))

        later: list[Any] = []
        at_release: list[int] = []
        publisher = app.publisher(KinesisPublish(batch=500, linger=5))
        release = world.store.release

        async def watched(*arguments: Any, **named: Any) -> Any:
            at_release.append(len(world.records("replies")))
            return await release(*arguments, **named)

        vars(world.store)["release"] = watched
        async with running(app):
            await until(lambda: len(later) == 1)
        assert at_release == [1]
        assert later[0].done()

    async def test_a_shutdown_hook_may_still_publish(self, world: World):
        app = world.app()
        publisher = app.publisher(KinesisPublish(batch=500, linger=0.01))

        @app.on_shutdown
        async def say() -> None:
            await publisher.publish(b"bye", "replies")

        async with running(app):
            pass
        assert [each.data for each in world.records("replies")] == [b"bye"]


class TestInTheTestKit:
    async def test_a_batched_reply_is_decided_without_waiting(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        seen: list[int] = []

        @app.subscriber("orders", publish=KinesisPublish(to="replies", batch=500))
        async def double(number: int) -> int:
            return 2 * number

        @app.subscriber("replies")
        async def hear(number: int) -> None:
            seen.append(number)

        async with TestApp(app) as test:
            began = time.monotonic()
            for number in range(5):
                await test.publish(number, "orders", partition_key="k")
                assert seen == [2 * n for n in range(number + 1)]
            with test.fail_publish("replies", times=2) as fault:
                await test.publish(5, "orders")
            assert fault.hits == 2
            assert seen[-1] == 10
            assert test.clock.monotonic() > 0.25, "the clock of the test went on by what lingers"
            assert time.monotonic() - began < 5

    async def test_copies_and_dead_letters_are_decided_too(self):
        app = RustStream(KinesisBroker(), title="t", version="1")

        @app.subscriber(
            "orders", max_attempts=2, dead_letter="dead", publish=KinesisPublish(batch=10)
        )
        async def never(number: int) -> Outcome:
            return retry()

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert test.subscriber("orders").attempts == [1, 2]
            assert [each.payload for each in test.published("dead")] == [b"1"]

    async def test_a_publish_waits_for_what_a_handler_published_without_waiting(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        seen: list[int] = []

        @app.subscriber("orders", publish=KinesisPublish(batch=10))
        async def split(number: int, publisher: KinesisPublisher) -> None:
            for part in range(number):
                publisher.publish_nowait(part, "parts")

        @app.subscriber("parts")
        async def hear(number: int) -> None:
            seen.append(number)

        async with TestApp(app) as test:
            await test.publish(25, "orders")
            assert sorted(seen) == list(range(25))
            await test.settled()

    async def test_one_record_of_a_batch_may_be_made_to_fail(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        publisher = app.publisher(KinesisPublish(batch=3))
        async with TestApp(app) as test:
            test.fail_publish("orders", error="terminal")
            results = await asyncio.gather(
                *[publisher.publish(n, "orders") for n in range(3)], return_exceptions=True
            )
            assert [isinstance(each, Exception) for each in results] == [True, False, False]
            assert [each.payload for each in test.published("orders")] == [b"1", b"2"]

    async def test_a_handler_thread_may_publish_in_batches(self):
        app = RustStream(KinesisBroker(), title="t", version="1")

        @app.subscriber("orders", publish=KinesisPublish(batch=2))
        def handle(number: int, publisher: KinesisPublisher) -> None:
            async def both() -> None:
                await asyncio.gather(*[publisher.publish(n, "parts") for n in range(3)])

            asyncio.run(both())

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert sorted(each.payload for each in test.published("parts")) == [b"0", b"1", b"2"]

    async def test_afterwards_the_application_collects_as_before(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        collectors = app.broker.connection.collectors
        before = dict(vars(collectors))
        async with TestApp(app):
            assert "pause" in vars(collectors)
        assert vars(collectors) == before
