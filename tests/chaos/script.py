"""What happens in a run, and when: a function of the seed.

Each round begins with a kill that is left alone: no process dies, sleeps, comes or goes near it, so
that the time until others take over is the lease's own. Then comes every kind of fault, in an order
and at distances of chance; they overlap.
"""

from __future__ import annotations

import random
from typing import NamedTuple

PAUSE = (12.0, 20.0)
"""Seconds that a process is stopped for, in the middle of whatever it did: longer than a lease. When
it goes on, others have its shards or are about to."""

ALONE_AFTER = 17.0
"""Seconds after a kill in which nothing happens to another process, where it is left alone."""
ALONE_BEFORE = {"kill": 13.0, "pause": 13.0, "start": 6.0, "stop": 6.0}
"""Seconds before it, after each kind of fault: until leases and member row of one that died have run
out; until one that came, or went, has its share, or the others have it."""

GAP = (1.0, 4.5)
"""Seconds between two other faults."""

_KINDS = ("pause", "stop", "start", "split", "merge", "block", "kill", "start", "start")
_RESHARD = ("split", "merge")


class Step(NamedTuple):
    """One thing to do."""

    at: float
    """Seconds after the start of the script."""
    kind: str
    seconds: float = 0.0
    """Of a pause."""
    alone: bool = False


def script(seed: int, seconds: float) -> list[Step]:
    """The steps of a run that lasts so many seconds, in order."""
    rng = random.Random(seed)
    steps: list[Step] = []
    now = ALONE_BEFORE["start"] + rng.uniform(*GAP)
    while now < seconds:
        steps.append(Step(now, "kill", alone=True))
        # Meanwhile the stream may change its shape: that is nobody's death.
        steps += [Step(now + rng.uniform(1.0, ALONE_AFTER - 3.0), kind) for kind in _RESHARD]
        now = calm = now + ALONE_AFTER
        for kind in rng.sample(_KINDS, len(_KINDS)):
            pause = rng.uniform(*PAUSE) if kind == "pause" else 0.0
            steps.append(Step(now, kind, pause))
            calm = max(calm, now + pause + ALONE_BEFORE.get(kind, 0.0))
            now += rng.uniform(*GAP)
        # A start, or a stop, takes a while itself.
        now = max(now, calm + GAP[1])
    return sorted(step for step in steps if step.at < seconds)
