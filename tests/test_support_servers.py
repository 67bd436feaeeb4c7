"""Starting the real servers: what fails is told, and nothing outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.support import servers

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_that_dies_is_reported_with_its_last_words() -> None:
    words = "import sys; sys.exit('no such certificate')"

    with (
        pytest.raises(servers.ServerFailedError, match=r"exited with 1.*\n.*no such cert"),
        servers.run("broken", lambda _: servers.Launch([sys.executable, "-c", words])),
    ):
        pytest.fail("it cannot have started")


def test_a_server_that_never_answers_is_given_up_and_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    # A shell is there within milliseconds, on a busy machine too.
    silent = 'echo $$ >"$0"; exec sleep 1000'
    launch = servers.Launch(["sh", "-c", silent, str(mark)])

    with (
        pytest.raises(servers.ServerFailedError, match="did not answer"),
        servers.run("silent", lambda _: launch, ready_timeout=1.0),
    ):
        pytest.fail("it cannot have started")

    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_server_dies_with_a_killed_test_run() -> None:
    # Stands for pytest: starts a server with our tools, tells its process, and is killed.
    program = textwrap.dedent("""
        import signal, sys
        from tests.support import servers
        with servers.run("moto", lambda port: servers.Launch(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        )) as server:
            print(server.url, flush=True)
            signal.pause()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=servers.ROOT, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().decode().strip()
        assert urllib.request.urlopen(url).status == 200

        owner.send_signal(signal.SIGKILL)

    # The watcher acts within milliseconds; the pytest timeout bounds the wait.
    while True:
        try:
            urllib.request.urlopen(url).close()
        except (urllib.error.URLError, ConnectionError):
            break


@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", pytest.skip.Exception), ("0", pytest.skip.Exception), ("1", pytest.fail.Exception)],
)
def test_a_missing_server_is_a_skip_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("REQUIRE_LIVE", required)
    monkeypatch.setenv("KINESIS_LOCAL_DIR", "/nowhere")

    monkeypatch.setenv("DYNALITE_DIR", "/nowhere")

    for server in (servers.kinesis_local, servers.dynalite):
        with pytest.raises(outcome, match="/nowhere"), server():
            pytest.fail("it cannot have started")
