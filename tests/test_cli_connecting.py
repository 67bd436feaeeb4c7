"""What the commands share: the same options, one line for a failure, and a clean end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.cli.connecting import carry_out
from ruststream_kinesis.cli.explaining import explained
from ruststream_kinesis.cli.run import RunOptions
from ruststream_kinesis.cli.streams import list_streams
from ruststream_kinesis.clients import new_session
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    LeaseTableUnreachable,
    RequestError,
)
from tests.support.replies import error, ok
from tests.support.scripted import ScriptedKinesis
from tests.support.transports import connected

READING = ("streams", "shards", "leases", "lag", "tail")
ARGUMENTS = {
    "streams": [],
    "shards": ["orders"],
    "leases": ["orders-leases"],
    "lag": ["orders", "--table", "orders-leases"],
    "tail": ["orders"],
}
# Where nobody listens: a port that needs a privilege, so no test server has it.
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment that says nothing of AWS or of us; a command also sets what is logged."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "RUSTSTREAM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    level = logging.getLogger("ruststream_kinesis").level
    yield
    logging.getLogger("ruststream_kinesis").setLevel(level)


def failure(*arguments: str) -> str:
    """The one line that a command ends with."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("ruststream-kinesis: ")
    return line


class TestOptions:
    @pytest.mark.parametrize("command", READING)
    def test_every_command_has_the_same_options(self, command):
        group: Any = typer.main.get_command(cli)
        options = {
            option
            for parameter in group.commands[command].params
            for option in getattr(parameter, "opts", ())
        }

        assert {"--endpoint-url", "--region", "--profile", "--test-credentials"} <= options
        assert {"--debug", "--json"} <= options

    def test_workers_are_started_with_the_profile(self):
        assert "--profile dev" in " ".join(RunOptions("a:b", profile="dev").arguments)

    async def test_a_profile_goes_before_keys_of_the_environment(self, tmp_path, monkeypatch):
        (tmp_path / "config").write_text(
            "[profile dev]\nregion = eu-west-3\naws_access_key_id = theirs\n"
            "aws_secret_access_key = s\n"
        )
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ours")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

        session = new_session("dev")

        assert (await session.get_credentials()).access_key == "theirs"
        assert session.get_config_variable("region") == "eu-west-3"
        assert (await new_session().get_credentials()).access_key == "ours"


class TestFailures:
    @pytest.mark.parametrize("command", ["streams", "leases"])
    def test_a_profile_that_is_not_there_is_one_line(self, command):
        line = failure(command, *ARGUMENTS[command], "--profile", "nope", "--region", "us-east-1")

        assert "profile (nope) could not be found" in line
        assert "AWS_CONFIG_FILE" in line

    def test_run_says_the_same_of_a_profile(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        (tmp_path / "profiled.py").write_text(
            "from ruststream_kinesis import KinesisBroker, RustStream\n"
            "app = RustStream(KinesisBroker(region='us-east-1'), title='t', version='0')\n"
        )
        # Put back afterwards what the command sets.
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
            monkeypatch.setenv(name, "x")

        assert "profile (nope) could not be found" in failure(
            "run", "profiled:app", "--profile", "nope"
        )

    def test_without_a_region_or_credentials_it_says_how_to_give_them(self):
        assert "--region" in failure("streams")
        assert "--test-credentials" in failure("streams", "--region", "us-east-1")

    @pytest.mark.parametrize("command", ["tail", "leases"])
    def test_an_endpoint_that_does_not_answer_is_one_line_at_once(self, command):
        line = failure(
            command, *ARGUMENTS[command], "--endpoint-url", NOWHERE, "--test-credentials"
        )

        assert "Is the endpoint reachable from here?" in line

    @pytest.mark.parametrize(
        ("mishap", "says"),
        [
            (RequestError("cannot x", code="ExpiredTokenException", status=400), "log in again"),
            (
                RequestError("cannot x", code="InvalidSignatureException", status=400),
                "credentials are wrong",
            ),
            (
                AccessDenied("cannot x", code="UnrecognizedClientException", status=400),
                "credentials are wrong",
            ),
            (AccessDenied("cannot x", code="AccessDeniedException", status=400), "permission"),
            (RequestError("cannot x", code="ThrottlingException", status=400), "in a minute"),
            (RequestError("cannot x", code="Timeout"), "--endpoint-url"),
            (LeaseTableUnreachable("cannot x", table="t", code="Timeout"), "--table-endpoint-url"),
            (ConfigurationError("write it so"), "write it so"),
            (OSError("disk"), "--debug shows where"),
        ],
    )
    def test_a_failure_says_what_to_do(self, mishap, says):
        assert says in explained(mishap)

    def test_debug_shows_the_traceback(self):
        result = CliRunner().invoke(cli, ["shards", "a b", "--debug"])

        assert isinstance(result.exception, ConfigurationError)

    def test_ctrl_c_ends_it_without_a_word(self, capsys):
        async def work() -> int:
            raise KeyboardInterrupt

        with pytest.raises(typer.Exit) as end:
            carry_out(work, debug=False)

        assert end.value.exit_code == 130
        assert capsys.readouterr() == ("", "")

    def test_a_reader_that_has_enough_ends_it_without_a_word(self):
        code = (
            "import sys\n"
            "from ruststream_kinesis.cli.connecting import carry_out\n"
            "async def work():\n"
            "    sys.stdout.write('x' * 1_000_000)\n"
            "    return 0\n"
            "import typer\n"
            "typer.run(lambda: carry_out(work, debug=False))\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
            code_of_it = process.wait()

        assert (code_of_it, said) == (141, b"")


class TestStreams:
    async def test_all_pages_of_streams_are_shown_and_one_that_goes_meanwhile_is_left_out(
        self, capsys
    ):
        async with ScriptedKinesis() as server:
            server.missing = {"gone"}
            server.on(
                "ListStreams",
                [
                    ok(StreamNames=["a", "gone"], HasMoreStreams=True),
                    ok(StreamNames=["b"], HasMoreStreams=False),
                ],
            )
            async with connected(server) as transport, asyncio.timeout(10):
                assert await list_streams(transport, SystemClock(), as_json=True) == 0

        told = json.loads(capsys.readouterr().out)
        assert [each["stream"] for each in told["streams"]] == ["a", "b"]
        assert told["streams"][0] == {
            "stream": "a",
            "status": "ACTIVE",
            "mode": None,
            "open_shards": 1,
            "retention_hours": 24,
            "created": 1_600_000_000.0,
            "max_record_bytes": 1024 * 1024,
        }

    async def test_who_may_not_list_them_is_told_so(self):
        async with ScriptedKinesis() as server:
            server.on("ListStreams", error("AccessDeniedException", message="not yours"))
            async with connected(server) as transport, asyncio.timeout(10):
                with pytest.raises(AccessDenied, match=r"cannot list streams.*not yours"):
                    await list_streams(transport, SystemClock(), as_json=True)
