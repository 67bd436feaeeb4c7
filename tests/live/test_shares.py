"""Shares of real processes: forty shards, a handler that blocks, a process that dies."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ruststream_kinesis.heartbeat import LEASE_DURATION, PASS_INTERVAL
from tests.chaos.book import Acquired, Released
from tests.chaos.checks import Tenures, disordered, lost, overlapping, unfenced
from tests.chaos.fleet import Process, until
from tests.chaos.run import open_fleet
from tests.chaos.service import BLOCK
from tests.chaos.traffic import Traffic, read_story
from tests.support.servers import Server

logger = logging.getLogger(__name__)

SHARDS = 40
SLACK = 3.0
"""Seconds that two busy cores take for what should be there at once."""
PATIENCE = 60.0
DEAD = LEASE_DURATION + 2 * PASS_INTERVAL + 1.0
"""Seconds until the shards of a dead process are read: see docs/reliability.md."""


def leases(process: Process) -> list[Acquired | Released]:
    return [line for line in process.book.read() if isinstance(line, Acquired | Released)]


async def test_four_processes_share_forty_shards_and_three_of_them_take_the_dead_ones(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path
):
    async with open_fleet(
        tmp_path, kinesis=kinesis_local.url, dynamodb=dynalite_server.url, shards=SHARDS
    ) as fleet:
        first = await fleet.start()
        assert len(first.shards) == SHARDS
        traffic = Traffic(fleet)
        newcomers = await asyncio.gather(*(fleet.start() for _ in range(3)))
        begun = time.monotonic()
        four = [first, *newcomers]
        await until(
            lambda: all(len(each.shards) == SHARDS // 4 for each in four), PATIENCE, "ten each"
        )
        shared = time.monotonic() - begun
        before = [len(leases(each)) for each in four]
        await asyncio.sleep(5 * PASS_INTERVAL)  # that nothing moves can only be waited for
        assert [len(leases(each)) for each in four] == before

        dead, died = newcomers[0], time.monotonic()
        theirs = dead.shards
        await fleet.kill(dead)
        left = [each for each in four if each is not dead]
        await until(
            lambda: set().union(*(each.shards for each in left)) >= theirs, PATIENCE, "all are read"
        )
        taken = time.monotonic() - died
        await until(
            lambda: sorted(len(each.shards) for each in left) == [13, 13, 14], PATIENCE, "a third"
        )
        await traffic.finish()
        await fleet.stop_all()
        story = read_story(tmp_path)
    logger.info("ten shards each after %.1f s; those of the dead one after %.1f s", shared, taken)
    tenures = Tenures(story)
    assert lost(story) + disordered(story) + overlapping(story) + unfenced(story, tenures) == []
    assert shared < 3 * PASS_INTERVAL + SLACK
    assert taken < DEAD + SLACK
    assert fleet.failures == []


async def test_a_handler_that_blocks_the_event_loop_costs_no_lease(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path
):
    """Case L1, for twice the lease; `CHAOS_BLOCK=60` for a minute of it."""
    async with open_fleet(
        tmp_path, kinesis=kinesis_local.url, dynamodb=dynalite_server.url, shards=4
    ) as fleet:
        both = [await fleet.start(), await fleet.start()]
        traffic = Traffic(fleet)
        await until(lambda: all(len(each.shards) == 2 for each in both), PATIENCE, "two each")
        before = [leases(each) for each in both]
        await fleet.block(both[0], BLOCK)
        await asyncio.sleep(2 * PASS_INTERVAL)  # whoever believed that it was dead would act now
        assert [leases(each) for each in both] == before
        await traffic.finish()
        await fleet.stop_all()
        story = read_story(tmp_path)
    tenures = Tenures(story)
    assert lost(story) + disordered(story) + overlapping(story) + unfenced(story, tenures) == []
    assert fleet.failures == []
    longest = max(line.end - line.begin for line in story.handled[both[0].name])
    assert longest > BLOCK - 1.0
    logger.info("the event loop was blocked for %.1f s; no lease came or went", longest)
