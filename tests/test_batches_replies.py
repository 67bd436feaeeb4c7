"""Batches whose handlers take messages, or give replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import KinesisMessage, Outcome, ack, drop, retry
from ruststream_kinesis.errors import AccessDenied, HandlerError
from ruststream_kinesis.leases import LeaseKey
from tests.support.batching import (
    HORIZON,
    Batches,
    payloads,
    settle,
    world_of_batches,  # noqa: F401 - a fixture
)
from tests.support.world import Call, World, running, until


class TestMessages:
    async def test_a_handler_may_ask_for_the_messages_and_settle_some_by_itself(self, world: World):
        numbers = world.put("orders", *range(4))
        app, seen = world.app(), []

        @app.subscriber("orders", batch=4, start_at=HORIZON, dead_letter="dead")
        async def handle(
            values: list[int], messages: list[KinesisMessage[int]]
        ) -> list[Outcome | None]:
            seen.extend(messages)
            await messages[1].nack(requeue=True)
            assert payloads(world, "dead") == [1]
            await messages[2].ack()
            return [None, ack(), retry(), drop()]

        async with running(app):
            await until(lambda: app.counters["orders"].handled == 4)
            await settle()

        assert [message.payload for message in seen] == list(range(4))
        assert [message.sequence_number for message in seen] == numbers
        assert payloads(world, "dead") == [1]  # what was settled first counts: not 2
        assert await world.checkpoint() == numbers[-1]

    async def test_what_settled_itself_is_not_open_where_a_list_is_shorter(self, world: World):
        numbers = world.put("orders", *range(4))
        app = world.app()

        @app.subscriber("orders", batch=4, start_at=HORIZON)
        async def handle(messages: list[KinesisMessage[int]]) -> list[Outcome]:
            for message in messages[1:]:
                await message.ack()
            return [ack()]

        async with running(app):
            await until(lambda: app.counters["orders"].handled == 4)
            await settle()
            assert app.counters["orders"].held == 0

        assert await world.checkpoint() == numbers[-1]


class TestReplies:
    @staticmethod
    def app(world: World, says: Any, shards: tuple[int, ...] = (0,)) -> Batches:
        for shard in shards:
            world.put("orders", *range(4), shard=shard)
        return Batches(world, says, batch=4 * len(shards), publish="replies")

    async def test_one_for_the_batch_is_put_before_any_is_settled(self, world: World):
        gate, asked = asyncio.Event(), asyncio.Event()

        async def slowly(call: Call) -> None:
            if call.operation == "put_record":
                asked.set()
                await gate.wait()

        world.hooks.append(slowly)
        service = self.app(world, lambda values: {"sum": sum(values)})
        async with running(service.app):
            await asked.wait()
            await world.clock.advance(5)
            assert await world.checkpoint() is None
            gate.set()
            await settle()

        assert payloads(world, "replies") == [{"sum": 6}]
        assert await world.checkpoint() == "4"

    async def test_a_list_has_one_for_each(self, world: World):
        service = self.app(world, lambda values: [{"n": n} if n != 2 else drop() for n in values])
        async with running(service.app):
            await service.until_handled(4)

        assert payloads(world, "replies") == [{"n": 0}, {"n": 1}, {"n": 3}]
        assert await world.checkpoint() == "4"

    async def test_one_that_cannot_be_put_leaves_all_open(self, world: World):
        async def refuse(call: Call) -> None:
            if call.operation == "put_record":
                raise AccessDenied("no", code="AccessDeniedException", status=400)

        world.hooks.append(refuse)
        service = self.app(world, "sum")
        async with running(service.app):
            await service.until_handled(4)
            assert service.counters.held == 4

        assert await world.checkpoint() is None

    async def test_one_shard_that_is_lost_does_not_keep_the_reply_of_the_others_back(
        self, world: World
    ):
        gate, asked = asyncio.Event(), asyncio.Event()

        async def says() -> dict[str, int]:
            asked.set()
            await gate.wait()
            return {"sum": 1}

        service = self.app(world, lambda _: says(), shards=(0, 1))
        async with running(service.app):
            await asked.wait()
            first = LeaseKey("orders", min(world.streams["orders"]))
            row = await world.store.read(first)
            await world.store.release(row)
            await world.store.acquire(first, "thief", duration=1000.0)
            await world.clock.advance(4)
            gate.set()
            await settle()

        assert payloads(world, "replies") == [{"sum": 1}]
        assert await world.checkpoint(shard=0) is None
        assert await world.checkpoint(shard=1) == "8"


@pytest.mark.parametrize(
    ("annotation", "replies"),
    [
        ("list[Outcome]", False),
        ("list[Outcome | None] | Outcome | None", False),
        ("list", False),
        ("list[Any]", False),
        ("list[int]", True),
        ("list[int | Outcome]", True),
        ("list[list[Outcome]]", True),
        ("int", True),
    ],
)
def test_a_list_of_outcomes_is_no_reply_and_a_list_of_values_is(annotation: str, replies: bool):
    app = World().app()

    async def handle(values: list[int]) -> Any: ...

    handle.__annotations__["return"] = annotation
    if not replies:
        app.subscriber("orders", batch=10)(handle)
        return
    with pytest.raises(HandlerError, match="publish="):
        app.subscriber("orders", batch=10)(handle)
