"""What the user hangs on a client stays in effect, and a client that we do not know is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from types import SimpleNamespace
from typing import Any

import aiobotocore.client
import aiobotocore.session
import pytest
import wrapt
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from botocore import UNSIGNED
from botocore.handlers import disable_signing
from botocore.monitoring import Monitor

from ruststream_kinesis.aws_client import Client
from ruststream_kinesis.aws_internals import Unfit, look_inside
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.thin import ThinTransport
from tests.support.scripted import Call, ScriptedKinesis, page
from tests.support.transports import (
    STREAM,
    connected,
    read,
    scripted_server,  # noqa: F401 - a fixture
)

WATCHED = [
    "provide-client-params",
    "before-parameter-build",
    "before-endpoint-resolution",
    "before-call",
    "request-created",
    "choose-signer",
    "before-sign",
    "before-parse",
    "response-received",
    "needs-retry",
    "after-call",
]


def thin(call: Call) -> bool:
    """Whether a request came by the short way: only botocore numbers its attempts."""
    return "amz-sdk-request" not in call.headers


def new_session() -> Any:
    return aiobotocore.session.AioSession()


async def way_of(server: ScriptedKinesis, caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    """Read twice; return which way that was, and `reason` if the log gave one."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "ruststream_kinesis"):
        async with connected(server, **settings) as transport:
            for _ in range(2):
                # Without a signature some answers are no page.
                with contextlib.suppress(KinesisError):
                    await read(transport)
    ways = {thin(call) for call in server.calls("GetRecords")}
    said = [each for each in caplog.records if "slower way" in each.message]
    assert len(ways) == 1
    if ways == {True}:
        assert said == []
        return "short"
    (reason,) = said
    return reason.levelname


@pytest.mark.parametrize("scope", ["", ".kinesis", ".kinesis.GetRecords"])
@pytest.mark.parametrize("event", WATCHED)
async def test_a_handler_that_may_change_a_call_keeps_the_client_on_its_own_way(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture, event: str, scope: str
):
    session, heard = new_session(), []
    session.register(f"{event}{scope}", lambda **_: heard.append(event))
    assert await way_of(server, caplog, session=session) == "INFO"
    # botocore names no operation in this one.
    assert heard or (event, scope) == ("before-endpoint-resolution", ".kinesis.GetRecords")


