"""The command line: what a user sees, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from ruststream_kinesis import DynamoLeaseStore, KinesisBroker, RustStream
from ruststream_kinesis.cli import main
from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.cli.logs import log_to_stderr
from ruststream_kinesis.cli.run import RunOptions, _override_table, _told
from ruststream_kinesis.counters import Counters
from ruststream_kinesis.errors import ConfigurationError
from tests.support.aws import PATIENCE
from tests.support.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.aws import Aws
    from tests.support.servers import Server

COMMAND = Path(sys.executable).with_name("ruststream-kinesis")
"""The installed script, as a user starts it."""

SERVICE = """
from ruststream_kinesis import KinesisBroker, RustStream

class Impatient:
    "Time that passes at once: for what is waited for at the start."
    now = 0.0
    def monotonic(self):
        return self.now
    def time(self):
        return self.now
    async def sleep(self, seconds):
        self.now += seconds

class holder:
    app = RustStream(KinesisBroker(), title="held", version="1")

app = RustStream(KinesisBroker({broker}), title="service", version="1")
number = 1

@app.subscriber("{stream}", on_error="stop")
async def handle(payload: bytes) -> None:
    raise ValueError("this is\\nno good")
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty current directory, and an environment that says nothing of AWS or of us."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "RUSTSTREAM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    level = logging.getLogger("ruststream_kinesis").level
    yield tmp_path
    logging.getLogger("ruststream_kinesis").setLevel(level)
    for name, module in list(sys.modules.items()):
        # What a test wrote there is not found again by the next one.
        if name not in known and str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def write_service(folder: Path, *, stream: str = "orders", broker: str = "") -> None:
    (folder / "service.py").write_text(SERVICE.format(stream=stream, broker=broker))


def invoke(*arguments: str) -> tuple[int, str]:
    """Calls the command in process: exit code and what it wrote to stderr."""
    result = CliRunner().invoke(cli, arguments)
    assert not isinstance(result.exception, AssertionError)
    return result.exit_code, result.stderr


def one_line(stderr: str) -> str:
    """The message of a failure that is one line, and no traceback."""
    (line,) = stderr.splitlines()
    assert line.startswith("ruststream-kinesis: ")
    return line.removeprefix("ruststream-kinesis: ")


class Command:
    """A running `ruststream-kinesis`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stderr = ""

    async def line(self, part: str) -> str:
        """Waits until a line with `part` is on stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.stderr += line
                if part in line:
                    return line
        pytest.fail(f"it ended without a line with {part!r}:\n{self.stderr}")

    async def end(self) -> int:
        """Waits until it ends, and returns the exit code."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.stderr += (await self.process.stderr.read()).decode()
            return await self.process.wait()


@contextlib.asynccontextmanager
async def started(*arguments: str, cwd: Path) -> AsyncIterator[Command]:
    """Starts the installed command, and kills it in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        str(COMMAND), *arguments, cwd=cwd, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


class TestCommand:
    def test_without_arguments_it_shows_its_commands(self):
        result = CliRunner().invoke(cli, [])

        assert "run" in result.output

    def test_it_knows_its_version(self):
        assert CliRunner().invoke(cli, ["--version"]).output.startswith("0.")

    def test_every_option_of_a_connection_names_its_environment_variable(self):
        text = CliRunner().invoke(cli, ["run", "--help"], terminal_width=200).output

        for name in (
            *("ENDPOINT_URL", "REGION", "TEST_CREDENTIALS"),
            *("LOG_LEVEL", "LOG_FORMAT", "WORKERS", "DEBUG"),
        ):
            assert f"RUSTSTREAM_{name}" in text

    def test_help_does_not_wait_for_the_aws_client(self):
        code = (
            "import sys; sys.argv = ['x', 'run', '--help']\n"
            "from ruststream_kinesis.cli import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "slow = {'aiobotocore', 'botocore', 'aiohttp', 'rich'} & set(sys.modules)\n"
            "assert not slow, slow\n"
        )

        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

        assert done.returncode == 0, done.stderr.decode()

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_without_the_extra_it_says_what_to_install(self, monkeypatch, missing):
        # `None` there is how the import system spells a module that cannot be found.
        monkeypatch.setitem(sys.modules, missing, None)
        monkeypatch.setattr(sys, "argv", ["ruststream-kinesis", "run", "orders:app"])

        with pytest.raises(SystemExit) as end:
            main()

        assert missing in str(end.value)
        assert "pip install 'ruststream-kinesis[cli]'" in str(end.value)
        assert "\n" not in str(end.value)


