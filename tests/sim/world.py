"""One seed: a fleet, what happens to it, and what must be true when it is quiet again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.leases import SHARD_END
from tests.sim.fleet import GROUP, Fleet
from tests.sim.handling import Behaviour
from tests.sim.instance import Instance
from tests.sim.invariants import Flags, Monitor
from tests.sim.kinesis import Kinesis, Shard
from tests.sim.leases import Storage
from tests.sim.loop import Scheduler
from tests.sim.network import FAIR
from tests.sim.readers import LEASE
from tests.sim.seeded import determined
from tests.sim.storm import Storm
from tests.sim.tables import FEW_ROWS
from tests.sim.trace import Trace

__all__ = ["Result", "World", "simulate"]

# What a healed fleet may take to handle everything that is not held. Most need seconds; a copy that
# is not to be handled before a time waits for it by its reader's clock, which may be three minutes
# behind the clock of who published it.
_HEALED = 300.0
_STOP = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed."""

    seed: int
    failure: str | None
    steps: int
    events: int
    seconds: float
    """Virtual ones."""
    digest: int
    counts: dict[str, int]
    trace: str


class World:
    """Everything that one seed makes.

    Args:
        seed: Decides everything.
        flags: What is promised.
        verbose: What the package logs stands in the trace.
        shards: How many the stream has at first; drawn by default.
        rows: Of the lease table, in a page of a scan.
    """

    def __init__(
        self,
        seed: int,
        flags: Flags | None = None,
        *,
        verbose: bool = False,
        shards: int | None = None,
        rows: int = FEW_ROWS,
    ) -> None:
        # One for each purpose: a draw more of one kind moves nothing else.
        def rng(purpose: str) -> random.Random:
            return random.Random(f"{seed}/{purpose}")

        self.seed = seed
        self.verbose = verbose
        self.rng = rng("world")
        self.scheduler = Scheduler(rng("schedule"))
        drawn = self.rng.randint(1, 5)
        self.kinesis = Kinesis(self.scheduler, rng("kinesis"), shards or drawn)
        self.trace = Trace(self.scheduler)
        # What came later has chances of its own: the storms of seeds without it are as they were.
        self.kinds = rng("kinds")
        groups: tuple[str | None, ...] = (None, GROUP) if self.kinds.random() < 0.15 else (None,)
        self.fleet = Fleet(self.trace, self.kinesis, flags or Flags(), groups)
        self.storage = Storage(self.scheduler, rng("store"), self.fleet, rows)
        self.store = self.storage.link
        self.instances: list[Instance] = []
        self.kinesis.most = self.rng.choice([1, 3, 10, 50])
        self.behaviour = self._behaviour()
        self.keys = [f"k{number}" for number in range(self.rng.choice([2, 6, 12]))]
        self.storming = True
        self.shared_owner = self.rng.random() < 0.2
        self.peaceful = self.rng.random() < 0.2
        self.load = self.rng.choice([0.8, 0.8, 2.5])
        if self.peaceful:
            self.behaviour.block = self.behaviour.suspend = 0.0
            # Readers keep up with producers.
            self.kinesis.most = 50
        self.limited = self.kinds.random() < 0.2
        self.seeking = self.kinds.random() < 0.4 and not self.peaceful
        self._extend(self.behaviour)

    def _behaviour(self) -> Behaviour:
        rng = self.rng
        style = rng.choice(["message", "message", "direct", "batch"])
        return Behaviour(
            workers=rng.choice([1, 1, 2, 3]),
            batch=rng.choice([2, 5]) if style == "batch" else None,
            direct=style == "direct",
            poll_interval=rng.choice([1.0, 2.0]),
            drop=0.03,
            copy=0.0 if style == "direct" else rng.choice([0.0, 0.1]),
            refuse=rng.choice([0.0, 0.0, 0.05]),
            block=rng.choice([0.0, 0.0, 0.02]),
            suspend=rng.choice([0.0, 0.0, 0.02]),
            slow=rng.choice([0.0, 0.05, 0.2]),
        )

    def _extend(self, told: Behaviour) -> None:
        rng = self.kinds
        if self.seeking:
            told.seek = rng.choice([0.0, 0.0, 0.005])
        told.replies = rng.random() < 0.25
        if rng.random() < 0.4 and not told.direct:
            told.max_attempts = rng.choice([None, 1, 2, 3])
            told.dead_letter = told.max_attempts is None or rng.random() < 0.7
            told.refuse = rng.choice([0.05, 0.2])
        if rng.random() < 0.3:
            told.publish_batch = rng.choice([2, 5])
        self.trace.exact = self.peaceful and (told.cap is not None or not told.refuse)

    # -- instances ---------------------------------------------------------------------------------

    def start(self) -> Instance:
        """Start another instance."""
        number = len(self.instances)
        name = f"i{number}"
        instance = Instance(
            self.scheduler,
            random.Random(f"{self.seed}/{name}"),
            name,
            "same" if self.shared_owner else name,
            self.kinesis,
            self.fleet,
            self.behaviour,
            self.storage.store,
            self.kinds.choice([2, 3, 4]) if self.limited else None,
        )
        self.instances.append(instance)
        instance.start()
        return instance

    @property
    def live(self) -> list[Instance]:
        """Instances that run, held up or not."""
        return [each for each in self.instances if each.live]

    def enough(self, monitor: Monitor) -> bool:
        """Whether the instances that take part may take every shard that can be read."""
        limits = [each.process.max_shards for each in self.live if each.open]
        return None in limits or sum(each or 0 for each in limits) >= len(monitor.readable())

    def _start_enough(self) -> None:
        """Start some, until they may take all that there is and may come of it."""
        shards = self.kinesis.shards.values()
        most = max(sum(not m.finished_shard(each) for each in shards) for m in self.fleet.all)
        while True:
            limits = [each.process.max_shards for each in self.live if not each.process.stopping]
            if limits and (None in limits or sum(each or 0 for each in limits) >= most):
                return
            self.start()

    # -- and then it is quiet ----------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more, and handlers do their work."""
        self.trace.note("world", "heals")
        self.storming = False
        self.store.weather = self.kinesis.link.weather = FAIR
        self.kinesis.expiring = 0.0
        told = self.behaviour
        told.drop = told.copy = told.refuse = told.block = told.suspend = told.slow = 0.0
        told.seek = 0.0
        until = max([self.scheduler.now, *(each.process.disturbed_until for each in self.live)])
        self.scheduler.run(until + 1.0)
        self._start_enough()

    def settle(self) -> None:
        """Wait until everything is handled; what was held comes again once its shard moves."""
        scheduler = self.scheduler
        calm = max(scheduler.now, self.trace.calm_since)
        self._until(self._handled, calm + _HEALED, "not handled")
        self._balance()
        self.trace.note("world", "restarts all")
        for instance in self.live:
            self._stop(instance)
        self._start_enough()
        self._until(lambda: not self.fleet.unfinished(), scheduler.now + _HEALED, "not handled")
        self._until(self._all_stored, scheduler.now + _HEALED, "not stored")

    def _handled(self) -> bool:
        """Whether nothing waits any more. Who runs services starts one anew that could not start."""
        if not self.live:
            self._start_enough()
        return not self._waiting()

    def _waiting(self) -> bool:
        """Whether there is something that is not held by somebody who lives."""
        for monitor in self.fleet.all:
            held = {
                number
                for each in monitor.latest.values()
                if each.process.alive and not each.released
                for number in each.open
            }
            if any(record.number not in held for record in monitor.duties.unfinished()):
                return True
        return False

    def _all_stored(self) -> bool:
        shards = self.kinesis.shards.values()
        return all(self._stored(monitor, shard) for monitor in self.fleet.all for shard in shards)

    def _stored(self, monitor: Monitor, shard: Shard) -> bool:
        if shard.closed_at is not None:
            return monitor.finished_shard(shard)
        resume = monitor.resumes.get(shard.shard_id)
        if resume is not None:
            # What a seek to the tip left between the instant and the tip comes with the next start.
            position = KinesisPosition.from_text(resume)
            return self.kinesis.index(shard.shard_id, position) == len(shard.records)
        last, stored = monitor.duties.last_due(shard), monitor.checkpoints.get(shard.shard_id)
        return last is None or (stored is not None and int(stored) >= last.number)

    def _balance(self) -> None:
        if not self.fleet.flags.balance:
            return
        for monitor in self.fleet.all:
            done = partial(self._balanced, monitor)
            self._until(done, self.scheduler.now + 90.0, "not balanced")

    def _balanced(self, monitor: Monitor) -> bool:
        held = {each: 0 for each in self.live if each.open}
        for shard_id, each in monitor.latest.items():
            if monitor.checkpoints.get(shard_id) == SHARD_END or each.released:
                continue
            owner = next((i for i in held if i.process is each.process), None)
            if owner is not None:
                held[owner] += 1
        if not held:
            self.start()
            return False
        # Whoever has as many as it takes has its share.
        most, shares = max(held.values()), []
        for instance, count in held.items():
            limit = instance.process.max_shards
            shares.append(most if limit is not None and count >= limit else count)
        return most - min(shares) <= 1

    def _until(self, done: Callable[[], bool], deadline: float, what: str) -> None:
        scheduler = self.scheduler
        while scheduler.failure is None and not done():
            if scheduler.now > deadline:
                numbers = [
                    f"{each.number} of {each.shard.shard_id}" for each in self.fleet.unfinished()
                ]
                stored = [(each.checkpoints, each.resumes) for each in self.fleet.all]
                scheduler.fail(f"{what} in time: {numbers[:10]} {stored}")
            scheduler.run(scheduler.now + 1.0)

    def _stop(self, instance: Instance) -> None:
        if not instance.process.stopping:
            instance.stop()
        deadline = self.scheduler.now + _STOP
        self._until(lambda: instance.ended, deadline, f"{instance} has not stopped")
        if instance.error is not None and self.scheduler.failure is None:
            self.scheduler.fail(f"{instance} did not stop well: {instance.error!r}")
        for monitor in self.fleet.all:
            for shard_id, each in monitor.latest.items():
                # One that nobody heard of, or that was not renewed, runs out by itself.
                known = each.process is instance.process and each.token in each.process.known
                known = known and self.scheduler.now - each.touched < LEASE
                unfinished = monitor.checkpoints.get(shard_id) != SHARD_END
                if known and unfinished and not each.released:
                    self.scheduler.fail(f"{instance} stopped and still owns {shard_id}")

    def end(self) -> None:
        """Stop all cleanly; then one more instance has nothing to do."""
        for instance in self.live:
            self._stop(instance)
        if self.scheduler.failure is not None:
            return
        before = sum(each.again for each in self.fleet.all)
        last = self.start()
        self.scheduler.run(self.scheduler.now + 15.0)
        if sum(each.again for each in self.fleet.all) != before:
            self.scheduler.fail("a record came again after everybody had stopped cleanly")
        self._stop(last)

    def run(self) -> None:
        """The whole seed."""
        for part in (Storm(self).run, self.heal, self.settle, self.end):
            if self.scheduler.failure is None:
                part()

    def dispose(self) -> None:
        """Leave nothing behind."""
        for instance in self.instances:
            instance.dispose()


def simulate(
    seed: int, flags: Flags | None = None, *, hashing: bool = False, verbose: bool = False
) -> Result:
    """Run one seed from beginning to end."""
    world = World(seed, flags, verbose=verbose)
    world.trace.hashing = hashing
    trace, scheduler = world.trace, world.scheduler
    with determined(world):
        world.run()
        # Now: what is taken apart afterwards says things that mean nothing.
        return Result(
            seed,
            scheduler.failure,
            scheduler.steps,
            trace.events,
            scheduler.now,
            trace.digest,
            dict(trace.counts),
            trace.told(300 if verbose else 60),
        )
