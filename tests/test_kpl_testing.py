"""Aggregates in tests of services: on the in-process log, and followed on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    Outcome,
    RustStream,
    Seeker,
    drop,
    retry,
)
from ruststream_kinesis._core import Page
from ruststream_kinesis.channel import Run
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.testing import TestApp
from ruststream_kinesis.testing.clock import LiveClock
from ruststream_kinesis.testing.delivery import Expected, Watched
from ruststream_kinesis.testing.faults import Faults
from ruststream_kinesis.testing.live import Live
from ruststream_kinesis.testing.tracking import Tracker
from ruststream_kinesis.transport import PutResult
from tests.reference import aggregate
from tests.support.aggregates import body, orders
from tests.support.reading import SHARD, bench


class TestInProcess:
    @pytest.fixture
    def app(self) -> RustStream:
        return RustStream(KinesisBroker(), title="orders", version="1.0")

    async def test_an_aggregate_is_published_as_what_it_holds(self, app: RustStream):
        seen: list[Any] = []

        @app.subscriber("orders", publish="replies")
        async def handle(message: KinesisMessage[int]) -> int:
            await asyncio.sleep(0)
            seen.append((message.payload, message.partition_key, message.sub_sequence_number))
            return message.payload

        async with TestApp(app) as test:
            blob = aggregate([("a", None, b"1"), ("b", "7", b"2")])
            put = await test.publish(blob, "orders")

            assert seen == [(1, "a", 0), (2, "b", 1)]
            records = test.published("orders")
            assert [each.payload for each in records] == [b"1", b"2"]
            assert {each.sequence_number for each in records} == {put.sequence_number}
            assert [each.decode(int) for each in test.published("replies")] == [1, 2]
            assert [call.value for call in test.subscriber("orders").calls] == [1, 2]

    async def test_one_without_records_is_delivered_to_nobody(self, app: RustStream):
        @app.subscriber("orders")
        async def handle(order: int) -> None:
            raise AssertionError(order)

        async with TestApp(app) as test:
            await test.publish(aggregate(), "orders")

            assert test.published("orders") == []
            assert test.subscriber("orders").calls == []

    async def test_a_rewind_brings_the_whole(self, app: RustStream):
        seen: list[int] = []

        @app.subscriber("orders")
        async def handle(message: KinesisMessage[int], seeker: Seeker) -> None:
            seen.append(message.payload)
            if message.payload == 3 and seen.count(3) == 1:
                await seeker.seek(message.position)

        async with TestApp(app) as test:
            await test.publish(orders(1, 2, 3), "orders")
            assert seen == [1, 2, 3, 1, 2, 3]

    @pytest.mark.parametrize("said", [drop, retry])
    async def test_each_record_has_an_outcome_of_its_own(
        self, app: RustStream, said: Callable[[], Outcome]
    ):
        @app.subscriber("orders", max_attempts=2)
        async def handle(message: KinesisMessage[int]) -> Outcome | None:
            return said() if message.payload == 2 and message.attempt == 1 else None

        async with TestApp(app) as test:
            await test.publish(orders(1, 2, 3), "orders")

            values = [call.value for call in test.subscriber("orders").calls]
            assert values == ([1, 2, 3] if said is drop else [1, 2, 3, 2])


class TestOnAServer:
    @pytest.mark.parametrize("quick", [False, True], ids=["put first", "read first"])
    async def test_an_aggregate_is_expected_until_the_last_of_it_is_read(self, quick: bool):
        clock = LiveClock(1.0)
        tracker = Tracker(clock, 5.0)
        live = Live("http://localhost:1", ClientSettings(), clock, tracker, Faults(clock), 5.0)
        watched = Watched(tracker, ("orders", None), bytes, holds=False, window=None)
        live._watched["orders"].append(watched)
        live.opened()
        page = Page.parse(body(orders(1, 2, 3)))
        async with bench() as it:
            run = Run(it.shard, it.shard.generation, page, it.shard.deliver(page), range(3))

            def read(index: int) -> None:
                live._read(watched, run, index)
                it.shard.ack(run.base + index)

            if quick:
                read(0)
            live.put("orders", PutResult(SHARD, "1"))
            for index in range(quick, 3):
                assert [type(each) for each in tracker.open] == [Expected]
                read(index)
            assert not tracker.open
