"""Kinesis and DynamoDB servers that others wrote, as real processes on free ports.

Why processes and not an in-process mock: what the package leans on (closed iterators, error bodies,
the `Date` header, cut connections) is only true at the socket.

None outlives the test run, however that ends: see `processes.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = processes.ROOT
"""The checkout."""

_PACKAGES = ROOT / ".cache" / "servers" / "node_modules"

KINESIS_LOCAL_DIR = _PACKAGES / "kinesis-local"
"""Where `make servers` installs the npm package; `KINESIS_LOCAL_DIR` in the environment overrides."""

DYNALITE_DIR = _PACKAGES / "dynalite"
"""As above; `DYNALITE_DIR` in the environment overrides."""

READY_TIMEOUT = 60.0
"""Seconds until a server must answer. A cold start takes 1 to 5 s; a loaded CI machine far longer."""

ATTEMPTS = 3
"""A free port can be taken by somebody else before the server binds it: then another is tried."""

REGION = "us-east-1"
"""The region of every test: kinesis-local keeps the streams of each region apart."""

_SHORT = "10ms"
"""Server-side duration of each stream operation: long enough to see the state in between."""

KINESIS_LOCAL_ENV: dict[str, str] = {
    "CREATE_STREAM_DURATION": _SHORT,
    "DELETE_STREAM_DURATION": _SHORT,
    "SPLIT_SHARD_DURATION": _SHORT,
    "MERGE_SHARDS_DURATION": _SHORT,
    "UPDATE_SHARD_COUNT_DURATION": _SHORT,
    "UPDATE_STREAM_MODE_DURATION": _SHORT,
    "REGISTER_STREAM_CONSUMER_DURATION": _SHORT,
    "DEREGISTER_STREAM_CONSUMER_DURATION": _SHORT,
    "START_STREAM_ENCRYPTION_DURATION": _SHORT,
    "STOP_STREAM_ENCRYPTION_DURATION": _SHORT,
    "SHARD_LIMIT": "4000",
    "ON_DEMAND_STREAM_COUNT_LIMIT": "1000",
    "AWS_REGION": REGION,
    "LOG_LEVEL": "ERROR",
    # It would report a busy machine as a warning on stderr, over and over.
    "CATS_EFFECT_CPU_STARVATION_CHECK_INITIAL_DELAY": "1 hour",
}
"""Settings of kinesis-local, beside its ports."""


@dataclass(frozen=True)
class Server:
    """A running server that answers."""

    name: str
    """`kinesis-local`, `moto` or `dynalite`."""
    url: str
    """Its plain HTTP endpoint, without a path."""
    process: subprocess.Popen[bytes] = field(repr=False)
    """For a test that kills it on purpose (one that it started for itself)."""


@dataclass(frozen=True)
class Launch:
    """How to start one server."""

    command: Sequence[str]
    folder: Path = ROOT
    env: Mapping[str, str] = field(default_factory=dict)
    service: str = "kinesis"
    """What it is asked to see whether it is ready."""


class ServerFailedError(Exception):
    """A server did not start; the message ends with what it wrote."""


@contextlib.contextmanager
def kinesis_local() -> Iterator[Server]:
    """Run `kinesis-local` from npm: real sequence numbers, splits, merges, closed iterators."""
    folder = Path(os.environ.get("KINESIS_LOCAL_DIR", KINESIS_LOCAL_DIR))
    node = _node("kinesis-local", folder / "main.js")

    def launch(port: int) -> Launch:
        ports = {"KINESIS_MOCK_PLAIN_PORT": str(port), "KINESIS_MOCK_TLS_PORT": str(free_port())}
        # Its own folder: it reads the certificate from its working directory.
        return Launch([node, "main.js"], folder, ports | KINESIS_LOCAL_ENV)

    with _run_or_skip("kinesis-local", launch) as server:
        yield server


@contextlib.contextmanager
def dynalite(*, data: Path | None = None, port: int | None = None) -> Iterator[Server]:
    """Run `dynalite` from npm: DynamoDB, with its own reading of expressions and conditions.

    Args:
        data: Folder that keeps the tables over a restart; by default they are in memory.
        port: For a restart under the same address.
    """
    folder = Path(os.environ.get("DYNALITE_DIR", DYNALITE_DIR))
    node = _node("dynalite", folder / "cli.js")

    def launch(port: int) -> Launch:
        # A table is active at once: what waits for it is tested with a fault server.
        command = [node, "cli.js", "--host", "127.0.0.1", "--port", str(port)]
        kept = [] if data is None else ["--path", str(data)]
        return Launch([*command, "--createTableMs", "5", *kept], folder, service="dynamodb")

    with _run_or_skip("dynalite", launch, port) as server:
        yield server


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """Run moto's server: breadth of API, but a closed shard never ends there."""

    def launch(port: int) -> Launch:
        return Launch([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])

    with _run_or_skip("moto", launch) as server:
        yield server


@contextlib.contextmanager
def run(
    name: str,
    launch: Callable[[int], Launch],
    *,
    ready_timeout: float = READY_TIMEOUT,
    port: int | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it answers, and kill it in the end.

    Args:
        name: What to call it in messages.
        launch: How to start it on a given port. Called anew for each attempt.
        ready_timeout: Seconds until it must answer.
        port: Where; a free one by default.

    Raises:
        ServerFailedError: It died, or did not answer in time. Quotes its output.
    """
    for left in reversed(range(ATTEMPTS)):
        on_port = port or free_port()
        with tempfile.TemporaryFile() as output:
            started = launch(on_port)
            process = processes.spawn(
                started.command, folder=started.folder, env=started.env, output=output
            )
            try:
                url = f"http://127.0.0.1:{on_port}"
                if _wait_until_ready(process, url, ready_timeout, started.service):
                    yield Server(name, url, process)
                    return
                died = process.poll() is not None
                if not died or not left:
                    how = f"exited with {process.returncode}" if died else "did not answer"
                    message = f"{name} {how} ({ready_timeout:g} s allowed):\n{_tail(output)}"
                    raise ServerFailedError(message)
            finally:
                processes.kill(process)


def unavailable(reason: str) -> NoReturn:
    """Skip with `reason`; with `REQUIRE_LIVE=1` (set by CI) fail instead."""
    if os.environ.get("REQUIRE_LIVE", "") not in {"", "0"}:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _run_or_skip(
    name: str, launch: Callable[[int], Launch], port: int | None = None
) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(run(name, launch, port=port))
        except ServerFailedError as error:
            unavailable(str(error))
        yield server


def _node(name: str, script: Path) -> str:
    """Return the path of Node, where it and the package are there."""
    node = shutil.which("node")
    if node is None:
        unavailable(f"{name} needs `node`, which is not on the PATH")
    if not script.is_file():
        unavailable(f"{name} is not in {script.parent}: run `make servers`")
    return node


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, timeout: float, service: str
) -> bool:
    """Poll the API. False: the process died, or the time is up."""
    # Any: botocore makes the methods of a client at run time.
    client: Any = botocore.session.get_session().create_client(
        service,
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}),
    )
    deadline = time.monotonic() + timeout
    with contextlib.closing(client):
        while time.monotonic() < deadline:
            with contextlib.suppress(BotoCoreError, ClientError):
                (client.list_streams if service == "kinesis" else client.list_tables)(Limit=1)
                # The port may have gone to another server of the same kind: ours must be alive.
                return process.poll() is None
            # The pause between two polls, cut short if the process dies.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
                return False
    return False


def _tail(output: IO[bytes], size: int = 4000) -> str:
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - size))
    return output.read().decode(errors="replace").strip() or "(it wrote nothing)"
