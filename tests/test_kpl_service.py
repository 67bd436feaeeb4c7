"""Aggregates on their way through a service: places, checkpoints, rewinds, copies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisMessage,
    KinesisPosition,
    Outcome,
    RustStream,
    Seeker,
    retry,
)
from ruststream_kinesis._core import Page, decode_aggregate, encode_envelope
from ruststream_kinesis.attempts import Copy, RetryPolicy
from ruststream_kinesis.channel import Run
from tests.reference import SubRecord, aggregate, sealed
from tests.support.aggregates import body, orders
from tests.support.copying import DEAD, Script
from tests.support.reading import EXPIRED, SHARD, bench, refusal
from tests.support.scripted import ScriptedKinesis
from tests.support.seeking import HORIZON, killed, world
from tests.support.transports import STREAM, connected
from tests.support.world import World, running, until


def holding(
    world: World, seen: list[int], held: set[int], *, again: bool = False, **options: Any
) -> RustStream:
    """A service that refuses some orders; `again` where it goes on from its checkpoint."""
    app = world.app()

    @app.subscriber("orders", start_at=None if again else HORIZON, **options)
    async def handle(order: int) -> Outcome | None:
        seen.append(order)
        return retry() if order in held else None

    return app


class TestCheckpoints:
    async def test_a_held_record_of_an_aggregate_brings_the_whole_again(self):
        it = world()
        seen: list[Any] = []
        it.put("orders", 1, orders(2, 3, 4, 5), 6)

        async with running(holding(it, seen, {4})):
            await until(lambda: len(seen) == 6)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert await it.checkpoint() == "1"
        again: list[int] = []
        async with running(holding(it, again, set(), again=True)):
            await until(lambda: len(again) == 5)
        assert again == [2, 3, 4, 5, 6]
        assert await it.checkpoint() == "3"

    @pytest.mark.parametrize("options", [{}, {"workers": 3}, {"batch": 2}])
    async def test_a_crash_within_an_aggregate_brings_the_whole_again(self, options: Any):
        it, stuck = world(), asyncio.Event()
        seen: list[int] = []
        it.put("orders", 1, orders(*range(2, 8)), 8)
        app = it.app()

        def note(order: Any) -> None:
            seen.extend(order if isinstance(order, list) else [order])

        if "batch" in options:

            @app.subscriber("orders", start_at=HORIZON, **options)
            async def handle_all(order: list[int]) -> None:
                note(order)
                if 4 in order:
                    stuck.set()
                    await asyncio.Event().wait()

        else:

            @app.subscriber("orders", start_at=HORIZON, **options)
            async def handle(order: int) -> None:
                note(order)
                if order == 4:
                    stuck.set()
                    await asyncio.Event().wait()

        async with killed(it, app):
            await asyncio.wait_for(stuck.wait(), 10)
            await it.clock.advance(1)
            # Twice, with the end of the block: nobody waits for its handler.
            app.stop()
        assert await it.checkpoint() in (None, "1")
        again: list[int] = []
        async with running(holding(it, again, set(), again=True)):
            await until(lambda: again[-1:] == [8])
        # Among workers, record 1 may have been handled after record 4: it was not, or is settled.
        assert [each for each in again if each > 1] == [2, 3, 4, 5, 6, 7, 8]

    async def test_the_checkpoint_passes_an_aggregate_without_records(self):
        it = world()
        seen: list[int] = []
        it.put("orders", aggregate(), aggregate())

        async with running(holding(it, seen, set())):
            await until(lambda: len(it.store.checkpoints()) == 1)
        assert (seen, await it.checkpoint()) == ([], "2")

    async def test_it_does_not_pass_one_behind_an_open_record(self):
        it = world()
        seen: list[Any] = []
        it.put("orders", aggregate(), 7, aggregate())

        async with running(holding(it, seen, {7})):
            await until(lambda: seen == [7])
            await until(lambda: len(it.store.checkpoints()) == 1)
            it.put("orders", aggregate())
            await it.clock.advance(2)
        assert await it.checkpoint() == "1"
        async with running(holding(it, seen, set(), again=True)):
            await until(lambda: seen == [7, 7])
        assert await it.checkpoint() == "4"

    async def test_a_shard_that_ends_with_one_is_finished(self):
        async with bench(body(aggregate(), following=None)) as it:
            await asyncio.wait_for(it.task, 5)

            assert it.shard.finished
            assert it.shard.checkpoint == "SHARD_END"
            assert it.moves > 0

    async def test_nothing_is_written_for_one_behind_an_open_record(self):
        async with bench(body(b"x"), body(aggregate(), first=2)) as it:
            it.acking = False
            await it.clock.advance(2)
            await until(lambda: it.shard.read_from.sequence_number == "2")

            assert (it.moves, it.shard.checkpoint) == (0, None)
            it.shard.ack(0)
            assert (it.moves, it.shard.checkpoint) == (1, "2")

    async def test_a_page_of_nothing_else_moves_only_once(self):
        async with bench(body(aggregate(), aggregate()), body()) as it:
            await until(lambda: it.shard.checkpoint == "2")
            await it.clock.advance(2)

            assert (it.moves, it.shard.read_from.sequence_number) == (1, "2")
            assert it.received == []


class TestReading:
    async def test_case_r3_an_expired_iterator_does_not_repeat_a_delivered_aggregate(self):
        blobs = b"x", orders(*range(200)), b"y"
        async with bench(body(*blobs), refusal(EXPIRED), body(b"z", first=4)) as it:
            it.acking = False
            await until(lambda: len(it.received) == 202)
            await it.clock.advance(2)
            await until(lambda: it.received[-1] == "4")

            assert it.received == ["1", *["2"] * 200, "3", "4"]
            last = it.transport.asked[-1]
            assert (last.position, last.after) == (KinesisPosition.sequence(SHARD, "3"), True)

    async def test_a_rewind_within_an_aggregate_reads_the_whole_again(self):
        async with bench(body(orders(1, 2, 3)), body(orders(1, 2, 3))) as it:
            await until(lambda: len(it.received) == 3)
            it.shard.rewind(KinesisPosition.sequence(SHARD, "1"))
            it.reader.interrupt()
            await until(lambda: len(it.received) == 6)

            last = it.transport.asked[-1]
            assert (last.position.sequence_number, last.after) == ("1", False)

    async def test_records_without_a_lag_mean_that_there_may_be_more_even_if_empty(self):
        pages = [body(aggregate(), lag=None), body(lag=None), body(lag=None)]
        async with bench(*pages) as it:
            await it.clock.advance(3)

            assert it.transport.times[:3] == [0.0, 0.2, 1.2]

    @pytest.mark.parametrize("size", [1, 64, 65, 1000])
    async def test_a_page_may_be_longer_than_what_was_asked_for(self, size: int):
        it = world()
        seen: list[Any] = []
        it.put("orders", orders(*range(size)), orders(*range(size, 2 * size)))

        async with running(holding(it, seen, set())):
            await until(lambda: len(seen) == 2 * size)
        assert seen == list(range(2 * size))
        assert await it.checkpoint() == "2"

    async def test_batches_are_of_records_not_of_aggregates(self):
        it = world()
        sizes: list[list[int]] = []
        it.put("orders", orders(*range(25)), 25, orders(26, 27, 28, 29))
        app = it.app()

        @app.subscriber("orders", start_at=HORIZON, batch=10)
        async def handle(batch: list[int]) -> None:
            sizes.append(batch)

        async with running(app):
            await until(lambda: sum(len(each) for each in sizes) == 30)
        assert sizes == [list(range(10)), list(range(10, 20)), list(range(20, 30))]
        assert await it.checkpoint() == "3"

    async def test_each_key_of_an_aggregate_keeps_its_order_among_workers(self):
        it = world()
        seen: dict[int, list[int]] = {}
        records: list[SubRecord] = [
            (f"key-{n % 7}", None, json.dumps([n % 7, n]).encode()) for n in range(140)
        ]
        it.put("orders", aggregate(records))
        app = it.app()

        @app.subscriber("orders", start_at=HORIZON, workers=4)
        async def handle(order: list[int]) -> None:
            for _ in range(order[1] % 3):
                await asyncio.sleep(0)
            seen.setdefault(order[0], []).append(order[1])

        async with running(app):
            await until(lambda: sum(len(each) for each in seen.values()) == 140)
        assert seen == {key: list(range(key, 140, 7)) for key in range(7)}

    async def test_case_k1_a_broken_aggregate_goes_the_way_of_what_does_not_decode(self):
        it = world()
        seen: list[Any] = []
        it.put("orders", 1, sealed(b"\x0a\xff"), 3)
        it.stream("dead")
        app = holding(it, seen, set(), dead_letter="dead")

        async with running(app):
            await until(lambda: seen == [1, 3] and len(it.records("dead")) == 1)
        assert it.records("dead")[0].data.endswith(sealed(b"\x0a\xff"))
        assert await it.checkpoint() == "3"

    async def test_a_seek_to_a_record_of_an_aggregate_brings_the_whole(self):
        it = world()
        seen: list[Any] = []
        it.put("orders", 1, orders(2, 3, 4), 5)
        app = it.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(message: KinesisMessage[int], seeker: Seeker) -> None:
            seen.append(message.payload)
            if message.payload == 4 and seen.count(4) == 1:
                await seeker.seek(message.position)

        async with running(app):
            await until(lambda: seen[-1:] == [5])
        assert seen == [1, 2, 3, 4, 2, 3, 4, 5]


class TestMessages:
    async def test_a_message_tells_which_record_of_its_aggregate_it_is(self):
        it = world()
        seen: list[Any] = []
        blob = aggregate([("a", "7", encode_envelope({"x": "y"}, b"1")), ("b", None, b"2")])
        it.put("orders", blob, 3)
        app = it.app()

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(message: KinesisMessage[int]) -> None:
            seen.append(
                (
                    message.sequence_number,
                    message.sub_sequence_number,
                    message.partition_key,
                    message.explicit_hash_key,
                    message.headers.get("x"),
                    message.headers["partition-key"],
                    message.payload,
                )
            )

        async with running(app):
            await until(lambda: len(seen) == 3)
        assert seen == [
            ("1", 0, "a", "7", "y", "a", 1),
            ("1", 1, "b", None, None, "b", 2),
            ("2", None, "key", None, None, "key", 3),
        ]


class TestCopies:
    @staticmethod
    def copies(script: Script) -> list[Copy]:
        """Copies of the two records of an aggregate."""
        page = Page.parse(body(aggregate([("a", "7", b"1"), ("b", None, b"2")])))
        run = Run(script.shard, script.shard.generation, page, 0, range(2))
        return [Copy(run, index, 1) for index in range(2)]

    @pytest.mark.parametrize("early", [False, True])
    async def test_a_copy_keeps_key_and_hash_key_of_its_original_and_is_no_aggregate(
        self, early: bool
    ):
        script = Script()
        for copy in self.copies(script):
            await script.copies.publish(copy, early=early)

        assert [(stream, key) for stream, _, key in script.put] == [
            ("orders", "a"),
            ("orders", "b"),
        ]
        assert script.hash_keys == ["7", None]
        assert [decode_aggregate(blob) for _, blob, _ in script.put] == [None, None]
        assert script.headers(0)["x-ruststream-retry-count"] == "1"
        assert script.events[-1] == ("ack", 1)

    async def test_a_dead_letter_goes_by_its_key_alone(self):
        script = Script(policy=RetryPolicy(dead_letter=DEAD))
        await script.copies.dead_letter(self.copies(script)[0], None)

        assert [(stream, key) for stream, _, key in script.put] == [("orders.dead", "a")]
        assert script.hash_keys == [None]

    async def test_one_record_of_an_aggregate_is_tried_again_alone(self):
        it = world()
        seen: list[Any] = []
        it.put("orders", orders(1, 2, 3))

        async def handle(message: KinesisMessage[int]) -> Outcome | None:
            seen.append((message.payload, message.attempt))
            return retry() if message.payload == 2 and message.attempt == 1 else None

        app = it.app()
        app.subscriber("orders", start_at=HORIZON, max_attempts=3)(handle)
        async with running(app):
            await until(lambda: len(seen) == 3)
            await it.clock.advance(2)
            await until(lambda: len(seen) == 4)
        assert seen == [(1, 1), (2, 1), (3, 1), (2, 2)]
        assert await it.checkpoint() == "2"

    async def test_the_transport_sends_the_explicit_hash_key_only_where_there_is_one(self):
        async with ScriptedKinesis() as server, connected(server) as transport:
            await transport.put_record(STREAM, b"x", "k", explicit_hash_key="7")
            await transport.put_record(STREAM, b"x", "k")

            bodies = [call.body for call in server.calls("PutRecord")]
            assert [each.get("ExplicitHashKey", "none") for each in bodies] == ["7", "none"]
