"""Connecting: settings, region, credentials, and one client for each event loop.

Whatever the machine is configured with must not decide these tests: `clean` hides it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import AioSession

from ruststream_kinesis import KinesisBroker, KinesisPublisher, RustStream
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.errors import ConfigurationError, NotConnected
from ruststream_kinesis.stream import StreamRef
from tests.support.aws import Aws
from tests.support.scripted import ScriptedKinesis
from tests.support.servers import Server
from tests.support.world import PATIENCE, running

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No region, no credentials, anywhere: environment, files, instance metadata."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@contextlib.asynccontextmanager
async def connected(broker: KinesisBroker) -> AsyncIterator[KinesisBroker]:
    await broker.connect()
    try:
        yield broker
    finally:
        await broker.close()


class TestSettings:
    @pytest.mark.parametrize("url", ["localhost:4567", "ftp://x", "", "//x"])
    def test_an_endpoint_that_is_no_url_is_refused_with_its_value(self, url: str):
        with pytest.raises(ConfigurationError) as caught:
            KinesisBroker(endpoint_url=url)

        assert repr(url) in str(caught.value)

    @pytest.mark.parametrize("name", ["max_shards", "stall_timeout"])
    @pytest.mark.parametrize("value", [0, -1, "3", True, [], float("nan")], ids=str)
    def test_a_number_that_is_none_is_refused_by_name(self, name: str, value: Any):
        with pytest.raises(ConfigurationError, match=name):
            KinesisBroker(**{name: value})

    @pytest.mark.parametrize("owner_id", ["", "a#b"])
    def test_an_owner_that_a_token_cannot_follow_is_refused(self, owner_id: str):
        with pytest.raises(ConfigurationError, match="owner_id"):
            KinesisBroker(owner_id=owner_id)

    @pytest.mark.parametrize("count", [0, -1, 2.5, True, float("nan"), "3"])
    def test_a_number_of_shards_that_is_none_is_refused(self, count: Any):
        """Half a shard would fail every pass, not the start of the program."""
        with pytest.raises(ConfigurationError, match="max_shards"):
            KinesisBroker(max_shards=count)

    def test_two_brokers_are_two_owners_by_default(self):
        one, other = KinesisBroker(), KinesisBroker()

        assert one.connection.owner_id != other.connection.owner_id
        assert "#" not in one.connection.owner_id

    def test_making_one_needs_no_loop_no_region_and_starts_nothing(self):
        threads = threading.active_count()

        broker = KinesisBroker(endpoint_url=NOWHERE)
        app = RustStream(broker, title="t", version="0")
        app.publisher()

        assert not broker.connection.connected
        assert threading.active_count() == threads


class TestWhatCannotConnect:
    async def test_no_region_is_said_so_with_what_to_do(self, monkeypatch: pytest.MonkeyPatch):
        credentials(monkeypatch)

        with pytest.raises(
            ConfigurationError,
            match=r"no region.*AWS_REGION.*KinesisBroker\(region=\.\.\.\).* --region",
        ):
            await KinesisBroker().connect()

    async def test_no_credentials_is_said_so_with_what_to_do(self):
        with pytest.raises(
            ConfigurationError,
            match=r"no credentials.*KinesisBroker\(test_credentials=True\).* --test-credentials",
        ):
            await KinesisBroker(region="eu-west-1").connect()

    @pytest.mark.parametrize("region", [None, "eu-west-1"])
    async def test_a_service_that_cannot_connect_leaves_nothing(self, region: str | None):
        broker = KinesisBroker(region=region)
        app = RustStream(broker, title="t", version="0")

        with pytest.raises(ConfigurationError):
            async with asyncio.timeout(PATIENCE):
                await app.run(signals=False)

        assert not broker.connection.connected
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_connect_that_failed_can_be_tried_again(self, monkeypatch: pytest.MonkeyPatch):
        broker = KinesisBroker(region="eu-west-1", endpoint_url=NOWHERE)
        with pytest.raises(ConfigurationError):
            await broker.connect()

        credentials(monkeypatch)
        async with connected(broker):
            assert broker.connection.connected

    async def test_a_connection_that_nothing_can_use_raises_not_connected(self):
        broker = KinesisBroker(endpoint_url=NOWHERE, test_credentials=True)
        with pytest.raises(NotConnected):
            _ = broker.connection.transport
        async with connected(broker):
            transport = broker.connection.transport

        with pytest.raises(NotConnected):
            _ = broker.connection.transport
        with pytest.raises(NotConnected):
            await transport.describe_stream(StreamRef("orders"))


class TestWhereRegionAndCredentialsComeFrom:
    @pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
    async def test_the_region_of_the_environment(self, monkeypatch: pytest.MonkeyPatch, name: str):
        credentials(monkeypatch)
        monkeypatch.setenv(name, "eu-west-3")

        assert await signed_region(KinesisBroker) == "eu-west-3"

    async def test_the_region_of_the_profile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        credentials(monkeypatch)
        (tmp_path / "config").write_text("[default]\nregion = eu-west-2\n")

        assert await signed_region(KinesisBroker) == "eu-west-2"

    async def test_the_argument_comes_before_the_environment(self, monkeypatch: pytest.MonkeyPatch):
        credentials(monkeypatch)
        monkeypatch.setenv("AWS_REGION", "eu-west-3")

        assert await signed_region(KinesisBroker, region="eu-west-1") == "eu-west-1"

    async def test_a_session_of_the_users_own(self):
        session = AioSession()
        session.set_credentials("own", "secret")

        assert (
            await signed_region(KinesisBroker, region="eu-west-1", session=session) == "eu-west-1"
        )

    async def test_made_up_credentials_for_a_local_server(self):
        assert await signed_region(KinesisBroker, test_credentials=True) == "us-east-1"

    async def test_connecting_twice_makes_one_client(self, monkeypatch: pytest.MonkeyPatch):
        opened: list[AwsTransport] = []
        real = AwsTransport.open

        async def noted(self: AwsTransport) -> None:
            opened.append(self)
            await real(self)

        monkeypatch.setattr(AwsTransport, "open", noted)
        broker = KinesisBroker(endpoint_url=NOWHERE, test_credentials=True)
        async with connected(broker):
            await broker.connect()

        assert len(opened) == 1

    async def test_closing_twice_or_before_connecting_does_nothing(self):
        broker = KinesisBroker(endpoint_url=NOWHERE, test_credentials=True)
        await broker.close()
        async with connected(broker):
            await broker.close()
        await broker.close()


async def signed_region(make: type[KinesisBroker], **settings: Any) -> str:
    """Return the region that a request is signed for."""
    async with ScriptedKinesis() as server:
        async with connected(make(endpoint_url=server.url, **settings)) as broker:
            await KinesisPublisher(broker.connection).publish(b"x", "orders")
        (call,) = server.calls("PutRecord")
        scope = call.headers["Authorization"].split("Credential=")[1].split(",")[0]
        return scope.split("/")[2]


class Elsewhere:
    """A thread with an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="elsewhere")
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@pytest.fixture
def elsewhere():
    thread = Elsewhere()
    yield thread
    thread.end()


