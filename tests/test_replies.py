"""Replies are in their stream before their record is settled; a lost shard has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    LeaseKey,
    ack,
    drop,
)
from ruststream_kinesis.errors import (
    RequestError,
)
from tests.support.stores import SpyStore, Write, spy_store
from tests.support.world import Call, World, outcome_of, running, serve, until

HORIZON = KinesisPosition.horizon()
SHARD = "shardId-000000000000"


pytestmark = pytest.mark.usefixtures("lease_store")


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    world.stream("replies")
    return world


class Unencodable:
    """Nothing has a JSON form of it."""


class TestReplies:
    async def test_a_reply_is_published_with_the_policys_key(self, world: World):
        world.put("orders", 1)

        async def handle(value: int) -> dict[str, int]:
            return {"got": value}

        await serve(
            world,
            handle,
            until_handled=1,
            publish=KinesisPublish(to="replies", partition_key=lambda value: f"k{value['got']}"),
        )

        (reply,) = world.records("replies")
        assert (reply.data, reply.key) == (b'{"got":1}', "k1")

    @pytest.mark.parametrize("value", [0, False, "", b"", [], {}], ids=repr)
    async def test_a_value_that_is_falsy_is_a_value(self, world: World, value: Any):
        world.put("orders", 1)

        async def handle(number: int):
            return value

        await serve(world, handle, until_handled=1, publish="replies")

        assert len(world.records("replies")) == 1

    @pytest.mark.parametrize("value", [None, ack(), drop()], ids=repr)
    async def test_an_outcome_is_no_reply(self, world: World, value: Any):
        world.put("orders", 1)

        async def handle(number: int):
            return value

        await serve(world, handle, until_handled=1, publish="replies")

        assert world.records("replies") == []
        assert await world.checkpoint() == "1"

    async def test_it_is_in_its_stream_before_the_record_is_settled(self, world: World):
        reached, gate = asyncio.Event(), asyncio.Event()

        async def hold(call: Call) -> None:
            if call.operation == "put_record":
                reached.set()
                await gate.wait()

        world.hooks.append(hold)
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, publish="replies")
        async def handle(value: int) -> int:
            return value

        async with running(app):
            await reached.wait()
            await world.clock.advance(5)
            assert await world.checkpoint() is None
            gate.set()
            await until(lambda: app.counters["orders"].replies == 1)

        assert await world.checkpoint() == "1"

    async def test_a_crash_between_reply_and_settling_brings_the_record_again(self, world: World):
        world.put("orders", 1)
        world.store = spy_store(world.clock)

        async def crash(write: Write) -> None:
            if write.kind in ("checkpoint", "release"):
                await asyncio.Event().wait()

        world.store.before = crash
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, publish="replies")
        async def handle(value: int) -> int:
            return value

        task = asyncio.create_task(app.run(signals=False))
        await until(lambda: len(world.records("replies")) == 1)
        # A crash: nobody is asked, and nothing is written any more.
        crashed = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert task in crashed
        world.store.before = None
        world.store = spy_store(world.clock)
        again: list[int] = []

        async def handle_again(value: int) -> None:
            again.append(value)

        await serve(world, handle_again, until_handled=1)
        assert again == [1]
        app.stop()
        app.stop()
        await task

    @pytest.mark.parametrize(
        ("value", "options"),
        [
            (b"x" * 1_048_577, {}),
            (Unencodable(), {}),
            ({"a": Unencodable()}, {}),
            ("\ud800", {}),
            ({"a": 1}, {"partition_key": lambda value: ""}),
            ({"a": 1}, {"partition_key": lambda value: 5}),
            ({"a": 1}, {"partition_key": lambda value: value["no"]}),
            ({"a": 1}, {"partition_key": lambda value: 1 / 0}),
        ],
        ids=[
            "too large",
            "unencodable",
            "unencodable within",
            "surrogate",
            "empty key",
            "key is no text",
            "no key",
            "key raises",
        ],
    )
    async def test_one_that_cannot_be_published_leaves_its_record_open(
        self,
        world: World,
        value: Any,
        options: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ):
        """It is not the handler's error: `on_error` is not asked."""

        async def handle(message: KinesisMessage[int]):
            return value

        policy = KinesisPublish(**{"to": "replies", **options})

        assert await outcome_of(world, handle, publish=policy, on_error="drop") == "open"
        assert world.records("replies") == []
        said = [r.getMessage() for r in caplog.records if "was not published" in r.getMessage()]
        assert len(said) == 1
        assert "record 1 " in said[0]

    async def test_one_that_the_service_goes_on_refusing_leaves_its_record_open(self, world: World):
        async def refuse(call: Call) -> None:
            if call.operation == "put_record":
                raise RequestError("no", code="InternalFailure", status=500)

        world.hooks.append(refuse)

        async def handle(message: KinesisMessage[int]):
            return message.payload

        policy = KinesisPublish(to="replies", deadline=0)

        assert await outcome_of(world, handle, publish=policy) == "open"

    async def test_a_value_after_an_ack_is_published_all_the_same(self, world: World):
        async def handle(message: KinesisMessage[int]):
            await message.ack()
            return {"got": message.payload}

        assert await outcome_of(world, handle, publish="replies") == "settled"
        assert len(world.records("replies")) == 1

    async def test_a_value_after_a_refusal_is_not_published(self, world: World):
        async def handle(message: KinesisMessage[int]):
            await message.nack(requeue=False)
            return {"got": message.payload}

        assert await outcome_of(world, handle, publish="replies") == "settled"
        assert world.records("replies") == []

    async def test_a_codec_of_the_users_own_encodes_it(self, world: World):
        class Loud:
            def encode(self, value: Any) -> bytes:
                return str(value).upper().encode()

            def decoder(self, kind: Any) -> Callable[[bytes], Any]:
                return lambda payload: payload.decode().lower()

        world.put("orders", b"ABC")

        async def handle(value: str) -> str:
            assert value == "abc"
            return "reply"

        await serve(world, handle, until_handled=1, publish="replies", codec=Loud())

        assert [each.data for each in world.records("replies")] == [b"REPLY"]


