"""`dead-letters redrive`: what comes back is what once was, in order, and a run can be continued."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ruststream_kinesis import KinesisMessage, KinesisPosition, KinesisPublish, Outcome, retry
from ruststream_kinesis._core import Page, encode_envelope
from ruststream_kinesis.cli.redriving import Order, Redriven, original, redrive
from ruststream_kinesis.cli.shard_pages import generations
from ruststream_kinesis.errors import AccessDenied, ConfigurationError, RequestError
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo
from tests.reference import aggregate
from tests.support.world import PATIENCE, Call, Stored, World, serve

DEAD, ORDERS = StreamRef("dead"), StreamRef("orders")
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def dead(payload: bytes, origin: str = "orders", **headers: str) -> bytes:
    ours = {"x-ruststream-origin-stream": origin, "x-ruststream-attempts": "3"}
    return encode_envelope({**headers, **ours}, payload)


class Try:
    """Runs on a world with dead letters in it."""

    def __init__(self, shards: int = 1) -> None:
        self.world = World()
        self.world.stream("dead", shards)
        self.world.stream("orders")
        self.stop = asyncio.Event()
        self.read = 0

    def bury(self, *payloads: bytes, key: str = "k", shard: int = 0, **options: str) -> list[str]:
        blobs = [dead(each, **options) for each in payloads]
        return self.world.put("dead", *blobs, key=key, shard=shard)

    @property
    def put(self) -> list[tuple[str, bytes]]:
        """Key and blob of what is in the target."""
        return [(each.key, each.data) for each in self.world.records("orders")]

    @property
    def payloads(self) -> list[bytes]:
        return [data for _, data in self.put]

    async def run(self, **options: Any) -> Redriven:
        order = Order(**{"source": DEAD, "target": ORDERS, **options})
        told = Redriven("dead", "orders", order.dry_run)
        connection = self.world.broker().connection
        publisher = KinesisPublisher(connection, KinesisPublish())

        def advance(more: int) -> None:
            self.read += more

        async with asyncio.timeout(PATIENCE):
            await redrive(
                order,
                connection.transport,
                connection.clock,
                publisher,
                told,
                stop=self.stop,
                advance=advance,
            )
        return told

    def refuse(self, *payloads: bytes) -> None:
        """Puts of these fail."""

        async def hook(call: Call) -> None:
            if call.operation == "put_record" and call.data in payloads:
                raise AccessDenied("not yours", code="AccessDeniedException", status=400)

        self.world.hooks[:] = [hook]


class TestOriginal:
    async def test_a_record_that_a_service_gave_up_comes_back_byte_for_byte(self):
        """Through the package's own dead letters, with and without an envelope of its user's."""
        world = World()
        world.stream("orders")
        world.stream("dead")
        blobs = [b'"plain"', encode_envelope({"trace": "1"}, b'"told"')]
        world.put("orders", *blobs, key="ada")

        async def give_up(_message: KinesisMessage[str]) -> Outcome:
            return retry()

        await serve(world, give_up, until_handled=2, dead_letter="dead")
        it = Try()
        it.world.streams["dead"] = world.streams["dead"]

        told = await it.run()

        assert (told.read, told.redriven) == (2, 2)
        assert it.put == [("ada", blobs[0]), ("ada", blobs[1])]

    @pytest.mark.parametrize(
        "blob",
        [
            b"plain",
            b"",
            b"RSK1\xff\xff\xff\xff",
            encode_envelope(None, b"RSK1 is what it begins with"),
            encode_envelope({"a": "1"}, b"x"),
            encode_envelope({"a": "1"}, b"RSK1"),
        ],
    )
    def test_what_has_nothing_of_ours_is_left_as_it_is(self, blob):
        assert original(page_of(blob), 0) == blob

    @pytest.mark.parametrize(
        ("headers", "payload", "was"),
        [
            ({}, b"x", b"x"),
            ({}, b"RSK1", encode_envelope(None, b"RSK1")),
            ({"a": "1"}, b"x", encode_envelope({"a": "1"}, b"x")),
            ({"x-ruststreams": "1"}, b"x", encode_envelope({"x-ruststreams": "1"}, b"x")),
        ],
    )
    def test_our_headers_are_taken_out_and_no_others(self, headers, payload, was):
        ours = {"x-ruststream-error": "E: x", "x-ruststream-retry-count": "2"}

        assert original(page_of(encode_envelope({**headers, **ours}, payload)), 0) == was


def page_of(blob: bytes) -> Page:
    return Page.parse(json.dumps({"Records": [Stored("1", blob, "k").listed()]}).encode())


class TestRedrive:
    async def test_only_what_came_from_the_target_goes_back_unless_asked(self):
        it = Try()
        it.bury(b"1")
        it.bury(b"2", origin="parcels")
        it.world.put("dead", b"3")

        told = await it.run()

        assert (told.read, told.redriven, told.skipped, told.failed) == (3, 1, 2, 0)
        assert told.stopped is None
        assert it.payloads == [b"1"]
        assert it.read == 3
        assert (await it.run(all_origins=True)).redriven == 3

    async def test_a_dry_run_puts_nothing(self):
        it = Try()
        it.bury(b"1", b"2")

        told = await it.run(dry_run=True)

        assert (told.redriven, it.put) == (2, [])

    async def test_a_limit_is_kept_and_the_next_run_goes_on_behind_it(self):
        it = Try(shards=2)
        it.bury(b"1", b"2", b"3")
        it.bury(b"4", shard=1)

        first = await it.run(limit=2)
        second = await it.run(behind=first.positions)

        assert (first.redriven, first.stopped) == (2, "--limit 2 is reached")
        assert second.redriven == 2
        assert it.payloads == [b"1", b"2", b"3", b"4"]
        assert (await it.run(behind=second.positions)).read == 0

    async def test_the_first_failure_ends_it_and_later_records_of_the_key_are_not_put(self):
        it = Try()
        numbers = [*it.bury(b"1"), *it.bury(b"bad", b"3"), *it.bury(b"4", key="other")]
        it.refuse(b"bad")

        told = await it.run()

        assert (told.redriven, told.failed) == (2, 1)
        assert it.payloads == [b"1", b"4"]
        assert told.positions == {FIRST: numbers[0]}
        assert told.again == 1
        assert told.stopped is not None
        assert numbers[1] in told.stopped

        it.refuse()
        again = await it.run(behind=told.positions)

        assert again.failed == 0
        assert [data for key, data in it.put if key == "k"] == [b"1", b"bad", b"3"]
        assert [data for key, data in it.put if key == "other"] == [b"4", b"4"]

    async def test_after_a_failure_no_other_key_goes_on_either(self):
        it = Try()
        it.bury(b"bad")
        it.bury(*(b"%d" % n for n in range(50)), key="other")
        it.refuse(b"bad")

        told = await it.run()

        assert told.redriven == len(it.payloads) < 5

    async def test_a_failure_that_passes_is_none(self):
        it, failures = Try(), 2
        it.bury(b"1")

        async def hook(call: Call) -> None:
            nonlocal failures
            if call.operation in {"put_record", "get_records"} and failures:
                failures -= 1
                raise RequestError("slow down", code="ThrottlingException", status=400)

        it.world.hooks.append(hook)
        going = asyncio.ensure_future(it.run())
        while not going.done():
            await it.world.clock.advance(1)

        assert going.result().redriven == 1

    async def test_what_came_after_the_start_is_left_to_another_run(self):
        it = Try()
        it.bury(b"1", b"2")
        it.world.clock._wall -= 100  # the stream's records have arrived in its future

        told = await it.run()

        assert (told.read, told.positions) == (0, {})

    async def test_a_stop_waits_for_what_is_on_its_way_and_starts_no_more(self):
        it = Try()
        numbers = it.bury(b"1", b"2", b"3")

        async def hook(call: Call) -> None:
            if call.data == b"2":
                it.stop.set()

        it.world.hooks.append(hook)

        told = await it.run()

        assert it.payloads == [b"1", b"2"]
        assert (told.redriven, told.stopped) == (2, "interrupted")
        assert told.positions == {FIRST: numbers[1]}

    async def test_a_position_is_never_within_an_aggregate(self):
        it = Try()
        (before,) = it.bury(b"1")
        records = [("k", None, dead(b"2")), ("k", None, dead(b"bad"))]
        it.world.put("dead", aggregate(records))
        it.refuse(b"bad")

        told = await it.run()

        assert it.payloads == [b"1", b"2"]
        assert (told.positions, told.again) == ({FIRST: before}, 1)

    async def test_a_shard_that_is_none_of_the_stream_is_refused(self):
        with pytest.raises(ConfigurationError, match=SECOND):
            await Try().run(behind={SECOND: "1"})

    def test_a_stream_is_not_redriven_into_itself(self):
        with pytest.raises(ConfigurationError, match="itself"):
            Order(DEAD, StreamRef("dead"))

    def test_it_begins_at_the_horizon_or_at_a_time(self):
        with pytest.raises(ConfigurationError, match="horizon"):
            Order(DEAD, ORDERS, KinesisPosition.latest())


def test_parents_come_before_their_children_however_they_are_listed():
    shards = [
        ShardInfo("e", ("c", "d")),
        ShardInfo("c", ("a",)),
        ShardInfo("d", ("gone",)),
        ShardInfo("a"),
    ]

    found = [[shard.shard_id for shard in each] for each in generations(shards)]

    assert found == [["d", "a"], ["c"], ["e"]]