class TestLoading:
    @pytest.mark.parametrize(
        ("target", "says"),
        [
            ("nothing.py:app", "there is no module 'nothing'"),
            ("nothing:app", "there is no module 'nothing'"),
            ("nothing.service:app", "there is no module 'nothing'"),
            ("service.nothing:app", "there is no module 'service.nothing'"),
            ("service:ap", "has no 'ap'; did you mean service:app?"),
            ("service:number", "is int, not a RustStream application"),
            ("service:holder", "is the class holder, not a RustStream application"),
        ],
    )
    def test_what_names_no_application_is_one_line(self, here, target, says):
        write_service(here)

        code, stderr = invoke("run", target)

        assert code == 1
        assert says in one_line(stderr)

    @pytest.mark.parametrize(
        ("target", "says"),
        [
            ("service", "write MODULE:APP"),
            ("service:", "write MODULE:APP"),
            (":app", "write MODULE:APP"),
            ("./service:app", "write MODULE:APP"),
            ("service.py:app", "service:app"),
        ],
    )
    def test_a_text_that_cannot_name_an_application_is_a_wrong_command_line(
        self, here, target, says
    ):
        write_service(here)

        code, stderr = invoke("run", target)

        assert code == 2
        assert says in one_line(stderr)

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("x = 1\n1 / 0\n", ["ZeroDivisionError: division by zero", "broken.py, line 2"]),
            (
                "import no_such_package\n",
                ["No module named 'no_such_package'", "broken.py, line 1"],
            ),
            ("def f(:\n", ["SyntaxError", "broken.py, line 1"]),
            (
                "from ruststream_kinesis import KinesisStream\nKinesisStream('a b')\n",
                ["ConfigurationError: invalid stream name 'a b'"],
            ),
            (
                "import ruststream_kinesis as k\nk.Router().subscriber('orders', max_attempts=0)\n",
                ["max_attempts", "[stream orders]", "broken.py, line 2"],
            ),
        ],
    )
    def test_a_module_that_does_not_import_is_one_line_with_the_place(self, here, source, says):
        (here / "broken.py").write_text(source)

        code, stderr = invoke("run", "broken:app")

        assert code == 1
        for part in says:
            assert part in one_line(stderr)

    def test_an_application_may_be_an_attribute_of_an_attribute(self, here):
        write_service(here)

        _, stderr = invoke("run", "service:holder.app", "--endpoint-url", "nowhere")

        assert "endpoint_url" in one_line(stderr)

    def test_debug_shows_the_traceback(self, here):
        (here / "broken.py").write_text("1 / 0\n")

        result = CliRunner().invoke(cli, ["run", "broken:app", "--debug"])

        assert isinstance(result.exception, ConfigurationError)
        assert isinstance(result.exception.__cause__, ZeroDivisionError)


class TestLogging:
    def test_what_did_not_happen_is_not_counted_out(self):
        assert _told(Counters(handled=3)) == "3 handled"
        assert _told(Counters(handled=0, dropped=2, replies=1)) == "0 handled, 2 dropped, 1 replies"

    @pytest.mark.parametrize(
        ("level", "theirs"), [("INFO", logging.WARNING), ("DEBUG", logging.INFO)]
    )
    def test_the_aws_clients_own_news_are_for_who_debugs(self, monkeypatch, here, level, theirs):
        root = logging.getLogger()
        loggers = [logging.getLogger(name) for name in ("aiobotocore", "botocore")]
        for each in loggers:
            monkeypatch.setattr(each, "level", each.level)
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(root, "level", root.level)

        log_to_stderr(level, "text")

        assert [each.level for each in loggers] == [theirs, theirs]

    def test_an_application_that_set_up_its_log_keeps_it(self, monkeypatch, here):
        logger = logging.getLogger("botocore")
        monkeypatch.setattr(logger, "level", logging.ERROR)
        monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])

        log_to_stderr("INFO", "text")

        assert logger.level == logging.ERROR


