"""From a publish to a handler: payloads, headers, order, and what becomes of a record."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

from ruststream_kinesis import Headers, KinesisMessage, Outcome, ack, drop, retry
from ruststream_kinesis.errors import AckUnsupported, HandlerFailed
from tests.conformance.backends import PATIENCE, Seen, quick

if TYPE_CHECKING:
    from tests.conformance.backends import Backend


class Order(msgspec.Struct, frozen=True):
    id: int
    total: float = 0.0


class Model(pydantic.BaseModel):
    id: int
    note: str


async def test_a_record_published_after_the_start_is_handled(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(order: Order) -> None:
        await seen.add(order)

    async with backend.running(app):
        await app.publisher().publish(Order(1, 9.5), stream)
        assert await seen.reach(1) == [Order(1, 9.5)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(7, 1.25)),
        (dict[str, Any], {"a": [1, None, "ü"], "b": {}}),
        (bytes, b"\x00\xff raw \r\n"),
        (bytes, b""),
        (str, "gr\u00fc\u00dfe \U0001f600"),
        (Model, Model(id=3, note="ok")),
    ],
    ids=["struct", "dict", "bytes", "nothing", "str", "pydantic"],
)
async def test_a_payload_arrives_as_the_type_that_the_handler_asks_for(
    backend: Backend, kind: Any, value: Any
) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    async def handle(payload: Any) -> None:
        await seen.add(payload)

    handle.__annotations__["payload"] = kind
    app.subscriber(quick(stream))(handle)

    async with backend.running(app):
        await app.publisher().publish(value, stream)
        (payload,) = await seen.reach(1)

    assert payload == value
    assert type(payload) is type(value)


async def test_a_plain_def_handler_runs_and_settles(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()
    loop = asyncio.get_running_loop()

    @app.subscriber(quick(stream), workers=2)
    def handle(payload: str) -> None:
        asyncio.run_coroutine_threadsafe(seen.add(payload), loop).result(PATIENCE)

    async with backend.running(app):
        for number in range(4):
            await app.publisher().publish(f"{number}", stream)
        assert sorted(await seen.reach(4)) == ["0", "1", "2", "3"]


async def test_headers_travel_and_the_delivery_adds_its_own(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: bytes, headers: Headers, message: KinesisMessage[bytes]) -> None:
        await seen.add((payload, dict(headers), message))

    sent = {"trace": "a:b c", "empty": "", "name": "grün"}
    async with backend.running(app):
        put = await app.publisher().publish(b"x", stream, partition_key="k", headers=sent)
        ((payload, headers, message),) = await seen.reach(1)
        assert payload == b"x"
        assert headers == sent | {
            "partition-key": "k",
            "kinesis-sequence-number": put.sequence_number,
            "kinesis-shard-id": "shardId-000000000000",
        }
        assert message.partition_key == "k"
        assert message.sequence_number == put.sequence_number
        assert message.shard_id == put.shard_id == "shardId-000000000000"
        assert message.stream == stream
        assert message.attempt == 1
        assert message.arrival is not None


async def test_a_record_without_headers_is_the_payload_byte_for_byte(backend: Backend) -> None:
    app, stream = backend.app(), await backend.stream()

    async with backend.running(app):
        await app.publisher().publish(b"\x00 as it is", stream, partition_key="k")
        await app.publisher().publish({"a": 1}, stream, partition_key="k")
        first, second = await backend.stored(stream)

    assert (first.data, first.key) == (b"\x00 as it is", "k")
    assert second.data == b'{"a":1}'


@pytest.mark.parametrize(
    "payload", [b"RSK1", b"RSK1\x00\x00\x00\x00", b"RSK1\x00\x00\x00\x05a: b\nrest", b"RSK"]
)
async def test_a_payload_that_looks_like_an_envelope_reads_back_unchanged(
    backend: Backend, payload: bytes
) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: bytes, message: KinesisMessage[bytes]) -> None:
        await seen.add((payload, set(message.headers)))

    async with backend.running(app):
        await app.publisher().publish(payload, stream)
        own = {"partition-key", "kinesis-sequence-number", "kinesis-shard-id"}
        assert await seen.reach(1) == [(payload, own)]


async def test_odd_blobs_are_plain_payloads(backend: Backend) -> None:
    """Case K1."""
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: bytes) -> None:
        await seen.add(payload)

    magic = bytes.fromhex("f3899ac2")
    blobs = [magic + b"hello", magic, magic + bytes(15), b"RSK1\xff\xff\xff\xff"]
    async with backend.running(app):
        for blob in blobs:
            await app.publisher().publish(blob, stream)
        assert await seen.reach(len(blobs)) == blobs


async def test_one_key_keeps_its_order_with_four_workers(backend: Backend) -> None:
    app, stream = backend.app(), await backend.stream()
    seen, running = Seen(), set[str]()

    @app.subscriber(quick(stream), workers=4)
    async def handle(number: int, message: KinesisMessage[int]) -> None:
        key = message.partition_key
        assert key not in running
        running.add(key)
        await asyncio.sleep(0)  # others get their turn while this key is busy
        running.discard(key)
        await seen.add((key, number))

    async with backend.running(app):
        for number in range(40):
            await app.publisher().publish(number, stream, partition_key=f"key-{number % 5}")
        by_key = defaultdict(list)
        for key, number in await seen.reach(40):
            by_key[key].append(number)

    assert by_key == {f"key-{k}": list(range(k, 40, 5)) for k in range(5)}


async def test_drop_goes_on_with_the_next_record_and_is_logged(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: str) -> Outcome:
        await seen.add(payload)
        return drop() if payload == "poison" else ack()

    async with backend.running(app):
        poison = await app.publisher().publish("poison", stream, partition_key="k")
        await app.publisher().publish("good", stream, partition_key="k")
        assert await seen.reach(2) == ["poison", "good"]
        counters = app.counters[stream]

    assert (counters.handled, counters.dropped, counters.held) == (2, 1, 0)
    assert _logged_at(caplog, stream, poison.sequence_number) == [logging.WARNING]


async def test_a_payload_that_does_not_decode_is_dropped_and_logged_with_its_place(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(order: Order) -> None:
        await seen.add(order)

    async with backend.running(app):
        bad = await app.publisher().publish(b"{not json", stream, partition_key="k")
        await app.publisher().publish(Order(2), stream, partition_key="k")
        assert await seen.reach(1) == [Order(2)]
        counters = app.counters[stream]

    assert (counters.undecodable, counters.dropped, counters.handled) == (1, 1, 1)
    assert _logged_at(caplog, stream, bad.sequence_number) == [logging.ERROR]


@pytest.mark.parametrize(
    ("policy", "dropped", "held"),
    [
        ("retry", 0, 1),
        ("drop", 1, 0),
        (lambda error, message: drop() if message.payload == "bad" else retry(), 1, 0),
        (lambda error, message: ack(), 0, 0),
    ],
    ids=["retry", "drop", "callable-drop", "callable-ack"],
)
async def test_a_handler_that_raises_gets_what_on_error_says(
    backend: Backend, policy: Any, dropped: int, held: int
) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream), on_error=policy)
    async def handle(payload: str) -> None:
        await seen.add(payload)
        if payload == "bad":
            raise ValueError(payload)

    async with backend.running(app):
        await app.publisher().publish("bad", stream, partition_key="k")
        await app.publisher().publish("good", stream, partition_key="k")
        assert await seen.reach(2) == ["bad", "good"]
        counters = app.counters[stream]

    assert (counters.failed, counters.handled) == (1, 1)
    assert (counters.dropped, counters.held) == (dropped, held)


async def test_on_error_stop_ends_the_service_with_the_place_of_the_record(
    backend: Backend,
) -> None:
    app, stream = backend.app(), await backend.stream()
    called = asyncio.Event()

    @app.subscriber(quick(stream), on_error="stop")
    async def handle(payload: str) -> None:
        called.set()
        raise ValueError(payload)

    with pytest.raises(HandlerFailed) as caught:
        async with backend.running(app):
            put = await app.publisher().publish("bad", stream)
            await asyncio.wait_for(called.wait(), PATIENCE)

    error = caught.value
    assert (error.stream, error.sequence_number) == (stream, put.sequence_number)
    assert isinstance(error.__cause__, ValueError)


async def test_a_handler_settles_through_its_message(backend: Backend) -> None:
    app, stream, seen = backend.app(), await backend.stream(), Seen()

    @app.subscriber(quick(stream))
    async def handle(payload: str, message: KinesisMessage[str]) -> None:
        refused = None
        match payload:
            case "ack":
                await message.ack()
                await message.ack()
            case "drop":
                await message.nack(requeue=False)
            case "retry":
                try:
                    await message.nack(requeue=True)
                except AckUnsupported as error:
                    refused = error
        await seen.add((payload, refused))

    async with backend.running(app):
        for payload in ("ack", "drop", "retry", "end"):
            await app.publisher().publish(payload, stream, partition_key="k")
        done = await seen.reach(4)
        counters = app.counters[stream]

    assert [payload for payload, _ in done] == ["ack", "drop", "retry", "end"]
    refused = done[2][1]
    assert isinstance(refused, AckUnsupported)
    assert refused.stream == stream
    assert (counters.handled, counters.dropped, counters.held) == (4, 1, 1)


def _logged_at(caplog: pytest.LogCaptureFixture, stream: str, number: str) -> list[int]:
    """Levels of the log lines that carry exactly this place, as fields and in the text."""
    return [
        record.levelno
        for record in caplog.records
        if getattr(record, "sequence_number", None) == number
        and getattr(record, "stream", None) == stream
        and getattr(record, "shard_id", None) == "shardId-000000000000"
        and number in record.getMessage()
        and stream in record.getMessage()
    ]