class TestOtherLoops:
    async def test_a_thread_with_its_own_loop_publishes_by_its_own_client(
        self, kinesis_local: Server, aws: Aws, elsewhere: Elsewhere
    ):
        stream = await aws.create_stream()
        broker = KinesisBroker(endpoint_url=kinesis_local.url, test_credentials=True)
        app = RustStream(broker, title="t", version="0")
        publisher = app.publisher()

        async with running(app):
            transport = broker.connection.transport
            assert isinstance(transport, AwsTransport)
            await publisher.publish(b"here", stream)
            await elsewhere.do(publisher.publish(b"there", stream))
            await elsewhere.do(publisher.publish(b"there again", stream))
            assert set(transport._clients._clients) == {asyncio.get_running_loop(), elsewhere.loop}

        assert transport._clients._clients == {}
        with pytest.raises(NotConnected):
            await elsewhere.do(publisher.publish(b"late", stream))
        with pytest.raises(NotConnected):
            await publisher.publish(b"late", stream)
        found = {record["Data"] for record in await aws.records(stream)}
        assert found == {b"here", b"there", b"there again"}

    async def test_it_signs_with_the_credentials_of_the_service(
        self, monkeypatch: pytest.MonkeyPatch, elsewhere: Elsewhere
    ):
        credentials(monkeypatch)
        async with ScriptedKinesis() as server:
            broker = KinesisBroker(endpoint_url=server.url, region="eu-west-1")
            async with connected(broker):
                await elsewhere.do(KinesisPublisher(broker.connection).publish(b"x", "orders"))

            (call,) = server.calls("PutRecord")
            assert "Credential=key/" in call.headers["Authorization"]
            assert "/eu-west-1/" in call.headers["Authorization"]

    async def test_a_thread_whose_loop_ended_before_the_stop_holds_nothing_up(self):
        async with ScriptedKinesis() as server:
            broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
            async with asyncio.timeout(PATIENCE), connected(broker):
                publisher = KinesisPublisher(broker.connection)
                await asyncio.to_thread(asyncio.run, publish(publisher))

            assert len(server.calls("PutRecord")) == 1

    async def test_loops_that_ended_are_not_kept(self):
        """A plain handler that publishes by `asyncio.run` makes one a record."""
        async with ScriptedKinesis() as server:
            broker = KinesisBroker(endpoint_url=server.url, test_credentials=True)
            async with asyncio.timeout(PATIENCE), connected(broker):
                publisher = KinesisPublisher(broker.connection)
                transport = broker.connection.transport
                assert isinstance(transport, AwsTransport)
                for _ in range(5):
                    await asyncio.to_thread(asyncio.run, publish(publisher))

                assert len(transport._clients._clients) <= 2


async def publish(publisher: KinesisPublisher) -> None:
    await publisher.publish(b"x", "orders")
