"""One seed: a fleet, what happens to it, and what must be true when it is quiet again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis import backoff, heartbeat
from ruststream_kinesis.leases import SHARD_END
from tests.sim.instance import Behaviour, Instance
from tests.sim.invariants import Flags, Monitor
from tests.sim.kinesis import Kinesis
from tests.sim.leases import Storage
from tests.sim.loop import Scheduler
from tests.sim.network import FAIR, Link, Weather
from tests.sim.tables import FEW_ROWS

__all__ = ["Result", "World", "determined", "simulate"]

# The storm, in virtual seconds; then it has to become quiet.
STORM = 90.0
_MOST_INSTANCES = 5
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
        self.monitor = Monitor(self.scheduler, self.kinesis, flags or Flags())
        self.storage = Storage(self.scheduler, rng("store"), self.monitor, rows)
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
            self.monitor,
            self.behaviour,
            self.storage.store,
        )
        self.instances.append(instance)
        instance.start()
        return instance

    @property
    def live(self) -> list[Instance]:
        """Instances that run, held up or not."""
        return [each for each in self.instances if each.live]

    # -- what happens ------------------------------------------------------------------------------

    def storm(self) -> None:
        """Let everything go wrong for a while."""
        rng, scheduler = self.rng, self.scheduler
        for _ in range(rng.randint(1, 3)):
            self.start()
        self._produce()
        self._watch()
        end = scheduler.now + STORM
        acts: list[tuple[float, Callable[[], None]]] = [
            (2.0, self._start_one),
            (2.0, self._stop_one),
            (2.0, self._crash_one),
            (2.0, self._pause_one),
            (1.5, self._block_one),
            (2.0, self._bad_store),
            (1.0, self._dead_store),
            (2.0, self._bad_kinesis),
            (3.0, self._split),
            (2.0, self._merge),
        ]
        if self.peaceful:
            # Deployments and reshards under load, and nothing else: nothing may come twice.
            acts = [
                (3.0, self._start_one),
                (3.0, self._stop_one),
                (1.0, self._split),
                (1.0, self._merge),
            ]
        weights = [weight for weight, _ in acts]
        # Some worlds are rough, some nearly calm: a fault alone shows other things than ten at once.
        pace = 4.0 if self.peaceful else rng.choice([2.0, 5.0, 12.0, 30.0])
        while scheduler.now < end and scheduler.failure is None:
            scheduler.run(min(end, scheduler.now + rng.expovariate(1 / pace)))
            rng.choices([act for _, act in acts], weights)[0]()
            if not self.live:
                self.start()

    def _produce(self) -> None:
        if not self.storming:
            return
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            self.monitor.put(self.kinesis.put(self.rng.choice(self.keys)))
        pace = 2.5 if self.peaceful else self.load
        self.scheduler.at(self.scheduler.now + self.rng.expovariate(pace), self._produce)

    def _watch(self) -> None:
        self.monitor.look([each.process for each in self.instances])
        self.scheduler.at(self.scheduler.now + 1.0, self._watch)

    def _start_one(self) -> None:
        if len(self.live) < _MOST_INSTANCES:
            self.start()

    def _some(self) -> Instance | None:
        live = self.live
        return self.rng.choice(live) if live else None

    def _stop_one(self) -> None:
        instance = self._some()
        if instance is not None and not instance.process.stopping:
            instance.stop()

    def _crash_one(self) -> None:
        instance = self._some()
        if instance is not None:
            instance.crash()

    def _pause_one(self) -> None:
        instance = self._some()
        if instance is not None:
            seconds = self.rng.choice([0.3, 3.0, 11.0, 14.0, 25.0])
            self.monitor.note(instance, "paused", seconds)
            self.monitor.disturbed(seconds)
            instance.process.pause(seconds)

    def _block_one(self) -> None:
        instance = self._some()
        if instance is not None:
            seconds = self.rng.choice([3.0, 20.0, 60.0])
            self.monitor.note(instance, "blocked", seconds)
            self.monitor.disturbed(seconds)
            instance.process.block(seconds)

    def _bad_store(self) -> None:
        rng = self.rng
        weather = Weather(
            refuse=rng.choice([0.0, 0.2]),
            lose=rng.choice([0.0, 0.1, 0.3]),
            hang=rng.choice([0.0, 0.1]),
            slow=rng.choice([0.0, 0.2]),
        )
        self._weather(self.store, "store", weather, rng.choice([2.0, 8.0, 20.0]))

    def _dead_store(self) -> None:
        dead = self.rng.choice([Weather(refuse=1.0), Weather(hang=1.0), Weather(lose=1.0)])
        self._weather(self.store, "store", dead, self.rng.choice([2.0, 6.0, 15.0]))

    def _bad_kinesis(self) -> None:
        rng = self.rng
        weather = Weather(
            refuse=rng.choice([0.0, 0.2, 1.0]),
            lose=rng.choice([0.0, 0.2]),
            hang=rng.choice([0.0, 0.1]),
            slow=rng.choice([0.0, 0.2]),
        )
        self.kinesis.expiring = rng.choice([0.0, 0.1])
        self._weather(self.kinesis.link, "kinesis", weather, rng.choice([2.0, 8.0]))

    def _weather(self, link: Link, name: str, weather: Weather, seconds: float) -> None:
        self.monitor.note(name, "weather", weather, seconds)
        # What hangs then has its own deadline, and what was refused its back-off.
        self.monitor.disturbed(seconds + 20.0)
        link.weather = weather

        def clear() -> None:
            if link.weather is weather:
                link.weather = FAIR

        self.scheduler.at(self.scheduler.now + seconds, clear)

    def _split(self) -> None:
        if len(self.kinesis.open) < 8:
            shard = self.rng.choice(self.kinesis.open)
            self.monitor.note("stream", "split", shard.shard_id)
            self.kinesis.split(shard, self.rng.choice([0.0, 0.0, 2.0, 12.0]))

    def _merge(self) -> None:
        self.monitor.note("stream", "merge")
        self.kinesis.merge(self.rng.choice([0.0, 0.0, 2.0, 12.0]))

    # -- and then it is quiet ----------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more, and handlers do their work."""
        self.monitor.note("world", "heals")
        self.storming = False
        self.store.weather = self.kinesis.link.weather = FAIR
        self.kinesis.expiring = 0.0
        told = self.behaviour
        told.drop = told.copy = told.refuse = told.block = told.suspend = told.slow = 0.0
        until = max([self.scheduler.now, *(each.process.disturbed_until for each in self.live)])
        self.scheduler.run(until + 1.0)
        if not any(each.open for each in self.live):
            self.start()

    def settle(self) -> None:
        """Wait until everything is handled; what was held comes again once its shard moves."""
        scheduler = self.scheduler
        calm = max(scheduler.now, self.monitor.calm_since)
        self._until(lambda: not self._waiting(), calm + _HEALED, "not handled")
        self._balance()
        self.monitor.note("world", "restarts all")
        for instance in self.live:
            self._stop(instance)
        self.start()
        self._until(lambda: not self.monitor.unfinished(), scheduler.now + _HEALED, "not handled")
        self._until(self._all_stored, scheduler.now + _HEALED, "not stored")

    def _waiting(self) -> bool:
        """Whether there is something that is not held by somebody who lives."""
        held = {
            number
            for each in self.monitor.latest.values()
            if each.process.alive and not each.released
            for number in each.open
        }
        return any(record.number not in held for record in self.monitor.unfinished())

    def _all_stored(self) -> bool:
        for shard in self.kinesis.shards.values():
            stored = self.monitor.checkpoints.get(shard.shard_id)
            if shard.closed_at is not None:
                if stored != SHARD_END:
                    return False
            elif any(not self.monitor.excused(each) for each in shard.records):
                due = [each for each in shard.records if not self.monitor.excused(each)]
                if stored is None or int(stored) < due[-1].number:
                    return False
        return True

    def _balance(self) -> None:
        if not self.monitor.flags.balance:
            return
        self._until(self._balanced, self.scheduler.now + 90.0, "not balanced")

    def _balanced(self) -> bool:
        held = {each: 0 for each in self.live if each.open}
        for shard_id, each in self.monitor.latest.items():
            if self.monitor.checkpoints.get(shard_id) == SHARD_END or each.released:
                continue
            owner = next((i for i in held if i.process is each.process), None)
            if owner is not None:
                held[owner] += 1
        if not held:
            self.start()
            return False
        return max(held.values()) - min(held.values()) <= 1

    def _until(self, done: Callable[[], bool], deadline: float, what: str) -> None:
        scheduler = self.scheduler
        while scheduler.failure is None and not done():
            if scheduler.now > deadline:
                numbers = [
                    f"{each.number} of {each.shard.shard_id}" for each in self.monitor.unfinished()
                ]
                scheduler.fail(f"{what} in time: {numbers[:10]} {self.monitor.checkpoints}")
            scheduler.run(scheduler.now + 1.0)

    def _stop(self, instance: Instance) -> None:
        if not instance.process.stopping:
            instance.stop()
        deadline = self.scheduler.now + _STOP
        self._until(lambda: instance.ended, deadline, f"{instance} has not stopped")
        if instance.error is not None and self.scheduler.failure is None:
            self.scheduler.fail(f"{instance} did not stop well: {instance.error!r}")
        for shard_id, each in self.monitor.latest.items():
            # One that nobody heard of runs out by itself.
            known = each.process is instance.process and each.token in each.process.known
            unfinished = self.monitor.checkpoints.get(shard_id) != SHARD_END
            if known and unfinished and not each.released:
                self.scheduler.fail(f"{instance} stopped and still owns {shard_id}")

    def end(self) -> None:
        """Stop all cleanly; then one more instance has nothing to do."""
        for instance in self.live:
            self._stop(instance)
        if self.scheduler.failure is not None:
            return
        before = self.monitor.counts.get("started", 0)
        last = self.start()
        self.scheduler.run(self.scheduler.now + 15.0)
        if self.monitor.counts.get("started", 0) != before:
            self.scheduler.fail("a record came again after everybody had stopped cleanly")
        self._stop(last)

    def run(self) -> None:
        """The whole seed."""
        for part in (self.storm, self.heal, self.settle, self.end):
            if self.scheduler.failure is None:
                part()

    def dispose(self) -> None:
        """Leave nothing behind."""
        for instance in self.instances:
            instance.dispose()


