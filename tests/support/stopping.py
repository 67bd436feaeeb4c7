"""What tests of the stop have in common: a world with one stream, and a task to be ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, RustStream
from tests.support.world import PATIENCE, World

HORIZON = KinesisPosition.horizon()


@pytest.fixture(name="world")
def world_of_orders() -> World:
    """Make a world with one stream."""
    world = World()
    world.stream("orders")
    return world


def left_over() -> set[str]:
    """Names of the tasks beside the test's own."""
    return {t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()}


async def nothing(value: bytes) -> None:
    """Handle a value, with nothing."""


def reached(seen: list[int], count: int) -> bool:
    """Whether so many were seen."""
    return len(seen) >= count


def running_task(app: RustStream) -> Any:
    """Like `running`, for a block that ends the task itself, however."""
    return _RunningTask(app)


class _RunningTask:
    """The task of a running application; it is over after the block."""

    def __init__(self, app: RustStream) -> None:
        self.app = app

    async def __aenter__(self) -> asyncio.Task[None]:
        started = asyncio.Event()
        self.task = asyncio.create_task(self.app.run(signals=False, started=started.set))
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        return self.task

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.task.cancel()  # whatever the block waited for did not happen
            self.task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({self.task})
