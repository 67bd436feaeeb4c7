"""A stream that is deleted and created anew while a service runs: it stops, and says why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from ruststream_kinesis import KinesisPosition, RustStream
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import (
    AccessDenied,
    KinesisError,
    RequestError,
    StreamRecreated,
)
from ruststream_kinesis.identity import Identity
from ruststream_kinesis.stream import StreamRef
from tests.support.world import Call, World, running, until

ANEW = 1_600_009_000.0


def refused(code: str) -> RequestError:
    return RequestError("made by a test", code=code, status=400, stream="orders")


@dataclass
class Reading:
    """A service that has read records 1 and 2 of its stream, and goes on."""

    world: World
    app: RustStream
    seen: list[int]
    task: asyncio.Task[None]
    answers: dict[str, list[Exception]] = field(default_factory=dict)
    """What the next calls of an operation raise."""

    def count(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.world.calls)

    async def pass_time(self, seconds: float) -> None:
        """Move time, but not beyond the end of the service."""
        for _ in range(int(seconds)):
            if not self.task.done():
                await self.world.clock.advance(1)


@pytest.fixture
def world() -> World:
    made = World()
    made.stream("orders")
    made.put("orders", 1, 2)
    return made


@contextlib.asynccontextmanager
async def reading(world: World, start_at: str = "horizon") -> AsyncIterator[Reading]:
    app, seen = world.app(), list[int]()

    @app.subscriber("orders", start_at=getattr(KinesisPosition, start_at)())
    async def handle(value: int) -> None:
        seen.append(value)

    async with running(app) as task:
        it = Reading(world, app, seen, task)

        async def answer(call: Call) -> None:
            if it.answers.get(call.operation):
                raise it.answers[call.operation].pop(0)

        world.hooks.append(answer)
        await world.clock.advance(2)
        assert seen == ([1, 2] if start_at == "horizon" else [])
        yield it


def make_anew(world: World) -> None:
    world.created = ANEW
    world.stream("orders")
    world.put("orders", 77)


async def test_one_that_was_gone_and_is_another_one_ends_the_service(
    world: World, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(StreamRecreated, match=r"created anew.*stream orders"):
        async with reading(world) as it:
            del world.streams["orders"]
            await it.pass_time(20)
            assert not it.task.done()
            make_anew(world)
            await it.pass_time(60)
            assert it.task.done()

    assert it.seen == [1, 2]
    assert "DATA LOSS" not in caplog.text
    assert await world.checkpoint() == "2"


async def test_a_position_that_is_refused_by_another_one_ends_the_service(
    world: World, caplog: pytest.LogCaptureFixture
):
    """The service did not see it go, for example because it was suspended meanwhile."""
    with pytest.raises(StreamRecreated, match="created anew"):
        async with reading(world) as it:
            make_anew(world)
            it.answers = {
                "get_records": [refused("ExpiredIteratorException")],
                "get_shard_iterator": [refused("InvalidArgumentException")],
            }
            await it.pass_time(20)
            assert it.task.done()

    assert it.seen == [1, 2]
    assert "DATA LOSS" not in caplog.text


async def test_another_one_is_noticed_where_nothing_was_read_of_the_first(world: World):
    """There is no position yet that it could refuse."""
    with pytest.raises(StreamRecreated, match="created anew"):
        async with reading(world, "latest") as it:
            make_anew(world)
            it.answers = {"get_records": [refused("ExpiredIteratorException")]}
            await it.pass_time(20)
            assert it.task.done()

    assert it.seen == []


async def test_a_shard_that_is_gone_is_not_taken_again_before_it_is_known_to_be_the_same(
    world: World,
):
    gone = refused("ResourceNotFoundException")
    with pytest.raises(StreamRecreated):
        async with reading(world, "latest") as it:
            make_anew(world)
            it.answers = {
                "get_records": [gone],
                "list_shards": [refused("LimitExceededException") for _ in range(5)],
            }
            await it.pass_time(60)
            assert it.answers["list_shards"] == []
            assert it.task.done()

    assert it.seen == []


async def test_a_listing_that_finds_no_stream_is_reason_enough_to_look(world: World):
    with pytest.raises(StreamRecreated):
        async with reading(world) as it:
            world.created = ANEW
            it.answers = {"list_shards": [refused("ResourceNotFoundException")]}
            await it.pass_time(40)
            assert it.task.done()


async def test_the_same_stream_is_read_on_and_nobody_asks_again(world: World):
    async with reading(world) as it:
        asked = it.count("describe_stream")
        await it.pass_time(60)
        assert it.count("describe_stream") == asked, "no round asks for it"

        streams = world.streams["orders"]
        del world.streams["orders"]
        await it.pass_time(20)
        world.streams["orders"] = streams
        world.put("orders", 3)
        await it.pass_time(90)
        assert it.seen == [1, 2, 3]
        assert it.count("describe_stream") == asked + 1


async def test_a_position_that_the_same_stream_refuses_is_a_loss_of_data(
    world: World, caplog: pytest.LogCaptureFixture
):
    async with reading(world) as it:
        it.answers = {
            "get_records": [refused("ExpiredIteratorException")],
            "get_shard_iterator": [refused("InvalidArgumentException")],
        }
        await it.pass_time(10)
        assert it.seen == [1, 2, 1, 2]
        assert "DATA LOSS" in caplog.text


@pytest.mark.parametrize("code", ["LimitExceededException", "InternalFailure"])
async def test_while_the_stream_cannot_be_asked_the_position_stays(world: World, code: str):
    async with reading(world) as it:
        it.answers = {
            "get_records": [refused("ExpiredIteratorException")],
            "get_shard_iterator": [refused("InvalidArgumentException")] * 3,
            "describe_stream": [refused(code)] * 3,
        }
        await it.pass_time(30)
        # The last iterator was had at the old position: nothing was read twice.
        assert it.answers["describe_stream"] == []
        world.put("orders", 3)
        await it.pass_time(5)
        assert it.seen == [1, 2, 3]


async def test_without_the_right_to_look_reading_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
):
    denied = AccessDenied("no", code="AccessDeniedException", status=400)
    async with reading(world) as it:
        it.answers = {
            "get_records": [refused("ExpiredIteratorException")],
            "get_shard_iterator": [refused("InvalidArgumentException")],
            "describe_stream": [denied],
        }
        await it.pass_time(10)
        assert it.seen == [1, 2, 1, 2]
        assert "cannot look whether" in caplog.text


class TestAsking:
    """Thousands of readers that doubt at once are few questions."""

    @staticmethod
    async def of(world: World) -> tuple[Identity, Connection]:
        connection = world.broker().connection
        identity = Identity(StreamRef("orders"), connection)
        identity.opened(await connection.transport.describe_stream(StreamRef("orders")))
        world.calls.clear()
        return identity, connection

    @staticmethod
    def holding(world: World, gate: asyncio.Event) -> Callable[[Call], object]:
        async def hold(call: Call) -> None:
            await gate.wait()

        world.hooks.append(hold)
        return hold

    async def test_they_share_an_answer_but_none_from_before_their_doubts(self, world: World):
        identity, _ = await self.of(world)
        gate = asyncio.Event()
        self.holding(world, gate)
        asking = [asyncio.create_task(identity.confirm()) for _ in range(500)]
        await until(lambda: len(world.calls) == 1)
        gate.set()
        await asyncio.gather(*asking)
        assert len(world.calls) == 2

    async def test_they_share_a_failure(self, world: World):
        identity, _ = await self.of(world)
        world.created = ANEW
        found = await asyncio.gather(
            *(identity.confirm() for _ in range(500)), return_exceptions=True
        )
        assert all(isinstance(each, StreamRecreated) for each in found)
        assert len(world.calls) == 2

    async def test_one_that_was_cancelled_answers_nobody(self, world: World):
        identity, _ = await self.of(world)
        gates = [asyncio.Event() for _ in range(3)]

        async def hold(call: Call) -> None:
            await gates[len(world.calls) - 1].wait()

        world.hooks.append(hold)
        asking = [asyncio.create_task(identity.confirm()) for _ in range(3)]
        await until(lambda: len(world.calls) == 1)
        gates[0].set()
        # The second asks for the third, too, and does not live to hear it.
        await until(lambda: len(world.calls) == 2)
        asking[1].cancel()
        await asyncio.wait(asking[:2])
        world.created = ANEW
        gates[2].set()
        with pytest.raises(StreamRecreated):
            await asking[2]

    async def test_a_doubt_that_comes_while_it_is_asked_stays(self, world: World):
        identity, _ = await self.of(world)
        gate = asyncio.Event()
        self.holding(world, gate)
        identity.doubt()
        asking = asyncio.create_task(identity.confirm())
        await until(lambda: len(world.calls) == 1)
        identity.doubt()
        gate.set()
        await asking
        assert identity.doubted
        await identity.confirm()
        assert not identity.doubted

    async def test_doubts_stay_while_there_is_no_stream(self, world: World):
        identity, _ = await self.of(world)
        del world.streams["orders"]
        identity.doubt()
        with pytest.raises(KinesisError):
            await identity.confirm()
        assert identity.doubted

    async def test_a_creation_time_that_nobody_knew_is_no_difference(self, world: World):
        identity = Identity(StreamRef("orders"), world.broker().connection)
        await identity.confirm()
