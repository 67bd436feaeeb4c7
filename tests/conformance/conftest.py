"""Every test of this folder runs on the in-process log and on both real servers.

On moto, which is the faster one, it runs once more with every call made the stock way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.conformance.backends import Backend, InProcess, OnServer
from tests.support import aws as raw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SERVERS: dict[str, tuple[str, Literal["thin", "botocore"]]] = {
    "kinesis-local": ("kinesis_local", "thin"),
    "moto": ("moto_server", "thin"),
    "moto, botocore": ("moto_server", "botocore"),
}


@pytest.fixture(
    params=["in-process", *(pytest.param(name, marks=pytest.mark.live) for name in _SERVERS)]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each log in turn."""
    if request.param == "in-process":
        yield InProcess()
        return
    # Looked up late, so that the other server is not started for this test.
    fixture, way = _SERVERS[request.param]
    server = request.getfixturevalue(fixture)
    async with raw.connect(server.url) as aws:
        yield OnServer(request.param.partition(",")[0], aws, way)
