"""Many instances on many shards, when nothing goes wrong: how soon shares are fair, and what moves.

The readers poll rarely, and the stream is empty: what is looked at is the lease loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ruststream_kinesis.heartbeat import PASS_INTERVAL
from tests.sim.handling import Behaviour
from tests.sim.instance import Instance
from tests.sim.invariants import Flags
from tests.sim.seeded import determined
from tests.sim.world import World

__all__ = ["INSTANCES", "QUIET", "SHARDS", "Found", "measure"]

INSTANCES = 20
SHARDS = 1_000

QUIET = 100
"""Passes for which nothing moves, if all of them are to be seen."""
# DynamoDB's pages are of 1 MB: some thousands of lease rows.
_ROWS = 4_000
_POLL = 200.0
_PATIENCE = 200.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen. Passes are counted from when the last newcomer counts as a member."""

    instances: int
    shards: int
    passes: float
    """Until shares were fair, after `instances - 1` had come to the one that read everything."""
    moved: int
    """How many shards changed hands for that."""
    next_passes: float
    """The same, when one more had come."""
    next_moved: int
    quiet: int
    quiet_moves: int
    """Shards that changed hands in `quiet` passes after that."""
    spread: tuple[int, int]
    """Shards of the one with the fewest, and of the one with the most."""
    steps: int
    seconds: float
    """Of real time."""

    def __str__(self) -> str:
        """Say it in a few lines."""
        fewest, most = self.spread
        return (
            f"{self.instances} instances, {self.shards} shards: fair after {self.passes:.1f} passes, "
            f"{self.moved} shards moved\n"
            f"one instance more: fair after {self.next_passes:.1f} passes, {self.next_moved} shards "
            f"moved; {fewest} to {most} each\n"
            f"the next {self.quiet} passes: {self.quiet_moves} moves\n"
            f"{self.steps:,} steps in {self.seconds:.1f} s"
        )


class _Fleet:
    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, count: int) -> list[Instance]:
        """Start some at once, and wait until all of them have opened."""
        new = [self.world.start() for _ in range(count)]
        self.until(lambda: all(each.open for each in new), "not open")
        return new

    def until(self, done: Callable[[], bool], what: str) -> float:
        """Let time pass until something is so; return how much passed."""
        scheduler = self.world.scheduler
        began = scheduler.now
        while not done():
            if scheduler.now - began > _PATIENCE:
                scheduler.fail(f"{what} after {_PATIENCE:g} s: {self.shares()}")
            if scheduler.failure is not None:
                raise AssertionError(f"{scheduler.failure}\n{self.world.trace.told()}")
            scheduler.run(scheduler.now + 0.1)
        return scheduler.now - began

    def shares(self) -> Counter[str]:
        """Shards of each instance."""
        held = [
            each for each in self.world.fleet.monitors[None].latest.values() if not each.released
        ]
        found = Counter(str(each.process) for each in held if each.process.alive)
        for instance in self.world.live:
            found.setdefault(str(instance), 0)
        return found

    def fair(self) -> bool:
        """Whether every shard is held, and everybody has as many as everybody else, or one more."""
        shares = self.shares()
        whole = shares.total() == len(self.world.kinesis.shards)
        return whole and max(shares.values()) - min(shares.values()) <= 1

    @property
    def taken(self) -> int:
        """How often a shard was taken."""
        counts = self.world.trace.counts
        return counts.get("took", 0) + counts.get("took over", 0)


def measure(instances: int, shards: int, *, quiet: int = QUIET, seed: int = 0) -> Found:
    """Start one, then the others at once, then one more; then wait."""
    began = time.monotonic()
    world = World(seed, Flags(unread=False), shards=shards, rows=_ROWS)
    world.shared_owner = world.limited = False
    world.behaviour = Behaviour(poll_interval=_POLL)
    fleet = _Fleet(world)
    with determined(world):
        fleet.start(1)
        before = fleet.taken
        fleet.start(instances - 1)
        passes = fleet.until(fleet.fair, "not fair") / PASS_INTERVAL
        moved = fleet.taken - before
        before = fleet.taken
        fleet.start(1)
        next_passes = fleet.until(fleet.fair, "not fair") / PASS_INTERVAL
        next_moved = fleet.taken - before
        before = fleet.taken
        world.scheduler.run(world.scheduler.now + quiet * PASS_INTERVAL)
        assert world.scheduler.failure is None, world.scheduler.failure
        shares = fleet.shares().values()
        return Found(
            instances,
            shards,
            passes,
            moved,
            next_passes,
            next_moved,
            quiet,
            fleet.taken - before,
            (min(shares), max(shares)),
            world.scheduler.steps,
            time.monotonic() - began,
        )
