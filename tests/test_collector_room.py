"""Batched publishing: a full buffer, what is not wanted any more, and the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis.errors import (
    BufferFull,
    NotConnected,
    PublishError,
    RequestError,
)
from tests.support.putting import Sink, throttled

MIB = 1024 * 1024


@pytest.fixture
def sink() -> Sink:
    return Sink()


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestRoom:
    async def test_publish_waits_for_room_and_publish_nowait_says_so(self, sink: Sink):
        own = sink.publisher(batch=2, buffer_records=4)
        sink.open.clear()
        futures: list[Any] = [own.publish_nowait(b"%d" % n, "orders") for n in range(4)]
        waiting = [asyncio.ensure_future(own.publish(b"%d" % n, "orders")) for n in (4, 5)]
        await turns()
        with pytest.raises(BufferFull, match="4 records"):
            own.publish_nowait(b"6", "orders")

        sink.open.set()
        await asyncio.gather(*futures, *waiting)

        assert sink.taken() == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert sink.sizes == [2, 2, 2]

    async def test_bytes_are_bounded_too(self, sink: Sink):
        own = sink.publisher(buffer_bytes=10 * MIB)
        sink.open.clear()
        kept = [own.publish_nowait(bytes(MIB - 64), "orders") for _ in range(10)]
        with pytest.raises(BufferFull):
            own.publish_nowait(bytes(1000), "orders")
        sink.open.set()
        await sink.clock.advance(1)
        assert all(each.result().sequence_number for each in kept)

    async def test_who_waits_for_room_may_give_up(self, sink: Sink):
        own = sink.publisher(batch=1, buffer_records=1)
        sink.open.clear()
        first = own.publish_nowait(b"1", "orders")
        waiting = asyncio.ensure_future(own.publish(b"2", "orders"))
        third = asyncio.ensure_future(own.publish(b"3", "orders"))
        await turns()
        waiting.cancel()
        await turns()
        sink.open.set()

        await first
        await third
        assert sink.taken() == [b"1", b"3"]

    async def test_one_whose_turn_does_not_come_in_time_is_given_up(self, sink: Sink):
        sink.fail = throttled
        own = sink.publisher(batch=1, buffer_records=2, deadline=2)
        tasks = [
            asyncio.ensure_future(own.publish(b"%d" % n, "orders", partition_key="k"))
            for n in range(4)
        ]
        await turns()
        await sink.clock.advance(20)

        assert all(isinstance(task.exception(), PublishError) for task in tasks)
        assert "its turn did not come" in str(tasks[-1].exception())


class TestWanted:
    async def test_what_is_not_wanted_any_more_is_not_sent(self, sink: Sink):
        own = sink.publisher()
        wanted = True
        record = own.collect_while(b"1", "orders", lambda: wanted)
        other = own.publish_nowait(b"2", "orders")
        wanted = False
        await sink.clock.advance(0.05)

        assert record.result() is None
        assert other.result().sequence_number
        assert sink.taken() == [b"2"]

    async def test_it_is_tried_for_as_long_as_it_is_wanted(self, sink: Sink, caplog: Any):
        sink.fail = throttled
        own = sink.publisher(batch=1)
        wanted = True
        record = own.collect_while(b"1", "orders", lambda: wanted)
        await sink.clock.advance(600)
        assert not record.done()
        assert len(sink.requests) > 100
        assert 9 <= len(caplog.records) <= 11, "one line a minute"

        wanted = False
        await sink.clock.advance(10)
        assert record.result() is None


class TestTheEnd:
    async def test_a_stop_returns_in_time_and_names_what_was_not_sent(
        self, sink: Sink, caplog: Any
    ):
        """Case P7."""
        sink.fail = lambda: RequestError("connection refused", code="ClientConnectorError")
        own = sink.publisher()
        futures = [own.publish_nowait(b"x", "orders", partition_key=f"k{n}") for n in range(10)]
        await turns()

        left = await sink.connection.collectors.flush(0.01)
        assert left.startswith("10 record(s) for stream orders, partition keys k0, k1, ")
        await sink.connection.close()
        await asyncio.wait(futures)

        assert all(isinstance(each.exception(), NotConnected) for each in futures)
        assert "not sent at the stop: 10 record(s) for stream orders" in caplog.text
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_flush_waits_for_no_further_records(self, sink: Sink):
        own = sink.publisher(linger=10)
        futures = [own.publish_nowait(b"x", "orders", partition_key="k") for _ in range(3)]

        assert await sink.connection.collectors.flush(5) == ""

        assert all(each.done() for each in futures)
        assert sink.clock.monotonic() == 0

    async def test_a_flush_waits_for_records_that_travel_alone(self, sink: Sink):
        sink.open.clear()
        alone = sink.publisher(batch=None).publish_nowait(b"x", "orders", partition_key="k")
        await turns()
        assert await sink.connection.collectors.flush(0.01) == (
            "1 record(s) for stream orders, partition keys k"
        )

        sink.open.set()
        assert await sink.connection.collectors.flush(5) == ""
        assert alone.done()

    async def test_after_the_stop_it_is_not_connected(self, sink: Sink):
        own = sink.publisher()
        await sink.connection.close()

        with pytest.raises(NotConnected):
            await own.publish(b"x", "orders")
        with pytest.raises(NotConnected):
            await own.publish_nowait(b"x", "orders")

    async def test_a_sender_that_dies_tells_everybody_and_the_next_record_starts_anew(
        self, sink: Sink, caplog: Any
    ):
        broken: list[BaseException] = [ZeroDivisionError("a defect")]
        sink.fail = lambda: broken.pop() if broken else None
        own = sink.publisher(batch=2)
        futures = [own.publish_nowait(b"x", "orders", partition_key="k") for _ in range(3)]
        await sink.clock.advance(0.05)

        for each in futures:
            with pytest.raises(PublishError, match="a defect"):
                each.result()
        assert "put[orders]" in caplog.text
        again = own.publish_nowait(b"y", "orders", partition_key="k")
        await sink.clock.advance(0.05)
        assert again.result().sequence_number

    async def test_a_collector_with_nothing_left_has_no_task(self, sink: Sink):
        own = sink.publisher(batch=1)
        await own.publish(b"x", "orders")
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
