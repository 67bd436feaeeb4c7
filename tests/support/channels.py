"""Readers and workers of a channel, without what surrounds them.

They are what `reader.py` and `dispatch.py` run: `feed` for a page, `take` and one `release` per
delivery.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruststream_kinesis._core import Page
from ruststream_kinesis.channel import CAPACITY, Channel, Fence, Run

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
    """Places whose run came into a channel of `channel_of`."""

    def last_of_record(self, place: int) -> int:
        """No aggregates here."""
        return place

    def ack(self, place: int) -> None:
        """Not used here."""

    def ack_range(self, start: int, stop: int) -> None:
        """Not used here."""

    def ack_all(self, places: Sequence[int]) -> None:
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


def channel_of(lanes: int = 1, capacity: int = CAPACITY) -> Channel:
    """Return a channel that counts what comes in for each shard, and looks at its bound."""
    channel = Channel(lanes, capacity)
    put = channel.put

    def counted(run: Run) -> None:
        shard: Any = run.shard
        assert shard.generation == run.generation, "what is void came in"
        put(run)
        assert channel.queued <= capacity
        shard.fed += len(run)

    channel.put = counted  # type: ignore[method-assign]  # on this one object
    return channel


async def feed(channel: Channel, shard: FakeShard, content: Page, base: int = 0) -> bool:
    """Feed a page as a reader does; False when it became void."""
    return await channel.feed(Run(shard, shard.generation, content, base, range(len(content))))


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
