"""A run, from two servers to a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.chaos.report import Verdict, judge
from tests.chaos.script import ALONE_AFTER, Step, script
from tests.chaos.service import BLOCK
from tests.chaos.traffic import Traffic, read_story
from tests.support import aws as raw

SERVICES, SHARDS = 4, 10
"""Processes and shards at the beginning."""
STATUS = 5.0
"""Seconds between two lines of progress."""


@contextlib.asynccontextmanager
async def open_fleet(
    folder: Path,
    *,
    kinesis: str,
    dynamodb: str,
    shards: int,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Fleet]:
    """A stream, a lease table that is not there yet, and no process on them yet."""
    begun = time.monotonic()

    def stamped(text: str) -> None:
        say(f"{time.monotonic() - begun:6.1f} s  {text}")

    async with raw.connect(kinesis) as aws:
        stream = await aws.create_stream(shards=shards)
        env = {
            "CHAOS_STREAM": stream,
            "CHAOS_KINESIS": kinesis,
            "CHAOS_DYNAMODB": dynamodb,
            "CHAOS_TABLE": aws.unique("leases"),
            "CHAOS_SEED": str(seed),
        }
        with Fleet(folder, env, aws, stream, random.Random(seed), stamped) as fleet:
            yield fleet


async def chaos(
    seed: int,
    seconds: float,
    *,
    kinesis: str,
    dynamodb: str,
    folder: Path,
    say: Callable[[str], None],
) -> Verdict:
    """Run the script of a seed for so many seconds, let it quiet down, and judge.

    Args:
        seed: Decides what happens when.
        seconds: Of the script; the whole takes half a minute to a minute more.
        kinesis: Endpoint of the one server.
        dynamodb: Endpoint of the other.
        folder: Takes the books and the output of every process.
        say: Told what happens.
    """
    begun = time.monotonic()
    async with open_fleet(
        folder, kinesis=kinesis, dynamodb=dynamodb, shards=SHARDS, seed=seed, say=say
    ) as fleet:
        # The first one says where the stream begins for all: it has to be there before a record.
        await fleet.start()
        await asyncio.gather(*(fleet.start() for _ in range(SERVICES - 1)))
        traffic = Traffic(fleet)
        watching = asyncio.create_task(_report(fleet, traffic))
        try:
            await _perform(fleet, script(seed, seconds))
            # Records go on coming until what died last is taken over.
            last = max((each.at for each in fleet.faults if each.kind == "kill"), default=0.0)
            await asyncio.sleep(last + ALONE_AFTER - time.monotonic())
            fleet.say("the producer stops")
            await traffic.finish()
        finally:
            watching.cancel()
        fleet.say("stopping")
        await fleet.stop_all()
        fleet.watch()
        return judge(read_story(folder), time.monotonic() - begun, fleet.failures)


async def _perform(fleet: Fleet, steps: list[Step]) -> None:
    """Begin every step at its time; a pause or a stop goes on beside the next ones."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for step in steps:
            await asyncio.sleep(began + step.at - time.monotonic())
            group.create_task(fleet.take(step, BLOCK))


async def _report(fleet: Fleet, traffic: Traffic) -> None:
    while True:
        await asyncio.sleep(STATUS)
        traffic.update()
        alive = sum(each.alive for each in fleet.services)
        asleep = sum(each.busy == "pause" for each in fleet.services)
        fleet.say(
            f"        {alive} of {len(fleet.services)} processes alive, {asleep} paused; "
            f"{traffic.handled:,} handled, {len(traffic.open):,} to go"
        )
