"""Which clients' hot calls go over connections of our own, and that their settings hold there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiobotocore.session
import aiohttp
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession

from ruststream_kinesis._core import Page, Signer
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import NotConnected, RequestError
from ruststream_kinesis.exchange import Origin
from ruststream_kinesis.plane import SessionEnded, _asked
from ruststream_kinesis.thin import ThinTransport
from ruststream_kinesis.transport import Failure, judge
from tests.support.certificates import Authority
from tests.support.raw_http import Act, RawServer, Step, answer, chunked
from tests.support.scripted import ScriptedKinesis
from tests.support.transports import (
    SHARD,
    STREAM,
    connected,
    read,
    scripted_server,  # noqa: F401 - a fixture
)

EMPTY = b'{"Records":[],"NextShardIterator":"next","MillisBehindLatest":0}'


@contextlib.asynccontextmanager
async def transport_to(url: str, **settings: Any) -> AsyncIterator[ThinTransport]:
    """Open a transport to any server."""
    known = {"endpoint_url": url, "test_credentials": True, "region": "us-east-1"}
    transport = ThinTransport(ClientSettings(**{**known, **settings}), SystemClock(), deadline=10.0)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def get(transport: ThinTransport) -> bytes:
    """Return the body of one read."""
    return await transport.get_records(STREAM, SHARD, "iterator", 10)


async def route_of(transport: Any) -> Any:
    """Return the route of reads."""
    client = await transport._client()
    (route,) = client.plane._routes.values()
    return route


# -- which way -------------------------------------------------------------------------------------


async def is_ours(server: ScriptedKinesis, **settings: Any) -> bool:
    """Read, and return whether that went over a connection of our own."""
    async with connected(server, **settings) as transport:
        assert isinstance(await read(transport), Page)
        route = await route_of(transport)
        assert len(server.calls("GetRecords")) == 1
        return route.exchange is not None


async def test_a_client_as_it_comes_has_connections_of_our_own(server: ScriptedKinesis):
    assert await is_ours(server)


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_dns_cache": False},
        {"force_close": True, "keepalive_timeout": None},
        {"keepalive_timeout": 3, "ttl_dns_cache": 1},
    ],
    ids=repr,
)
async def test_a_connector_with_arguments_of_the_users_own_stays_aiohttps(
    server: ScriptedKinesis, arguments: dict[str, Any]
):
    assert not await is_ours(server, config=AioConfig(connector_args=arguments))


async def test_a_keepalive_of_the_users_own_holds_for_ours(server: ScriptedKinesis):
    config = AioConfig(connector_args={"keepalive_timeout": 3}, max_pool_connections=7)
    async with connected(server, config=config.merge(AioConfig(read_timeout=8))) as transport:
        await read(transport)
        settings = (await route_of(transport)).exchange._settings
        assert (settings.keepalive, settings.limit) == (3, 7)
        assert (settings.connect_timeout, settings.read_timeout) == (5.0, 8)
        # The client asks for TCP keep-alive; aiohttp would not set it.
        assert settings.options


async def test_a_proxy_a_watcher_and_a_session_class_stay_with_the_client(
    server: ScriptedKinesis,
):
    class Own(AIOHTTPSession):
        pass

    session: Any = aiobotocore.session.AioSession()
    session.register("before-send.kinesis.*", lambda **_: None)
    proxy = AioConfig(proxies={"http": server.url})
    for settings in (
        {"session": session},
        {"config": AioConfig(http_session_cls=Own)},
        {"config": proxy, "endpoint_url": "http://kinesis.invalid"},
    ):
        server.requests.clear()
        assert not await is_ours(server, **settings)


@pytest.mark.parametrize("kind", ["function", "decorated"])
async def test_a_tracer_in_aiohttps_place_keeps_seeing_the_requests(
    server: ScriptedKinesis, monkeypatch: pytest.MonkeyPatch, kind: str
):
    real: Any = aiohttp.ClientSession._request
    seen = []

    async def traced(self: Any, *args: Any, **more: Any) -> Any:
        seen.append(args)
        return await real(self, *args, **more)

    wrapped = functools.wraps(real)(traced) if kind == "decorated" else traced
    monkeypatch.setattr(aiohttp.ClientSession, "_request", wrapped)
    assert not await is_ours(server)
    assert seen


async def test_aiohttps_own_hooks_keep_seeing_the_requests(
    server: ScriptedKinesis, monkeypatch: pytest.MonkeyPatch
):
    hooks, seen, real = aiohttp.TraceConfig(), [], aiohttp.ClientSession.__init__

    async def started(_: Any, __: Any, request: aiohttp.TraceRequestStartParams) -> None:
        seen.append(request.headers["X-Amz-Target"])

    hooks.on_request_start.append(started)

    def init(self: Any, *args: Any, **more: Any) -> None:
        real(self, *args, trace_configs=[hooks], **more)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", init)
    assert not await is_ours(server)
    assert "Kinesis_20131202.GetRecords" in seen


@pytest.mark.parametrize("missing", ["_connector_args", "_socket_options"])
async def test_a_release_without_a_name_that_we_need_stays_with_aiohttp(
    server: ScriptedKinesis, missing: str
):
    async with connected(server) as transport:
        client: Any = await transport._client()
        http = client.kinesis._endpoint.http_session
        await http._get_session(None)
        delattr(http, missing)
        await read(transport)
        route = await route_of(transport)
        assert route.exchange is None
        assert route.session is not None
        setattr(http, missing, {})


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "origin", "start"),
    [
        (
            "https://host.example/",
            ("host.example", 443, True),
            "POST / HTTP/1.1\r\nHost: host.example\r\n",
        ),
        (
            "http://host:4567/a/b?c=d",
            ("host", 4567, False),
            "POST /a/b?c=d HTTP/1.1\r\nHost: host:4567\r\n",
        ),
        ("http://[::1]:8000/", ("::1", 8000, False), "POST / HTTP/1.1\r\nHost: [::1]:8000\r\n"),
        ("https://h:80/", ("h", 80, True), "POST / HTTP/1.1\r\nHost: h:80\r\n"),
        ("http://h:80/", ("h", 80, False), "POST / HTTP/1.1\r\nHost: h\r\n"),
    ],
)
def test_the_first_lines_name_what_the_signature_covers(
    url: str, origin: tuple[str, int, bool], start: str
):
    assert _asked(url) == (Origin(*origin), start.encode())


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_a_header_that_would_be_two_is_refused(value: str):
    with pytest.raises(ValueError, match="does not fit into HTTP"):
        Signer("http://h/", "r", "kinesis", {}, {"User-Agent": value})


def test_a_head_has_the_headers_of_a_signed_request_and_the_length():
    signer = Signer("http://h/", "r", "kinesis", {"X-Amz-Target": "t"}, {"Accept": "*/*"})
    keys = (b"{}", "key", "secret", "token", 1e9)
    start, *lines, end, nothing = signer.head(b"START\r\n", *keys).decode().split("\r\n")
    assert (start, end, nothing) == ("START", "", "")
    expected = {**signer.sign(*keys), "Content-Length": "2"}
    assert dict(line.split(": ", 1) for line in lines) == expected


# -- what comes back -------------------------------------------------------------------------------


async def test_reads_and_puts_share_the_connections_of_the_client():
    put = b'{"ShardId":"shardId-0","SequenceNumber":"7"}'
    async with (
        RawServer((answer(EMPTY),), (chunked(put[:9], put[9:]),), (answer(EMPTY),)) as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        assert await get(transport) == EMPTY
        assert (await transport.put_record(STREAM, b"x", "k")).sequence_number == "7"
        assert await get(transport) == EMPTY
        assert server.connections == 1


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ((Act.CLOSE,), "ConnectionEnded"),
        ((answer(EMPTY)[:-3], Act.CLOSE), "ConnectionEnded"),
        ((b"<html>busy</html>\r\n\r\n", Act.CLOSE), "BadAnswer"),
    ],
)
async def test_no_answer_is_a_passing_failure(step: Step, code: str):
    async with (
        RawServer(step) as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        with pytest.raises(RequestError) as caught:
            await get(transport)
        assert caught.value.code == code
        assert judge(caught.value) is Failure.PASSING
        assert await get(transport) == b"{}"


async def test_connections_end_with_the_transport_and_a_read_after_it_says_so():
    async with RawServer((answer(EMPTY),)) as server:
        async with transport_to(f"http://127.0.0.1:{server.port}") as transport:
            await get(transport)
            client: Any = await transport._client()
            await server.until_open(1)
        await server.until_open(0)
        with pytest.raises(NotConnected):
            await get(transport)
        with pytest.raises(SessionEnded):
            await client.plane.call("GetRecords", None, b"")


def test_the_end_of_a_loop_closes_the_connections_of_its_client():
    async def main() -> None:
        async with RawServer((answer(EMPTY),), (answer(EMPTY),)) as server:
            url = f"http://127.0.0.1:{server.port}"
            async with transport_to(url) as transport:
                await get(transport)

                def thread() -> None:
                    # Nobody closes anything in this one: the loop does, at its end.
                    asyncio.run(get(transport))

                await asyncio.to_thread(thread)
                await server.until_open(1)
                assert server.connections == 2

    asyncio.run(main())


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(name="authority")
def new_authority(tmp_path: Path) -> Authority:
    """Make an authority that the machine does not trust."""
    return Authority(tmp_path)


def trusting(bundle: Path) -> Any:
    """Return a session with a CA bundle."""
    session: Any = aiobotocore.session.AioSession()
    session.set_config_variable("ca_bundle", str(bundle))
    return session


async def test_the_bundle_of_the_client_is_what_is_trusted(authority: Authority):
    body = EMPTY + b" " * 2_000_000
    async with RawServer((answer(body),), (answer(EMPTY),), tls=authority.server()) as server:
        session = trusting(authority.bundle)
        async with transport_to(f"https://localhost:{server.port}", session=session) as transport:
            assert await get(transport) == body
            assert await get(transport) == EMPTY
            assert server.connections == 1
            assert (await route_of(transport)).exchange is not None


async def test_a_certificate_that_the_client_does_not_trust_is_refused(
    authority: Authority, tmp_path: Path
):
    other = Authority(tmp_path, "other")
    async with RawServer(tls=authority.server()) as server:
        session = trusting(other.bundle)
        async with transport_to(f"https://localhost:{server.port}", session=session) as transport:
            with pytest.raises(RequestError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await get(transport)
            assert caught.value.code == "ConnectFailed"
        assert server.requests == []


async def test_a_certificate_for_another_host_is_refused(authority: Authority):
    async with RawServer(tls=authority.server("kinesis.example")) as server:
        session = trusting(authority.bundle)
        async with transport_to(f"https://localhost:{server.port}", session=session) as transport:
            with pytest.raises(RequestError, match="CERTIFICATE_VERIFY_FAILED"):
                await get(transport)
        assert server.requests == []


async def test_a_client_certificate_of_the_configuration_is_shown(authority: Authority):
    own = authority.certificate("me")
    config = AioConfig(client_cert=(str(own.chain), str(own.key)))
    tls = authority.server(asks_for_clients=True)
    async with RawServer((answer(EMPTY),), tls=tls) as server:
        session, url = trusting(authority.bundle), f"https://localhost:{server.port}"
        async with transport_to(url, session=session, config=config) as transport:
            assert await get(transport) == EMPTY
            assert (await route_of(transport)).exchange is not None
        async with transport_to(url, session=session) as transport:
            with pytest.raises(RequestError):
                await get(transport)


def test_tls_on_the_other_loop(authority: Authority):
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        body = EMPTY + b" " * 2_000_000
        async with RawServer((answer(body),), (Act.CLOSE,), tls=authority.server()) as server:
            session, url = trusting(authority.bundle), f"https://localhost:{server.port}"
            async with transport_to(url, session=session) as transport:
                assert await get(transport) == body
                # Closed at its second request: sent again on a new connection.
                assert await get(transport) == b"{}"
                assert server.connections == 2

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_the_context_is_the_one_that_the_session_made():
    async def main() -> None:
        async with transport_to("http://127.0.0.1:1") as transport:
            with pytest.raises(RequestError, match="ConnectFailed"):
                await get(transport)
            route = await route_of(transport)
            assert isinstance(route.exchange._settings.tls, ssl.SSLContext)
            assert route.exchange._settings.tls is route.session.connector._ssl

    asyncio.run(main())
