"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.servers import ROOT, Server

PLUGIN = "ruststream_kinesis.testing.pytest_plugin"

_TESTS = """
import asyncio

import pytest

from ruststream_kinesis import KinesisBroker, RustStream

app = RustStream(KinesisBroker(), title="orders", version="1")


@app.subscriber("plugin-orders", publish="plugin-replies")
async def handle(number: int) -> int:
    return number + 1


async def body(kinesis_test):
    async with kinesis_test(app) as test:
        await test.publish(1, "plugin-orders")
        assert [each.payload for each in test.published("plugin-replies")] == [b"2"]
        return test


@pytest.mark.asyncio
async def test_with_pytest_asyncio(kinesis_test):
    await body(kinesis_test)


def test_with_no_plugin_for_asyncio(kinesis_test):
    test = asyncio.run(body(kinesis_test))
    print("ran on", test.live or "the in-process log")


def test_in_process_only(kinesis_test):
    kinesis_test.in_process_only()
    assert asyncio.run(body(kinesis_test)).live is None
"""


def _pytest(folder: Path, *arguments: str) -> str:
    (folder / "test_orders.py").write_text(_TESTS)
    # No configuration but an empty one: ours must not reach it.
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            PLUGIN,
            "-p",
            "no:cacheprovider",
            "-sr",
            "s",
            *arguments,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_fixture_runs_an_application_in_process(tmp_path: Path) -> None:
    out = _pytest(tmp_path)
    assert "3 passed" in out
    assert "ran on the in-process log" in out


def test_the_fixture_needs_no_plugin_for_asyncio(tmp_path: Path) -> None:
    out = _pytest(tmp_path, "-p", "no:asyncio", "-k", "no_plugin or in_process")
    assert "2 passed" in out


def test_the_package_brings_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_the_option_is_explained(tmp_path: Path) -> None:
    assert "--kinesis-endpoint=URL" in _pytest(tmp_path, "--help")


def test_the_same_tests_run_on_a_server(tmp_path: Path, kinesis: Server) -> None:
    out = _pytest(tmp_path, f"--kinesis-endpoint={kinesis.url}")
    assert "2 passed, 1 skipped" in out
    assert f"ran on {kinesis.url}" in out
    assert "in process only: it needs manual time" in out


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    program = (
        f"import sys, {PLUGIN}\n"
        "heavy = ('aiobotocore', 'botocore', 'aiohttp', 'ruststream_kinesis.testing.app')\n"
        "sys.exit(str([name for name in heavy if name in sys.modules] or ''))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
