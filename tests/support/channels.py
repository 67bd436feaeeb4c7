"""Readers and workers of a channel, without what surrounds them.

They are the loops that `reader.py` and `dispatch.py` run: `room` and `put` in one breath, `take` and
one `release` per delivery.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ruststream_kinesis._core import Page
from ruststream_kinesis.channel import Channel, Fence, Run

TURNS = 20
"""Loop turns after which everything that can happen without the test has happened."""


@dataclass(eq=False)
class FakeShard:
    """What the channel looks at."""

    shard_id: str = "shardId-000000000000"
    stream: str = "orders"
    generation: int = 0
    ceiling: float = float("inf")
    fence: Fence | None = None
    started: int = -1
    unread: bool = False
    lost: bool = False
    taken: list[int] = field(default_factory=list)
    """Places that came out for this shard, in order."""
    stale: list[int] = field(default_factory=list)
    """Places that came out of the channel with an old stamp."""
    fed: int = 0
    """Places whose run was put."""

    def ack(self, place: int) -> None:
        """Not used here."""

    def ack_range(self, start: int, stop: int) -> None:
        """Not used here."""

    def defer(self, place: int) -> None:
        """Not used here."""

    def hold(self, place: int) -> None:
        """Not used here."""


def page_of(keys: list[str]) -> Page:
    """Return a page with one record for each key."""
    records = [
        {"SequenceNumber": str(n + 1), "PartitionKey": key, "Data": ""}
        for n, key in enumerate(keys)
    ]
    return Page.parse(json.dumps({"Records": records, "NextShardIterator": "i"}).encode())


def page(count: int) -> Page:
    """Return a page of records with different keys."""
    return page_of([f"key-{n}" for n in range(count)])


def keys_of_two_lanes() -> tuple[str, str]:
    """Return a key of lane 0 and one of lane 1, of two."""
    lane_of = {key: page_of([key]).partitions(0, 1, 2).index([0]) for key in map(str, range(20))}
    first, second = (
        next(key for key, lane in lane_of.items() if lane == wanted) for wanted in (0, 1)
    )
    return first, second


async def feed(channel: Channel, shard: FakeShard, content: Page, base: int = 0) -> bool:
    """Put a page as a reader does; False when it became void."""
    generation, start = shard.generation, 0
    while start < len(content):
        room = await channel.room(shard, generation)
        if not room:
            return False
        assert shard.generation == generation
        stop = min(len(content), start + room)
        channel.put(Run(shard, generation, content, base, range(start, stop)))
        assert channel.queued <= channel._capacity
        shard.fed += stop - start
        start = stop
    return True


async def work(
    channel: Channel, lane: int = 0, handled: Callable[[FakeShard], Any] = lambda _: None
) -> None:
    """Take as a worker does, without a pause unless `handled` returns something to await."""
    while (run := await channel.take(lane)) is not None:
        shard: Any = run.shard
        for index in run.indices:
            channel.release()
            (shard.taken if shard.generation == run.generation else shard.stale).append(
                run.base + index
            )
            if (pause := handled(shard)) is not None:
                await pause


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