class TestALostShard:
    """A lease that is lost in the middle of everything."""

    async def test_queued_deliveries_do_not_start_and_nothing_more_is_written(self, world: World):
        """Case L4 at the handlers: fenced by the answer to a checkpoint."""
        world.put("orders", *range(1, 51))
        world.store = store = spy_store(world.clock)
        begun: list[int] = []
        gate = asyncio.Event()
        app = world.app()
        messages: list[KinesisMessage[int]] = []

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int, message: KinesisMessage[int]) -> None:
            begun.append(value)
            messages.append(message)
            if value == 2:
                await gate.wait()

        async with running(app):
            await until(lambda: begun == [1, 2])
            thief = await store.steal(LeaseKey("orders", SHARD), world.clock)
            await SpyStore.checkpoint(store, thief, "99", number=1)
            await messages[1].ack()  # moves the watermark: the write is refused
            await world.clock.advance(1)
            gate.set()
            await world.clock.advance(1)
            for message in messages:
                await message.ack()
            await world.clock.advance(5)

        assert begun == [1, 2], "of 48 queued none started"
        assert await world.checkpoint() == "99"
        assert await world.owner() == thief.owner

    async def test_a_handler_that_finishes_after_it_publishes_no_reply(self, world: World):
        world.put("orders", 1)
        world.store = store = spy_store(world.clock)
        begun, gate = asyncio.Event(), asyncio.Event()
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, publish="replies")
        async def handle(value: int) -> int:
            begun.set()
            await gate.wait()
            return value

        async with running(app):
            await begun.wait()
            await store.steal(LeaseKey("orders", SHARD), world.clock)
            await world.clock.advance(3.5)  # the next pass renews, and hears of it
            gate.set()
            await until(lambda: app.counters["orders"].handled == 1)
            for _ in range(20):
                await asyncio.sleep(0)

        assert world.records("replies") == []
        assert await world.checkpoint() is None

    async def test_a_second_shard_goes_on(self, world: World):
        world.stream("orders", 2)
        world.store = store = spy_store(world.clock)
        seen: list[int] = []
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(value: int) -> None:
            seen.append(value)

        async with running(app):
            await store.steal(LeaseKey("orders", SHARD), world.clock)
            await world.clock.advance(3.5)
            world.put("orders", 1, shard=0)
            world.put("orders", 2, shard=1)
            await world.clock.advance(3)

        assert seen == [2]
        assert await world.checkpoint("orders", 1) == "2"
