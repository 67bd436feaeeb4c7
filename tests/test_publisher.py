"""Publishing: key, envelope, limits, and trying again by error code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ruststream_kinesis import KinesisPublish, KinesisPublisher
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    EnvelopeError,
    InvalidRecord,
    NotConnected,
    PublishError,
    RequestError,
    StreamNotFound,
)
from tests.support.world import Call, World, until

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    return world


def publisher(world: World, **policy: Any) -> KinesisPublisher:
    return KinesisPublisher(world.broker().connection, KinesisPublish(**policy))


def answers(world: World, operation: str, errors: Iterator[BaseException]) -> None:
    """Let the service answer `operation` with these errors, then as usual."""

    async def answer(call: Call) -> None:
        if call.operation == operation:
            error = next(errors, None)
            if error is not None:
                raise error

    world.hooks.append(answer)


def refusal(code: str, status: int | None = 400) -> RequestError:
    return RequestError("no", code=code, status=status)


class TestRecords:
    async def test_without_headers_the_blob_is_the_payload(self, world: World):
        result = await publisher(world).publish(b"\x00payload", "orders", partition_key="k")

        (stored,) = world.records("orders")
        assert stored.data == b"\x00payload"
        assert (result.shard_id, result.sequence_number) == ("shardId-000000000000", "1")

    async def test_headers_travel_in_the_envelope(self, world: World):
        await publisher(world).publish({"a": 1}, "orders", headers={"trace": "t1"})

        (stored,) = world.records("orders")
        assert stored.data == b'RSK1\x00\x00\x00\x0atrace: t1\n{"a":1}'

    async def test_facts_of_a_delivery_do_not_travel(self, world: World):
        headers = {
            "partition-key": "k",
            "kinesis-sequence-number": "7",
            "kinesis-shard-id": "shardId-000000000000",
        }
        await publisher(world).publish(b"x", "orders", headers=headers)
        await publisher(world).publish(b"x", "orders", headers={**headers, "trace": "t1"})

        alone, beside = world.records("orders")
        assert alone.data == b"x", "no header is left: no envelope"
        assert decode_envelope(beside.data)[0] == {"trace": "t1"}

    async def test_a_payload_that_looks_like_an_envelope_reads_back_unchanged(self, world: World):
        await publisher(world).publish(b"RSK1\x00\x00\x00\x02a:x", "orders")

        (stored,) = world.records("orders")
        assert decode_envelope(stored.data) == ({}, b"RSK1\x00\x00\x00\x02a:x")

    @pytest.mark.parametrize(
        "headers",
        [{"": "v"}, {"a:b": "v"}, {"a": "x\ny"}, {"a": " v"}, {" a": "v"}, {"a": 5}, {"a": None}],
        ids=str,
    )
    async def test_a_header_that_cannot_travel_exactly_is_refused_before_sending(
        self, world: World, headers: Mapping[str, Any]
    ):
        with pytest.raises(EnvelopeError):
            await publisher(world).publish(b"x", "orders", headers=headers)

        assert world.calls == []

    @pytest.mark.parametrize("to", ["", "a b", "x" * 129, "arn:aws:nonsense", None, 5])
    async def test_a_stream_that_cannot_be_is_refused_before_sending(self, world: World, to: Any):
        with pytest.raises(ConfigurationError):
            await publisher(world).publish(b"x", to)

        assert world.calls == []

    async def test_a_stream_may_be_named_by_arn(self, world: World):
        await publisher(world).publish(b"x", ARN)

        assert len(world.records("orders")) == 1


class TestKeys:
    async def key(self, world: World, policy: dict[str, Any], **call: Any) -> str:
        await publisher(world, **policy).publish({"id": 7}, "orders", **call)
        return world.records("orders")[-1].key

    async def test_the_ladder(self, world: World):
        """The call's argument, the header, the policy's, one of the process's own."""
        policy = {"partition_key": "policy"}
        headers = {"partition-key": "header"}

        assert await self.key(world, policy, partition_key="call", headers=headers) == "call"
        assert await self.key(world, policy, headers=headers) == "header"
        assert await self.key(world, policy) == "policy"
        assert await self.key(world, {"partition_key": lambda value: f"id-{value['id']}"}) == "id-7"
        own = await self.key(world, {})
        assert own
        assert own not in {"call", "header", "policy"}

    async def test_the_key_of_a_record_that_came_without_one_says_nothing(self, world: World):
        headers = {"partition-key": ""}

        assert await self.key(world, {"partition_key": "policy"}, headers=headers) == "policy"

    async def test_keys_of_the_process_are_all_different_for_all_publishers(self, world: World):
        one, other = publisher(world), publisher(world)
        for _ in range(10):
            await one.publish(b"x", "orders")
            await other.publish(b"x", "orders")

        keys = [each.key for each in world.records("orders")]
        assert len(set(keys)) == 20

    @pytest.mark.parametrize("key", ["k" * 256, "é" * 256, "日本", "🦀"])
    async def test_a_key_that_the_service_takes_arrives_as_it_is(self, world: World, key: str):
        """Case P6."""
        assert await self.key(world, {}, partition_key=key) == key

    @pytest.mark.parametrize("key", ["", "k" * 257, "é" * 257, "\ud800", 5, b"k"], ids=repr)
    async def test_a_key_that_the_service_refuses_is_refused_before_sending(
        self, world: World, key: Any
    ):
        """Case P6."""
        with pytest.raises(InvalidRecord, match="partition key") as caught:
            await publisher(world).publish(b"x", "orders", partition_key=key)

        assert caught.value.stream == "orders"
        assert world.calls == []


