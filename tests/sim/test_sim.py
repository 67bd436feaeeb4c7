"""A fixed set of seeds, and what the simulation itself promises."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys

import pytest

from tests.sim.loop import Scheduler, SimLoop
from tests.sim.world import simulate

SEEDS = 200
AT_ONCE = 20


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_holds_whatever_happens(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        result = simulate(seed)
        assert result.failure is None, f"make sim SEEDS=seed={seed}\n{result.trace}"
    gc.collect()


def test_a_seed_is_the_same_everywhere() -> None:
    here = [simulate(seed, hashing=True).digest for seed in (1, 2, 3)]
    code = (
        "from tests.sim.world import simulate\n"
        "print([simulate(seed, hashing=True).digest for seed in (1, 2, 3)])"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONHASHSEED": hash_seed,
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert there.stdout.strip() == str(here)


def test_seeds_differ() -> None:
    assert len({simulate(seed, hashing=True).digest for seed in range(4)}) == 4


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(random.Random(0))


async def tick(scheduler: Scheduler, seen: list[float], seconds: float) -> None:
    while True:
        seen.append(scheduler.now)
        await asyncio.sleep(seconds)


def test_time_jumps_to_what_is_due(scheduler: Scheduler) -> None:
    loop, seen = SimLoop(scheduler, "a"), list[float]()
    loop.create_task(tick(scheduler, seen, 1.0))
    scheduler.run(2.5)
    assert seen == [0.0, 1.0, 2.0]
    assert scheduler.now == 2.5
    loop.dispose()


def test_a_frozen_loop_runs_everything_at_once_afterwards(scheduler: Scheduler) -> None:
    frozen, other = SimLoop(scheduler, "a"), SimLoop(scheduler, "b")
    seen, others = list[tuple[float, float]](), list[float]()

    async def wait_each() -> None:
        await asyncio.gather(*(note(seconds) for seconds in (3.0, 1.0, 2.0)))

    async def note(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, scheduler.now))

    frozen.create_task(wait_each())
    other.create_task(tick(scheduler, others, 1.0))
    scheduler.run(0.5)
    frozen.freeze(10.0)
    scheduler.run(12.0)
    assert seen == [(1.0, 10.5), (2.0, 10.5), (3.0, 10.5)]
    assert len(others) == 13
    for loop in (frozen, other):
        loop.dispose()


def test_a_blocking_handler_holds_up_its_loop_and_goes_on_first(scheduler: Scheduler) -> None:
    loop, seen = SimLoop(scheduler, "a"), list[str]()

    async def blocking() -> None:
        seen.append("blocks")
        await loop.block(5.0)
        seen.append(f"goes on at {scheduler.now:g}")

    async def other() -> None:
        seen.append(f"runs at {scheduler.now:g}")

    loop.create_task(blocking())
    loop.create_task(other())
    scheduler.run(10.0)
    assert seen == ["blocks", "goes on at 5", "runs at 5"]
    loop.dispose()


def test_a_killed_loop_runs_nothing(scheduler: Scheduler) -> None:
    loop, seen = SimLoop(scheduler, "a"), list[float]()
    loop.create_task(tick(scheduler, seen, 1.0))
    scheduler.run(1.5)
    loop.kill()
    scheduler.run(9.0)
    assert seen == [0.0, 1.0]
    loop.dispose()


def test_an_error_that_nobody_catches_is_found(scheduler: Scheduler) -> None:
    loop = SimLoop(scheduler, "a")

    def raises() -> None:
        raise ValueError("made by a test")

    loop.call_soon(raises)
    scheduler.run(1.0)
    assert scheduler.failure is not None
    assert "made by a test" in scheduler.failure