class TestSettings:
    def test_no_region_is_one_line_that_says_where_to_set_one(self, here):
        write_service(here)

        code, stderr = invoke("run", "service:app")

        assert code == 1
        assert "AWS_REGION" in one_line(stderr)
        assert "--region" in one_line(stderr)

    @pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION", "RUSTSTREAM_REGION"])
    def test_no_credentials_are_one_line_and_the_region_may_come_from_the_environment(
        self, here, monkeypatch, name
    ):
        write_service(here)
        monkeypatch.setenv(name, "eu-west-1")

        code, stderr = invoke("run", "service:app")

        assert code == 1
        assert "no credentials" in one_line(stderr)
        assert "--test-credentials" in one_line(stderr)

    def test_an_endpoint_that_is_none_is_refused_with_its_text(self, here, monkeypatch):
        write_service(here)
        monkeypatch.setenv("RUSTSTREAM_ENDPOINT_URL", "localhost:4567")

        code, stderr = invoke("run", "service:app")

        assert code == 1
        assert "'localhost:4567'" in one_line(stderr)

    def test_an_endpoint_that_nobody_listens_at_is_one_line_with_the_endpoint(
        self, here, unused_tcp_port
    ):
        write_service(here, broker="clock=Impatient()")
        url = f"http://127.0.0.1:{unused_tcp_port}"

        code, stderr = invoke(
            "run", "service:app", "--endpoint-url", url, "--test-credentials", "--log-level=error"
        )

        assert code == 1
        assert url in one_line(stderr)

    def test_a_startup_hook_that_fails_is_one_line_with_the_type_of_its_error(self, here):
        write_service(here, broker="test_credentials=True, clock=Impatient()")
        with (here / "service.py").open("a") as source:
            source.write(
                "app = RustStream(KinesisBroker(test_credentials=True), title='t', version='1')\n"
                "@app.on_startup\n"
                "async def fail():\n"
                "    raise OSError('no\\ndatabase')\n"
            )

        code, stderr = invoke("run", "service:app")

        assert code == 1
        assert one_line(stderr) == "OSError: no database (--debug shows where)"


class TestOverride:
    def test_it_replaces_what_is_given_and_leaves_the_rest(self):
        broker = KinesisBroker(region="eu-west-1", endpoint_url="http://one", test_credentials=True)

        broker.override(endpoint_url="http://two")

        assert broker.settings.endpoint_url == "http://two"
        assert broker.settings.region == "eu-west-1"
        assert broker.settings.test_credentials

    def test_the_lease_table_is_reached_as_the_stream_is(self):
        store = DynamoLeaseStore("orders-leases", endpoint_url="http://one", region="eu-west-1")

        store.override(region="eu-central-1", test_credentials=True)

        settings = store._settings
        assert (settings.region, settings.endpoint_url) == ("eu-central-1", "http://one")
        assert settings.test_credentials
        with pytest.raises(ConfigurationError, match="ftp://one"):
            store.override(endpoint_url="ftp://one")

    def test_run_gives_its_options_to_the_lease_table_too(self):
        store = DynamoLeaseStore("orders-leases")
        app = RustStream(KinesisBroker(lease_store=store), title="t", version="1")
        options = RunOptions(
            "t:app", region="eu-west-1", test_credentials=True, table_endpoint_url="http://table"
        )

        _override_table(app, options)

        settings = store._settings
        assert (settings.region, settings.endpoint_url) == ("eu-west-1", "http://table")
        assert settings.test_credentials
        assert "--table-endpoint-url" in options.arguments

    def test_a_value_that_the_constructor_refuses_is_refused(self):
        broker = KinesisBroker()

        with pytest.raises(ConfigurationError, match="ftp://one"):
            broker.override(endpoint_url="ftp://one")

        assert broker.settings.endpoint_url is None

    async def test_a_connected_broker_is_not_changed(self):
        broker = KinesisBroker(test_credentials=True)
        await broker.connect()
        try:
            with pytest.raises(ConfigurationError, match="connected"):
                broker.override(region="eu-west-1")
        finally:
            await broker.close()


