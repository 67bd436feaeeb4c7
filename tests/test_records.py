"""Sending: what is tried again and for how long, what is refused before it is sent."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis.codec import JsonCodec
from ruststream_kinesis.errors import AccessDenied, InvalidRecord, PublishError, RequestError
from ruststream_kinesis.records import RecordMaker, outgoing, send, spread_key
from tests.support.copying import ORDERS, Script

MIB = 1024 * 1024


def failing(script: Script, code: str, times: int) -> None:
    left = times

    async def fail(_stream: str) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            kind = AccessDenied if code == "AccessDeniedException" else RequestError
            raise kind("no", code=code, status=400)

    script.answer = fail


async def test_a_passing_failure_is_tried_again_with_growing_pauses():
    script = Script()
    failing(script, "ProvisionedThroughputExceededException", 5)
    task = asyncio.create_task(send(script.connection, outgoing(ORDERS, b"1", "key")))
    pauses: list[float] = []
    await script.clock.advance(0)
    while not task.done():
        pauses.append(script.clock.sleeping[0])
        await script.clock.advance(script.clock.sleeping[0])

    result = await task
    assert result is not None
    assert result.sequence_number == "1"
    assert len(pauses) == 5
    assert pauses[0] <= 0.1
    assert 0.8 <= pauses[4] <= 1.6


async def test_a_terminal_failure_is_told_at_once():
    script = Script()
    failing(script, "AccessDeniedException", 1)

    with pytest.raises(PublishError, match=r"1 byte.*1 attempt"):
        await send(script.connection, outgoing(ORDERS, b"1", "key"))

    assert script.events == [("asked", "orders")]


async def test_past_its_deadline_it_is_not_tried_again():
    script = Script()
    failing(script, "ThrottlingException", 1000)
    task = asyncio.create_task(send(script.connection, outgoing(ORDERS, b"1", "key"), deadline=3.0))
    await script.clock.advance(3.0)

    assert task.done()
    with pytest.raises(PublishError):
        await task


async def test_what_is_not_wanted_is_not_sent_and_not_an_error():
    script = Script()

    assert await send(script.connection, outgoing(ORDERS, b"1", "k"), wanted=lambda: False) is None
    assert script.events == []


async def test_a_record_that_is_not_wanted_any_more_is_not_tried_again():
    script, wanted = Script(), True
    failing(script, "ThrottlingException", 1000)
    record = outgoing(ORDERS, b"1", "k")
    task = asyncio.create_task(send(script.connection, record, wanted=lambda: wanted))
    await script.clock.advance(1)
    tries = len(script.events)
    wanted = False
    await script.clock.advance(10)

    assert await task is None
    assert len(script.events) == tries > 1


async def test_failures_without_a_deadline_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
):
    script = Script()
    failing(script, "ThrottlingException", 1000)
    task = asyncio.create_task(send(script.connection, outgoing(ORDERS, b"1", "k")))
    await script.clock.advance(150)
    task.cancel()
    await asyncio.wait({task})

    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 3


@pytest.mark.parametrize(("key", "bytes_"), [("k", 1), ("日本", 6)])
async def test_key_and_data_count_together(key: str, bytes_: int):
    """Case P4."""
    script = Script()

    await send(script.connection, outgoing(ORDERS, b"x" * (MIB - bytes_), key))
    with pytest.raises(InvalidRecord, match="limit"):
        await send(script.connection, outgoing(ORDERS, b"x" * (MIB - bytes_ + 1), key))

    assert script.events == [("asked", "orders"), ("put", "orders")]


async def test_the_limit_of_a_stream_is_asked_for_once_and_only_for_a_large_record(
    monkeypatch: pytest.MonkeyPatch,
):
    script = Script(limits={"orders": 2 * MIB})
    asked: list[str] = []
    describe = script.describe_stream

    async def noted(stream: object) -> object:
        asked.append(str(stream))
        return await describe(ORDERS)

    monkeypatch.setattr(script, "describe_stream", noted)
    await send(script.connection, outgoing(ORDERS, b"x", "key"))
    assert asked == []
    for _ in range(3):
        await send(script.connection, outgoing(ORDERS, b"x" * (MIB + 1), "key"))

    assert len(asked) == 1


@pytest.mark.parametrize("key", ["", "k" * 257, "\ud800"])
def test_a_key_that_the_service_refuses_is_refused_here(key: str):
    """Case P6."""
    with pytest.raises(InvalidRecord):
        outgoing(ORDERS, b"1", key)


def test_keys_that_spread_are_all_different():
    assert len({spread_key() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("call", "headers", "policy", "key"),
    [
        ("call", {"partition-key": "header"}, "policy", "call"),
        (None, {"partition-key": "header"}, "policy", "header"),
        (None, {"partition-key": ""}, "policy", "policy"),
        (None, None, lambda value: f"order-{value}", "order-7"),
    ],
)
def test_a_key_comes_from_the_call_the_header_or_the_policy(
    call: str | None, headers: dict[str, str] | None, policy: str, key: str
):
    record = RecordMaker(policy, JsonCodec()).make(7, "orders", call, headers)

    assert record.partition_key == key
    assert record.data == b"7"  # the key is no header of the envelope
