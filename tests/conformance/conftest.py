"""Every test of this folder runs on the in-process log and on both real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.backends import Backend, InProcess, OnServer
from tests.support import aws as raw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SERVERS = {"kinesis-local": "kinesis_local", "moto": "moto_server"}


@pytest.fixture(
    params=["in-process", *(pytest.param(name, marks=pytest.mark.live) for name in _SERVERS)]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each log in turn."""
    if request.param == "in-process":
        yield InProcess()
        return
    # Looked up late, so that the other server is not started for this test.
    server = request.getfixturevalue(_SERVERS[request.param])
    async with raw.connect(server.url) as aws:
        yield OnServer(request.param, aws)