class TestSizes:
    async def test_the_last_byte_that_fits_and_one_more(self, world: World):
        """Case P4: the key counts with its bytes of UTF-8."""
        publish = publisher(world).publish

        await publish(b"x" * 1_048_570, "orders", partition_key="日本")
        with pytest.raises(InvalidRecord, match="1048577 bytes"):
            await publish(b"x" * 1_048_571, "orders", partition_key="日本")

        assert len(world.records("orders")) == 1

    async def test_the_envelope_counts(self, world: World):
        """Case P4: 8 bytes and a header line."""
        publish = publisher(world).publish
        line = len(b"a: b\n")
        fits = 1_048_576 - len(b"k") - 8 - line

        await publish(b"x" * fits, "orders", partition_key="k", headers={"a": "b"})
        with pytest.raises(InvalidRecord):
            await publish(b"x" * (fits + 1), "orders", partition_key="k", headers={"a": "b"})
        with pytest.raises(InvalidRecord):
            # Escaped into an envelope, since it looks like one.
            await publish(b"RSK1" + b"x" * (1_048_571 - 3), "orders", partition_key="k")

    async def test_a_stream_that_takes_more_is_asked_once(self, world: World):
        world.max_record_bytes = 10 * 1024 * 1024
        publish = publisher(world).publish

        for _ in range(3):
            await publish(b"x" * 2_000_000, "orders")
        with pytest.raises(InvalidRecord, match="limit of 10485760"):
            await publish(b"x" * 10_485_761, "orders")

        asked = [call for call in world.calls if call.operation == "describe_stream"]
        assert len(asked) == 1

    async def test_an_ordinary_record_asks_nothing(self, world: World):
        await publisher(world).publish(b"x", "orders")

        assert [call.operation for call in world.calls] == ["put_record"]

    async def test_asking_for_the_limit_is_tried_again_as_the_record_is(self, world: World):
        world.max_record_bytes = 10 * 1024 * 1024
        answers(world, "describe_stream", iter([refusal("LimitExceededException")] * 2))

        await world_moves(world, publisher(world).publish(b"x" * 2_000_000, "orders"))

        assert len(world.records("orders")) == 1


