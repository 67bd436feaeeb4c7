"""`KinesisMessage`: what it knows of its delivery, and settling through it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import (
    Headers,
    KinesisMessage,
    KinesisPosition,
    KinesisPublisher,
    Outcome,
    ack,
    drop,
    retry,
)
from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.errors import (
    AckUnsupported,
)
from tests.support.world import World, outcome_of, running, serve

HORIZON = KinesisPosition.horizon()
SHARD = "shardId-000000000000"


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    world.stream("replies")
    return world


class TestMessages:
    async def test_it_knows_its_delivery(self, world: World):
        world.append("orders", SHARD, encode_envelope({"trace": "t1"}, b"[1, 2]"), "k")
        found: list[tuple[Any, ...]] = []

        async def handle(
            numbers: list[int],
            message: KinesisMessage[list[int]],
            headers: Headers,
            position: KinesisPosition,
            publisher: KinesisPublisher,
        ) -> None:
            found.append((numbers, message, headers, position, publisher))

        await serve(world, handle, until_handled=1)

        ((numbers, message, headers, position, publisher),) = found
        assert numbers == message.payload == [1, 2]
        assert (message.stream, message.shard_id, message.sequence_number) == ("orders", SHARD, "1")
        assert message.attempt == 1
        assert message.arrival is not None
        assert message.arrival.timestamp() == 1_700_000_000.0
        assert message.data == encode_envelope({"trace": "t1"}, b"[1, 2]")
        assert headers == message.headers
        assert headers == {
            "trace": "t1",
            "partition-key": "k",
            "kinesis-sequence-number": "1",
            "kinesis-shard-id": SHARD,
        }
        assert position == KinesisPosition.sequence(SHARD, "1")
        assert isinstance(publisher, KinesisPublisher)

    @pytest.mark.parametrize(
        ("count", "attempt"),
        [
            ("1", 2),
            ("41", 42),
            ("0", 1),
            ("", 1),
            ("-1", 1),
            ("x", 1),
            ("\u0661", 1),
            ("9" * 30, 1),
        ],
    )
    async def test_the_attempt_counts_earlier_deliveries_and_a_malformed_count_is_none(
        self, world: World, count: str, attempt: int
    ):
        blob = encode_envelope({"x-ruststream-retry-count": count}, b"1")
        world.append("orders", SHARD, blob, "k")
        found: list[int] = []

        async def handle(message: KinesisMessage[int]) -> None:
            found.append(message.attempt)

        await serve(world, handle, until_handled=1)

        assert found == [attempt]

    async def test_an_ack_through_it_counts_before_the_handler_returns(self, world: World):
        acked, gate = asyncio.Event(), asyncio.Event()
        world.put("orders", 1)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(message: KinesisMessage[int]) -> None:
            await message.ack()
            acked.set()
            await gate.wait()

        async with running(app):
            await acked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert await world.checkpoint() == "1"
            gate.set()

    @pytest.mark.parametrize("then", [None, ack(), retry(), drop()], ids=repr)
    async def test_what_is_settled_first_counts(self, world: World, then: Outcome | None):
        async def handle(message: KinesisMessage[int]) -> Outcome | None:
            await message.ack()
            await message.ack()
            await message.nack(requeue=True)  # too late to mean anything
            return then

        assert await outcome_of(world, handle) == "settled"

    async def test_an_error_after_an_ack_changes_nothing(self, world: World):
        async def handle(message: KinesisMessage[int]) -> None:
            await message.ack()
            raise RuntimeError("it broke")

        assert await outcome_of(world, handle) == "settled"

    async def test_refusing_it_for_good_is_a_drop_and_logged_like_one(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        async def handle(message: KinesisMessage[int]) -> None:
            await message.nack(requeue=False)

        assert await outcome_of(world, handle) == "settled"
        said = [r.getMessage() for r in caplog.records if "dropped record 1 " in r.getMessage()]
        assert len(said) == 1

    @pytest.mark.parametrize("caught", [True, False])
    async def test_asking_for_it_again_is_refused_and_leaves_it_open(
        self, world: World, caught: bool
    ):
        refusals: list[AckUnsupported] = []

        async def handle(message: KinesisMessage[int]) -> Outcome:
            try:
                await message.nack(requeue=True)
            except AckUnsupported as error:
                refusals.append(error)
                if not caught:
                    raise
            return ack()

        assert await outcome_of(world, handle, on_error="drop") == "open"
        assert [error.sequence_number for error in refusals] == ["1"]

    async def test_a_refusal_is_not_taken_back_by_an_ack(self, world: World):
        async def handle(message: KinesisMessage[int]) -> Outcome:
            with pytest.raises(AckUnsupported):
                await message.nack(requeue=True)
            await message.nack(requeue=True)
            await message.ack()
            return ack()

        assert await outcome_of(world, handle) == "open"

    async def test_a_refused_delivery_is_held_not_just_forgotten(self, world: World):
        """What is held lets its payload go, and does not block the release of its shard."""
        world.put("orders", 1)
        held: list[int] = []

        async def handle(message: KinesisMessage[int]) -> None:
            with pytest.raises(AckUnsupported):
                await message.nack(requeue=True)
            held.append(message.run.shard.watermark.held)  # type: ignore[attr-defined]  # a HeldShard

        await serve(world, handle, until_handled=1)

        assert held == [1]

    async def test_an_ack_from_a_thread_with_its_own_loop_counts(self, world: World):
        """A plain handler can only await by a loop of its own."""
        world.put("orders", 1)

        def handle(message: KinesisMessage[int]) -> None:
            asyncio.run(message.ack())

        await serve(world, handle, until_handled=1)

        assert await world.checkpoint() == "1"
