"""What a batch publishes: many at a time, few enough, and in order for each key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ruststream_kinesis import retry, retry_after
from ruststream_kinesis.chains import Chains
from ruststream_kinesis.errors import RequestError
from tests.support.batching import (
    Batches,
    payloads,
    world_of_batches,  # noqa: F401 - a fixture
)
from tests.support.world import Call, World, running, until

AT_ONCE = 32


async def test_a_key_is_in_order_and_never_at_work_twice_and_all_is_bounded():
    chains, busy, most, begun = Chains(), set[int](), 0, list[tuple[int, int]]()

    async def work(key: int, number: int) -> None:
        nonlocal most
        assert key not in busy
        busy.add(key)
        begun.append((key, number))
        most = max(most, len(busy))
        for _ in range(1 + (key * 7 + number) % 5):
            await asyncio.sleep(0)
        busy.remove(key)

    for number in range(10):
        for key in range(100):
            chains.add(f"key-{key}", partial(work, key, number))
    await chains.run()

    assert len(begun) == 1000
    assert most == AT_ONCE
    for key in range(100):
        assert [n for k, n in begun if k == key] == list(range(10))


@pytest.mark.parametrize("key", [None, ""])
async def test_work_without_a_key_waits_for_nobody(key: str | None):
    chains, together = Chains(), asyncio.Barrier(5)
    for _ in range(5):
        chains.add(key, together.wait)
    async with asyncio.timeout(5):
        await chains.run()


async def test_what_one_raises_is_raised_as_it_is_and_ends_the_others():
    chains, cut_off = Chains(), []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.append(True)

    async def fail() -> None:
        raise LookupError("mine")

    chains.add("a", hang)
    chains.add("b", fail)
    chains.add("b", hang)
    async with asyncio.timeout(5):
        with pytest.raises(LookupError, match="mine"):
            await chains.run()
    assert cut_off == [True]


async def test_cancelled_nothing_more_is_begun():
    chains, begun = Chains(), []

    async def hang() -> None:
        begun.append(True)
        await asyncio.Event().wait()

    for number in range(100):
        chains.add(f"key-{number}", hang)
    run = asyncio.create_task(chains.run())
    await until(lambda: len(begun) == AT_ONCE)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    assert len(begun) == AT_ONCE
    assert asyncio.all_tasks() == {asyncio.current_task()}


CROWDS: dict[str, tuple[str, dict[str, Any], Callable[[list[int]], Any]]] = {
    "on_error": ("orders", {"max_attempts": 2}, lambda _: ValueError("no")),
    "a callable on_error": (
        "orders",
        {"on_error": lambda _error, _message: retry_after(0)},
        lambda _: ValueError("no"),
    ),
    "a list of outcomes": (
        "orders",
        {"max_attempts": 2},
        lambda values: [retry() for _ in values],
    ),
    "one outcome": ("orders", {"max_attempts": 2}, lambda _: retry()),
    "dead letters": ("dead", {"dead_letter": "dead"}, lambda _: ValueError("no")),
}


@pytest.mark.parametrize("what", CROWDS)
async def test_what_a_batch_publishes_goes_out_together_and_each_key_in_its_order(
    world: World, what: str
):
    stream, options, says = CROWDS[what]
    for n in range(120):
        world.put("orders", n, key=f"key-{n % 40}")
    at_once, most, failed = 0, 0, False
    calls = 0

    async def slow(call: Call) -> None:
        nonlocal at_once, most, failed, calls
        if call.operation != "put_record":
            return
        at_once += 1
        calls += 1
        most = max(most, at_once)
        try:
            for _ in range(1 + calls % 3):
                await asyncio.sleep(0)
            if calls == 5:  # it is asked for again, and its key waits for it
                raise RequestError("slow down", code="ThrottlingException", status=400)
        finally:
            at_once -= 1

    service = Batches(world, **{"batch": 120, **options})
    # The copies come back, and are acked.
    service.says = lambda values: says(values) if len(service.seen) == 1 else None
    world.hooks.append(slow)
    before = len(world.records(stream))
    async with running(service.app):
        await until(lambda: calls >= 32)
        await world.clock.advance(1)
        await until(lambda: len(world.records(stream)) == before + 120)
        published = payloads(world, stream)[before:]

    assert most == AT_ONCE
    for key in range(40):
        assert [n for n in published if n % 40 == key] == [key, key + 40, key + 80]


async def test_the_dead_letters_of_what_does_not_decode_go_out_together(world: World):
    blobs = [b"{%d" % n for n in range(60)]
    for n, blob in enumerate(blobs):
        world.put("orders", blob, key=f"key-{n}")
    arrived, gate = [], asyncio.Event()

    async def hold(call: Call) -> None:
        if call.operation == "put_record":
            arrived.append(call.data)
            await gate.wait()

    world.hooks.append(hold)
    service = Batches(world, batch=60, dead_letter="dead")
    async with running(service.app):
        await until(lambda: len(arrived) == AT_ONCE)
        gate.set()
        await until(lambda: len(world.records("dead")) == 60)
