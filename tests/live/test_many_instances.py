"""Several instances of a service as processes of their own, on a lease table in DynamoDB."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ruststream_kinesis.heartbeat import LEASE_DURATION, PASS_INTERVAL
from tests.chaos.book import Handled, Released
from tests.chaos.checks import (
    Story,
    Tenures,
    disordered,
    lost,
    overlapping,
    repeats,
    unfenced,
)
from tests.chaos.fleet import Process, until
from tests.chaos.run import open_fleet
from tests.chaos.traffic import Traffic, read_story
from tests.support import processes, servers
from tests.support.servers import Server

SHARDS = 4
SLACK = 3.0
"""Seconds that two busy cores take for what should be there at once."""
AWAY = LEASE_DURATION + 3 * PASS_INTERVAL
"""Seconds that the table is away: longer than the leases, and then some, to see who goes on."""
PATIENCE = 40.0
"""Seconds until something has come that takes a few passes."""


async def all_at_work(*sharing: Process) -> None:
    """Wait until each process has handled a record."""

    def all_have() -> bool:
        books = [process.book.read() for process in sharing]
        return all(any(isinstance(line, Handled) for line in lines) for lines in books)

    await until(all_have, PATIENCE, "every process handles a record")


def broken(story: Story) -> list[str]:
    """What must never be, whatever happened to processes and servers."""
    tenures = Tenures(story)
    return lost(story) + disordered(story) + overlapping(story) + unfenced(story, tenures)


async def test_the_shards_of_a_stopped_process_are_read_within_a_pass_and_nothing_comes_twice(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path
):
    """Case L7, and the hand-over before it: the second one has its shards from the first."""
    async with open_fleet(
        tmp_path, kinesis=kinesis_local.url, dynamodb=dynalite_server.url, shards=SHARDS
    ) as fleet:
        stays = await fleet.start()
        traffic = Traffic(fleet)
        goes = await fleet.start()
        await all_at_work(stays, goes)
        await fleet.stop(goes)
        given = {line.shard_id: line.at for line in goes.book.read() if isinstance(line, Released)}
        assert given
        await until(lambda: len(stays.shards) == SHARDS, PATIENCE, "the other one has all shards")
        await traffic.finish()
        await fleet.stop_all()
        story = read_story(tmp_path)
    taken = {line.shard_id: line.at for line in story.acquired[stays.name]}
    waited = {shard_id: taken[shard_id] - at for shard_id, at in given.items()}
    assert max(waited.values()) < PASS_INTERVAL + SLACK, waited
    assert broken(story) == []
    assert repeats(story, Tenures(story)) == []
    assert fleet.failures == []


async def test_two_processes_of_one_name_share_the_shards(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path
):
    """Case L8, and more: neither waits for the other."""
    async with open_fleet(
        tmp_path, kinesis=kinesis_local.url, dynamodb=dynalite_server.url, shards=SHARDS
    ) as fleet:
        both = [await fleet.start("same")]
        traffic = Traffic(fleet)
        both.append(await fleet.start("same"))
        await until(
            lambda: all(len(process.shards) == SHARDS / 2 for process in both),
            PATIENCE,
            "each has its half",
        )
        await all_at_work(*both)
        await traffic.finish()
        await fleet.stop_all()
        story = read_story(tmp_path)
    assert broken(story) == []
    assert repeats(story, Tenures(story)) == []
    assert fleet.failures == []


@pytest.mark.parametrize("how", ["gone", "hanging"])
async def test_without_its_lease_table_a_service_stops_reading_and_loses_nothing(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path, how: str
):
    """The table is away for longer than a lease, and comes back with its rows."""
    data = tmp_path / "tables"
    async with contextlib.AsyncExitStack() as stack:
        table = stack.enter_context(servers.dynalite(data=data))
        fleet = await stack.enter_async_context(
            open_fleet(tmp_path, kinesis=kinesis_local.url, dynamodb=table.url, shards=SHARDS)
        )
        pair = [await fleet.start(), await fleet.start()]
        traffic = Traffic(fleet)
        await all_at_work(*pair)

        away = time.monotonic()
        if how == "gone":
            processes.kill(table.process)
        else:
            table.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(AWAY)  # the length is the fault itself: nothing else would end it
        assert all(process.alive for process in pair)
        if how == "gone":
            port = urlsplit(table.url).port
            stack.enter_context(servers.dynalite(data=data, port=port))
        else:
            table.process.send_signal(signal.SIGCONT)
        back = time.monotonic()

        def read_again() -> bool:
            return any(line.begin > back for line in _handled(read_story(tmp_path)))

        await until(read_again, PATIENCE, "records are handled again")
        await traffic.finish()
        await fleet.stop_all()
        story = read_story(tmp_path)
    begun = [line.begin - away for line in _handled(story) if line.begin < back]
    assert max(begun) < LEASE_DURATION
    assert broken(story) == []
    assert fleet.failures == []


def _handled(story: Story) -> list[Handled]:
    return [line for lines in story.handled.values() for line in lines]
