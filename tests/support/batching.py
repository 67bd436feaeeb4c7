"""An application with a batch handler, in a world with the streams it needs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis._core import decode_envelope
from tests.support.world import World, until

HORIZON = KinesisPosition.horizon()


@pytest.fixture(name="world")
def world_of_batches() -> World:
    """Make a world with two shards of orders, and streams for replies and dead letters."""
    world = World()
    for name, shards in (("orders", 2), ("replies", 1), ("dead", 1)):
        world.stream(name, shards)
    return world


class Batches:
    """An application with a batch handler that notes its batches and says what it is told to."""

    def __init__(self, world: World, says: Any = None, **options: Any) -> None:
        self.world = world
        self.app = world.app()
        self.seen: list[list[Any]] = []
        self.says = says
        options = {"batch": 10, "start_at": HORIZON, **options}

        @self.app.subscriber("orders", **options)
        async def handle(values: list[int]) -> Any:
            self.seen.append(values)
            said = self.says(values) if callable(self.says) else self.says
            if isinstance(said, Exception):
                raise said
            return await said if asyncio.iscoroutine(said) else said

    @property
    def counters(self) -> Any:
        """What was counted of the orders."""
        return self.app.counters["orders"]

    async def until_handled(self, count: int) -> None:
        """Wait until so many are handled or have failed."""
        counters = self.counters
        await until(lambda: counters.handled + counters.failed >= count, f"{count} handled")
        await settle()


async def settle() -> None:
    """Let what a batch caused be put and settled."""
    for _ in range(60):
        await asyncio.sleep(0)


def payloads(world: World, stream: str) -> list[Any]:
    """The values in a stream."""
    return [json.loads(decode_envelope(each.data)[1]) for each in world.records(stream)]