async def world_moves(world: World, work: Any) -> Any:
    """Await something while time passes."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await world.clock.advance(0.05)
    return task.result()


class TestTryingAgain:
    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("ProvisionedThroughputExceededException", 400),
            ("LimitExceededException", 400),
            ("KMSThrottlingException", 400),
            ("ThrottlingException", 400),
            ("ExpiredTokenException", 400),
            ("InternalFailure", 500),
            ("HTTP503", 503),
            ("HTTP429", 429),
            ("Timeout", None),
            ("ClientOSError", None),
        ],
    )
    async def test_what_passes_is_tried_again(self, world: World, code: str, status: int | None):
        answers(world, "put_record", iter([refusal(code, status)] * 3))

        await world_moves(world, publisher(world).publish(b"x", "orders", partition_key="k"))

        puts = [call for call in world.calls if call.operation == "put_record"]
        assert len(puts) == 4
        assert [each.data for each in world.records("orders")] == [b"x"]

    @pytest.mark.parametrize(
        "error",
        [
            AccessDenied("no", code="AccessDeniedException", status=400),
            StreamNotFound("no", code="ResourceNotFoundException", status=400),
            refusal("ValidationException"),
            refusal("InvalidArgumentException"),
            refusal("HTTP400"),
            refusal("SomethingNew", 403),
        ],
        ids=lambda error: error.code,
    )
    async def test_what_does_not_pass_fails_at_once(self, world: World, error: RequestError):
        answers(world, "put_record", iter([error]))

        with pytest.raises(PublishError, match=r"1 attempt\(s\)") as caught:
            await publisher(world).publish(b"x", "orders")

        assert caught.value.stream == "orders"
        assert caught.value.__cause__ is error
        assert world.clock.monotonic() == 0

    async def test_delays_grow_with_jitter_up_to_a_cap(self, world: World):
        at: list[float] = []

        async def refuse(call: Call) -> None:
            at.append(world.clock.monotonic())
            raise refusal("ProvisionedThroughputExceededException")

        world.hooks.append(refuse)
        with pytest.raises(PublishError):
            await world_moves(world, publisher(world, deadline=60).publish(b"x", "orders"))

        delays = [later - earlier for earlier, later in itertools.pairwise(at)]
        for step, delay in enumerate(delays):
            most = min(5.0, 0.1 * 2**step)
            assert 0.5 * most <= delay <= most
        assert max(delays) > 2.5
        assert len({round(delay / min(5.0, 0.1 * 2**n), 6) for n, delay in enumerate(delays)}) > 3

    @pytest.mark.parametrize("deadline", [0, 1, 30])
    async def test_it_ends_before_its_deadline_and_says_how_often_it_tried(
        self, world: World, deadline: float
    ):
        async def refuse(call: Call) -> None:
            raise refusal("InternalFailure", 500)

        world.hooks.append(refuse)
        with pytest.raises(PublishError, match=r"attempt\(s\)") as caught:
            await world_moves(world, publisher(world, deadline=deadline).publish(b"x", "orders"))

        assert world.clock.monotonic() <= deadline + 0.1
        assert f"({len(world.calls)} attempt(s))" in str(caught.value)

    async def test_the_stop_ends_the_waiting_for_another_try(self, world: World):
        async def refuse(call: Call) -> None:
            raise refusal("InternalFailure", 500)

        world.hooks.append(refuse)
        broker = world.broker()
        task = asyncio.ensure_future(KinesisPublisher(broker.connection).publish(b"x", "orders"))
        await until(lambda: len(world.calls) == 1)

        await broker.close()
        with pytest.raises(NotConnected):
            await world_moves(world, task)

        assert len(world.calls) == 1


class TestWithoutWaiting:
    async def test_the_future_ends_with_the_records_own_result(self, world: World):
        own = publisher(world)

        first = own.publish_nowait(b"1", "orders", partition_key="k")
        second = own.publish_nowait(b"2", "orders", partition_key="k")
        refused = own.publish_nowait(b"3", "orders", partition_key="")

        assert (await second).sequence_number == "2"
        assert (await first).sequence_number == "1"
        with pytest.raises(InvalidRecord):
            await refused

    async def test_records_reach_the_stream_in_the_order_of_the_calls(self, world: World):
        own = publisher(world)

        await asyncio.gather(*[own.publish_nowait(b"%d" % n, "orders") for n in range(20)])

        assert [each.data for each in world.records("orders")] == [b"%d" % n for n in range(20)]

    async def test_cancelling_one_leaves_the_others_alone(self, world: World):
        own = publisher(world)
        first, second = (own.publish_nowait(data, "orders") for data in (b"1", b"2"))

        first.cancel()
        await asyncio.wait({first, second})

        assert first.cancelled()
        assert second.result().sequence_number