class _Ears(logging.Handler):
    """Puts what the package logs into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Note a line, under the name of the loop that runs."""
        who = asyncio._get_running_loop()
        self._world.monitor.note(who, f"[{record.levelname}]", record.getMessage())


@contextlib.contextmanager
def determined(world: World) -> Iterator[None]:
    """Everything that the package draws by chance, and its thread, come from the seed."""
    rng = random.Random(f"{world.seed}/package")
    token_hex = secrets.token_hex

    def determined(nbytes: int | None = None) -> str:
        size = nbytes or 32
        return f"{rng.getrandbits(8 * size):0{2 * size}x}"

    secrets.token_hex = determined
    backoff._RNG.seed(f"{world.seed}/jitter")
    # As a module of no type: it exports no function of another one.
    package: Any = heartbeat
    threads = package.run_in_thread

    async def run_in_thread(name: str, work: Any) -> None:
        loop = asyncio.get_running_loop()
        process = next(each.process for each in world.instances if each.process.loop is loop)
        await process.run_in_thread(name, work)

    package.run_in_thread = run_in_thread
    logger = logging.getLogger("ruststream_kinesis")
    disabled, logger.disabled = logger.disabled, not world.verbose
    level, ears = logger.level, _Ears(world)
    if world.verbose:
        logger.addHandler(ears)
        logger.setLevel(logging.INFO)
    collecting = gc.isenabled()
    gc.disable()
    hook = sys.unraisablehook
    try:
        yield
    finally:
        # Coroutines of crashed processes end here, with complaints that mean nothing.
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings(action="ignore"):
            world.dispose()
            # The youngest generation is what this world made: nothing was collected meanwhile.
            gc.collect(0)
        sys.unraisablehook = hook
        if collecting:
            gc.enable()
        logger.removeHandler(ears)
        logger.setLevel(level)
        logger.disabled = disabled
        secrets.token_hex = token_hex
        package.run_in_thread = threads


def simulate(
    seed: int, flags: Flags | None = None, *, hashing: bool = False, verbose: bool = False
) -> Result:
    """Run one seed from beginning to end."""
    world = World(seed, flags, verbose=verbose)
    world.monitor.hashing = hashing
    monitor, scheduler = world.monitor, world.scheduler
    with determined(world):
        world.run()
        # Now: what is taken apart afterwards says things that mean nothing.
        return Result(
            seed,
            scheduler.failure,
            scheduler.steps,
            monitor.events,
            scheduler.now,
            monitor.digest,
            dict(monitor.counts),
            monitor.told(300 if verbose else 60),
        )
