"""How long to wait before the next try, and how often to say so."""

from __future__ import annotations

import random

from ruststream_kinesis.clock import Clock

__all__ = ["Backoff", "MinuteLog"]

# Shared, since seeding one costs more than publishing a record; jitter is no secret.
_RNG = random.Random()  # noqa: S311 - as above


class Backoff:
    """Growing, jittered, capped delays; `reset` after a success.

    Args:
        first: The first delay in seconds, before jitter.
        cap: The largest delay in seconds.
        rng: Source of the jitter; for tests.
    """

    __slots__ = ("_cap", "_first", "_rng", "failures")

    def __init__(
        self, first: float = 0.2, cap: float = 10.0, rng: random.Random | None = None
    ) -> None:
        self._first = first
        self._cap = cap
        self._rng = rng or _RNG
        self.failures = 0

    def next(self) -> float:
        """The delay before the next try: between half of and the whole of the doubled step.

        Never near zero, so that a thousand readers that were refused together neither come back
        at once nor together.
        """
        # The exponent is bounded so that the power stays finite over a day of failures.
        step = min(self._cap, self._first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return step * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        """Starts again with the first delay."""
        self.failures = 0


class MinuteLog:
    """Lets one message a minute through, and counts those it held back.

    Args:
        clock: Source of time.
        interval: Seconds between two messages.
    """

    __slots__ = ("_clock", "_held_back", "_interval", "_next")

    def __init__(self, clock: Clock, interval: float = 60.0) -> None:
        self._clock = clock
        self._interval = interval
        self._next = float("-inf")
        self._held_back = 0

    def due(self) -> int | None:
        """How many occurrences to report now, this one included; `None`: stay silent."""
        now = self._clock.monotonic()
        self._held_back += 1
        if now < self._next:
            return None
        self._next = now + self._interval
        count, self._held_back = self._held_back, 0
        return count
