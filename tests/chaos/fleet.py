"""The processes of a run, and what is done to them and to the stream."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.chaos.book import Acquired, Book, Fault, Pen, Released, Started
from tests.chaos.script import Step
from tests.support import processes
from tests.support.aws import Aws

LEAST, MOST = 1, 5
"""Processes that are well at any time, and that are alive."""
FEWEST_SHARDS, MOST_SHARDS = 8, 14
"""Open shards between which the stream is split and merged."""
START_TIMEOUT = 30.0
"""Seconds until a process must be reading: two cores are shared by six processes."""
STOP_TIMEOUT = 40.0
"""Seconds until a process must have exited after SIGTERM: its own deadlines are shorter."""


class ChaosError(Exception):
    """The run could not be carried out; this is not a verdict."""


@dataclass
class Process:
    """One process, with its book and what it printed."""

    name: str
    popen: subprocess.Popen[bytes]
    book: Book
    busy: str = ""
    """What is being done to it, or was: nothing else is meanwhile."""

    @property
    def alive(self) -> bool:
        """Whether it has not exited."""
        return self.popen.poll() is None

    @property
    def started(self) -> bool:
        """Whether it is reading."""
        return any(isinstance(line, Started) for line in self.book.read())

    @property
    def shards(self) -> set[str]:
        """What it holds, as far as it knows itself."""
        held: set[str] = set()
        for line in self.book.read():
            if isinstance(line, Acquired):
                held.add(line.shard_id)
            elif isinstance(line, Released):
                held.discard(line.shard_id)
        return held


@dataclass
class Fleet(AbstractContextManager["Fleet"]):
    """Starts, harms and ends processes; writes down every fault. Leaves nothing running."""

    folder: Path
    env: Mapping[str, str]
    aws: Aws
    stream: str
    rng: random.Random
    say: Callable[[str], None]
    services: list[Process] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What went wrong with a process that nobody harmed."""
    _resharding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._pen = Pen(self.folder / "script.jsonl")

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    # -- processes ---------------------------------------------------------------------------------

    def spawn(self, name: str, module: str, **env: str) -> Process:
        """Run a module of this folder in a process of its own."""
        book = self.folder / f"{name}.jsonl"
        output: IO[bytes] = self._stack.enter_context((self.folder / f"{name}.out").open("wb"))
        popen = processes.spawn(
            [sys.executable, "-m", f"tests.chaos.{module}"],
            env={**self.env, "CHAOS_BOOK": str(book), **env},
            output=output,
        )
        self._stack.callback(processes.kill, popen)
        return Process(name, popen, Book(book))

    async def start(self, owner_id: str | None = None) -> Process:
        """One more service; returns when it reads."""
        name = f"p{len(self.services) + 1:02}"
        # Some instances have the same name: that must not matter.
        owner_id = owner_id or f"owner-{self.rng.randint(1, 4)}"
        process = self.spawn(name, "service", CHAOS_OWNER=owner_id)
        process.busy = "start"
        self.services.append(process)
        at = time.monotonic()
        await until(lambda: process.started or not process.alive, START_TIMEOUT, f"{name} reads")
        if not process.alive:
            raise ChaosError(f"{name} ended at its start: see {self.folder / name}.out")
        process.busy = ""
        self._note("start", name, at)
        return process

    async def kill(self, process: Process) -> None:
        """SIGKILL, in the middle of whatever it does."""
        process.busy = "kill"
        at = time.monotonic()
        processes.kill(process.popen)
        self._note("kill", process.name, at)

    async def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so many seconds later."""
        process.busy = "pause"
        at = time.monotonic()
        process.popen.send_signal(signal.SIGSTOP)
        self.say(f"pause {process.name} for {seconds:.1f} s")
        await asyncio.sleep(seconds)
        process.popen.send_signal(signal.SIGCONT)
        process.busy = ""
        self._note("pause", process.name, at)

    async def block(self, process: Process, seconds: float) -> None:
        """Makes a handler hold the process's event loop."""
        process.busy = "block"
        at = time.monotonic()
        process.popen.send_signal(signal.SIGUSR1)
        self.say(f"block {process.name} for {seconds:.1f} s")
        await asyncio.sleep(seconds)
        process.busy = ""
        self._note("block", process.name, at)

    async def stop(self, process: Process) -> None:
        """SIGTERM; returns when it has exited, and notes how."""
        process.busy = "stop"
        at = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        await until(lambda: not process.alive, STOP_TIMEOUT, f"{process.name} exits")
        if process.popen.returncode:
            self.failures.append(f"{process.name} exited with {process.popen.returncode}")
        self._note("stop", process.name, at)

    async def stop_all(self) -> None:
        """SIGTERM to all that live, at once."""
        await asyncio.gather(*(self.stop(each) for each in self.services if each.alive))

    def watch(self) -> None:
        """Notes processes that ended though nobody asked them to."""
        for process in self.services:
            if not process.busy and not process.alive:
                process.busy = "dead"
                self.failures.append(
                    f"{process.name} ended by itself with {process.popen.returncode}"
                )

    # -- steps -------------------------------------------------------------------------------------

    async def take(self, step: Step, block_seconds: float) -> None:
        """One step of the script, on a target of chance."""
        self.watch()
        if step.kind in {"split", "merge"}:
            # The service takes one at a time.
            async with self._resharding:
                await self._reshard(step.kind)
        elif step.kind == "start":
            if sum(each.alive for each in self.services) < MOST:
                await self.start()
        else:
            target = await self._target()
            if step.kind == "kill":
                await self.kill(target)
            elif step.kind == "pause":
                await self.pause(target, step.seconds)
            elif step.kind == "stop":
                await self.stop(target)
            else:
                await self.block(target, block_seconds)

    async def _target(self) -> Process:
        """One that is well; where there would be none left, another is started first.

        Rather one that has shards: others have nothing to lose.
        """
        while (
            len(well := [each for each in self.services if each.alive and not each.busy]) <= LEAST
        ):
            await self.start()
        return self.rng.choice([each for each in well if each.shards] or well)

    async def _reshard(self, kind: str) -> None:
        shards = [
            shard
            for shard in await self.aws.shards(self.stream)
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        if len(shards) <= FEWEST_SHARDS or (kind == "split" and len(shards) < MOST_SHARDS):
            # The widest, so that every shard has keys.
            shard = max(
                shards,
                key=lambda each: (
                    int(each["HashKeyRange"]["EndingHashKey"])
                    - int(each["HashKeyRange"]["StartingHashKey"])
                ),
            )
            at = time.monotonic()
            await self.aws.split(self.stream, shard["ShardId"])
            self._note("split", shard["ShardId"], at)
        else:
            index = self.rng.randrange(len(shards) - 1)
            left, right = shards[index]["ShardId"], shards[index + 1]["ShardId"]
            at = time.monotonic()
            await self.aws.merge(self.stream, left, right)
            self._note("merge", f"{left}+{right}", at)

    def _note(self, kind: str, target: str, at: float) -> None:
        fault = Fault(kind, target, at, time.monotonic())
        self.faults.append(fault)
        self._pen.write(fault)
        self.say(f"{kind} {target}")


async def until(true: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait for something that real processes do, by looking again and again.

    Raises:
        ChaosError: It did not come in time.
    """
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise ChaosError(f"not within {timeout:g} s: {what}")
        await asyncio.sleep(0.05)