class TestLive:
    """The installed command against a real server, as a process."""

    async def test_the_example_confirms_orders_until_sigterm(self, kinesis_local: Server, aws: Aws):
        for name in ("orders", "confirmations"):
            await aws.create_stream(name, shards=2)
        given = ("--endpoint-url", kinesis_local.url, "--test-credentials")
        async with started("run", "examples.orders:app", *given, cwd=ROOT) as command:
            await command.line("is reading orders")
            for number, quantity in ((1, 2), (2, 0), (3, 1)):
                order = {"id": number, "customer": "ada", "quantity": quantity, "unit_cents": 50}
                await aws.put("orders", msgspec.json.encode(order), "ada")
            await aws.put("orders", b"no order at all", "ada")

            async with asyncio.timeout(PATIENCE):
                while len(replies := await aws.records("confirmations")) < 2:
                    pass  # a round trip is the pause
            # The bad record comes last, and has no reply to wait for.
            await command.line("does not decode")
            command.process.send_signal(signal.SIGTERM)
            code = await command.end()

        assert code == 0, command.stderr
        assert [msgspec.json.decode(reply["Data"]) for reply in replies] == [
            {"order_id": 1, "customer": "ada", "total_cents": 100},
            {"order_id": 3, "customer": "ada", "total_cents": 50},
        ]
        assert {reply["PartitionKey"] for reply in replies} == {"ada"}
        assert "orders: 3 handled, 1 undecodable, 2 dropped, 2 replies" in command.stderr
        assert "Traceback" not in command.stderr

    async def test_ctrl_c_is_a_graceful_stop_as_well(self, kinesis_local: Server, aws: Aws, here):
        write_service(here, stream=await aws.create_stream())
        given = ("--endpoint-url", kinesis_local.url, "--test-credentials")
        async with started("run", "service:app", *given, cwd=here) as command:
            await command.line("is reading")
            command.process.send_signal(signal.SIGINT)

            assert await command.end() == 0, command.stderr
        assert "Traceback" not in command.stderr

    async def test_a_stream_that_does_not_exist_is_one_line_with_its_name(
        self, kinesis_local: Server, here
    ):
        write_service(here, stream="no-such-stream")
        given = ("--endpoint-url", kinesis_local.url, "--test-credentials")
        async with started("run", "service:app", *given, cwd=here) as command:
            assert await command.end() == 1

        assert "no-such-stream does not exist" in one_line(command.stderr)

    async def test_a_handler_that_stops_the_service_is_an_exit_code(
        self, kinesis_local: Server, aws: Aws, here
    ):
        stream = await aws.create_stream()
        write_service(here, stream=stream)
        given = ("--endpoint-url", kinesis_local.url, "--test-credentials")
        async with started("run", "service:app", *given, cwd=here) as command:
            await command.line("is reading")
            number = await aws.put(stream, b"poison")

            assert await command.end() == 1
        last = command.stderr.splitlines()[-1]
        assert last.startswith("ruststream-kinesis: stopping, as declared for errors: ValueError")
        assert number in last

    async def test_a_stop_while_it_waits_for_the_endpoint_does_not_wait(
        self, here, unused_tcp_port
    ):
        write_service(here)
        given = ("--endpoint-url", f"http://127.0.0.1:{unused_tcp_port}", "--test-credentials")
        async with started("run", "service:app", *given, cwd=here) as command:
            await command.line("trying again")
            command.process.send_signal(signal.SIGTERM)

            assert await command.end() == 0, command.stderr
        assert "Traceback" not in command.stderr
