"""`ruststream-kinesis asyncapi`: what a user sees, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from functools import partial

import pytest
import typer
from typer.testing import CliRunner

from examples.orders import app as orders
from ruststream_kinesis.asyncapi import page, to_json, to_yaml
from ruststream_kinesis.cli.commands import cli
from tests.support.aws import PATIENCE
from tests.support.browser import dom_of
from tests.support.servers import ROOT

TARGET = "examples.orders:app"


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Calls the command in process: exit code, stdout and stderr."""
    result = CliRunner().invoke(cli, ["asyncapi", *arguments])
    return result.exit_code, result.stdout, result.stderr


def one_line(stderr: str) -> str:
    (line,) = stderr.splitlines()
    assert line.startswith("ruststream-kinesis: ")
    return line.removeprefix("ruststream-kinesis: ")


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))


class TestGen:
    @pytest.mark.parametrize(
        ("options", "written"),
        [((), to_json), (("--format", "yaml"), to_yaml), (("--format", "html"), page)],
    )
    def test_the_document_is_written_to_stdout(self, options, written):
        code, stdout, stderr = invoke("gen", TARGET, *options)

        assert (code, stderr) == (0, "")
        assert stdout == written(orders.asyncapi())

    @pytest.mark.parametrize(
        ("name", "options", "written"),
        [
            ("a.json", (), to_json),
            ("a.yml", (), to_yaml),
            ("a.html", (), page),
            ("a.txt", (), to_json),
            ("a.json", ("--format", "yaml"), to_yaml),
        ],
    )
    def test_a_file_is_of_the_format_that_its_name_says(self, tmp_path, name, options, written):
        code, stdout, _ = invoke("gen", TARGET, "--output", str(tmp_path / name), *options)

        assert (code, stdout) == (0, "")
        assert (tmp_path / name).read_text() == written(orders.asyncapi())

    def test_without_pyyaml_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "yaml", None)
        code, stdout, stderr = invoke("gen", TARGET, "--format", "yaml")

        assert (code, stdout) == (1, "")
        assert "pip install 'ruststream-kinesis[cli]'" in one_line(stderr)
        assert invoke("gen", TARGET)[0] == 0

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (("examples.orders",), 2, "write MODULE:APP"),
            (("examples.orders:ap",), 1, "did you mean examples.orders:app?"),
            (("no_such_module:app",), 1, "there is no module 'no_such_module'"),
            ((TARGET, "--output", "/no/such/folder/a.json"), 1, "cannot write /no/such/folder"),
        ],
    )
    def test_a_failure_is_one_line(self, arguments, code, says):
        found, stdout, stderr = invoke("gen", *arguments)

        assert (found, stdout) == (code, "")
        assert says in one_line(stderr)

    def test_debug_shows_the_traceback(self):
        result = CliRunner().invoke(cli, ["asyncapi", "gen", "examples.orders:ap", "--debug"])

        assert "has no 'ap'" in str(result.exception)

    def test_a_format_that_is_none_is_a_wrong_command_line(self):
        assert invoke("gen", TARGET, "--format", "xml")[0] == 2


@contextlib.asynccontextmanager
async def serving(end: signal.Signals) -> AsyncIterator[str]:
    """The command as a process: the address that it says it is at. A signal must end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ruststream_kinesis.cli"),
        *("asyncapi", "serve", TARGET, "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        # A shell that starts the tests in the background has SIGINT ignored, by children too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = (await process.stderr.readline()).decode()
            assert line.startswith("ruststream-kinesis: orders 1.0.0 is at http://127.0.0.1:")
            yield line.split()[-1]
            process.send_signal(end)
            assert await process.wait() == 0
        assert await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class TestServe:
    async def test_it_serves_page_and_document_until_ctrl_c(self):
        async with contextlib.AsyncExitStack() as stack:
            # A connection that says nothing is open until the end, and does not hold it up.
            silent = stack.enter_context(socket.socket())
            url = await stack.enter_async_context(serving(signal.SIGINT))
            port = int(url.rstrip("/").rpartition(":")[2])
            silent.connect(("127.0.0.1", port))
            found = await asyncio.to_thread(_get, url)
            assert found == ("text/html; charset=utf-8", page(orders.asyncapi()))
            found = await asyncio.to_thread(_get, f"{url}asyncapi.json")
            assert found == ("application/json; charset=utf-8", to_json(orders.asyncapi()))
            found = await asyncio.to_thread(_get, f"{url}asyncapi.yaml?now")
            assert found == ("application/yaml; charset=utf-8", to_yaml(orders.asyncapi()))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(_get, f"{url}nothing")

            again = ("serve", TARGET, "--port", str(port))
            code, _, stderr = await asyncio.to_thread(invoke, *again)
            assert code == 1
            assert one_line(stderr).startswith(f"cannot listen on 127.0.0.1:{port}: ")

    async def test_a_browser_shows_it(self, tmp_path):
        async with serving(signal.SIGTERM) as url:
            dom = await asyncio.to_thread(dom_of, url, tmp_path)

        assert '<article id="operation-receive_orders">' in dom

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (("examples.orders:ap",), 1, "did you mean examples.orders:app?"),
            (("examples",), 2, "write MODULE:APP"),
        ],
    )
    def test_a_failure_is_one_line(self, arguments, code, says):
        found, _, stderr = invoke("serve", *arguments)

        assert found == code
        assert says in one_line(stderr)

    def test_a_port_that_is_none_is_a_wrong_command_line(self):
        assert invoke("serve", TARGET, "--port", "65536")[0] == 2


def _get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_every_option_is_on_the_page_of_the_command_line():
    text = (ROOT / "docs" / "cli.md").read_text()
    group = typer.main.get_command(cli).commands["asyncapi"]  # type: ignore[attr-defined]  # a group

    for name, command in group.commands.items():
        assert f"`asyncapi {name} MODULE:APP`" in text
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{each}" in text for each in parameter.opts), parameter.opts
