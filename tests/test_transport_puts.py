"""Puts, one and many, by both ways: what they ask, and what becomes of each entry."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import aiobotocore.session
import pytest
from aiobotocore.credentials import AioCredentials

from ruststream_kinesis._core import decode_put_records, encode_put_records
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import AccessDenied, NotConnected, RequestError, StreamNotFound
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.thin import ThinTransport
from ruststream_kinesis.transport import Failure, PutEntry, PutResult, judge
from tests.support.scripted import (
    Call,
    Reply,
    ScriptedKinesis,
    drop_connection,
    error,
    hang_after_headers,
    html,
    ok,
    raw,
    truncated,
)
from tests.support.transports import (
    STREAM,
    connected,
    open_transport,  # noqa: F401 - a fixture
    scripted_server,  # noqa: F401 - a fixture
)

ARN = StreamRef.parse("arn:aws:kinesis:us-east-1:123456789012:stream/orders")
HASH_KEY = "170141183460469231731687303715884105728"
ENTRIES = [
    PutEntry(b"", "k"),
    PutEntry(bytes(range(256)), '日本 \U0001f600 "\\\n\x00', HASH_KEY),
    PutEntry(b"c" * 1000, "k" * 256),
]


def thin(call: Call) -> bool:
    """Whether a request came by the short way: only botocore numbers its attempts."""
    return "amz-sdk-request" not in call.headers


def sent(call: Call) -> list[tuple[bytes, str, str | None]]:
    """The entries of a request."""
    records = call.body.get("Records", [call.body])
    return [
        (base64.b64decode(each["Data"]), each["PartitionKey"], each.get("ExplicitHashKey"))
        for each in records
    ]


@pytest.mark.parametrize("stream", [STREAM, ARN], ids=["name", "ARN"])
@pytest.mark.parametrize("entry", ENTRIES, ids=["empty", "odd", "long"])
async def test_a_put_sends_what_it_was_given(
    server: ScriptedKinesis, transport: AwsTransport, stream: StreamRef, entry: PutEntry
):
    data, key, hash_key = entry
    result = await transport.put_record(stream, data, key, explicit_hash_key=hash_key)
    (call,) = server.calls("PutRecord")
    assert sent(call) == [entry]
    assert ("ExplicitHashKey" in call.body) is (hash_key is not None)
    named = {name: call.body.get(name) for name in ("StreamName", "StreamARN")}
    assert named == {"StreamName": None, "StreamARN": None} | stream.parameters()
    assert result == PutResult("shardId-000000000000", str(10**20 + 1))
    assert thin(call) is isinstance(transport, ThinTransport)


@pytest.mark.parametrize("stream", [STREAM, ARN], ids=["name", "ARN"])
async def test_a_batch_is_one_request_and_has_a_result_for_each_entry(
    server: ScriptedKinesis, transport: AwsTransport, stream: StreamRef
):
    results = await transport.put_records(stream, ENTRIES)
    (call,) = server.calls("PutRecords")
    assert sent(call) == ENTRIES
    named = {name: call.body.get(name) for name in ("StreamName", "StreamARN")}
    assert named == {"StreamName": None, "StreamARN": None} | stream.parameters()
    assert results == [
        PutResult("shardId-000000000000", str(10**20 + number)) for number in (1, 2, 3)
    ]
    assert thin(call) is isinstance(transport, ThinTransport)


async def test_case_p5_no_entries_make_no_request(server: ScriptedKinesis, transport: AwsTransport):
    assert await transport.put_records(STREAM, []) == []
    assert server.requests == []


async def test_a_batch_as_large_as_the_service_takes_goes_through(
    server: ScriptedKinesis, transport: AwsTransport
):
    entries = [PutEntry(bytes([n % 256]) * 20_000, str(n)) for n in range(500)]
    results = await transport.put_records(STREAM, entries)
    (call,) = server.calls("PutRecords")
    assert sent(call) == entries
    assert len({result.sequence_number for result in results if isinstance(result, PutResult)}) == (
        500
    )


async def test_case_p1_an_entry_that_is_refused_has_an_error_of_its_own(
    server: ScriptedKinesis, transport: AwsTransport
):
    taken = {"ShardId": "s", "SequenceNumber": "7", "ErrorCode": None}
    codes = [
        "ProvisionedThroughputExceededException",
        "InternalFailure",
        "AccessDeniedException",
        "SomethingNew",
    ]
    refused = [{"ErrorCode": code, "ErrorMessage": "why\nso"} for code in codes]
    # One that says nothing at all is no success.
    records = [taken, *refused, {}, {"ShardId": "s"}]
    server.on("PutRecords", ok(FailedRecordCount=6, Records=records))
    first, *rest = await transport.put_records(STREAM, [PutEntry(b"x", "k")] * 7)
    assert first == PutResult("s", "7")
    errors = [each for each in rest if isinstance(each, RequestError)]
    assert [each.code for each in errors] == [*codes, "MalformedAnswer", "MalformedAnswer"]
    assert [type(each) for each in errors[:4]] == [
        RequestError,
        RequestError,
        AccessDenied,
        RequestError,
    ]
    assert all(each.stream == "orders" for each in errors)
    assert "why so" in str(errors[0])
    judged = [judge(each) for each in errors]
    assert judged == [Failure.PASSING] * 2 + [Failure.TERMINAL] + [Failure.PASSING] * 3


@pytest.mark.parametrize("records", [[], [{"ShardId": "s", "SequenceNumber": "1"}] * 3])
async def test_results_that_are_not_one_for_each_entry_belong_to_nobody(
    server: ScriptedKinesis, transport: AwsTransport, records: list[Any]
):
    server.on("PutRecords", ok(FailedRecordCount=0, Records=records))
    with pytest.raises(RequestError, match="results for 2 records") as caught:
        await transport.put_records(STREAM, [PutEntry(b"x", "k")] * 2)
    assert judge(caught.value) is Failure.PASSING


@pytest.mark.parametrize(
    "reply",
    [
        drop_connection(),
        truncated(ok(Records=[])),
        html(503),
        html(200),
        raw(b"", 500),
        raw(b"{"),
        raw(b"[]"),
        raw(b"null"),
        raw(b"{}"),
        raw(b""),
        raw(b'{"Records":7}'),
        raw(b'{"Records":[7]}'),
        raw(b'{"Records":[{"ShardId":7,"SequenceNumber":[]}]}'),
        raw(b'{"ShardId":"s","SequenceNumber":""}'),
        raw(b"\xff\xfe"),
        error("ProvisionedThroughputExceededException"),
        error("ExpiredTokenException"),
        error("InvalidSignatureException"),
    ],
    ids=lambda reply: type(reply).__name__,
)
async def test_no_answer_and_no_answer_of_the_service_is_passing_and_never_a_success(
    server: ScriptedKinesis, transport: AwsTransport, reply: Reply
):
    server.on("PutRecord", reply)
    server.on("PutRecords", reply)
    with pytest.raises(RequestError) as one:
        await transport.put_record(STREAM, b"x", "k")
    assert judge(one.value) is Failure.PASSING
    # Strings where they belong are seen by botocore's parser and ours; numbers only by ours.
    results: list[Any] = []
    try:
        results = await transport.put_records(STREAM, [PutEntry(b"x", "k")])
    except RequestError as many:
        results = [many]
    failures = [each for each in results if isinstance(each, RequestError)]
    if isinstance(transport, ThinTransport):
        assert len(failures) == 1
    assert all(judge(each) is Failure.PASSING for each in failures)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("ResourceNotFoundException", StreamNotFound), ("AccessDeniedException", AccessDenied)],
)
async def test_a_refused_request_is_an_error_as_a_whole(
    server: ScriptedKinesis, transport: AwsTransport, code: str, kind: type[RequestError]
):
    for target in ("PutRecord", "PutRecords"):
        server.on(target, error(code))
    with pytest.raises(kind):
        await transport.put_record(STREAM, b"x", "k")
    with pytest.raises(kind):
        await transport.put_records(STREAM, ENTRIES)


async def test_a_batch_without_an_answer_is_cut_off(server: ScriptedKinesis):
    for way in (ThinTransport, AwsTransport):
        async with connected(server, way=way, deadline=0.3) as transport:
            server.on("PutRecords", [hang_after_headers()])
            with pytest.raises(RequestError, match=r"no whole answer within 0\.3 s"):
                await transport.put_records(STREAM, ENTRIES)


async def test_a_lone_surrogate_is_an_error_and_nothing_is_sent(server: ScriptedKinesis):
    async with connected(server) as transport:
        with pytest.raises(RequestError):
            await transport.put_record(STREAM, b"x", "\ud800")
        with pytest.raises(RequestError):
            await transport.put_records(STREAM, [PutEntry(b"x", "\ud800")])
        assert server.requests == []


async def test_another_loop_puts_by_the_short_way_with_snapshots_of_the_credentials(
    server: ScriptedKinesis,
):
    session: Any = aiobotocore.session.AioSession()
    session._credentials = AioCredentials("OFTHEFIRSTLOOP", "secret")
    transport = ThinTransport(
        ClientSettings("us-east-1", server.url, session), SystemClock(), deadline=10.0
    )
    await transport.open()
    results: list[Any] = []

    def work() -> None:
        results.append(asyncio.run(transport.put_records(STREAM, ENTRIES)))

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join)
    (call,) = server.calls("PutRecords")
    assert thin(call)
    assert "Credential=OFTHEFIRSTLOOP/" in call.headers["Authorization"]
    assert [type(each) for each in results[0]] == [PutResult] * 3
    await transport.close()
    with pytest.raises(NotConnected):
        await transport.put_records(STREAM, ENTRIES)


async def test_a_put_is_signed_with_the_time_of_the_clock(server: ScriptedKinesis):
    transport = ThinTransport(
        ClientSettings("us-east-1", server.url, test_credentials=True),
        ManualClock(wall=1_000_000_000.0),
    )
    await transport.open()
    await transport.put_record(STREAM, b"x", "k")
    await transport.close()
    (call,) = server.calls("PutRecord")
    assert "20010909T014640Z" in set(call.headers.values())


# -- the core's part -------------------------------------------------------------------------------


def test_entries_are_any_sequence_of_threes_and_nothing_else():
    assert encode_put_records("s", None, ((b"x", "k", None),)) == (
        b'{"Records":[{"Data":"eA==","PartitionKey":"k"}],"StreamName":"s"}'
    )
    wrong: Any
    for wrong in (None, 7, [b"x"], [(b"x",)], [("x", "k", None)], [(b"x", 1, None)]):
        with pytest.raises((TypeError, ValueError)):
            encode_put_records("s", None, wrong)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"<html>", b'{"Records":[', b"\xff"])
def test_what_is_no_answer_is_a_value_error(body: bytes):
    with pytest.raises(ValueError, match="PutRecords"):
        decode_put_records(body)
