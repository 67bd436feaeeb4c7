"""The short way of the hot calls: what it sends, what it makes of an answer, whose settings hold."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import aiobotocore.session
import aiohttp
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from botocore.credentials import ReadOnlyCredentials

from ruststream_kinesis import KinesisBroker
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.aws_errors import translated
from ruststream_kinesis.errors import (
    ConfigurationError,
    KinesisError,
    NotConnected,
    PageError,
    RequestError,
)
from ruststream_kinesis.thin import _GET_RECORDS, ThinTransport, _call
from ruststream_kinesis.transport import Failure, judge
from tests.support.replies import Answer
from tests.support.scripted import Call, ScriptedKinesis, error, html, page, raw, record
from tests.support.transports import (
    HORIZON,
    SHARD,
    STREAM,
    connected,
    read,
    scripted_server,  # noqa: F401 - a fixture
)

GZIPPED = {"Content-Encoding": "gzip"}


def thin(call: Call) -> bool:
    """Whether a request came by the short way: only botocore numbers its attempts."""
    return "amz-sdk-request" not in call.headers


def headers(call: Call) -> dict[str, str]:
    """The headers of a request, names in lower case: nobody looks at it."""
    return {name.lower(): value for name, value in call.headers.items()}


async def reads(server: ScriptedKinesis, count: int = 1, **settings: Any) -> list[Call]:
    """Read through a transport with these settings, and return what came of it."""
    async with connected(server, **settings) as transport:
        for _ in range(count):
            await read(transport)
    return server.calls("GetRecords")


# -- what is sent ----------------------------------------------------------------------------------


async def test_a_read_is_the_request_that_botocore_would_send(server: ScriptedKinesis):
    (ours,) = await reads(server)
    _, theirs = await reads(server, way=AwsTransport)
    assert thin(ours)
    assert not thin(theirs)
    mine, other = headers(ours), headers(theirs)
    assert set(other) - set(mine) == {"amz-sdk-invocation-id", "amz-sdk-request"}
    # What is never the same: the time, the iterator's length, features that botocore counts.
    for name in set(mine) - {"authorization", "x-amz-date", "user-agent", "content-length"}:
        assert mine[name] == other[name], name
    assert ours.path == theirs.path
    assert set(ours.body) == set(theirs.body)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"user_agent_extra": "team/payments"},
        {"user_agent": "mine/1.0"},
        {"user_agent_appid": "orders"},
    ],
    ids=repr,
)
async def test_the_user_agent_is_botocores(server: ScriptedKinesis, settings: dict[str, Any]):
    config = AioConfig(**settings)
    (ours,) = await reads(server, config=config)
    _, theirs = await reads(server, config=config, way=AwsTransport)
    said = [re.sub(r" m/\S+", "", call.headers["User-Agent"]) for call in (ours, theirs)]
    assert said[0] == said[1]
    assert all(value in said[0] for value in settings.values())


async def test_a_path_of_the_endpoint_stays(server: ScriptedKinesis):
    (call,) = await reads(server, endpoint_url=f"{server.url}/proxy/kinesis")
    assert call.path == "/proxy/kinesis"


class Rotating(AioCredentials):
    """New keys for every request, as a role gives them for every hour."""

    def __init__(self) -> None:
        super().__init__("unused", "unused")
        self.asked = 0

    async def get_frozen_credentials(self) -> Any:  # type: ignore[override]  # as AioCredentials
        self.asked += 1
        return ReadOnlyCredentials(f"KEY{self.asked}", "secret", f"token{self.asked}", None)


async def test_every_read_is_signed_with_what_the_credentials_are_at_that_moment(
    server: ScriptedKinesis,
):
    session: Any = aiobotocore.session.AioSession()
    session._credentials = Rotating()
    calls = await reads(server, 3, session=session, test_credentials=False)
    for sent in map(headers, calls):
        number = sent["x-amz-security-token"].removeprefix("token")
        assert f"Credential=KEY{number}/" in sent["authorization"]
    assert len({headers(call)["authorization"] for call in calls}) == 3


class Gone(AioCredentials):
    """Credentials that have ended."""

    def __init__(self) -> None:
        super().__init__("unused", "unused")

    async def get_frozen_credentials(self) -> Any:  # type: ignore[override]  # as AioCredentials
        return None


async def test_credentials_that_have_ended_are_named(server: ScriptedKinesis):
    session: Any = aiobotocore.session.AioSession()
    session._credentials = Gone()
    async with connected(server, session=session, test_credentials=False) as transport:
        with pytest.raises(ConfigurationError, match=r"cannot get records: .*credentials"):
            await transport.get_records(STREAM, SHARD, "it", 1)


async def test_a_proxy_of_the_users_configuration_is_used(server: ScriptedKinesis):
    config = AioConfig(proxies={"http": server.url})
    (call,) = await reads(server, endpoint_url="http://kinesis.invalid", config=config)
    assert thin(call)
    assert call.headers["Host"] == "kinesis.invalid"


async def test_a_read_after_the_close_says_so(server: ScriptedKinesis):
    async with connected(server) as transport:
        await read(transport)
        client: Any = await transport._client()
    with pytest.raises(NotConnected):
        await transport.get_records(STREAM, SHARD, "it", 1)
    # One that has its client already finds the HTTP session closed.
    with pytest.raises(NotConnected):
        await _call(client, _GET_RECORDS, STREAM, SHARD, b"")


# -- what comes back -------------------------------------------------------------------------------


async def failed(server: ScriptedKinesis) -> KinesisError:
    """Return how a read fails."""
    async with connected(server) as transport:
        with pytest.raises(KinesisError) as caught:
            await read(transport)
    assert thin(server.calls("GetRecords")[-1])
    return caught.value


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (
            Answer(400, b"{}", {"x-amzn-errortype": "LimitExceededException:http://a/b"}),
            "LimitExceededException",
        ),
        (raw(b'{"__type":"com.amazon#LimitExceededException"}', 400), "LimitExceededException"),
        (raw(b'{"__type":7}', 400), "HTTP400"),
        (raw(b'{"__type":{}}', 500), "HTTP500"),
        (raw(b"[]", 400), "HTTP400"),
        (raw(b'"x"', 503), "HTTP503"),
        (raw(b"\xff\xfe", 500), "HTTP500"),
        (raw(b"", 502), "HTTP502"),
        (html(403), "HTTP403"),
        (html(301), "HTTP301"),
    ],
)
async def test_a_refusal_has_the_code_that_it_names_or_its_status(
    server: ScriptedKinesis, answer: Answer, code: str
):
    server.on("GetRecords", answer)
    refusal = await failed(server)
    assert isinstance(refusal, RequestError)
    assert (refusal.code, refusal.status) == (code, answer.status)
    assert (refusal.stream, refusal.shard_id) == ("orders", SHARD)


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ExpiredIteratorException",
        "AccessDeniedException",
        "UnrecognizedClientException",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "ResourceNotFoundException",
        "SomethingNew",
    ],
)
async def test_both_ways_make_the_same_error_of_the_same_answer(server: ScriptedKinesis, code: str):
    server.on("GetRecords", error(code, message="what\n it said"))
    caught = []
    for way in (ThinTransport, AwsTransport):
        async with connected(server, way=way) as transport:
            with pytest.raises(RequestError) as raised:
                await read(transport)
            caught.append(raised.value)
    ours, theirs = caught
    assert type(ours) is type(theirs)
    assert (str(ours), vars(ours)) == (str(theirs), vars(theirs))


async def test_an_answer_that_came_packed_unasked_is_unpacked(server: ScriptedKinesis):
    body = json.dumps({"Records": [record(1, b"x" * 5000)], "MillisBehindLatest": 0}).encode()
    server.on("GetRecords", Answer(200, gzip.compress(body), GZIPPED))
    async with connected(server) as transport:
        assert (await read(transport)).payloads(0, 1) == [b"x" * 5000]
    (call,) = server.calls("GetRecords")
    assert call.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(b'{"Records":[]}')[:-9], GZIPPED),
        (b'{"Records":[]}', GZIPPED),
        (b"", GZIPPED),
        (gzip.compress(b"\0" * 80_000_000), GZIPPED),
        (b"\x1b\x0d\x00", {"Content-Encoding": "br"}),
    ],
    ids=["cut off", "not packed", "empty", "a bomb", "another packing"],
)
async def test_an_answer_that_cannot_be_unpacked_is_a_passing_failure(
    server: ScriptedKinesis, body: bytes, headers: dict[str, str]
):
    server.on("GetRecords", Answer(200, body, headers))
    refusal = await failed(server)
    assert isinstance(refusal, RequestError)
    assert refusal.code == "ContentEncodingError"
    assert judge(refusal) is Failure.PASSING


async def test_a_packed_refusal_is_read(server: ScriptedKinesis):
    body = gzip.compress(b'{"__type":"ThrottlingException"}')
    server.on("GetRecords", Answer(400, body, GZIPPED))
    refusal = await failed(server)
    assert isinstance(refusal, RequestError)
    assert refusal.code == "ThrottlingException"


async def test_a_page_of_somebody_else_is_a_passing_failure(server: ScriptedKinesis):
    server.on("GetRecords", html(200))
    assert isinstance(await failed(server), PageError)


def test_the_clients_own_time_out_is_not_taken_for_ours():
    with pytest.raises(RequestError) as caught, translated("get_records", STREAM, SHARD, 30.0):
        raise aiohttp.ConnectionTimeoutError
    assert caught.value.code == "ConnectionTimeoutError"
    assert judge(caught.value) is Failure.PASSING


# -- clocks ----------------------------------------------------------------------------------------


def minute_of(call: Call) -> str:
    """Date and time of a signature, up to its minute."""
    return headers(call)["x-amz-date"][:13]


@pytest.mark.parametrize("code", ["InvalidSignatureException", "RequestTimeTooSkewed"])
async def test_a_clock_that_is_off_is_corrected_by_the_services(server: ScriptedKinesis, code: str):
    server.clock = lambda: 2_000_000_000.0
    server.on("GetRecords", [error(code), page(), error("ThrottlingException")])
    async with connected(server) as transport:
        for _ in range(4):
            try:
                await read(transport)
            except RequestError as refusal:
                assert judge(refusal) is Failure.PASSING  # noqa: PT017 - two of four fail
    first, *later = server.calls("GetRecords")
    assert minute_of(first) != "20330518T0333"
    assert [minute_of(call) for call in later] == ["20330518T0333"] * 3


@pytest.mark.parametrize("date", ["", "yesterday", None])
async def test_a_wrong_secret_or_an_odd_date_does_not_move_the_clock(
    server: ScriptedKinesis, date: str | None
):
    headers = {} if date is None else {"Date": date}
    server.on("GetRecords", [error("InvalidSignatureException", headers=headers), page()])
    async with connected(server) as transport:
        with pytest.raises(RequestError):
            await read(transport)
        await read(transport)
        client: Any = await transport._client()
        assert client.plane._skew == 0.0


async def test_a_clock_that_was_set_right_is_trusted_again(server: ScriptedKinesis):
    now = server.clock
    refusal = error("InvalidSignatureException")
    server.on("GetRecords", [refusal, refusal])
    async with connected(server) as transport:
        iterator = await transport.get_shard_iterator(STREAM, SHARD, HORIZON)
        client: Any = await transport._client()
        seen = []
        for clock in (lambda: now() - 3600, now):
            server.clock = clock
            with pytest.raises(RequestError):
                await transport.get_records(STREAM, SHARD, iterator, 1)
            seen.append(client.plane._skew)
    assert seen == [pytest.approx(-3600, abs=5), 0.0]


# -- the broker ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "way"), [("thin", ThinTransport), ("botocore", AwsTransport)])
async def test_the_broker_takes_the_way_that_it_is_told(
    server: ScriptedKinesis, name: Any, way: type[AwsTransport]
):
    broker = KinesisBroker(endpoint_url=server.url, test_credentials=True, transport=name)
    await broker.connect()
    assert type(broker.connection.transport) is way
    await broker.close()


async def test_the_short_way_is_the_usual_one(server: ScriptedKinesis):
    broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
    await broker.connect()
    assert type(broker.connection.transport) is ThinTransport
    await broker.close()


@pytest.mark.parametrize("name", ["Thin", "", "rust", None, ["thin"]])
def test_another_way_is_refused_at_construction(name: Any):
    with pytest.raises(ConfigurationError, match="transport must be one of 'thin', 'botocore'"):
        KinesisBroker(transport=name)
