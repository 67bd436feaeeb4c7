"""Fixtures that more than one test module needs.

Servers start once a run, at the first test that asks for one, and only then.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support import aws as raw
from tests.support import servers, stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SERVERS = ("kinesis-local", "moto")
"""Names of the real servers, as `kinesis` is parametrised with them."""

TABLE_SERVERS = ("dynalite", "moto")
"""Names of the real servers of tables, as `dynamodb` is parametrised with them."""

_FIXTURES = {"kinesis_local", "moto_server", "kinesis", "dynalite_server", "dynamodb"}


def pytest_report_header() -> str:
    """Say which copy of the package is tested: the wheel, or a developer's working tree."""
    # Found, not imported: an import that fails belongs to the tests, not to this line.
    found = find_spec("ruststream_kinesis")
    return f"ruststream_kinesis: {found.origin if found else 'not installed'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real server, so that `-m 'not live'` is the fast loop of a developer."""
    for item in items:
        if _FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[servers.Server]:
    """`kinesis-local`: for resharding, and wherever real sequence numbers matter."""
    with servers.kinesis_local() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[servers.Server]:
    """Moto in server mode; it also serves DynamoDB."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def dynalite_server() -> Iterator[servers.Server]:
    """`dynalite`: DynamoDB from other hands than moto's."""
    with servers.dynalite() as server:
        yield server


@pytest.fixture(params=TABLE_SERVERS)
def dynamodb(request: pytest.FixtureRequest) -> servers.Server:
    """Each real server of tables in turn."""
    fixture = {"dynalite": "dynalite_server", "moto": "moto_server"}[request.param]
    # Looked up late, as in `kinesis`.
    server: servers.Server = request.getfixturevalue(fixture)
    return server


@pytest.fixture(params=SERVERS)
def kinesis(request: pytest.FixtureRequest) -> servers.Server:
    """Each real server in turn."""
    fixture = {"kinesis-local": "kinesis_local", "moto": "moto_server"}[request.param]
    # Looked up late, so that a run with `-k moto` never starts the other one.
    server: servers.Server = request.getfixturevalue(fixture)
    return server


@pytest.fixture
async def aws(request: pytest.FixtureRequest) -> AsyncIterator[raw.Aws]:
    """A raw client on the server that the test asks for, kinesis-local if it names none."""
    wanted = [name for name in ("kinesis", "moto_server") if name in request.fixturenames]
    server: servers.Server = request.getfixturevalue(wanted[0] if wanted else "kinesis_local")
    async with raw.connect(server.url) as client:
        yield client


@pytest.fixture(params=["memory", "table"])
def lease_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep the leases of every world of a test in memory, and once more in rows of a table."""
    kind: str = request.param
    monkeypatch.setattr(stores, "KINDS", [kind])
    return kind
