"""Delays between tries, and one message a minute."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.testing import ManualClock


class Fixed(random.Random):
    """A source of jitter that always says the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        """Return the value."""
        return self.value


def test_the_delay_doubles_up_to_the_cap_and_stays_there():
    backoff = Backoff(first=0.2, cap=10.0, rng=Fixed(1.0))
    assert [backoff.next() for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_jitter_takes_up_to_half_of_the_delay_and_never_all_of_it():
    low, high = Backoff(first=1.0, rng=Fixed(0.0)), Backoff(first=1.0, rng=Fixed(1.0))
    assert [low.next(), low.next()] == [0.5, 1.0]
    assert [high.next(), high.next()] == [1.0, 2.0]


def test_readers_that_failed_together_do_not_come_back_together():
    delays = {Backoff(first=1.0).next() for _ in range(100)}
    assert len(delays) > 90
    assert min(delays) < 0.65
    assert max(delays) > 0.85


def test_a_success_starts_again_with_the_first_delay():
    backoff = Backoff(first=0.2, rng=Fixed(1.0))
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next() == 0.2


@given(st.integers(0, 100_000))
def test_however_long_it_failed_the_delay_is_finite_and_within_bounds(failures: int):
    backoff = Backoff(first=0.2, cap=10.0)
    backoff.failures = failures
    assert 0.1 <= backoff.next() <= 10.0


async def test_one_message_a_minute_comes_through_with_the_number_of_those_held_back():
    clock = ManualClock()
    log = MinuteLog(clock)
    assert log.due() == 1
    for _ in range(59):
        await clock.advance(1.0)
        assert log.due() is None
    await clock.advance(1.0)
    assert log.due() == 60
    assert log.due() is None
