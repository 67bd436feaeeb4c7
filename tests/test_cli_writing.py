"""Commands that write, as a user sees them: what is printed, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from ruststream_kinesis import DynamoLeaseStore, KinesisPosition
from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.cli import put, writing
from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import AccessDenied
from ruststream_kinesis.leases import LeaseKey
from ruststream_kinesis.leases.tabled import TableLeaseStore
from tests.support.aws import PATIENCE
from tests.support.servers import REGION
from tests.support.tables import MemoryTable, unique_table
from tests.support.world import Call, World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.aws import Aws
    from tests.support.servers import Server

FIRST = "shardId-000000000000"


def denied(operation: str) -> Any:
    """Return what refuses every call of a kind."""

    async def hook(call: Call) -> None:
        if call.operation == operation:
            raise AccessDenied("not yours", code="AccessDeniedException", status=400)

    return hook


@pytest.fixture
def world(monkeypatch) -> World:
    """What the commands talk to, with a stream `orders`."""
    world = World(clock=SystemClock())
    world.stream("orders")

    @contextlib.asynccontextmanager
    async def connected(*_: object, **__: object) -> AsyncIterator[Connection]:
        broker = world.broker()
        yield broker.connection
        await broker.close()

    monkeypatch.setattr(writing, "connected", connected)
    return world


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output + str(result.exception)
    return result


def one_line(result: Result) -> str:
    (line,) = result.stderr.splitlines()
    assert line.startswith("ruststream-kinesis: ")
    return line


class TestPut:
    def test_one_value_says_where_it_stands(self, world: World):
        assert run("put", "orders", "x", "--key", "k").stdout == f"{FIRST} 1\n"
        told = json.loads(run("put", "orders", "y", "--json").stdout)

        assert told == {"stream": "orders", "shard_id": FIRST, "sequence_number": "2"}
        assert [each.data for each in world.records("orders")] == [b"x", b"y"]
        assert world.records("orders")[0].key == "k"

    def test_headers_go_into_the_envelope(self, world: World):
        run("put", "orders", "x", "--header", "trace=a=b", "--header", "n=1")

        assert world.records("orders")[0].data == encode_envelope({"trace": "a=b", "n": "1"}, b"x")

    def test_a_line_is_a_record(self, world: World, tmp_path: Path):
        (tmp_path / "lines").write_text('{"k": "a"}\n\n{"k": "b"}\n')

        result = run("put", "orders", "--lines", str(tmp_path / "lines"), "--key-field", "k")

        assert result.stdout == "2 record(s) sent to orders\n"
        assert sorted(each.key for each in world.records("orders")) == ["a", "b"]

    def test_lines_that_fail_are_named_and_are_the_exit_code(
        self, world: World, tmp_path: Path, monkeypatch
    ):
        monkeypatch.setattr(put, "_SAID", 2)
        (tmp_path / "lines").write_text('{"k": "a"}\n{\n1\n{}\n')
        given = ("put", "orders", "--lines", str(tmp_path / "lines"), "--key-field", "k")

        result = run(*given, code=1)
        told = json.loads(run(*given, "--json", code=1).stdout)

        assert result.stdout == "1 record(s) sent to orders, 3 failed\n"
        second, third, more = result.stderr.splitlines()
        assert "line 2: " in second
        assert "line 3: no field 'k'" in third
        assert "1 more" in more
        assert (told["sent"], [each["line"] for each in told["failures"]]) == (1, [2, 3, 4])

    @pytest.mark.parametrize(
        "given",
        [
            ("put", "orders"),
            ("put", "orders", "x", "--lines", "f"),
            ("put", "orders", "x", "--key-field", "k"),
        ],
    )
    def test_what_is_no_put_is_a_wrong_command_line(self, world: World, given):
        run(*given, code=2)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (("nope", "x"), "nope does not exist|no such stream"),
            (("a b", "x"), "invalid stream"),
            (("orders", "x", "--header", "trace"), "NAME=VALUE"),
            (("orders", "x", "--raw", "--header", "a=b"), "--raw"),
            (("orders", "x", "--key", ""), "key"),
            (("orders", "--lines", "no-such-file"), "no-such-file"),
        ],
    )
    def test_what_is_refused_is_one_line(self, world: World, given, says):
        line = one_line(run("put", *given, code=1))

        assert any(each in line for each in says.split("|"))

    def test_who_may_put_need_not_be_allowed_to_look(self, world: World):
        world.hooks.append(denied("describe_stream"))

        run("put", "orders", "x")

        world.hooks.append(denied("put_record"))
        assert "not yours" in one_line(run("put", "orders", "y", code=1))


class TestRedrive:
    @pytest.fixture(autouse=True)
    def _dead(self, world: World) -> None:
        world.stream("dead")
        origin = {"x-ruststream-origin-stream": "orders", "x-ruststream-error": "E: x"}
        self.numbers = world.put("dead", *(encode_envelope(origin, b"%d" % n) for n in range(3)))
        world.put("dead", b"unknown")

    def test_it_reports_and_says_how_to_go_on(self, world: World):
        result = run("dead-letters", "redrive", "dead", "--to", "orders", "--limit", "2")

        assert "3 read" not in result.stdout
        assert "dead -> orders: 2 read, 2 redriven, 0 skipped, 0 failed" in result.stdout
        assert "once more puts all of them again" in result.stdout
        (command,) = [line for line in result.stdout.splitlines() if "--from" in line]
        words = command.split()
        assert words[-2:] == ["--from", f"{FIRST}:{self.numbers[1]}"]
        run(*words[1:])
        assert [each.data for each in world.records("orders")] == [b"0", b"1", b"2"]

    def test_a_dry_run_puts_nothing_and_says_what_it_would(self, world: World):
        result = run("dead-letters", "redrive", "dead", "--to", "orders", "--dry-run")

        assert "4 read, 3 would be redriven, 1 skipped, 0 failed" in result.stdout
        assert "--all" in result.stdout
        assert "--from" not in result.stdout
        assert world.records("orders") == []

    def test_the_report_may_be_json(self, world: World):
        result = run("dead-letters", "redrive", "dead", "--to", "orders", "--all", "--json")

        told = json.loads(result.stdout)
        assert (told["read"], told["redriven"], told["failed"]) == (4, 4, 0)
        assert told["positions"] == {FIRST: "4"}

    def test_a_failure_is_the_exit_code(self, world: World):
        world.hooks.append(denied("put_records"))

        result = run("dead-letters", "redrive", "dead", "--to", "orders", code=1)

        assert "0 redriven" in result.stdout
        assert "not yours" in result.stderr

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (("dead", "--to", "nope"), "no such stream"),
            (("nope", "--to", "orders"), "no such stream"),
            (("dead", "--to", "dead"), "itself"),
            (("dead", "--to", "orders", "--from", "latest"), "horizon"),
            (("dead", "--to", "orders", "--from", "x"), "no position"),
            (("dead", "--to", "orders", "--from", "1h", "--from", "2h"), "--from"),
            (("dead", "--to", "orders", "--from", "s:1", "--from", "s:2"), "--from"),
            (("dead", "--to", "orders", "--from", "s:1"), "no shard s"),
        ],
    )
    def test_what_is_refused_is_one_line_and_no_report(self, world: World, given, says):
        result = run("dead-letters", "redrive", *given, code=1)

        assert says in one_line(result)
        assert result.stdout == ""


class TestReset:
    @pytest.fixture(autouse=True)
    def _table(self, world: World, monkeypatch) -> None:
        self.table = MemoryTable()
        monkeypatch.setattr(writing, "lease_table", lambda *_, **__: TableLeaseStore(self.table))

    def resumes_at(self) -> object:
        row = self.table.rows.get(LeaseKey("orders", FIRST).row)
        return None if row is None else row.get("resume_from")

    def test_it_is_shown_first_and_done_when_told_to(self, world: World):
        given = ("checkpoint", "reset", "orders", "--table", "leases", "--to", "horizon")

        shown = run(*given)
        assert self.resumes_at() is None
        done = run(*given, "--yes")

        assert [FIRST, "not", "opened", "yet", "from", "horizon"] in [
            line.split() for line in shown.stdout.splitlines()
        ]
        assert "--yes does it" in shown.stdout
        assert "1 shard(s) moved" in done.stdout
        assert self.resumes_at() == KinesisPosition.horizon().to_text()

    def test_the_plan_may_be_json(self, world: World):
        given = ("checkpoint", "reset", "orders", "--table", "leases", "--to", f"{FIRST}:7")

        told = json.loads(run(*given, "--json").stdout)

        assert not told["written"]
        (shard,) = told["shards"]
        assert (shard["shard_id"], shard["to"]) == (FIRST, f"sequence:{FIRST}:7")

    def test_the_table_may_come_from_the_environment(self, world: World, monkeypatch):
        monkeypatch.setenv("RUSTSTREAM_TABLE", "leases")

        run("checkpoint", "reset", "orders", "--to", "latest", "--group", "billing", "--yes")

        assert list(self.table.rows) == [LeaseKey("orders", FIRST, "billing").row]

    @pytest.mark.parametrize(
        ("given", "says"),
        [(("nope", "--to", "horizon"), "no such stream"), (("orders", "--to", "x"), "no position")],
    )
    def test_what_is_refused_is_one_line(self, world: World, given, says):
        assert says in one_line(run("checkpoint", "reset", *given, "--table", "leases", code=1))


class TestLive:
    """The commands as processes, on servers that others wrote."""

    async def start(self, kinesis: Server, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ruststream_kinesis.cli", *arguments),
            *("--endpoint-url", kinesis.url, "--region", REGION, "--test-credentials"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def test_what_ctrl_c_ends_says_what_was_sent(self, kinesis_local: Server, aws: Aws):
        stream = await aws.create_stream()
        process = await self.start(kinesis_local, "put", stream, "--lines", "-")
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"first\nsecond\n")
            async with asyncio.timeout(PATIENCE):
                # Its input is still open: it sends what there is, and waits for more.
                while len(await aws.records(stream)) < 2:
                    pass  # a round trip is the pause
                process.send_signal(signal.SIGINT)
                told = await process.stdout.read()
                assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
            _, said = await process.communicate()
        assert told.decode().splitlines()[0] == f"2 record(s) sent to {stream}"
        assert said == b""

    async def test_dead_letters_go_back_and_a_service_is_reset(
        self, kinesis_local: Server, dynalite_server: Server, aws: Aws
    ):
        stream, dead = await aws.create_stream(), await aws.create_stream()
        headers = {"trace": "1", "x-ruststream-origin-stream": stream}
        for number in range(2):
            await aws.put(dead, encode_envelope(headers, b"%d" % number), "ada")
        table = unique_table()
        store = DynamoLeaseStore(
            table,
            create=True,
            endpoint_url=dynalite_server.url,
            region=REGION,
            test_credentials=True,
        )
        await store.open()
        try:
            async with asyncio.timeout(2 * PATIENCE):
                for arguments in (
                    ("dead-letters", "redrive", dead, "--to", stream),
                    (
                        *("checkpoint", "reset", stream, "--to", "horizon", "--yes"),
                        *("--table", table, "--table-endpoint-url", dynalite_server.url),
                    ),
                ):
                    process = await self.start(kinesis_local, *arguments)
                    told, said = await process.communicate()
                    assert process.returncode == 0, (told, said)
                    assert said == b""
            (row,) = await store.leases(stream)
        finally:
            await store.close()
        assert [(each["PartitionKey"], each["Data"]) for each in await aws.records(stream)] == [
            ("ada", encode_envelope({"trace": "1"}, b"%d" % number)) for number in range(2)
        ]
        assert (row.owner, row.resume_from) == (None, KinesisPosition.horizon())
