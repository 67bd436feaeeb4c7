"""Batched publishing: what shares a request, what is sent again, what is given up, and who is told."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from ruststream_kinesis import KinesisPublish
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    EnvelopeError,
    InvalidRecord,
    KinesisError,
    PublishError,
    RequestError,
)
from ruststream_kinesis.transport import PutEntry, PutResult
from tests.support.putting import Failing, Sink, throttled

MIB = 1024 * 1024


@pytest.fixture
def sink() -> Sink:
    return Sink()


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestRequests:
    async def test_501_records_make_one_request_of_500_and_one_of_the_rest(self, sink: Sink):
        """Case P5."""
        own = sink.publisher()
        futures = [own.publish_nowait(b"%d" % n, "orders") for n in range(501)]
        await turns()
        assert sink.sizes == [500]

        await sink.clock.advance(0.05)

        assert sink.sizes == [500, 1]
        assert [each.result().sequence_number for each in futures] == [
            str(n) for n in range(1, 502)
        ]

    async def test_none_make_no_request_and_leave_no_task(self, sink: Sink):
        """Case P5."""
        sink.publisher()
        await sink.clock.advance(1)

        assert sink.requests == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_request_closes_when_its_first_record_has_waited_long_enough(self, sink: Sink):
        own = sink.publisher(linger=0.05)
        first = own.publish_nowait(b"1", "orders")
        await sink.clock.advance(0.03)
        second = own.publish_nowait(b"2", "orders")
        await sink.clock.advance(0.019)
        assert sink.requests == []

        await sink.clock.advance(0.001)

        assert sink.sizes == [2]
        assert first.done()
        assert second.done()

    async def test_a_request_closes_at_its_number_without_waiting(self, sink: Sink):
        own = sink.publisher(batch=3)

        await asyncio.gather(*[own.publish(b"x", "orders") for _ in range(3)])

        assert sink.sizes == [3]
        assert sink.clock.monotonic() == 0

    async def test_a_request_closes_at_10_mib_of_data_and_keys(self, sink: Sink):
        own = sink.publisher()
        futures = [
            own.publish_nowait(bytes(MIB - 2), "orders", partition_key=f"{n:02}") for n in range(12)
        ]
        await turns()
        assert sink.sizes == [10]

        await sink.clock.advance(0.05)
        assert sink.sizes == [10, 2]
        assert all(each.result().sequence_number for each in futures)

    async def test_records_of_two_streams_never_share_a_request(self, sink: Sink):
        own = sink.publisher(batch=2)
        await asyncio.gather(*[own.publish(b"%d" % n, f"s{n % 2}") for n in range(4)])
        assert (sink.taken("s0"), sink.taken("s1")) == ([b"0", b"2"], [b"1", b"3"])

    async def test_publishers_with_one_policy_share_requests(self, sink: Sink):
        one, other = sink.publisher(batch=2), sink.publisher(batch=2)
        await asyncio.gather(one.publish(b"1", "orders"), other.publish(b"2", "orders"))
        assert sink.sizes == [2]

    async def test_headers_and_the_explicit_hash_key_travel(self, sink: Sink):
        own = sink.publisher(batch=1)
        await own.publish(b"x", "orders", headers={"a": "b"}, explicit_hash_key="12")

        assert sink.requests == [
            [(b"RSK1\x00\x00\x00\x05a: b\nx", sink.requests[0][0][1], "12")],
        ]

    async def test_no_more_than_four_requests_are_on_their_way(self, sink: Sink):
        own = sink.publisher(batch=1)
        sink.open.clear()
        futures = [own.publish_nowait(b"%d" % n, "orders") for n in range(9)]
        await turns()
        assert len(sink.requests) == 4

        sink.open.set()
        await asyncio.gather(*futures)
        assert len(sink.requests) == 9


class TestResults:
    async def test_exactly_the_refused_entries_are_sent_again(self, sink: Sink):
        """Case P1."""
        sink.refuse = Failing({b"2": 1, b"4": 1})
        own = sink.publisher(batch=5)
        futures = [own.publish_nowait(b"%d" % n, "orders") for n in range(1, 6)]
        await turns()
        assert [each.done() for each in futures] == [True, False, True, False, True]

        await sink.clock.advance(1)

        assert [[entry[0] for entry in each] for each in sink.requests] == [
            [b"1", b"2", b"3", b"4", b"5"],
            [b"2", b"4"],
        ]
        assert [each.result().sequence_number for each in futures] == ["1", "4", "2", "5", "3"]

    async def test_a_record_whose_time_is_over_has_its_own_error(self, sink: Sink):
        """Case P1."""
        sink.refuse = Failing({b"2": 10**6})
        own = sink.publisher(batch=3, deadline=3)
        futures = [own.publish_nowait(b"%d" % n, "orders") for n in range(1, 4)]
        await sink.clock.advance(10)

        with pytest.raises(PublishError, match=r"not published \(\d+ attempt\(s\)\): slow") as late:
            futures[1].result()
        assert isinstance(late.value.__cause__, RequestError)
        assert isinstance(futures[0].result(), PutResult)
        assert isinstance(futures[2].result(), PutResult)

    async def test_what_does_not_pass_fails_at_once_and_alone(self, sink: Sink):
        denied = AccessDenied("no", code="AccessDeniedException", status=400)
        sink.refuse = Failing({b"2": 1}, denied)
        own = sink.publisher(batch=2)
        good, bad = (own.publish_nowait(data, "orders") for data in (b"1", b"2"))
        await turns()

        assert good.result().sequence_number
        with pytest.raises(PublishError) as caught:
            bad.result()
        assert caught.value.__cause__ is denied
        assert len(sink.requests) == 1

    async def test_a_request_that_fails_is_sent_again_and_nothing_else_meanwhile(self, sink: Sink):
        failures = [throttled()] * 3
        sink.fail = lambda: failures.pop() if failures else None
        own = sink.publisher(batch=2)
        first = [own.publish_nowait(data, "orders") for data in (b"1", b"2")]
        await turns()
        later = [own.publish_nowait(data, "orders") for data in (b"3", b"4")]
        await turns()
        assert len(sink.requests) == 1

        await sink.clock.advance(10)

        assert sink.taken() == [b"1", b"2", b"3", b"4"]
        assert all(each.result().sequence_number for each in first + later)

    async def test_delays_grow_with_jitter_up_to_a_cap(self, sink: Sink):
        at: list[float] = []

        def refuse(_entry: PutEntry) -> KinesisError:
            at.append(sink.clock.monotonic())
            return throttled()

        sink.refuse = refuse
        future = sink.publisher(batch=1, deadline=60).publish_nowait(b"x", "orders")
        await sink.clock.advance(120)

        delays = [later - earlier for earlier, later in itertools.pairwise(at)]
        for step, delay in enumerate(delays):
            most = min(5.0, 0.1 * 2**step)
            assert 0.5 * most <= delay <= most + 0.001
        assert len(delays) > 10
        assert isinstance(future.exception(), PublishError)

    async def test_a_codec_that_fails_is_its_records_error(self, sink: Sink):
        own = sink.publisher(batch=2)
        bad = own.publish_nowait(object(), "orders")
        empty = own.publish_nowait(b"1", "orders", partition_key="")
        odd = own.publish_nowait(b"1", "orders", headers={"a:b": "c"})
        hash_key = own.publish_nowait(b"1", "orders", explicit_hash_key="-1")
        with pytest.raises(TypeError):
            await bad
        with pytest.raises(InvalidRecord):
            await empty
        with pytest.raises(EnvelopeError):
            await odd
        with pytest.raises(InvalidRecord):
            await hash_key
        assert sink.requests == []

    async def test_a_cancelled_record_is_taken_back(self, sink: Sink):
        own = sink.publisher(batch=3)
        futures = [own.publish_nowait(b"%d" % n, "orders", partition_key="k") for n in range(2)]
        futures[0].cancel()
        await sink.clock.advance(0.1)

        assert sink.taken() == [b"1"]
        assert futures[1].result().sequence_number

    async def test_one_that_is_cancelled_on_its_way_is_not_sent_again(self, sink: Sink):
        sink.refuse = Failing({b"1": 1})
        own = sink.publisher(batch=2)
        sink.open.clear()
        futures = [own.publish_nowait(data, "orders") for data in (b"1", b"2")]
        await turns()
        futures[0].cancel()
        sink.open.set()
        await sink.clock.advance(10)

        assert len(sink.requests) == 1
        assert futures[1].result().sequence_number


class TestOrder:
    async def test_a_key_keeps_its_order_and_others_may_pass(self, sink: Sink):
        """Case P2."""
        sink.refuse = Failing({b"b": 1})
        own = sink.publisher()
        futures = [
            own.publish_nowait(data, "orders", partition_key="k1") for data in (b"a", b"b", b"c")
        ]
        futures += [own.publish_nowait(b"%d" % n, "orders") for n in range(3)]
        await sink.clock.advance(10)

        assert [data for key, data in sink.records["orders"] if key == "k1"] == [b"a", b"b", b"c"]
        assert sink.taken().index(b"2") < sink.taken().index(b"b")
        assert all(each.result().sequence_number for each in futures)

    async def test_the_records_of_a_key_never_share_a_request(self, sink: Sink):
        own = sink.publisher()
        futures = [
            own.publish_nowait(b"%d" % n, "orders", partition_key=f"k{n % 3}") for n in range(12)
        ]
        await sink.clock.advance(0.05)

        for entries in sink.requests:
            keys = [entry[1] for entry in entries]
            assert len(keys) == len(set(keys))
        assert sink.sizes == [3, 3, 3, 3]
        assert all(each.result().sequence_number for each in futures)

    async def test_what_waited_behind_its_key_does_not_wait_for_others_as_well(self, sink: Sink):
        own = sink.publisher(linger=0.05)
        futures = [own.publish_nowait(b"x", "orders", partition_key="k") for _ in range(5)]
        await sink.clock.advance(0.05)
        assert all(each.done() for each in futures)


class TestSizes:
    async def test_one_byte_too_many_is_refused_and_its_mates_are_sent(self, sink: Sink):
        """Case P3."""
        own = sink.publisher(batch=3)
        large = own.publish_nowait(bytes(MIB + 1), "orders", partition_key="k")
        mates = [own.publish_nowait(b"x", "orders") for _ in range(2)]
        await sink.clock.advance(0.1)

        with pytest.raises(InvalidRecord, match="over the stream's limit"):
            large.result()
        assert all(each.result().sequence_number for each in mates)
        assert sink.taken() == [b"x", b"x"]

    async def test_key_and_envelope_count(self, sink: Sink):
        """Case P4."""
        own = sink.publisher(batch=1)
        await own.publish(bytes(1_048_570), "orders", partition_key="日本")
        with pytest.raises(InvalidRecord):
            await own.publish(bytes(1_048_571), "orders", partition_key="日本")
        with pytest.raises(InvalidRecord):
            await own.publish(bytes(1_048_570), "orders", partition_key="k", headers={"a": "b"})
        assert sink.described == 1

    async def test_a_stream_that_takes_more_gets_more(self, sink: Sink):
        sink.max_record_bytes = 10 * MIB
        own = sink.publisher(batch=2)
        futures = [
            own.publish_nowait(bytes(6 * MIB), "orders", partition_key=f"k{n}") for n in range(2)
        ]
        await sink.clock.advance(0.05)
        assert all(each.result().sequence_number for each in futures)
        assert sink.sizes == [1, 1], "together they are over the limit of a request"


class TestOtherLoops:
    async def test_a_thread_with_a_loop_of_its_own_collects_there(self, sink: Sink):
        sink.clock = sink.connection.clock = SystemClock()
        own = sink.publisher(batch=3)
        found: list[Any] = []

        async def there() -> None:
            found.extend(
                await asyncio.gather(*[own.publish(b"%d" % n, "orders") for n in range(3)])
            )

        thread = threading.Thread(target=lambda: asyncio.run(there()))
        thread.start()
        await asyncio.to_thread(thread.join)
        await asyncio.gather(*[own.publish(b"%d" % n, "orders") for n in range(3)])

        assert len(found) == 3
        assert sink.sizes == [3, 3]

    async def test_a_loop_that_ends_leaves_no_collector_and_its_records_are_named(
        self, sink: Sink, caplog: Any
    ):
        own = sink.publisher()
        futures: list[Any] = []

        async def there() -> None:
            sink.open = asyncio.Event()
            futures.append(own.publish_nowait(b"x", "orders"))
            await asyncio.sleep(0)

        def run() -> None:
            sink.connection.clock = SystemClock()
            asyncio.run(there())

        await asyncio.to_thread(run)

        with pytest.raises(PublishError, match="was cancelled by somebody else"):
            futures[0].result()
        assert await sink.connection.collectors.flush(1) == ""

    def test_a_loop_that_stopped_in_the_middle_of_a_turn_is_not_taken_for_the_running_one(
        self, sink: Sink
    ):
        own = sink.publisher(batch=1)
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        made: list[asyncio.Future[PutResult]] = []

        async def publish() -> None:
            # Twice: the second one finds the collector of the first.
            made.extend(own.publish_nowait(b"x", "orders") for _ in range(2))

        def publish_and_stop() -> None:
            made.extend(own.publish_nowait(b"x", "orders") for _ in range(2))
            first.stop()

        try:
            first.call_soon(publish_and_stop)
            first.run_forever()
            second.run_until_complete(publish())
            assert [each.get_loop() for each in made] == [first, first, second, second]

            first.run_until_complete(asyncio.wait(made[:2]))
            second.run_until_complete(asyncio.wait(made[2:]))
        finally:
            first.close()
            second.close()

    async def test_another_thread_in_the_same_turn_has_its_own_loop(self, sink: Sink):
        own = sink.publisher(batch=1)
        here = [own.publish_nowait(b"x", "orders") for _ in range(2)]
        loops: list[bool] = []

        async def there() -> None:
            future = own.publish_nowait(b"x", "orders")
            loops.append(future.get_loop() is asyncio.get_running_loop())
            await future

        thread = threading.Thread(target=lambda: asyncio.run(there()))
        thread.start()
        thread.join()  # in the turn of the loop in which the others were published

        assert loops == [True]
        await asyncio.gather(*here)


class TestPolicy:
    @pytest.mark.parametrize(
        "policy",
        [
            {"batch": 0},
            {"batch": -1},
            {"batch": 501},
            {"batch": 1.5},
            {"batch": True},
            {"batch": "10"},
            {"batch": 10, "linger": 0},
            {"batch": 10, "linger": -0.1},
            {"batch": 10, "linger": float("nan")},
            {"batch": 10, "linger": float("inf")},
            {"batch": 10, "linger": 10.1},
            {"batch": 10, "linger": "1"},
            {"batch": 10, "buffer_records": 9},
            {"batch": 10, "buffer_records": None},
            {"batch": 10, "buffer_bytes": 10 * MIB - 1},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, policy: dict[str, Any]):
        with pytest.raises(ConfigurationError):
            KinesisPublish(**policy)

    @pytest.mark.parametrize("batch", [1, 500])
    def test_the_limits_themselves_are_taken(self, batch: int):
        assert KinesisPublish(batch=batch).batching is not None

    def test_without_a_batch_nothing_is_collected(self):
        assert KinesisPublish().batching is None
