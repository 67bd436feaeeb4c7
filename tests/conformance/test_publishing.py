"""Publishing: where the key comes from, replies, and what is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ruststream_kinesis import KinesisPublish, KinesisPublisher
from ruststream_kinesis.errors import (
    ConfigurationError,
    EnvelopeError,
    InvalidRecord,
    KinesisError,
    NotConnected,
)
from tests.conformance.backends import Seen, quick

if TYPE_CHECKING:
    from tests.conformance.backends import Backend

MIB = 1024 * 1024


async def test_the_key_is_the_argument_then_the_header_then_the_policy_then_unique(
    backend: Backend,
) -> None:
    app, stream = backend.app(), await backend.stream()
    policy = app.publisher(KinesisPublish(partition_key=lambda value: f"policy-{value}"))
    header = {"partition-key": "header"}

    async with backend.running(app):
        await policy.publish("a", stream, partition_key="argument", headers=header)
        await policy.publish("b", stream, headers=header)
        await policy.publish("c", stream)
        await app.publisher().publish("d", stream)
        await app.publisher().publish("e", stream)
        stored = await backend.stored(stream)

    keys = {each.data: each.key for each in stored}
    assert keys[b"a"] == "argument"
    # The key is no header of the envelope: the blob is the payload, byte for byte.
    assert keys[b"b"] == "header"
    assert keys[b"c"] == "policy-c"
    assert len({keys[b"d"], keys[b"e"], ""}) == 3


@pytest.mark.parametrize("key", ["k" * 256, "é" * 256, "\U0001f600"])
async def test_a_key_of_256_characters_arrives(backend: Backend, key: str) -> None:
    """Case P6."""
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: bytes, publisher: KinesisPublisher) -> None:
        await seen.add(payload)

    async with backend.running(app):
        await app.publisher().publish(b"x", stream, partition_key=key)
        await seen.reach(1)
        (stored,) = await backend.stored(stream)
        assert stored.key == key


async def test_a_reply_is_published_to_its_stream(backend: Backend) -> None:
    app, orders, replies = backend.app(), await backend.stream(), await backend.stream()
    seen = Seen()

    @app.subscriber(quick(orders), publish=KinesisPublish(to=replies, partition_key="answers"))
    async def handle(number: int) -> dict[str, int]:
        return {"doubled": 2 * number}

    @app.subscriber(quick(replies))
    async def hear(reply: dict[str, int]) -> None:
        await seen.add(reply)

    async with backend.running(app):
        for number in (1, 2, 3):
            await app.publisher().publish(number, orders, partition_key="k")
        assert await seen.reach(3) == [{"doubled": 2}, {"doubled": 4}, {"doubled": 6}]
        assert app.counters[orders].replies == 3
        stored = await backend.stored(replies)

    assert [each.data for each in stored] == [b'{"doubled":2}', b'{"doubled":4}', b'{"doubled":6}']
    assert {each.key for each in stored} == {"answers"}


async def test_an_injected_publisher_publishes_from_within_a_handler(backend: Backend) -> None:
    app, orders, others = backend.app(), await backend.stream(), await backend.stream()
    seen = Seen()

    @app.subscriber(quick(orders))
    async def handle(number: int, publisher: KinesisPublisher) -> None:
        await publisher.publish(number + 1, others, partition_key="k")

    @app.subscriber(quick(others))
    async def hear(number: int) -> None:
        await seen.add(number)

    async with backend.running(app):
        await app.publisher().publish(1, orders)
        assert await seen.reach(1) == [2]


async def test_what_the_service_refuses_is_refused_with_the_same_error(backend: Backend) -> None:
    """Cases P4 and P6."""
    app, stream = backend.app(), await backend.stream()
    refused: dict[str, tuple[dict[str, Any], type[KinesisError]]] = {
        "a name with blanks": ({"to": "not a name"}, ConfigurationError),
        "a name of 129 characters": ({"to": "n" * 129}, ConfigurationError),
        "no name": ({"to": ""}, ConfigurationError),
        "half an ARN": ({"to": "arn:aws:kinesis:nowhere"}, ConfigurationError),
        "no key": ({"partition_key": ""}, InvalidRecord),
        "a key of 257 characters": ({"partition_key": "k" * 257}, InvalidRecord),
        "a key with a lone surrogate": ({"partition_key": "\ud800"}, InvalidRecord),
        "too many bytes": ({"value": bytes(MIB + 1)}, InvalidRecord),
        "too many with the key": (
            {"value": bytes(MIB - 5), "partition_key": "日本"},
            InvalidRecord,
        ),
        "too many with the envelope": (
            {"value": bytes(MIB - 10), "headers": {"a": "b"}},
            InvalidRecord,
        ),
        "a header name with a colon": ({"headers": {"a:b": "c"}}, EnvelopeError),
        "a header of two lines": ({"headers": {"a": "two\nlines"}}, EnvelopeError),
    }
    answers: dict[str, Any] = {}

    async with backend.running(app):
        for name, (change, _) in refused.items():
            call: dict[str, Any] = {"value": b"x", "to": stream, "partition_key": "k"} | change
            try:
                answers[name] = await app.publisher().publish(**call)
            except KinesisError as error:
                answers[name] = type(error)
        stored = await backend.stored(stream)

    assert answers == {name: error for name, (_, error) in refused.items()}
    assert stored == []


async def test_the_largest_record_is_taken(backend: Backend) -> None:
    """Case P4."""
    app, stream = backend.app(), await backend.stream()

    async with backend.running(app):
        await app.publisher().publish(bytes(MIB - 6), stream, partition_key="日本")
        (stored,) = await backend.stored(stream)

    assert len(stored.data) == MIB - 6


async def test_after_the_stop_every_handle_says_not_connected(backend: Backend) -> None:
    app, stream = backend.app(), await backend.stream()
    early, injected = app.publisher(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: bytes, publisher: KinesisPublisher) -> None:
        await injected.add(publisher)

    with pytest.raises(NotConnected):
        await early.publish(b"x", stream)
    async with backend.running(app):
        await early.publish(b"x", stream)
        (late,) = await injected.reach(1)
    for publisher in (early, late, app.publisher()):
        with pytest.raises(NotConnected):
            await publisher.publish(b"x", stream)


async def test_batched_records_each_have_their_own_place(backend: Backend) -> None:
    """Case P5."""
    app, stream = backend.app(), await backend.stream()
    publisher = app.publisher(KinesisPublish(batch=500, linger=0.01))

    async with backend.running(app):
        # In two turns: moto gives a number twice to requests that come at one moment.
        results = await asyncio.gather(*[publisher.publish(n, stream) for n in range(500)])
        results.append(await publisher.publish(500, stream))
        stored = await backend.stored(stream)

    assert len({each.sequence_number for each in results}) == 501
    assert {each.sequence_number: each.data for each in stored} == {
        each.sequence_number: b"%d" % number for number, each in enumerate(results)
    }


async def test_batched_records_of_a_key_stand_in_the_order_of_their_calls(backend: Backend) -> None:
    """Case P2."""
    app, stream = backend.app(), await backend.stream()
    publisher = app.publisher(KinesisPublish(batch=500, linger=0.01))

    async with backend.running(app):
        futures = [
            publisher.publish_nowait(n, stream, partition_key=f"k{n % 3}") for n in range(30)
        ]
        await asyncio.gather(*futures)
        stored = await backend.stored(stream)

    for key in ("k0", "k1", "k2"):
        numbers = [int(each.data) for each in stored if each.key == key]
        assert numbers == [n for n in range(30) if f"k{n % 3}" == key]


async def test_one_of_a_batch_that_is_too_large_is_refused_alone(backend: Backend) -> None:
    """Case P3."""
    app, stream = backend.app(), await backend.stream()
    publisher = app.publisher(KinesisPublish(batch=500, linger=0.01))

    async with backend.running(app):
        results = await asyncio.gather(
            *[publisher.publish(bytes(size), stream) for size in (1, MIB + 1, 2)],
            return_exceptions=True,
        )
        stored = await backend.stored(stream)

    assert isinstance(results[1], InvalidRecord)
    assert sorted(len(each.data) for each in stored) == [1, 2]


async def test_batched_replies_settle_what_they_answer(backend: Backend) -> None:
    app, orders, replies = backend.app(), await backend.stream(), await backend.stream()
    seen = Seen()

    @app.subscriber(quick(orders), publish=KinesisPublish(to=replies, batch=500, linger=0.01))
    async def handle(number: int) -> int:
        return 2 * number

    @app.subscriber(quick(replies))
    async def hear(reply: int) -> None:
        await seen.add(reply)

    async with backend.running(app):
        publisher = app.publisher(KinesisPublish(batch=20, linger=0.01))
        await asyncio.gather(*[publisher.publish(n, orders) for n in range(20)])
        assert sorted(await seen.reach(20)) == [2 * n for n in range(20)]
        counters = app.counters[orders]
    # A reply may be read before its publisher has its answer.
    assert counters.replies == 20
