"""Copies that wait: kept in one heap, gone with their shard, sent out at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from ruststream_kinesis import copies
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.attempts import Copy, RetryPolicy
from tests.support.copying import Script, Shard, run_of
from tests.support.world import until

NOT_BEFORE = "x-ruststream-not-before"


@contextlib.asynccontextmanager
async def publishing(script: Script) -> AsyncIterator[asyncio.Task[None]]:
    """The one task of the copies, until the block ends."""
    task = asyncio.create_task(script.copies.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        await task


class TestWaiting:
    async def test_a_copy_waits_open_until_it_is_due(self):
        script = Script()
        async with publishing(script):
            await script.copies.later(script.copy(due=script.clock.time() + 30), 30)
            assert script.events == [("defer", 0)]
            await script.clock.advance(29.9)
            assert script.put == []
            await script.clock.advance(0.2)

        assert script.events[1:] == [("asked", "orders"), ("put", "orders"), ("ack", 0)]
        assert script.headers() == {"x-ruststream-retry-count": "1"}

    async def test_deferred_settle_settles_at_once_and_once(self):
        script = Script(RetryPolicy(deferred="settle"))
        async with publishing(script):
            await script.copies.later(script.copy(), 30)
            assert script.events == [("ack", 0)]
            await script.clock.advance(31)

        assert script.put[0][0] == "orders"

    async def test_deferred_settle_without_a_delay_settles_after_the_put_all_the_same(self):
        script = Script(RetryPolicy(deferred="settle"))

        await script.copies.later(script.copy(), 0)

        assert script.events == [("asked", "orders"), ("put", "orders"), ("ack", 0)]

    async def test_they_go_out_in_the_order_in_which_they_come_due(self):
        script = Script()
        delays = [float(n) for n in range(1, 200)]
        random.Random(5).shuffle(delays)  # the order they are kept in
        async with publishing(script):
            for delay in delays:
                await script.copies.later(script.copy(b"%d" % delay), delay)
            await script.clock.advance(300)

        assert [int(decode_envelope(data)[1]) for _, data, _ in script.put] == sorted(delays)

    async def test_one_that_is_due_before_all_others_is_not_late(self):
        script = Script()
        async with publishing(script):
            await script.copies.later(script.copy(b"late"), 60)
            await script.clock.advance(1)
            await script.copies.later(script.copy(b"soon"), 5)
            await script.clock.advance(5)

            assert [decode_envelope(data)[1] for _, data, _ in script.put] == [b"soon"]

    async def test_a_crowd_goes_out_some_at_a_time(self):
        script, at_once, most = Script(), 0, 0

        async def count(_stream: str) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            for _ in range(3):
                await asyncio.sleep(0)
            at_once -= 1

        script.answer = count
        async with publishing(script):
            for _ in range(500):
                await script.copies.later(script.copy(), 1)
            await script.clock.advance(1)
            await until(lambda: len(script.put) == 500)

        assert 8 < most <= 32

    async def test_a_hundred_thousand_wait_with_one_task(self):
        script = Script()
        run = run_of(script.shard, b"1")
        async with publishing(script) as task:
            before = asyncio.all_tasks()
            for n in range(100_000):
                await script.copies.later(Copy(run, 0, 1), 1000 + n % 7)
            await asyncio.sleep(0)
            # It and the two ends of its one wait, whatever their number.
            assert len(asyncio.all_tasks() - before - {task}) <= 2
            assert script.copies.waiting == 100_000

            # One more is not kept but sent, marked; it stays open until then.
            now = script.clock.time()
            await script.copies.later(script.copy(due=now + 5), 5)
            assert script.headers()[NOT_BEFORE] == str(int((now + 5) * 1000))
            assert script.copies.waiting == copies.MAX_WAITING

            script.shard.lose()
            script.copies.discard(script.shard)
            assert script.copies.waiting == 0

    async def test_the_copies_of_a_shard_that_is_not_read_any_more_do_not_wait(self):
        script = Script()
        script.shard.unread = True

        await script.copies.later(script.copy(due=script.clock.time() + 5), 5)

        assert script.events == [("asked", "orders"), ("put", "orders"), ("ack", 0)]
        assert NOT_BEFORE in script.headers()

    async def test_the_end_of_a_shard_sends_its_waiting_copies_and_no_others(self):
        script = Script()
        other = Shard(script.events, "shardId-1")
        due = script.clock.time() + 60
        async with publishing(script):
            await script.copies.later(script.copy(b"1", due=due), 60)
            await script.copies.later(Copy(run_of(other, b"2"), 0, 1, due), 60)
            script.copies.flush(script.shard)
            await until(lambda: script.events[-1] == ("ack", 0))

            assert [decode_envelope(data)[1] for _, data, _ in script.put] == [b"1"]
            assert script.headers()[NOT_BEFORE] == str(int(due * 1000))
            assert script.copies.waiting == 1


class TestLosses:
    @pytest.mark.parametrize("why", ["lost", "rewound"])
    async def test_the_waiting_copies_of_a_void_shard_are_gone(self, why: str):
        script = Script()
        other = Shard(script.events, "shardId-1")
        async with publishing(script):
            await script.copies.later(script.copy(), 60)
            await script.copies.later(Copy(run_of(other, b"other"), 0, 1), 60)
            script.shard.generation += 1
            script.shard.lost = why == "lost"
            script.copies.discard(script.shard)
            assert script.copies.waiting == 1
            await script.copies.later(script.copy(b"of the new generation"), 60)
            await script.clock.advance(61)

        payloads = [decode_envelope(data)[1] for _, data, _ in script.put]
        assert payloads == [b"other", b"of the new generation"]

    async def test_they_are_not_published_even_if_nobody_discards_them(self):
        script = Script()
        async with publishing(script):
            await script.copies.later(script.copy(), 60)
            script.shard.lose()
            await script.clock.advance(61)

        assert script.events == [("defer", 0)]

    async def test_a_settled_one_outlives_the_loss_since_nobody_would_read_it_again(self):
        script = Script(RetryPolicy(deferred="settle"))
        async with publishing(script):
            await script.copies.later(script.copy(), 60)
            script.shard.lose()
            script.copies.discard(script.shard)
            await script.clock.advance(61)

        assert len(script.put) == 1

    async def test_a_settled_one_does_not_outlive_a_rewind(self):
        script = Script(RetryPolicy(deferred="settle"))
        async with publishing(script):
            await script.copies.later(script.copy(), 60)
            script.shard.generation += 1
            script.copies.discard(script.shard)
            assert script.copies.waiting == 0
            await script.clock.advance(61)

        assert script.put == []

    async def test_those_that_are_to_go_out_early_are_discarded_too(self):
        script = Script()
        await script.copies.later(script.copy(), 60)
        script.copies.flush()
        script.shard.lose()
        script.copies.discard(script.shard)

        assert script.copies.waiting == 0


class TestFinishing:
    async def test_all_that_waits_goes_out_marked_and_what_is_due_is_not_marked(self):
        script, gate = Script(), asyncio.Event()

        async def slowly(_stream: str) -> None:
            await gate.wait()

        script.answer = slowly
        now = script.clock.time()
        async with publishing(script) as task:
            await script.copies.later(script.copy(b"due", due=now + 1), 1)
            for n in range(100):
                await script.copies.later(script.copy(b"%d" % n, due=now + 60), 60)
            await script.clock.advance(1)  # the first is on its way
            script.copies.finish()
            gate.set()
            await asyncio.wait_for(task, 10)

        marked = {decode_envelope(data)[1]: NOT_BEFORE in decode_envelope(data)[0]
                  for _, data, _ in script.put}  # fmt: skip
        assert marked == {b"due": False, **{b"%d" % n: True for n in range(100)}}
        assert len(script.put) == script.events.count(("ack", 0)) == 101
        assert script.copies.waiting == 0

    async def test_with_nothing_waiting_it_ends_at_once(self):
        script = Script()
        async with publishing(script) as task:
            await asyncio.sleep(0)
            script.copies.finish()
            await asyncio.wait_for(task, 10)

    async def test_cut_off_the_rest_stays_open(self):
        script = Script()

        async def hang(_stream: str) -> None:
            await asyncio.Event().wait()

        script.answer = hang
        async with publishing(script):
            for _ in range(50):
                await script.copies.later(script.copy(), 60)
            script.copies.finish()
            await until(lambda: ("asked", "orders") in script.events)

        assert {event for event in script.events if event[0] not in ("asked", "defer")} == set()
