"""Aggregated publishing: what shares an aggregate, what is sent again, and when shards are listed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPublish,
    KinesisPublisher,
    RustStream,
    retry,
)
from ruststream_kinesis._core import decode_aggregate
from ruststream_kinesis.errors import (
    AccessDenied,
    BufferFull,
    ConfigurationError,
    InvalidRecord,
    NotConnected,
    PublishError,
    RequestError,
)
from ruststream_kinesis.limits import LAST_HASH_KEY
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.testing import TestApp
from ruststream_kinesis.transport import PutResult, ShardInfo
from tests.support.aggregates import halves, held, keys_in
from tests.support.putting import Sink, throttled

MIB = 1024 * 1024


@pytest.fixture
def sink() -> Sink:
    return Sink()


async def turns(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestWhatSharesAnAggregate:
    async def test_records_of_one_shard_go_as_one_record(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        futures = [
            own.publish_nowait(b"%d" % n, "orders", partition_key=f"k{n % 2}") for n in range(5)
        ]
        await sink.clock.advance(0.05)

        ((entry,),) = sink.requests
        assert decode_aggregate(entry[0]) == [(f"k{n % 2}", None, b"%d" % n) for n in range(5)]
        assert entry[1:] == ("k0", None)
        assert [each.result() for each in futures] == [
            PutResult("shardId-0", "1", n) for n in range(5)
        ]
        assert sink.listed == 1

    async def test_a_request_has_so_many_aggregates_at_most(self, sink: Sink):
        third = 2**128 // 3
        sink.shards = [
            ShardInfo(f"s{n}", hash_keys=(str(n * third), str((n + 1) * third - 1)))
            for n in range(3)
        ]
        own = sink.publisher(aggregate=True, batch=2)
        for n in range(30):
            own.publish_nowait(
                b"%d" % n, "orders", partition_key="k", explicit_hash_key=str(n % 3 * third)
            )
        await sink.clock.advance(0.05)

        assert sink.sizes == [2, 1]
        assert [len(held(entry)) for each in sink.requests for entry in each] == [10, 10, 10]

    async def test_a_record_of_its_own_goes_as_it_is(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        future = own.publish_nowait(
            b"x", "orders", partition_key="k", headers={"a": "b"}, explicit_hash_key="7"
        )
        await sink.clock.advance(0.05)

        assert sink.requests == [[(b"RSK1\x00\x00\x00\x05a: b\nx", "k", "7")]]
        assert future.result() == PutResult("shardId-0", "1")

    async def test_each_shard_has_its_own_aggregate_in_one_request(self, sink: Sink):
        sink.shards = halves(parent="old")
        own = sink.publisher(aggregate=True)
        for n in range(40):
            own.publish_nowait(b"%d" % n, "orders", partition_key=f"k{n}")
        # The explicit hash key decides where there is one.
        low_by_number = next(keys_in(low=False))
        own.publish_nowait(b"e", "orders", partition_key=low_by_number, explicit_hash_key="5")
        await sink.clock.advance(0.05)

        (request,) = sink.requests
        assert len(request) == 2
        found = {}
        for entry in request:
            inside = decode_aggregate(entry[0])
            assert inside is not None
            assert {sink.shard_of((data, key, own)) for key, own, data in inside} == {
                sink.shard_of(entry)
            }
            found[sink.shard_of(entry)] = inside
        assert (low_by_number, "5", b"e") in found["low"]
        assert sum(map(len, found.values())) == 41
        assert sink.listed == 1

    async def test_an_aggregate_is_within_the_record_limit_and_a_shard_has_one_at_a_time(
        self, sink: Sink
    ):
        sink.open.clear()
        own = sink.publisher(aggregate=True)
        for n in range(5):
            own.publish_nowait(bytes([n]) * (400 * 1024), "orders", partition_key="k" * 200)
        await until_requests(sink, 1)
        await sink.clock.advance(0.05)
        assert len(sink.requests) == 1

        sink.open.set()
        await until_requests(sink, 3)

        assert [[len(held(entry)) for entry in each] for each in sink.requests] == [[2], [2], [1]]
        for ((data, key, _),) in sink.requests:
            assert len(data) + len(key) <= MIB
        assert [data[:1] for each in sink.requests for data in held(each[0])] == [
            bytes([n]) for n in range(5)
        ]

    async def test_a_record_that_fits_into_none_goes_alone(self, sink: Sink):
        sink.max_record_bytes = 2 * MIB
        own = sink.publisher(aggregate=True)
        sizes = (10, MIB - 1, 10, 2 * MIB - 1, 2 * MIB, 10)
        futures = [own.publish_nowait(bytes(size), "orders", partition_key="k") for size in sizes]
        for _ in range(6):
            await sink.clock.advance(0.05)

        assert isinstance(futures[4].exception(), InvalidRecord)
        assert [len(data) for each in sink.requests for data in held(each[0])] == [
            10, MIB - 1, 10, 2 * MIB - 1, 10,
        ]  # fmt: skip
        assert [len(each) for each in sink.requests] == [1] * 5

    async def test_an_aggregate_that_somebody_made_already_is_not_put_into_another(
        self, sink: Sink
    ):
        own = sink.publisher(aggregate=True)
        made = b"\xf3\x89\x9a\xc2 by somebody"
        for data in (b"1", b"2", made, b"3", b"4"):
            own.publish_nowait(data, "orders", partition_key="k")
        await sink.clock.advance(0.05)
        await sink.clock.advance(0.05)

        assert [held(each[0]) for each in sink.requests] == [[b"1", b"2"], [made], [b"3", b"4"]]
        assert sink.requests[1][0][0] == made

    async def test_a_request_closes_when_an_aggregate_for_each_shard_is_full(self, sink: Sink):
        own = sink.publisher(aggregate=True, linger=5)
        own.publish_nowait(bytes(600 * 1024), "orders", partition_key="1")
        await turns()
        assert sink.requests == []
        own.publish_nowait(bytes(600 * 1024), "orders", partition_key="2")
        await until_requests(sink, 2)
        assert sink.clock.monotonic() == 0

    async def test_a_hash_key_that_no_shard_has_goes_alone_and_the_shards_are_listed_again(
        self, sink: Sink
    ):
        sink.shards = halves()[1:]  # the upper half is missing
        own = sink.publisher(aggregate=True)
        key = next(keys_in(low=False))
        shard_of = sink.shard_of
        vars(sink)["shard_of"] = lambda entry: "high" if entry[1] == key else shard_of(entry)
        futures = [own.publish_nowait(b"%d" % n, "orders", partition_key=key) for n in range(2)]
        await sink.clock.advance(0.05)
        sink.shards = halves()
        await sink.clock.advance(1)
        futures += [own.publish_nowait(b"%d" % n, "orders", partition_key=key) for n in (2, 3)]
        await sink.clock.advance(0.05)

        assert [held(each[0]) for each in sink.requests] == [[b"0"], [b"1"], [b"2", b"3"]]
        assert [each.result().shard_id for each in futures] == ["high"] * 4
        # At once, and a second after that brought nothing new.
        assert sink.listed == 3

        # It did the second time: the next doubt is looked at at once again.
        sink.shards = [ShardInfo("all", hash_keys=("0", LAST_HASH_KEY))]
        vars(sink)["shard_of"] = shard_of
        for _ in range(2):
            own.publish_nowait(b"4", "orders", partition_key=key)
            await sink.clock.advance(0.05)
        assert sink.listed == 4


async def until_requests(sink: Sink, count: int) -> None:
    """Wait until so many have come; large ones are packed in a thread."""
    async with asyncio.timeout(10):
        while len(sink.requests) < count:
            await asyncio.to_thread(lambda: None)


class TestFailures:
    async def test_an_aggregate_that_is_refused_is_sent_again_and_its_neighbours_are_not(
        self, sink: Sink
    ):
        sink.shards = halves()
        low, high = next(keys_in(low=True)), next(keys_in(low=False))
        own = sink.publisher(aggregate=True)
        times = iter([throttled()])
        sink.refuse = lambda entry: next(times, None) if entry[1] == low else None
        futures = [
            own.publish_nowait(b"%d" % n, "orders", partition_key=low if n % 2 else high)
            for n in range(6)
        ]
        await sink.clock.advance(0.05)
        assert [each.done() for each in futures] == [True, False] * 3

        # Behind those that rest; the other shard goes on.
        futures += [own.publish_nowait(b"6", "orders", partition_key=low)]
        futures += [own.publish_nowait(b"7", "orders", partition_key=high)]
        await sink.clock.advance(0.06)
        assert futures[7].done()
        await sink.clock.advance(1)

        assert [[held(entry) for entry in each] for each in sink.requests[1:]] == [
            [[b"7"]],
            [[b"1", b"3", b"5", b"6"]],
        ]
        assert [each.result().sub_sequence_number for each in futures] == [
            0, 0, 1, 1, 2, 2, 3, None,
        ]  # fmt: skip

    async def test_what_is_cancelled_or_not_wanted_any_more_is_left_out_of_the_next_attempt(
        self, sink: Sink
    ):
        own = sink.publisher(aggregate=True)
        failures = iter([RequestError("gone", code="HTTP503", status=503)])
        sink.fail = lambda: next(failures, None)
        wanted = [True]
        futures: list[Any] = [
            own.publish_nowait(b"%d" % n, "orders", partition_key="k") for n in range(4)
        ]
        futures.append(own.collect_while(b"w", "orders", lambda: wanted[0]))
        await sink.clock.advance(0.05)
        assert [len(held(each[0])) for each in sink.requests] == [5]
        futures[1].cancel()
        wanted[0] = False
        await sink.clock.advance(1)

        assert held(sink.requests[1][0]) == [b"0", b"2", b"3"]
        assert [futures[at].result().sub_sequence_number for at in (0, 2, 3)] == [0, 1, 2]
        assert futures[4].result() is None

    async def test_each_record_has_its_own_deadline(self, sink: Sink):
        early = sink.publisher(aggregate=True, deadline=1)
        late = sink.publisher(aggregate=True, deadline=60)
        times = itertools.count()
        sink.fail = lambda: (
            RequestError("gone", code="HTTP503", status=503) if next(times) < 6 else None
        )
        first = early.publish_nowait(b"early", "orders", partition_key="k")
        second = late.publish_nowait(b"late", "orders", partition_key="k")
        for _ in range(60):
            await sink.clock.advance(0.5)

        assert isinstance(first.exception(), PublishError)
        assert second.result().sub_sequence_number is None
        assert held(sink.requests[0][0]) == [b"early", b"late"]
        assert held(sink.requests[-1][0]) == [b"late"]

    async def test_a_refusal_that_is_no_passing_one_fails_every_record_of_its_aggregate(
        self, sink: Sink
    ):
        own = sink.publisher(aggregate=True)
        sink.refuse = lambda _: AccessDenied("no", code="AccessDeniedException", status=400)
        futures = [own.publish_nowait(b"x", "orders") for _ in range(3)]
        await sink.clock.advance(0.05)

        assert all(isinstance(each.exception(), PublishError) for each in futures)

    async def test_what_waits_behind_a_refused_aggregate_is_given_up_and_leaves_room(
        self, sink: Sink
    ):
        late = sink.publisher(aggregate=True, deadline=60, buffer_records=2, batch=2)
        early = sink.publisher(aggregate=True, deadline=1, buffer_records=2, batch=2)
        sink.refuse = lambda _: throttled()
        first = late.publish_nowait(b"1", "orders")
        for _ in range(40):
            await sink.clock.advance(0.5)
        # It rests for seconds by now; the second one has its turn behind it, and is not tried.
        tried = len(sink.requests)
        while len(sink.requests) == tried:
            await sink.clock.advance(0.05)
        second = early.publish_nowait(b"2", "orders")
        for _ in range(30):
            await sink.clock.advance(0.25)
        assert isinstance(second.exception(), PublishError)
        assert {held(each[0])[0] for each in sink.requests} == {b"1"}
        assert {len(held(each[0])) for each in sink.requests} == {1}

        third = early.publish_nowait(b"3", "orders")
        sink.refuse = lambda _: None
        for _ in range(20):
            await sink.clock.advance(0.5)
        assert first.done()
        assert third.done()

    async def test_a_full_buffer_counts_records(self, sink: Sink):
        own = sink.publisher(aggregate=True, batch=2, buffer_records=3)
        futures = [own.publish_nowait(b"x", "orders") for _ in range(3)]
        with pytest.raises(BufferFull):
            own.publish_nowait(b"x", "orders")
        waiting = asyncio.ensure_future(own.publish(b"y", "orders"))
        await sink.clock.advance(0.05)
        await sink.clock.advance(0.05)

        assert all(each.done() for each in [*futures, waiting])

    async def test_a_stop_names_the_records_and_not_the_aggregates(self, sink: Sink):
        own = sink.publisher(aggregate=True)
        sink.open.clear()
        futures = [own.publish_nowait(b"x", "orders", partition_key=f"k{n}") for n in range(3)]
        await sink.clock.advance(0.05)
        futures.append(own.publish_nowait(b"x", "orders", partition_key="k3"))

        left = await sink.connection.collectors.flush(0.01)
        assert left == "4 record(s) for stream orders, partition keys k0, k1, k2, k3"
        sink.connection.collectors.close()
        await turns()
        assert all(isinstance(each.exception(), NotConnected) for each in futures)
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestPolicy:
    def test_aggregating_means_a_batch(self):
        batching = KinesisPublish(aggregate=True).batching
        assert batching is not None
        assert (batching.batch, batching.aggregate) == (500, True)
        batching = KinesisPublish(aggregate=True, batch=7).batching
        assert batching is not None
        assert batching.batch == 7
        batching = KinesisPublish(batch=7).batching
        assert batching is not None
        assert not batching.aggregate

    @pytest.mark.parametrize(
        "policy", [{"aggregate": 1}, {"aggregate": None}, {"aggregate": True, "linger": 0}]
    )
    def test_what_says_nothing_sensible_is_refused(self, policy: Any):
        with pytest.raises(ConfigurationError, match=r"aggregate"):
            KinesisPublish(**policy)


class TestInAService:
    async def test_replies_share_aggregates_and_copies_and_dead_letters_do_not(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        seen: list[tuple[int, int | None]] = []

        @app.subscriber(
            "orders",
            publish=KinesisPublish(to="replies", aggregate=True),
            max_attempts=2,
            dead_letter="dead",
        )
        async def handle(number: int, message: KinesisMessage[int]) -> int | Outcome:
            seen.append((number, message.sub_sequence_number))
            return retry() if number < 0 else number * 2

        publisher = app.publisher(KinesisPublish(aggregate=True))
        async with TestApp(app) as test:
            results = await asyncio.gather(
                *[publisher.publish(n, "orders", partition_key=f"k{n}") for n in (1, -1, 2, -2, 3)]
            )
            await test.settled()
            replies = test.published("replies")
            dead = test.published("dead")

        assert [each.sub_sequence_number for each in results] == [0, 1, 2, 3, 4]
        # The copies came one by one, each a record of its own.
        assert seen == [(1, 0), (-1, 1), (2, 2), (-2, 3), (3, 4), (-1, None), (-2, None)]
        assert [each.payload for each in replies] == [b"2", b"4", b"6"]
        assert len({each.sequence_number for each in replies}) == 1
        assert [each.payload for each in dead] == [b"-1", b"-2"]
        assert len({each.sequence_number for each in dead}) == 2

    async def test_a_refused_aggregate_of_replies_settles_nothing_until_it_is_put(self):
        app = RustStream(KinesisBroker(), title="t", version="1")

        @app.subscriber("orders", publish=KinesisPublish(to="replies", aggregate=True))
        async def double(number: int) -> int:
            return 2 * number

        publisher = app.publisher(KinesisPublish(aggregate=True))
        async with TestApp(app) as test:
            with test.fail_publish("replies", times=2) as fault:
                await asyncio.gather(*[publisher.publish(n, "orders") for n in range(3)])
                assert app.counters["orders"].replies == 0
                await test.settled()
            # Three replies, and two attempts that failed.
            assert fault.hits == 2
            assert app.counters["orders"].replies == 3
            replies = test.published("replies")
            assert sorted(each.payload for each in replies) == [b"0", b"2", b"4"]
            assert len({each.sequence_number for each in replies}) == 1

    async def test_a_publish_of_a_test_waits_for_what_comes_of_it_in_aggregates(self):
        app = RustStream(KinesisBroker(), title="t", version="1")
        seen: list[int] = []

        @app.subscriber("orders", publish=KinesisPublish(aggregate=True))
        async def split(number: int, publisher: KinesisPublisher) -> None:
            for part in range(number):
                publisher.publish_nowait(part, "parts")

        @app.subscriber("parts")
        async def hear(number: int) -> None:
            seen.append(number)

        async with TestApp(app) as test:
            await test.publish(25, "orders")
            assert seen == list(range(25))
            await test.publish(3, "orders")
            assert seen[25:] == [0, 1, 2]
            assert len({each.sequence_number for each in test.published("parts")}) == 2
