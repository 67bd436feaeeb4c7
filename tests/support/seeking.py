"""Services to be rewound: on the transport in memory, with every write to the store observed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ruststream_kinesis import KinesisPosition, LeaseKey, RustStream
from tests.support.stores import Write, spy_store
from tests.support.world import World, running

__all__ = ["HORIZON", "LATEST", "at", "killed", "moments", "noting", "row", "turns", "world"]

HORIZON = KinesisPosition.horizon()
LATEST = KinesisPosition.latest()


def at(number: object, shard: int = 0) -> KinesisPosition:
    return KinesisPosition.sequence(f"shardId-{shard:012}", str(number))


def world(shards: int = 1) -> World:
    made = World()
    made.store = spy_store(made.clock)
    made.stream(shards=shards)
    return made


def noting(it: World, seen: list[Any], **options: Any) -> RustStream:
    """Return an application that notes what it handles."""
    app = it.app()

    @app.subscriber("orders", **options)
    async def handle(order: int) -> None:
        seen.append(order)

    return app


async def turns(count: int = 100) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def row(it: World, shard: int = 0) -> Any:
    return await it.store.read(LeaseKey("orders", f"shardId-{shard:012}"))


@contextlib.asynccontextmanager
async def killed(it: World, app: RustStream) -> AsyncIterator[None]:
    """Run a service that ends without a word to the store, as a process that is killed."""

    async def deaf(_: Write) -> None:
        raise ConnectionError("the process is dead")

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_failing(running(app), it))
        yield
        it.store.before = deaf


@contextlib.asynccontextmanager
async def _failing(service: Any, it: World) -> AsyncIterator[None]:
    async def tick() -> None:
        while True:
            await it.clock.advance(1)

    entered = await service.__aenter__()
    try:
        yield entered
    finally:
        ticking = asyncio.create_task(tick())
        with contextlib.suppress(Exception):
            await service.__aexit__(None, None, None)
        ticking.cancel()
        it.store.before = None
        # As long as its leases live on.
        await it.clock.advance(11)


def moments(it: World, chosen: int, act: Callable[[], Any]) -> list[asyncio.Task[Any]]:
    """Start `act` at the `chosen` call to service or store."""
    tasks: list[asyncio.Task[Any]] = []
    count = 0

    async def pass_by(_: object) -> None:
        nonlocal count
        count += 1
        if count == chosen:
            tasks.append(asyncio.create_task(act()))
        await asyncio.sleep(0)

    it.hooks.append(pass_by)
    it.store.before = pass_by
    return tasks
