"""The calls on real sockets: what they ask, and what their failures mean, by code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    KinesisError,
    NotConnected,
    PageError,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.transport import Failure, judge, patiently
from tests.support.replies import Shard
from tests.support.scripted import (
    Reply,
    ScriptedKinesis,
    drop_connection,
    error,
    html,
    ok,
    page,
    raw,
    record,
    truncated,
)
from tests.support.transports import (
    HORIZON,
    SHARD,
    STREAM,
    connected,
    open_transport,  # noqa: F401 - a fixture
    read,
    scripted_server,  # noqa: F401 - a fixture
)

# -- what a failure means --------------------------------------------------------------------------

PASSING = [
    ("ProvisionedThroughputExceededException", 400),
    ("LimitExceededException", 400),
    ("KMSThrottlingException", 400),
    ("ThrottlingException", 400),
    ("InternalFailure", 500),
    ("InternalFailureException", 500),
    ("ServiceUnavailable", 503),
    ("RequestExpired", 400),
    ("ExpiredTokenException", 400),
    ("InvalidSignatureException", 400),
    ("ResourceInUseException", 400),
    ("SomethingNew", 500),
    ("SomethingNew", 503),
    ("SomethingNew", 429),
    ("SomethingNew", 408),
]
ITERATOR = [("ExpiredIteratorException", 400), ("InvalidArgumentException", 400)]
TERMINAL = [
    ("AccessDeniedException", 400),
    ("KMSAccessDeniedException", 400),
    ("KMSDisabledException", 400),
    ("UnrecognizedClientException", 400),
    ("ResourceNotFoundException", 400),
    ("ValidationException", 400),
    ("SomethingNew", 400),
]


@pytest.mark.parametrize(
    ("code", "status", "failure"),
    [(*each, Failure.PASSING) for each in PASSING]
    + [(*each, Failure.ITERATOR) for each in ITERATOR]
    + [(*each, Failure.TERMINAL) for each in TERMINAL],
)
async def test_case_r5_a_failed_read_is_judged_by_its_code_and_never_by_its_message(
    server: ScriptedKinesis, transport: AwsTransport, code: str, status: int, failure: Failure
):
    # The text is somebody else's code: who matches messages is led astray.
    text = "AccessDeniedException ExpiredIteratorException ThrottlingException"
    server.on("GetRecords", error(code, status, text))
    with pytest.raises(RequestError) as caught:
        await read(transport)
    assert caught.value.code == code
    assert caught.value.status == status
    assert caught.value.stream == "orders"
    assert caught.value.shard_id == SHARD
    assert judge(caught.value) is failure


@pytest.mark.parametrize(
    "reply",
    [
        drop_connection(),
        truncated(page([record(1)])),
        truncated(page([record(1)]), keep=0),
        html(503),
        html(502),
        raw(b"", 500),
        raw(b"<html>", 500),
    ],
    ids=["dropped", "cut off", "headers alone", "503 page", "502 page", "empty 500", "HTML 500"],
)
@pytest.mark.parametrize("target", ["GetRecords", "GetShardIterator", "ListShards", "PutRecord"])
async def test_no_answer_or_a_balancers_answer_is_passing_in_every_call(
    server: ScriptedKinesis, transport: AwsTransport, reply: Reply, target: str
):
    server.on(target, reply)
    with pytest.raises(RequestError) as caught:
        match target:
            case "ListShards":
                await transport.list_shards(STREAM)
            case "PutRecord":
                await transport.put_record(STREAM, b"data", "key")
            case _:
                await read(transport)
    assert judge(caught.value) is Failure.PASSING


@pytest.mark.parametrize("body", [b"<html>", b"{", b"[]", b"7", b'"x"', b"null", b"", b"{}"])
@pytest.mark.parametrize(
    "target", ["DescribeStreamSummary", "GetShardIterator", "ListShards", "PutRecord"]
)
async def test_a_good_status_with_somebody_elses_body_is_a_passing_failure_and_no_empty_answer(
    server: ScriptedKinesis, transport: AwsTransport, body: bytes, target: str
):
    server.on(target, raw(body))
    with pytest.raises(RequestError) as caught:
        match target:
            case "DescribeStreamSummary":
                await transport.describe_stream(STREAM)
            case "ListShards":
                await transport.list_shards(STREAM)
            case "PutRecord":
                await transport.put_record(STREAM, b"data", "key")
            case _:
                await read(transport)
    assert judge(caught.value) is Failure.PASSING


@pytest.mark.parametrize(
    "body", [b"<html>", b"{", b"[]", b"7", b"null", b"", b"{}", b'{"Records":[{}]}', b"\xff\xfe"]
)
async def test_a_page_that_cannot_be_read_is_a_passing_failure(
    server: ScriptedKinesis, transport: AwsTransport, body: bytes
):
    server.on("GetRecords", raw(body))
    with pytest.raises(PageError) as caught:
        await read(transport)
    assert judge(caught.value) is Failure.PASSING


async def test_an_empty_iterator_is_no_iterator(server: ScriptedKinesis, transport: AwsTransport):
    server.on("GetShardIterator", ok(ShardIterator=""))
    with pytest.raises(RequestError, match="no ShardIterator"):
        await read(transport)


@pytest.mark.parametrize(
    "failed", [NotConnected("closed"), ConfigurationError("none"), KinesisError()]
)
def test_a_failure_without_a_request_is_terminal(failed: KinesisError):
    assert judge(failed) is Failure.TERMINAL


async def test_a_missing_stream_is_named_and_a_missing_shard_is_not_taken_for_it(
    server: ScriptedKinesis, transport: AwsTransport
):
    server.missing.add("orders")
    with pytest.raises(StreamNotFound, match="stream orders does not exist") as missing:
        await transport.describe_stream(STREAM)
    assert f"{server.url.removeprefix('http://')}, region" in str(missing.value)
    with pytest.raises(StreamNotFound):
        await transport.list_shards(STREAM)
    server.missing.clear()
    with pytest.raises(RequestError) as caught:
        await transport.get_shard_iterator(STREAM, "shardId-000000000009", HORIZON)
    assert not isinstance(caught.value, StreamNotFound)


async def test_access_that_is_denied_has_a_type_of_its_own(
    server: ScriptedKinesis, transport: AwsTransport
):
    server.on("GetRecords", error("AccessDeniedException"))
    with pytest.raises(AccessDenied):
        await read(transport)


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "after", "asked"),
    [
        (HORIZON, False, {"ShardIteratorType": "TRIM_HORIZON"}),
        (KinesisPosition.latest(), False, {"ShardIteratorType": "LATEST"}),
        (
            KinesisPosition.timestamp(1_700_000_000.5),
            False,
            {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.5},
        ),
        (
            KinesisPosition.sequence(SHARD, "42"),
            False,
            {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "42"},
        ),
        (
            KinesisPosition.sequence(SHARD, "42"),
            True,
            {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "42"},
        ),
    ],
)
async def test_each_position_is_asked_for_in_the_services_own_words(
    server: ScriptedKinesis,
    transport: AwsTransport,
    position: KinesisPosition,
    after: bool,
    asked: dict[str, Any],
):
    await transport.get_shard_iterator(STREAM, SHARD, position, after=after)
    (call,) = server.calls("GetShardIterator")
    body, asked = dict(call.body), dict(asked)
    if "Timestamp" in asked:
        # Seconds with a fraction: a second rounded down would only repeat, one up would lose.
        assert body.pop("Timestamp") == pytest.approx(asked.pop("Timestamp"), abs=0.001)
    assert body == {"StreamName": "orders", "ShardId": SHARD, **asked}


async def test_each_call_is_one_attempt_however_the_session_is_configured(server: ScriptedKinesis):
    from aiobotocore.config import AioConfig  # noqa: PLC0415 - only here

    config = AioConfig(retries={"total_max_attempts": 5, "mode": "adaptive"})
    server.on("GetRecords", error("InternalFailure", 500))
    async with connected(server, config=config) as transport:
        with pytest.raises(RequestError):
            await read(transport)
    assert len(server.calls("GetRecords")) == 1


async def test_a_stream_by_arn_is_named_by_its_arn_in_every_call(
    server: ScriptedKinesis, transport: AwsTransport
):
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    stream = StreamRef.parse(arn)
    await transport.describe_stream(stream)
    await transport.list_shards(stream)
    iterator = await transport.get_shard_iterator(stream, SHARD, HORIZON)
    await transport.get_records(stream, SHARD, iterator, 5)
    await transport.put_record(stream, b"x", "k")
    assert all(call.body["StreamARN"] == arn for call in server.requests)
    assert not any("StreamName" in call.body for call in server.requests)


async def test_the_page_comes_as_the_server_sent_it(
    server: ScriptedKinesis, transport: AwsTransport
):
    server.on("GetRecords", page([record(1, b"a"), record(2, b"b")], lag=7))
    got = await read(transport)
    assert got.payloads(0, 2) == [b"a", b"b"]
    assert got.millis_behind_latest == 7


# -- ListShards ------------------------------------------------------------------------------------


async def test_case_s6_three_pages_are_one_listing_and_only_the_first_names_the_stream():
    names = [f"shardId-{n:012}" for n in range(2_500)]
    async with ScriptedKinesis(names) as server, connected(server) as transport:
        listing = await transport.list_shards(STREAM)
        assert [shard.shard_id for shard in listing.shards] == names
        first, second, third = server.calls("ListShards")
        assert first.body["StreamName"] == "orders"
        for call in (second, third):
            assert "StreamName" not in call.body
            assert "StreamARN" not in call.body
            assert call.body["NextToken"]


async def test_case_s6_a_token_that_expired_restarts_the_listing_from_its_first_page():
    names = [f"shardId-{n:012}" for n in range(2_500)]
    async with ScriptedKinesis(names) as server, connected(server) as transport:
        server.inject(
            lambda call: call.target == "ListShards" and call.body.get("NextToken") == "token-2000",
            [error("ExpiredNextTokenException")],
        )
        listing = await transport.list_shards(STREAM)
        assert [shard.shard_id for shard in listing.shards] == names
        assert [call.body.get("NextToken") for call in server.calls("ListShards")] == [
            None,
            "token-1000",
            "token-2000",
            None,
            "token-1000",
            "token-2000",
        ]


async def test_a_token_that_always_expires_is_an_error_and_no_endless_listing(
    server: ScriptedKinesis, transport: AwsTransport
):
    server.on("ListShards", error("ExpiredNextTokenException"))
    with pytest.raises(RequestError, match="ExpiredNextTokenException"):
        await transport.list_shards(STREAM)
    assert len(server.calls("ListShards")) < 10


async def test_the_time_of_a_listing_is_the_services_own(
    server: ScriptedKinesis, transport: AwsTransport
):
    server.clock = lambda: 1_234_567_890.0
    assert (await transport.list_shards(STREAM)).service_time == 1_234_567_890.0


@pytest.mark.parametrize("date", ["", "yesterday"])
async def test_a_listing_without_a_readable_date_has_the_local_time(
    server: ScriptedKinesis, date: str
):
    clock = ManualClock(wall=42.0)
    transport = AwsTransport(
        ClientSettings("us-east-1", server.url, test_credentials=True), clock, deadline=10.0
    )
    await transport.open()
    body = b'{"Shards": [{"ShardId": "S"}]}'
    from tests.support.replies import Answer  # noqa: PLC0415 - only here

    server.on("ListShards", Answer(200, body, {"Date": date}))
    assert (await transport.list_shards(STREAM)).service_time == 42.0
    await transport.close()


async def test_both_parents_of_a_merge_are_told(server: ScriptedKinesis, transport: AwsTransport):
    shard = {"ShardId": "C", "ParentShardId": "A", "AdjacentParentShardId": "B"}
    server.on("ListShards", ok(Shards=[shard]))
    (info,) = (await transport.list_shards(STREAM)).shards
    assert info.parents == ("A", "B")


async def test_the_hash_keys_of_a_shard_are_told_and_whether_it_has_ended(
    server: ScriptedKinesis, transport: AwsTransport
):
    ended = Shard("A", first_hash=5, last_hash=7, ending_sequence_number="200")
    bare = {"ShardId": "C", "HashKeyRange": None, "SequenceNumberRange": None}
    server.on("ListShards", ok(Shards=[ended.listed(), Shard("B").listed(), bare]))
    found = (await transport.list_shards(STREAM)).shards
    assert [(each.hash_keys, each.ended) for each in found] == [
        (("5", "7"), True),
        (("0", str(2**128 - 1)), False),
        (None, False),
    ]


# -- patience --------------------------------------------------------------------------------------


async def test_what_a_start_needs_is_asked_for_again_while_the_failure_is_passing():
    clock, calls = ManualClock(), 0

    async def call() -> int:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise RequestError(code="LimitExceededException", status=400)
        return calls

    asking = asyncio.create_task(patiently(call, clock))
    await clock.advance(60)
    assert await asking == 4


@pytest.mark.parametrize(
    ("code", "tries"), [("LimitExceededException", 7), ("ResourceNotFoundException", 1)]
)
async def test_a_start_gives_up_after_some_tries_and_at_once_where_none_can_help(
    code: str, tries: int
):
    clock, calls = ManualClock(), 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise RequestError(code=code, status=400)

    asking = asyncio.create_task(patiently(call, clock))
    await clock.advance(60)
    with pytest.raises(RequestError):
        await asking
    assert calls == tries
