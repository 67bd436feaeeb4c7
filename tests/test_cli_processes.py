"""`run --workers` and `run --reload`: which processes run when, and what ends the command.

The processes are made up; one live test has real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Collection

import pytest
from typer.testing import CliRunner

from ruststream_kinesis.cli import logs, workers
from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.cli.logs import JsonLines
from ruststream_kinesis.cli.processes import Stopping
from ruststream_kinesis.cli.reload import Reloading
from ruststream_kinesis.cli.run import RunOptions
from ruststream_kinesis.cli.workers import Workers
from tests.support.aws import PATIENCE


class Hasty:
    """Time that passes at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class FakeProcess:
    """Runs until it is told, or dies by itself."""

    def __init__(self, dies_with: int | None) -> None:
        self.signals: list[int] = []
        self.was_told = asyncio.Event()
        self._code = asyncio.get_running_loop().create_future()
        if dies_with is not None:
            self._code.set_result(dies_with)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def send_signal(self, signal: int) -> None:
        if self._code.done():
            raise ProcessLookupError
        self.signals.append(signal)
        self.was_told.set()

    def end(self, code: int) -> None:
        self._code.set_result(code)


class Factory:
    """Starts processes; those that `dying` has an exit code for die of it at once."""

    def __init__(self, *dying: int) -> None:
        self.dying = list(dying)
        self.started: list[FakeProcess] = []
        self.numbers: list[str] = []
        self._more = asyncio.Condition()

    async def __call__(self, worker: str) -> FakeProcess:
        process = FakeProcess(self.dying.pop(0) if self.dying else None)
        async with self._more:
            self.started.append(process)
            self.numbers.append(worker)
            self._more.notify_all()
        return process

    async def have(self, count: int) -> None:
        """Waits until so many were started."""
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: len(self.started) >= count)
        await asyncio.sleep(0)


async def told(process: FakeProcess) -> None:
    """Waits until it has a signal."""
    async with asyncio.timeout(PATIENCE):
        await process.was_told.wait()


async def turns() -> None:
    """Lets everything happen that needs nobody else."""
    for _ in range(20):
        await asyncio.sleep(0)


