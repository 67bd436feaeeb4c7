"""What happened, for whoever has to understand a seed, and when it was last calm."""

from __future__ import annotations

import zlib
from collections import deque

from tests.sim.loop import Scheduler

__all__ = ["Trace"]

_KEPT = 300


class Trace:
    """The events of one world.

    Args:
        scheduler: Time, and where a failure is noted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._last: deque[tuple[float, object, str, tuple[object, ...]]] = deque(maxlen=_KEPT)
        self.events = 0
        self.digest = 0
        self.hashing = False
        """Whether all events go into `digest`."""
        self.counts: dict[str, int] = {}
        self.calm_since = 0.0
        self.exact = False
        """Nothing goes wrong in this world, ever, and nothing is held: all is handled once."""

    def note(self, who: object, what: str, *details: object) -> None:
        """Keep what happened."""
        self.events += 1
        self.counts[what] = self.counts.get(what, 0) + 1
        self._last.append((self.scheduler.now, who, what, details))
        if self.hashing:
            text = f"{self.scheduler.now!r} {who} {what} {details}"
            # Python's own hash of a text differs from run to run.
            self.digest = zlib.crc32(text.encode(), self.digest)

    def fail(self, who: object, what: str) -> None:
        """Note that a promise was broken."""
        self.note(who, f"FAILED: {what}")
        self.scheduler.fail(f"{who}: {what}")

    def disturbed(self, seconds: float) -> None:
        """Something is wrong for so long from now on."""
        self.calm_since = max(self.calm_since, self.scheduler.now + seconds)

    def calm_for(self, seconds: float) -> bool:
        """Whether nothing has been wrong for so long."""
        return self.scheduler.now - self.calm_since > seconds

    def told(self, last: int = 60) -> str:
        """The last events, a line each."""
        return "\n".join(
            f"{when:10.4f} {who!s:>14} {what} {' '.join(map(str, details))}"
            for when, who, what, details in list(self._last)[-last:]
        )
