"""Copies: never settled before they are in their stream, and never larger than it takes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, Outcome, drop, retry, retry_after
from ruststream_kinesis import reader as reader_module
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.attempts import Copy, RetryPolicy
from ruststream_kinesis.errors import AccessDenied, RequestError
from ruststream_kinesis.leases import LeaseKey
from tests.support.copying import DEAD, Script, enveloped, run_of
from tests.support.stores import spy_store
from tests.support.world import World, running

MIB = 1024 * 1024


def passing() -> RequestError:
    return RequestError("slow down", code="ThrottlingException", status=400)


def denied() -> AccessDenied:
    return AccessDenied("no", code="AccessDeniedException", status=400)


class TestPublishing:
    async def test_the_original_is_settled_after_the_put_and_not_before(self):
        script = Script()

        await script.copies.publish(script.copy())

        assert script.events == [("asked", "orders"), ("put", "orders"), ("ack", 0)]

    async def test_a_passing_failure_is_tried_again_and_settles_nothing_meanwhile(self):
        script, failures = Script(), 40

        async def fail(_stream: str) -> None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise passing()

        script.answer = fail
        task = asyncio.create_task(script.copies.publish(script.copy()))
        while not task.done():
            assert ("ack", 0) not in script.events
            await script.clock.advance(5)

        assert script.events[-2:] == [("put", "orders"), ("ack", 0)]
        assert script.events.count(("asked", "orders")) == 41

    async def test_it_is_tried_until_the_shard_is_lost_and_then_nothing_is_put(self):
        script = Script()

        async def fail(_stream: str) -> None:
            raise passing()

        script.answer = fail
        task = asyncio.create_task(script.copies.publish(script.copy()))
        await script.clock.advance(60)
        assert not task.done()
        script.shard.lose()
        script.answer = None
        await script.clock.advance(10)

        await task
        assert set(script.events) == {("asked", "orders")}

    async def test_a_shard_that_is_lost_while_the_put_is_on_its_way_settles_nothing(self):
        script = Script()

        async def lose(_stream: str) -> None:
            script.shard.lose()

        script.answer = lose
        await script.copies.publish(script.copy())

        assert script.events == [("asked", "orders"), ("put", "orders")]

    async def test_a_terminal_failure_leaves_the_original_open_and_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ):
        script = Script()

        async def refuse(_stream: str) -> None:
            raise denied()

        script.answer = refuse
        await script.copies.publish(script.copy())

        assert script.events == [("asked", "orders"), ("hold", 0)]
        assert script.copies.counters.held == 1
        (logged,) = caplog.records
        assert logged.levelno == logging.ERROR
        assert "the record stays open" in logged.message
        assert vars(logged).items() >= {
            "stream": "orders", "shard_id": "shardId-0", "sequence_number": "1"
        }.items()  # fmt: skip

    async def test_cancelled_while_it_tries_it_settles_nothing(self):
        """Case X1."""
        script = Script()

        async def fail(_stream: str) -> None:
            raise passing()

        script.answer = fail
        task = asyncio.create_task(script.copies.publish(script.copy()))
        await script.clock.advance(10)
        task.cancel()
        await asyncio.wait({task})

        assert set(script.events) == {("asked", "orders")}

    @pytest.mark.parametrize("key", ["k" * 256, "é" * 256, "\U0001f600", "日本"])
    async def test_the_partition_key_is_the_original_one(self, key: str):
        """Case P6."""
        script = Script()

        await script.copies.publish(Copy(run_of(script.shard, b"1", key=key), 0, 1))

        assert script.put[0][2] == key

    @pytest.mark.parametrize("key", [None, ""])
    async def test_records_without_a_key_get_keys_that_spread(self, key: str | None):
        script = Script()
        for _ in range(2):
            await script.copies.publish(Copy(run_of(script.shard, b"1", key=key), 0, 1))

        (_, _, first), (_, _, second) = script.put
        assert first != second


class TestTooLarge:
    """A record of 1 MiB has no room for another header."""

    FULL = b"x" * (MIB - len("key"))

    async def test_it_goes_to_the_dead_letter_stream_with_the_headers_that_fit(self):
        script = Script(RetryPolicy(max_attempts=3, dead_letter=DEAD))

        await script.copies.publish(script.copy(self.FULL))

        assert script.put == [("orders.dead", self.FULL, "key")]
        assert script.events[-1] == ("ack", 0)
        assert script.copies.counters.dead_lettered == 1

    async def test_without_one_it_stays_open(self, caplog: pytest.LogCaptureFixture):
        script = Script(RetryPolicy(max_attempts=3))

        await script.copies.publish(script.copy(self.FULL))

        assert script.events == [("hold", 0)]
        assert "over the stream's limit" in caplog.text

    async def test_a_stream_that_takes_more_takes_the_copy(self):
        script = Script(RetryPolicy(max_attempts=3), limits={"orders": 2 * MIB})

        await script.copies.publish(script.copy(self.FULL))

        assert script.headers() == {"x-ruststream-retry-count": "1"}

    async def test_a_dead_letter_keeps_as_many_of_our_headers_as_fit(self):
        script = Script(RetryPolicy(dead_letter=DEAD))

        await script.copies.dead_letter(script.copy(b"x" * (MIB - 300)), ValueError("e" * 500))

        headers = script.headers()
        assert "x-ruststream-error" not in headers
        assert headers["x-ruststream-attempts"] == "1"
        assert headers["x-ruststream-origin-stream"] == "orders"

    async def test_what_fits_in_no_way_stays_open(self):
        script = Script(RetryPolicy(dead_letter=DEAD), limits={"orders": 2 * MIB})

        await script.copies.dead_letter(script.copy(b"x" * (MIB + 1)), None)

        assert script.events == [("hold", 0)]


class TestDeadLetters:
    async def test_it_is_settled_after_the_put_and_logged_with_its_place(
        self, caplog: pytest.LogCaptureFixture
    ):
        script = Script(RetryPolicy(dead_letter=DEAD))

        await script.copies.dead_letter(script.copy(attempts=3), ValueError("no"))

        assert script.events == [("asked", "orders.dead"), ("put", "orders.dead"), ("ack", 0)]
        (logged,) = caplog.records
        assert "after 3 attempt(s)" in logged.message
        assert vars(logged)["sequence_number"] == "1"

    async def test_a_dead_letter_stream_that_refuses_leaves_the_record_open(self):
        script = Script(RetryPolicy(dead_letter=DEAD))

        async def refuse(_stream: str) -> None:
            raise denied()

        script.answer = refuse
        await script.copies.dead_letter(script.copy(), None)

        # Once: a header less helps nobody who is not allowed to write.
        assert script.events == [("asked", "orders.dead"), ("hold", 0)]
        assert script.copies.counters.dead_lettered == 0


async def test_the_verbatim_block_survives_a_copy_and_its_dead_letter():
    script = Script(RetryPolicy(max_attempts=2, dead_letter=DEAD))
    block = b"odd\ntrace: \xff\n\n x :y\r\n"

    await script.copies.publish(script.copy(enveloped(block, b"\x00")))
    await script.copies.dead_letter(script.copy(script.put[0][1], attempts=2), None)

    for _, data, _ in script.put:
        length = int.from_bytes(data[4:8], "big")
        assert data[8 : 8 + length].startswith(block)
        assert data[8 + length :] == b"\x00"


@pytest.mark.parametrize("outcome", [retry(), retry_after(5), ValueError("no"), drop(), None])
@pytest.mark.parametrize("options", [{"max_attempts": 3}, {"dead_letter": "dead"}])
async def test_a_handler_that_finishes_after_its_shard_was_lost_puts_and_settles_nothing(
    outcome: Outcome | Exception | None, options: dict[str, Any]
):
    world = World()
    world.stream("orders")
    world.stream("dead")
    world.put("orders", 1)
    store = spy_store(world.clock)
    app, started, gate = world.app(store=store), asyncio.Event(), asyncio.Event()

    @app.subscriber("orders", start_at=KinesisPosition.horizon(), **options)
    async def handle(value: int) -> Outcome | None:
        started.set()
        await gate.wait()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with running(app):
        await started.wait()
        await store.steal(LeaseKey("orders", "shardId-000000000000"), world.clock)
        await world.clock.advance(4)
        gate.set()
        await world.clock.advance(6)
        counters = app.counters["orders"]

    assert [call for call in world.calls if call.operation == "put_record"] == []
    assert store.checkpoints() == []
    assert (counters.dropped, counters.retried, counters.held) == (0, 0, 0)


async def test_what_a_shard_defers_after_its_reading_ended_does_not_keep_it_standing(
    monkeypatch: pytest.MonkeyPatch,
):
    """It holds too many: a copy that is made now goes out early, so that it is let go and read anew."""
    monkeypatch.setattr(reader_module, "MAX_HELD", 2)
    world = World()
    world.stream("orders")
    world.put("orders", 1, 2, 3, 4)
    app, seen, gate = world.app(), [], asyncio.Event()

    @app.subscriber("orders", start_at=KinesisPosition.horizon())
    async def handle(value: int) -> Outcome:
        seen.append(value)
        if value < 4:
            return retry()
        await gate.wait()
        return retry_after(3600)

    async with running(app):
        # Longer than it takes the reader to notice what is held.
        await world.clock.advance(5)
        assert seen == [1, 2, 3, 4]
        gate.set()
        await world.clock.advance(10)
        early = decode_envelope(world.records("orders")[4].data)[0]
        assert early["x-ruststream-not-before"] == str((1_700_000_000 + 5 + 3600) * 1000)
        # Let go and taken again: read from the first held one, which the copy does not hold up.
        assert seen[4:8] == [1, 2, 3, 4]
