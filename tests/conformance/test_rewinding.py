"""Positions while a service runs: the same on the in-process log and on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ruststream_kinesis import KinesisMessage, KinesisPosition, Seeker
from ruststream_kinesis.errors import KinesisError
from tests.conformance.backends import Seen, quick

if TYPE_CHECKING:
    from tests.conformance.backends import Backend

HORIZON = KinesisPosition.horizon()


async def test_the_horizon_delivers_again(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(number: int) -> None:
        await seen.add(number)

    async with backend.running(app):
        for number in (1, 2, 3):
            await app.publisher().publish(number, stream)
        await seen.reach(3)
        await app.seeker(stream).seek(HORIZON)
        assert await seen.reach(6) == [1, 2, 3, 1, 2, 3]


async def test_a_sequence_number_delivers_that_record_first(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(message: KinesisMessage[int]) -> None:
        await seen.add(message)

    async with backend.running(app):
        for number in (1, 2, 3):
            await app.publisher().publish(number, stream)
        second = (await seen.reach(3))[1]
        await app.seeker(stream).seek(second.position)
        numbers = [message.payload for message in await seen.reach(5)]
    assert numbers == [1, 2, 3, 2, 3]


async def test_the_tip_delivers_what_is_published_after_it(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(number: int) -> None:
        await seen.add(number)

    async with backend.running(app):
        await app.publisher().publish(1, stream)
        await seen.reach(1)
        await app.seeker(stream).seek(KinesisPosition.latest())
        await app.publisher().publish(2, stream)
        assert await seen.reach(2) == [1, 2]


async def test_a_handler_may_rewind_itself(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(number: int, seeker: Seeker) -> None:
        await seen.add(number)
        if len(seen) == 2:
            await seeker.seek(HORIZON)

    async with backend.running(app):
        for number in (1, 2):
            await app.publisher().publish(number, stream)
        assert await seen.reach(4) == [1, 2, 1, 2]


async def test_a_shard_that_is_not_held_cannot_be_moved(backend: Backend) -> None:
    app, stream = backend.app(), await backend.stream()

    @app.subscriber(quick(stream))
    async def handle(number: int) -> None: ...

    async with backend.running(app):
        with pytest.raises(KinesisError, match="does not hold the shard"):
            await app.seeker(stream).seek(KinesisPosition.sequence("shardId-000000000042", "1"))


async def test_a_number_that_the_shard_does_not_have_moves_nothing(backend: Backend) -> None:
    if backend.name == "moto":
        pytest.skip("takes sequence numbers that it never gave out")
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(message: KinesisMessage[int]) -> None:
        await seen.add(message)

    async with backend.running(app):
        await app.publisher().publish(1, stream)
        (first,) = await seen.reach(1)
        unknown = KinesisPosition.sequence(first.shard_id, "9" + first.sequence_number)
        with pytest.raises(KinesisError, match="nothing was moved") as caught:
            await app.seeker(stream).seek(unknown)
        assert (caught.value.stream, caught.value.shard_id) == (stream, first.shard_id)
        assert caught.value.sequence_number == unknown.sequence_number
        await app.publisher().publish(2, stream)
        numbers = [message.payload for message in await seen.reach(2)]
    assert numbers == [1, 2]
