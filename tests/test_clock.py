"""The machine's own clock: its sleeps end by the time that it tells."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ruststream_kinesis import clock as clock_module
from ruststream_kinesis.clock import SystemClock, wait
from tests.support.copying import Script
from tests.support.world import until

HOUR = 3600.0


class Suspended(SystemClock):
    """The clock of a machine that slept: time has passed of which the event loop knows nothing."""

    def __init__(self) -> None:
        self.suspended = 0.0
        self.looked = asyncio.Event()

    def monotonic(self) -> float:
        self.looked.set()
        return super().monotonic() + self.suspended


@pytest.fixture(name="clock")
def clock_that_looks_often(monkeypatch: pytest.MonkeyPatch) -> Suspended:
    monkeypatch.setattr(clock_module, "_NAP", 0.001)
    return Suspended()


async def test_a_sleep_ends_soon_after_a_suspension_that_outlasted_it(clock: Suspended):
    async with asyncio.timeout(5):
        sleep = asyncio.create_task(clock.sleep(HOUR))
        await clock.looked.wait()
        clock.suspended = HOUR - 1
        for _ in range(3):  # a nap each
            clock.looked.clear()
            await clock.looked.wait()
        assert not sleep.done()

        clock.suspended = HOUR
        await sleep


async def test_a_sleep_is_no_shorter_than_asked_for(clock: Suspended):
    before = clock.monotonic()
    await clock.sleep(0.02)
    assert clock.monotonic() - before >= 0.02


async def test_a_sleep_without_an_end_looks_at_no_clock(clock: Suspended):
    """Nothing waits for its time: an idle service is not woken for it."""
    woken = asyncio.Event()
    sleep = asyncio.create_task(wait(clock, float("inf"), woken))
    await asyncio.sleep(0)
    assert not clock.looked.is_set()
    woken.set()
    async with asyncio.timeout(5):
        await sleep


async def test_a_copy_that_came_due_during_a_suspension_is_published(clock: Suspended):
    script = Script(clock=clock)
    publishing = asyncio.create_task(script.copies.run())
    try:
        await script.copies.later(script.copy(b"1", due=clock.time() + HOUR), HOUR)
        for _ in range(10):
            await asyncio.sleep(0)  # until it sleeps
        assert script.put == []
        clock.suspended = HOUR
        await until(lambda: len(script.put) == 1)
    finally:
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
