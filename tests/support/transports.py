"""The transport of the service, connected to a scripted server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiobotocore.session
import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis._core import Page
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.thin import ThinTransport
from tests.support.scripted import ScriptedKinesis

SHARD = "shardId-000000000000"
STREAM = StreamRef("orders")
HORIZON = KinesisPosition.horizon()
# The parsed service model is the slow part of a new client; a session keeps it, and has no loop.
_SESSION = aiobotocore.session.AioSession()


WAYS = {"thin": ThinTransport, "botocore": AwsTransport}
"""Both ways to the service: what holds for one holds for the other."""


@pytest.fixture(name="server")
async def scripted_server() -> AsyncIterator[ScriptedKinesis]:
    """Run a scripted server."""
    async with ScriptedKinesis() as scripted:
        yield scripted


@contextlib.asynccontextmanager
async def connected(
    server: ScriptedKinesis,
    *,
    deadline: float = 10.0,
    way: type[AwsTransport] = ThinTransport,
    **settings: Any,
) -> AsyncIterator[AwsTransport]:
    """Open a transport to a scripted server."""
    known = {
        "endpoint_url": server.url,
        "test_credentials": True,
        "region": "us-east-1",
        "session": _SESSION,
    }
    transport = way(ClientSettings(**{**known, **settings}), SystemClock(), deadline=deadline)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@pytest.fixture(name="transport", params=WAYS)
async def open_transport(
    request: pytest.FixtureRequest, server: ScriptedKinesis
) -> AsyncIterator[AwsTransport]:
    """Open a transport of each kind to the scripted server of the test."""
    async with connected(server, way=WAYS[request.param]) as opened:
        yield opened


async def read(transport: AwsTransport, limit: int = 10) -> Page:
    """Read one page from the horizon."""
    iterator = await transport.get_shard_iterator(STREAM, SHARD, HORIZON)
    return Page.parse(await transport.get_records(STREAM, SHARD, iterator, limit))
