"""`ManualClock`: time that moves when a test says so."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis.testing import ManualClock


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(wall=100.0)
    assert (clock.monotonic(), clock.time()) == (0.0, 100.0)
    await clock.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (2.5, 102.5)


async def test_sleepers_wake_one_by_one_each_at_its_own_moment() -> None:
    clock, woken = ManualClock(), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleeper("a", 3.0))
        tasks.create_task(sleeper("b", 1.0, 1.0, 5.0))
        await clock.advance(4.0)
        assert woken == [("b", 1.0), ("b", 2.0), ("a", 3.0)]
        assert clock.sleeping == [3.0]
        await clock.advance(3.0)
    assert woken[-1] == ("b", 7.0)


async def test_a_sleeper_that_is_cancelled_is_forgotten() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(1.0))
    await clock.advance(0.0)
    sleeping.cancel()
    await asyncio.wait({sleeping})
    assert clock.sleeping == []
    await clock.advance(2.0)
    assert clock.monotonic() == 2.0


async def test_a_sleep_of_nothing_only_yields() -> None:
    clock = ManualClock()
    await clock.sleep(0.0)
    await clock.sleep(-1.0)
    assert clock.monotonic() == 0.0


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        await ManualClock().advance(-1.0)