async def test_the_reason_is_told_once_however_many_loops_have_a_client(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    session = new_session()
    session.register("before-sign.kinesis", lambda **_: None)
    caplog.set_level(logging.INFO, "ruststream_kinesis")
    transport = ThinTransport(ClientSettings("us-east-1", server.url, session), SystemClock())
    session._credentials = AioCredentials("key", "secret")
    await transport.open()
    # As a second loop would.
    second = await transport._clients._connect(asyncio.get_running_loop())
    assert type(second.calls) is Client
    await second.life.aclose()
    await transport.close()
    assert len([each for each in caplog.records if "slower way" in each.message]) == 1


async def test_handlers_of_other_calls_and_services_do_not_matter(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    session = new_session()
    for name in ("before-sign.dynamodb", "before-call.kinesis.ListShards", "creating-client-class"):
        session.register(name, lambda **_: None)
    assert await way_of(server, caplog, session=session) == "short"


async def test_a_handler_of_a_kind_that_has_no_module_of_its_own_counts_too(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    class Handler:
        def __call__(self, **_: Any) -> None:
            pass

        def method(self, **_: Any) -> None:
            pass

    for handler in (functools.partial(lambda **_: None), Handler(), Handler().method):
        session = new_session()
        session.register("before-sign.kinesis", handler)
        server.requests.clear()
        assert await way_of(server, caplog, session=session) == "INFO"


async def test_botocores_own_switches_count_as_the_users(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    session = new_session()
    session.register("choose-signer.kinesis.*", disable_signing)
    assert await way_of(server, caplog, session=session) == "INFO"
    assert "Authorization" not in server.calls("GetRecords")[0].headers
    server.requests.clear()
    config = AioConfig(signature_version=UNSIGNED)
    assert await way_of(server, caplog, config=config) == "INFO"


async def test_the_monitoring_of_the_sdk_goes_on(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    session, fed = new_session(), []
    # What `AWS_CSM_ENABLED` makes, without its socket.
    adapter: Any = SimpleNamespace(feed=lambda name, _: fed.append(name))
    publisher: Any = None
    session.register("after-call", Monitor(adapter, publisher).capture)
    assert await way_of(server, caplog, session=session) == "INFO"
    assert "after-call.kinesis.GetRecords" in fed


@pytest.mark.parametrize("kind", ["function", "decorated", "proxy"])
async def test_a_tracer_around_the_clients_calls_sees_every_call(
    server: ScriptedKinesis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
):
    seen = []
    client_class: Any = aiobotocore.client.AioBaseClient
    real: Any = client_class._make_api_call

    async def traced(self: Any, operation: str, parameters: Any) -> Any:
        seen.append(operation)
        return await real(self, operation, parameters)

    async def proxied(wrapped: Any, _: Any, args: Any, more: Any) -> Any:
        seen.append(args[0])
        return await wrapped(*args, **more)

    tracers = {
        "function": traced,
        "decorated": functools.wraps(real)(traced),
        "proxy": wrapt.FunctionWrapper(real, proxied),
    }
    monkeypatch.setattr(client_class, "_make_api_call", tracers[kind])
    assert await way_of(server, caplog) == "INFO"
    assert "GetRecords" in seen


async def test_a_before_send_handler_sees_and_changes_what_is_sent(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    session, seen = new_session(), []

    def stamp(request: Any, **_: Any) -> None:
        seen.append((request.method, request.url, request.headers["x-amz-target"]))
        request.headers["X-Mine"] = "yes"

    session.register("before-send.kinesis.*", stamp)
    assert await way_of(server, caplog, session=session) == "short"
    assert seen.count(("POST", f"{server.url}/", "Kinesis_20131202.GetRecords")) == 2
    assert all(call.headers["X-Mine"] == "yes" for call in server.calls("GetRecords"))


async def test_a_before_send_handler_may_answer_by_itself(server: ScriptedKinesis):
    session = new_session()
    body = b'{"Records": [], "MillisBehindLatest": 5}'

    class Stub:
        status_code = 200
        headers: dict[str, str] = {}  # noqa: RUF012 - as botocore's own

        @property
        async def content(self) -> bytes:
            return body

    session.register("before-send.kinesis.GetRecords", lambda **_: Stub())
    async with connected(server, session=session) as transport:
        assert (await read(transport)).millis_behind_latest == 5
    assert server.calls("GetRecords") == []


async def test_a_session_class_of_the_users_own_sends_every_request(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
):
    sent = []

    class Watching(AIOHTTPSession):
        async def send(self, request: Any) -> Any:
            sent.append(request.headers["x-amz-target"])
            return await super().send(request)

    config = AioConfig(http_session_cls=Watching)
    assert await way_of(server, caplog, config=config) == "short"
    assert sent.count("Kinesis_20131202.GetRecords") == 2


# -- clients that we do not know -------------------------------------------------------------------


@pytest.mark.parametrize(
    "private",
    [
        "_endpoint.http_session",
        "_resolve_endpoint_ruleset",
        "_request_signer",
        "meta.events._emitter",
    ],
)
async def test_a_client_without_a_name_that_we_need_is_used_its_own_way_with_one_warning(
    server: ScriptedKinesis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    private: str,
):

    async def other_release(client: Any, operations: Any) -> Any:
        return await look_inside(_Without(client, private.split(".")), operations)

    monkeypatch.setattr("ruststream_kinesis.thin.look_inside", other_release)
    assert await way_of(server, caplog) == "WARNING"


class _Without:
    """A client as another release of aiobotocore might make it: one name is missing."""

    def __init__(self, real: Any, missing: list[str]) -> None:
        self._real = real
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        first, *rest = self._missing
        found = getattr(self._real, name)
        if name != first:
            return found
        if not rest:
            raise AttributeError(name, name=name, obj=self)
        return _Without(found, rest)


@pytest.mark.parametrize("fault", [TypeError("another signature"), ValueError("no such region")])
async def test_endpoint_rules_that_cannot_be_asked_are_found_at_the_start(fault: Exception):
    async with new_session().create_client("kinesis", region_name="us-east-1") as client:

        async def rules(*_: Any) -> Any:
            raise fault

        client._resolve_endpoint_ruleset = rules
        with pytest.raises(Unfit, match="endpoint rules") as caught:
            await look_inside(client, ("GetRecords",))
        assert not caught.value.expected


async def test_a_read_by_arn_goes_where_the_clients_own_rules_send_it():
    arn = "arn:aws:kinesis:us-west-2:123456789012:stream/orders"
    async with new_session().create_client("kinesis", region_name="us-west-2") as client:
        insides = await look_inside(client, ("GetRecords",))
        plain = await insides.rules("GetRecords", {})
        named = await insides.rules("GetRecords", {"StreamARN": arn})
    assert plain.url.startswith("https://kinesis.us-west-2.")
    assert named.url.startswith("https://123456789012.data-kinesis.us-west-2.")
    assert (named.region, named.service) == ("us-west-2", "kinesis")


async def test_the_rules_are_asked_once_for_a_stream(
    server: ScriptedKinesis,
):
    streams = [STREAM, StreamRef.parse("arn:aws:kinesis:us-east-1:123456789012:stream/orders")]
    server.on("GetRecords", page())
    async with connected(server) as transport:
        client: Any = await transport._client()
        asked, rules = [], client.plane._insides.rules

        async def counted(operation: str, parameters: Any) -> Any:
            asked.append((operation, dict(parameters)))
            return await rules(operation, parameters)

        client.plane._insides = dataclasses.replace(client.plane._insides, rules=counted)
        for stream in streams * 3:
            await transport.get_records(stream, "s", "it", 1)
    assert asked == [("GetRecords", {}), ("GetRecords", {"StreamARN": streams[1].arn})]
    assert [call.body.get("StreamARN") for call in server.requests] == [None, streams[1].arn] * 3
