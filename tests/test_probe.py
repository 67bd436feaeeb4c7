"""The HTTP endpoint beside a service: what it answers when, and that it never delays a stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.metrics import app_metrics
from ruststream_kinesis.probe import Probe
from tests.support.world import PATIENCE, Call, World, until

if TYPE_CHECKING:
    from ruststream_kinesis import RustStream

ANYWHERE = "127.0.0.1:0"


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    return world


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def application(world: World) -> RustStream:
    app = world.app()

    @app.subscriber("orders")
    async def handle(payload: bytes) -> None:
        pass

    return app


@contextlib.asynccontextmanager
async def probed(app: RustStream, probe: Probe) -> AsyncIterator[str]:
    """Run an application until the block ends; yields the probe's address once it is ready."""
    started = asyncio.Event()
    running = asyncio.create_task(app.run(signals=False, probe=probe, started=started.set))
    async with asyncio.timeout(PATIENCE):
        await started.wait()
        assert probe.url is not None
        try:
            yield probe.url
        finally:
            app.stop()
            await running


async def test_a_service_at_work_answers_on_every_route(world: World, http: aiohttp.ClientSession):
    app = application(world)
    async with probed(app, Probe(ANYWHERE)) as url:
        await world.clock.advance(1.0)
        for path in ("/live", "/ready"):
            async with http.get(url + path) as answer:
                assert answer.status == 200
                assert await answer.json() == {"live": True, "ready": True, "reasons": []}
        async with http.get(f"{url}/state") as answer:
            state = await answer.json()
            assert state["subscriptions"][0]["shards"][0]["shard_id"] == "shardId-000000000000"
            assert state["instance"] == app.state().instance
            assert state["health"]["ready"] is True
        async with http.get(f"{url}/") as answer:
            assert answer.content_type == "text/html"
            assert "sha256-" in answer.headers["Content-Security-Policy"]
        async with http.get(f"{url}/metrics") as answer:
            text = await answer.text()
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert 'ruststream_kinesis_shards_held{group="",stream="orders"} 1.0' in text
        async with http.post(f"{url}/state") as answer:
            assert answer.status == 405


async def test_it_answers_before_a_subscription_is_open(world: World, http: aiohttp.ClientSession):
    open_it = asyncio.Event()

    async def hang(call: Call) -> None:
        if call.operation == "list_shards":
            await open_it.wait()

    world.hooks.append(hang)
    app, probe, started = application(world), Probe(ANYWHERE), asyncio.Event()
    running = asyncio.create_task(app.run(signals=False, probe=probe, started=started.set))
    async with asyncio.timeout(PATIENCE):
        await until(lambda: any(call.operation == "describe_stream" for call in world.calls))
        async with http.get(f"{probe.url}/live") as answer:
            assert answer.status == 200
        async with http.get(f"{probe.url}/ready") as answer:
            assert answer.status == 503
            reasons = (await answer.json())["reasons"]
            assert "the service is starting; not open yet: orders" in reasons
        open_it.set()
        await started.wait()
        app.stop()
        await running
    assert probe.url is None


async def test_it_answers_until_the_stop_is_over(world: World, http: aiohttp.ClientSession):
    app, probe, seen = application(world), Probe(ANYWHERE), list[int]()

    @app.on_shutdown
    async def look() -> None:
        async with http.get(f"{probe.url}/live") as live, http.get(f"{probe.url}/ready") as ready:
            seen.extend((live.status, ready.status))

    async with probed(app, probe):
        pass
    assert seen == [200, 503]


async def test_no_request_delays_the_stop(world: World):
    app, probe, loop = application(world), Probe(ANYWHERE), asyncio.get_running_loop()
    # More than a socket takes: an answer that nobody reads is never sent.
    app.title = "x" * 20_000_000
    started = asyncio.Event()
    running = asyncio.create_task(app.run(signals=False, probe=probe, started=started.set))
    writers: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(PATIENCE):
        await started.wait()
        port = int((probe.url or "").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        writer.write(b"GET /state HTTP/1.1\r\nHost: x\r\n\r\n")
        for begun in (b"", b"GET /live HTTP/1.1\r\nHost"):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(begun)
        await reader.readline()

        began = loop.time()
        app.stop()
        await running
        assert loop.time() - began < 2.0
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_port_in_use_ends_the_start_with_one_line(world: World):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}: another"
        ) as it:
            await application(world).run(signals=False, probe=f"127.0.0.1:{port}")
    assert "\n" not in str(it.value)
    assert world.calls == []


@pytest.mark.parametrize(
    "address", ["", "8080", "localhost", "a:b", "h:70000", "h:1:2", "http://h:1"]
)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        Probe(address)


async def test_it_shows_the_users_own_metrics_and_ours_once(
    world: World, http: aiohttp.ClientSession
):
    registry = CollectorRegistry()
    Counter("bookings", "Of the user.", registry=registry).inc()
    for registers in (False, True):
        app = application(world)
        if registers:
            registry.register(app_metrics(app))
        async with (
            probed(app, Probe(ANYWHERE, registry=registry)) as url,
            http.get(f"{url}/metrics") as answer,
        ):
            text = await answer.text()
            assert "bookings_total 1.0" in text
            assert text.count("# HELP ruststream_kinesis_app_info ") == 1


async def test_without_the_library_metrics_say_what_to_install(
    world: World, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "ruststream_kinesis.prometheus", raising=False)
    async with (
        probed(application(world), Probe(ANYWHERE)) as url,
        http.get(f"{url}/metrics") as answer,
    ):
        assert answer.status == 501
        text = await answer.text()
        assert "pip install 'ruststream-kinesis[prometheus]'" in text
        assert len(text.splitlines()) == 1
