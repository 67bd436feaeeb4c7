"""Processes that may not outlive the test run, however that ends.

Each one runs in a session and process group of its own with a watcher beside it, which waits on a
pipe that only the test process holds: when the pipe closes (a normal stop, an exception, `kill -9`),
the group is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: where `python -m tests…` finds the tests."""

# `exec` keeps the process id the one that we started, so `poll` sees it die. The watcher reads
# through descriptor 3, since a background job of `sh` gets /dev/null as its input.
_LEASH = 'exec 3<&0; { cat <&3 >/dev/null; kill -9 0; } & exec "$@" </dev/null 3<&-'


def spawn(
    command: Sequence[str],
    *,
    folder: Path = ROOT,
    env: Mapping[str, str] | None = None,
    output: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a process on a leash.

    Args:
        command: What to run.
        folder: Where.
        env: Added to our own environment.
        output: Takes what it prints and logs.
    """
    # A session of its own keeps Ctrl-C on the terminal away from it: fixtures are torn down while
    # it still answers. The pipe is never written to; that it closes is the message.
    return subprocess.Popen(
        ["sh", "-c", _LEASH, "sh", *command],
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole group, and wait for its end; once more does nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
