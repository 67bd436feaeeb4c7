"""Signals to a real process: the first stops gracefully, the second at once, and both can be told.

The child says what it is at on its standard output, so that nothing here waits for a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import IO

import pytest

from tests.support.servers import ROOT
from tests.support.world import PATIENCE, World, running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to send")

PREAMBLE = """
import asyncio, sys, threading
from ruststream_kinesis import KinesisPosition
from tests.support.world import World

world = World()
world.stream("orders")
world.put("orders", 1, 2, 3)
app = world.app(shutdown_timeout=1000)
subscriber = app.subscriber("orders", start_at=KinesisPosition.horizon())

def say(*words):
    print(*words, flush=True)

async def main():
    try:
        async def watch():
            while app._service is None:
                await asyncio.sleep(0)
            await app._service._stopping.wait()
            say("stopping")
        watching = asyncio.create_task(watch())
        await app.run()
        watching.cancel()
    finally:
        say("checkpoint", await world.checkpoint())
        say("owner", await world.owner())
"""


class Child:
    """A process that runs a service and says what it is at."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._output: IO[str] = process.stdout
        self.said: list[str] = []

    def hears(self, line: str) -> None:
        """Wait until it says this line."""
        while line not in self.said:
            said = self._output.readline()
            assert said, f"it ended without {line!r}, after {self.said}"
            self.said.append(said.strip())

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Wait for its end and return its exit code."""
        self.said += self._output.read().split("\n")
        return self.process.wait(PATIENCE)


Spawn = Callable[[str], Child]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    children: list[Child] = []

    def make(body: str) -> Child:
        script = PREAMBLE + textwrap.dedent(body) + "\nasyncio.run(main())\n"
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        children.append(Child(process))
        return children[-1]

    yield make
    for child in children:
        # `kill` of a process that ended does nothing.
        child.process.kill()
        child.process.wait()
        assert child.process.stdout is not None
        child.process.stdout.close()


GRACEFUL = """
begun = []
@subscriber
async def handle(value: int):
    begun.append(value)
    if len(begun) == 1:
        say("begun")
        while app._service is None or not app._service._stopping.is_set():
            await asyncio.sleep(0)
        for _ in range(100):  # it is still at work when the stop has begun
            await asyncio.sleep(0)
"""

ENDLESS = """
@subscriber
async def handle(value: int):
    say("begun")
    await asyncio.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_gracefully_and_succeeds(spawn: Spawn, number: int):
    child = spawn(GRACEFUL)
    child.hears("begun")

    child.send(number)

    assert child.ends() == 0, child.said
    assert "checkpoint 1" in child.said, "the handler that ran is covered, nothing newer started"
    assert "owner None" in child.said


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
    ],
)
def test_a_second_signal_stops_at_once_and_fails(spawn: Spawn, first: int, second: int):
    child = spawn(ENDLESS)
    child.hears("begun")
    child.send(first)
    child.hears("stopping")

    child.send(second)

    assert child.ends() == 1
    assert "checkpoint None" in child.said, "cancellation is no outcome"
    assert "owner None" in child.said, "the lease is released all the same"
    assert any("StopTimeout" in line and "worker[orders/0]" in line for line in child.said)


def test_a_signal_during_a_start_that_hangs_ends_it(spawn: Spawn):
    child = spawn(
        """
        async def hang(call):
            say("hanging")
            await asyncio.Event().wait()

        @subscriber
        async def handle(value: int): ...

        world.hooks.append(hang)
        """
    )
    child.hears("hanging")

    child.send(signal.SIGTERM)

    assert child.ends() == 0


@pytest.mark.parametrize(
    ("what", "code"), [("SystemExit(3)", 3), ("KeyboardInterrupt()", -signal.SIGINT)]
)
@pytest.mark.parametrize("kind", ["async def", "def"])
def test_a_handler_that_exits_ends_the_process_and_leaves_its_record_open(
    spawn: Spawn, what: str, code: int, kind: str
):
    child = spawn(
        f"""
        @subscriber
        {kind} handle(value: int):
            if value == 2:
                raise {what}
        """
    )

    assert child.ends() in {code, 130 if code == -signal.SIGINT else code}, child.said
    assert "checkpoint 1" in child.said
    assert "owner None" in child.said


def test_a_second_signal_does_not_wait_for_a_plain_handler_either(spawn: Spawn):
    child = spawn(
        """
        @subscriber
        def handle(value: int):
            say("begun")
            threading.Event().wait(20)
        """
    )
    child.hears("begun")
    child.send(signal.SIGTERM)
    child.hears("stopping")

    child.send(signal.SIGTERM)
    child.hears("owner None")

    assert child.process.wait(2) == 1


async def test_whoever_listened_before_does_so_again_afterwards():
    heard: list[int] = []
    mine = lambda number, frame: heard.append(number)  # noqa: E731 - compared by identity below
    before = signal.signal(signal.SIGTERM, mine)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        app = World().app()
        started = asyncio.Event()
        task = asyncio.create_task(app.run(started=started.set))
        await started.wait()
        assert signal.getsignal(signal.SIGTERM) is not mine
        app.stop()
        await task

        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) == interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_signal_is_left_alone_where_the_host_listens():
    before = signal.getsignal(signal.SIGTERM)
    async with running(World().app()):
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_in_another_thread_runs_without_signals():
    errors: list[BaseException] = []

    async def main() -> None:
        app = World().app()
        await app.run(started=app.stop)

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)

    assert not thread.is_alive()
    assert errors == []