class TestWorkers:
    @contextlib.asynccontextmanager
    async def running(
        self, count: int, *dying: int
    ) -> AsyncIterator[tuple[Workers, Factory, asyncio.Task[int]]]:
        factory = Factory(*dying)
        workers = Workers(count, factory, Hasty())
        task = asyncio.ensure_future(workers.run())
        async with asyncio.timeout(PATIENCE):
            yield workers, factory, task

    async def test_a_stop_reaches_every_worker_and_a_second_one_too(self):
        async with self.running(2) as (workers, factory, task):
            await factory.have(2)
            workers.stopping.ask()
            workers.stopping.ask()
            for process in factory.started:
                assert process.signals == [signal.SIGTERM, signal.SIGTERM]
                process.end(0)

            assert await task == 0
        assert sorted(factory.numbers) == ["1", "2"]

    async def test_the_third_stop_waits_for_nobody(self):
        async with self.running(1) as (workers, factory, task):
            await factory.have(1)
            for _ in range(3):
                workers.stopping.ask()
            assert factory.started[0].signals[-1] == signal.SIGKILL
            factory.started[0].end(-signal.SIGKILL)

            assert await task == 1

    async def test_a_stop_reaches_one_that_is_being_started(self):
        factory = Factory()

        async def spawn(worker: str) -> FakeProcess:
            process = await factory(worker)
            them.stopping.ask()
            return process

        them = Workers(1, spawn, Hasty())
        task = asyncio.ensure_future(them.run())
        await factory.have(1)
        await told(factory.started[0])
        factory.started[0].end(0)

        assert await task == 0

    async def test_a_stop_that_did_not_go_well_is_the_commands_failure(self):
        async with self.running(2) as (workers, factory, task):
            await factory.have(2)
            workers.stopping.ask()
            factory.started[0].end(0)
            factory.started[1].end(1)

            assert await task == 1

    async def test_a_worker_that_had_not_begun_to_listen_was_stopped_all_the_same(self):
        async with self.running(1) as (workers, factory, task):
            await factory.have(1)
            workers.stopping.ask()
            factory.started[0].end(-signal.SIGTERM)

            assert await task == 0

    async def test_one_that_dies_is_started_again_under_its_number(self):
        async with self.running(1, 1, -9, 1, 0) as (workers, factory, task):
            await factory.have(5)
            assert factory.numbers == ["1"] * 5
            workers.stopping.ask()
            factory.started[4].end(0)

            assert await task == 0
        assert workers.reason is None

    async def test_five_deaths_within_a_minute_end_the_command_and_stop_the_others(self):
        async with self.running(2) as (workers, factory, task):
            await factory.have(2)
            lasting, dying = factory.started
            for number in range(5):
                dying.end(1)
                if number < 4:
                    await factory.have(3 + number)
                    dying = factory.started[-1]
            await told(lasting)
            assert lasting.signals == [signal.SIGTERM]
            lasting.end(0)

            assert await task == 1
        assert workers.reason is not None
        assert "worker 2 died 5 times within 60 s" in workers.reason

    async def test_deaths_that_are_further_apart_do_not(self):
        async with self.running(1) as (workers, factory, task):
            clock = workers._clock
            assert isinstance(clock, Hasty)
            for number in range(6):
                await factory.have(number + 1)
                clock.now += 20
                factory.started[number].end(1)
            await factory.have(7)
            workers.stopping.ask()
            factory.started[6].end(0)

            assert await task == 0

    async def test_a_wrong_command_line_is_not_tried_again(self):
        async with self.running(1, 2) as (_, factory, task):
            assert await task == 2
        assert len(factory.started) == 1

    def test_with_leases_in_memory_several_are_refused_in_one_line(self, tmp_path, monkeypatch):
        (tmp_path / "svc_memory.py").write_text(
            "from ruststream_kinesis import KinesisBroker, RustStream\n"
            "app = RustStream(KinesisBroker(), title='t', version='1')\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(workers, "Workers", None)

        result = CliRunner().invoke(cli, ["run", "svc_memory:app", "--workers", "2"])

        (line,) = result.stderr.splitlines()
        assert result.exit_code == 1
        assert "lease_store" in line


class Files:
    """Changes that a test makes."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Collection[str] | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Collection[str]]:
        while True:
            change = await self.queue.get()
            if isinstance(change, Exception):
                raise change
            yield change

    def change(self, *names: str) -> None:
        self.queue.put_nowait(names)


class TestReload:
    @contextlib.asynccontextmanager
    async def running(
        self, *dying: int
    ) -> AsyncIterator[tuple[Stopping, Factory, Files, asyncio.Task[int]]]:
        factory, files, stopping = Factory(*dying), Files(), Stopping()
        reloading = Reloading(factory, aiter(files), stopping)
        task = asyncio.ensure_future(reloading.run())
        async with asyncio.timeout(PATIENCE):
            yield stopping, factory, files, task

    async def test_a_change_stops_the_old_one_before_the_new_one_starts(self):
        async with self.running() as (stopping, factory, files, task):
            await factory.have(1)
            files.change("service.py")
            await told(factory.started[0])
            assert len(factory.started) == 1
            factory.started[0].end(0)
            await factory.have(2)
            stopping.ask()
            factory.started[1].end(0)

            assert await task == 0

    async def test_one_that_does_not_start_waits_for_the_next_change(self):
        async with self.running(1) as (stopping, factory, files, task):
            await factory.have(1)
            await turns()
            assert len(factory.started) == 1
            files.change("service.py")
            await factory.have(2)
            stopping.ask()
            factory.started[1].end(0)

            assert await task == 0

    async def test_a_stop_while_nothing_runs_ends_it(self):
        async with self.running(1) as (stopping, factory, _, task):
            await factory.have(1)
            await turns()
            stopping.ask()

            assert await task == 0

    async def test_a_wrong_command_line_is_not_waited_with(self):
        async with self.running(2) as (_, _, _, task):
            assert await task == 2

    async def test_where_changes_cannot_be_seen_it_ends_and_so_does_the_service(self):
        async with self.running() as (_, factory, files, task):
            await factory.have(1)
            files.queue.put_nowait(OSError("too many files are watched"))
            with pytest.raises(OSError, match="too many"):
                await task
        assert factory.started[0].signals == [signal.SIGKILL]

    def test_it_is_for_one_process(self):
        result = CliRunner().invoke(cli, ["run", "a:b", "--reload", "--workers", "2"])

        assert result.exit_code == 2

    def test_without_watchfiles_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr("ruststream_kinesis.cli.reload.find_spec", lambda _: None)

        result = CliRunner().invoke(cli, ["run", "a:b", "--reload"])

        (line,) = result.stderr.splitlines()
        assert result.exit_code == 1
        assert "pip install 'ruststream-kinesis[cli]'" in line

    async def test_real_processes_come_and_go_with_the_files(self, tmp_path):
        """One real run: watchfiles, a real child, signals, and no service without its parent."""
        (tmp_path / "broken.py").write_text("x = 1 / 0\n")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ruststream_kinesis.cli"),
            *("run", "broken:app", "--reload"),
            cwd=tmp_path,
            stderr=asyncio.subprocess.PIPE,
        )
        stderr = process.stderr
        assert stderr is not None
        seen = ""

        async def line(part: str) -> None:
            nonlocal seen
            async with asyncio.timeout(PATIENCE):
                while part not in (text := (await stderr.readline()).decode()):
                    assert text, seen
                    seen += text
            seen += text

        try:
            await line("ZeroDivisionError")
            await line("waiting for a change")
            (tmp_path / "broken.py").write_text("import no_such_module_at_all\n")
            await line("No module named 'no_such_module_at_all'")
            await line("waiting for a change")
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert "Traceback" not in seen


class TestOptions:
    def test_a_worker_is_started_with_what_the_command_was_given_and_alone(self, monkeypatch):
        monkeypatch.setenv("RUSTSTREAM_WORKERS", "4")
        given: list[RunOptions] = []

        def run(options: RunOptions) -> int:
            given.append(options)
            return 0

        monkeypatch.setattr("ruststream_kinesis.cli.run.run_service", run)
        options = RunOptions(
            "a:b",
            region="eu-west-1",
            endpoint_url="http://x",
            test_credentials=True,
            log_level="DEBUG",
            log_format="json",
            debug=True,
        )

        assert CliRunner().invoke(cli, options.arguments).exit_code == 0

        assert given == [options]


class TestJsonLines:
    def line(self, record: logging.LogRecord) -> dict[str, str]:
        text = JsonLines().format(record)
        assert "\n" not in text
        line: dict[str, str] = json.loads(text)
        return line

    def record(self, message: str, *args: object, **extra: object) -> logging.LogRecord:
        logger = logging.getLogger("some.where")
        return logger.makeRecord(
            "some.where", logging.WARNING, "x.py", 1, message, args, None, extra=extra
        )

    def test_the_place_of_a_record_is_in_fields_of_their_own(self):
        record = self.record(
            "a %s", "b\nc", stream="orders", shard_id="shardId-1", sequence_number="42", other=1
        )
        record.created = 1_700_000_000.25

        assert self.line(record) == {
            "time": "2023-11-14T22:13:20.250Z",
            "level": "warning",
            "logger": "some.where",
            "message": "a b\nc",
            "stream": "orders",
            "shard_id": "shardId-1",
            "sequence_number": "42",
        }

    def test_an_exception_is_one_string_and_a_place_that_is_not_there_is_left_out(self):
        error = ValueError("no\ngood")
        record = self.record("failed", stream="orders", shard_id=None)
        record.exc_info = (type(error), error, None)

        line = self.line(record)

        assert line["exception"].endswith("ValueError: no\ngood")
        assert "shard_id" not in line

    def test_what_is_no_text_costs_no_line(self):
        assert self.line(self.record("name \udcff"))["message"] == "name ?"

    def test_a_worker_says_which_it_is(self, monkeypatch, capsys):
        monkeypatch.setenv(logs.WORKER, "3")

        assert self.line(self.record("x"))["worker"] == "3"
        logs.say("it\nended")
        assert capsys.readouterr().err == "ruststream-kinesis: [3] it ended\n"

    def test_the_end_of_a_command_is_such_a_line_too(self, capsys):
        logs.say("it ended", "json")

        line = json.loads(capsys.readouterr().err)
        assert (line["level"], line["message"]) == ("error", "it ended")
