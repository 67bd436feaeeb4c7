"""Seeks that are refused before anything moves, and several seeks at once: the last one wins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    RustStream,
    Seeker,
    retry_after,
)
from ruststream_kinesis.errors import (
    AccessDenied,
    KinesisError,
    NotConnected,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.testing import TestApp
from tests.support.seeking import HORIZON, at, noting, row, turns, world
from tests.support.world import Call, World, running, until

SHARD = "shardId-000000000000"


pytestmark = pytest.mark.usefixtures("lease_store")


def failing(it: World, operation: str, *errors: Exception) -> list[Exception]:
    """Answer the next calls of one operation with errors."""
    left = list(errors)

    async def fail(call: Call) -> None:
        if call.operation == operation and left:
            raise left.pop(0)

    it.hooks.append(fail)
    return left


def refusal(code: str, kind: type[RequestError] = RequestError) -> RequestError:
    return kind("made by a test", code=code, status=400, stream="orders", shard_id=SHARD)


# -- a record that the shard does not have -----------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        refusal("InvalidArgumentException"),
        refusal("ResourceNotFoundException", StreamNotFound),
        refusal("ValidationException"),
    ],
    ids=lambda error: error.code,
)
async def test_a_number_that_the_shard_does_not_have_moves_nothing(error: RequestError):
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2, 3)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON, max_attempts=3)
    async def handle(order: int) -> Any:
        seen.append(order)
        return retry_after(3600) if order == 3 else None

    async with running(app):
        await until(lambda: seen == [1, 2, 3])
        await turns()
        service = app._service
        assert service is not None
        failing(it, "get_shard_iterator", error)
        with pytest.raises(KinesisError, match="nothing was moved") as caught:
            await app.seeker("orders").seek(at(77))
        assert not isinstance(caught.value, RequestError)
        assert (caught.value.stream, caught.value.shard_id) == ("orders", SHARD)
        assert caught.value.sequence_number == "77"
        assert "KinesisMessage.position" in str(caught.value)
        assert service.subscriptions[0].copies.waiting == 1
        assert (await row(it)).resume_from is None
        it.put("orders", 4)
        await it.clock.advance(2)
        assert seen == [1, 2, 3, 4]


async def test_a_passing_failure_is_tried_again_before_the_shard_moves():
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2, 3)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: seen == [1, 2, 3])
        throttle = refusal("ProvisionedThroughputExceededException")
        left = failing(it, "get_shard_iterator", throttle, throttle)
        seeking = asyncio.create_task(app.seeker("orders").seek(at(2)))
        await it.clock.advance(5)
        await asyncio.wait_for(seeking, 5)
        assert left == []
        assert seen == [1, 2, 3, 2, 3]


@pytest.mark.parametrize(
    "error", [refusal("InternalFailure"), refusal("AccessDeniedException", AccessDenied)]
)
async def test_where_the_service_cannot_be_asked_nothing_moves(error: RequestError):
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2, 3)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: seen == [1, 2, 3])
        left = failing(it, "get_shard_iterator", *[error] * 50)
        seeking = asyncio.create_task(app.seeker("orders").seek(at(2)))
        await it.clock.advance(60)
        with pytest.raises(type(error)) as caught:
            await asyncio.wait_for(seeking, 5)
        assert caught.value is error
        left.clear()
        await it.clock.advance(5)
        assert seen == [1, 2, 3]


async def test_a_shard_that_is_lost_while_its_record_is_looked_up_does_not_move():
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: seen == [1, 2])

        async def lose(call: Call) -> None:
            if call.operation == "get_shard_iterator":
                it.hooks.remove(lose)
                service = app._service
                assert service is not None
                service.subscriptions[0]._source.cut_off()

        it.hooks.append(lose)
        with pytest.raises(KinesisError, match="does not hold the shard"):
            await app.seeker("orders").seek(at(1))


async def test_the_in_process_log_refuses_a_number_that_it_does_not_have():
    app = RustStream(KinesisBroker(), title="orders", version="1")
    seen: list[int] = []

    @app.subscriber("orders")
    async def handle(number: int) -> Any:
        seen.append(number)
        return retry_after(60) if len(seen) == 2 else None

    async with TestApp(app) as test:
        await test.publish(1, "orders")
        await test.publish(2, "orders")
        with pytest.raises(KinesisError, match="nothing was moved") as caught:
            await app.seeker("orders").seek(KinesisPosition.sequence(SHARD, "77"))
        assert (caught.value.stream, caught.value.shard_id) == ("orders", SHARD)
        assert caught.value.sequence_number == "77"
        # The copy that waits is not cancelled.
        await test.advance(61)
        assert seen == [1, 2, 2]


# -- several at once -------------------------------------------------------------------------------


def slow_listing(it: World) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on a listing arrives, and waits."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> None:
        if call.operation == "list_shards":
            arrived.set()
            await go.wait()

    it.hooks.append(hold)
    return arrived, go


async def test_a_slow_seek_of_all_does_not_undo_a_later_one_of_a_shard():
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2, 3)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: seen == [1, 2, 3])
        arrived, go = slow_listing(it)
        first = asyncio.create_task(app.seeker("orders").seek(HORIZON))
        await asyncio.wait_for(arrived.wait(), 5)
        second = asyncio.create_task(app.seeker("orders").seek(at(3)))
        await turns()
        go.set()
        await asyncio.wait_for(asyncio.gather(first, second), 5)
        await it.clock.advance(3)
        # Whatever came of the first before the second: that one has the last word.
        assert seen[-1] == 3
        assert seen[3:] in ([3], [1, 3], [1, 2, 3, 3])


async def test_a_later_seek_moves_on_while_the_first_one_waits_for_the_store():
    it, seen = world(shards=2), list[Any]()
    it.put("orders", 1, 2, 3)
    it.put("orders", 10, shard=1)
    app = noting(it, seen, start_at=HORIZON)
    go = asyncio.Event()

    async def hold(write: Any) -> None:
        if write.kind == "checkpoint" and write.resume_from == HORIZON:
            await go.wait()

    async with running(app):
        await until(lambda: sorted(seen) == [1, 2, 3, 10])
        await turns()
        it.store.before = hold
        first = asyncio.create_task(app.seeker("orders").seek(HORIZON))
        await until(lambda: len(seen) == 8)
        second = asyncio.create_task(app.seeker("orders").seek(at(3)))
        await until(lambda: seen[8:] == [3])
        assert not first.done()
        go.set()
        await asyncio.wait_for(asyncio.gather(first, second), 5)


@pytest.mark.parametrize("position", [HORIZON, at(1)])
async def test_a_handler_seeks_while_another_seek_waits(position: KinesisPosition):
    """Nobody waits for a worker: neither the seek in front, nor the one within."""
    it, seen = world(), list[Any]()
    it.put("orders", 1, 2)
    app = it.app()
    begun, free = asyncio.Event(), asyncio.Event()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int, seeker: Seeker) -> None:
        seen.append(order)
        if len(seen) == 2:
            begun.set()
            await free.wait()
            await seeker.seek(position)

    async with running(app):
        await asyncio.wait_for(begun.wait(), 5)
        arrived, go = slow_listing(it)
        outer = asyncio.create_task(app.seeker("orders").seek(HORIZON))
        await asyncio.wait_for(arrived.wait(), 5)
        free.set()
        await turns()
        go.set()
        await asyncio.wait_for(outer, 5)
        await until(lambda: len(seen) == 4)
    assert seen == [1, 2, 1, 2]
    assert await it.checkpoint() == "2"


@pytest.mark.parametrize("position", [HORIZON, at(1)])
async def test_a_seek_from_a_handler_ends_with_the_stop(position: KinesisPosition):
    """Whether it waits for the service or for its turn."""
    it, errors = world(), list[Any]()
    it.put("orders", 1)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON, workers=1)
    async def handle(message: KinesisMessage[int], seeker: Seeker) -> None:
        try:
            await seeker.seek(position)
        except NotConnected as error:
            errors.append(error)
            raise

    arrived = asyncio.Event()

    async def hang(call: Call) -> None:
        # The listing and the iterator of the start are let through.
        if it.calls and any(each.operation == "get_records" for each in it.calls):
            wanted = "list_shards" if position == HORIZON else "get_shard_iterator"
            if call.operation == wanted:
                arrived.set()
                await asyncio.Event().wait()

    it.hooks.append(hang)
    async with running(app):
        await asyncio.wait_for(arrived.wait(), 5)
        behind = asyncio.create_task(app.seeker("orders").seek(at(1)))
        await turns()
        assert not behind.done()
        app.stop()
        with pytest.raises(NotConnected, match="stopping"):
            await asyncio.wait_for(behind, 5)
    assert len(errors) == 1
    assert await it.owner() is None


async def test_a_seek_that_waits_for_a_release_ends_with_the_stop():
    it, errors = world(shards=2), list[Any]()
    it.put("orders", 1)
    app = it.app()
    begun = asyncio.Event()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int, seeker: Seeker) -> None:
        service = app._service
        assert service is not None
        source: Any = service.subscriptions[0]._source
        await until(lambda: len(source.holdings) == 2)
        failing_release[0] = True
        holding = source.holdings["shardId-000000000001"]
        source.held.conclude(holding)
        source.held.over(holding.shard)
        begun.set()
        try:
            await seeker.seek(HORIZON)
        except NotConnected as error:
            errors.append(error)

    failing_release = [False]

    async def fail(write: Any) -> None:
        if write.kind == "release" and failing_release[0]:
            raise ConnectionError("made by a test")

    it.store.before = fail
    async with running(app):
        await asyncio.wait_for(begun.wait(), 5)
        await turns()
        app.stop()
        await until(lambda: bool(errors))
        failing_release[0] = False
    assert len(errors) == 1
