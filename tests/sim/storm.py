"""Everything that goes wrong in a world, for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.instance import Instance
from tests.sim.network import FAIR, Link, Weather

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Storm"]

# In virtual seconds; then it has to become quiet.
_LASTS = 90.0
_MOST_INSTANCES = 5
_MOST_SHARDS = 8


class Storm:
    """The storm of one world.

    Args:
        world: Which.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.scheduler = world.scheduler
        self.trace = world.trace
        self.kinesis = world.kinesis
        self.store = world.store

    def run(self) -> None:
        """Let everything go wrong for a while."""
        rng, scheduler = self.rng, self.scheduler
        for _ in range(rng.randint(1, 3)):
            self.world.start()
        self._produce()
        self._watch()
        end = scheduler.now + _LASTS
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
        if self.world.seeking:
            acts.append((6.0, self._seek_one))
        if self.world.peaceful:
            # Deployments and reshards under load, and nothing else: nothing may come twice.
            acts = [
                (3.0, self._start_one),
                (3.0, self._stop_one),
                (1.0, self._split),
                (1.0, self._merge),
            ]
        weights = [weight for weight, _ in acts]
        # Some worlds are rough, some nearly calm: a fault alone shows other things than ten at once.
        pace = 4.0 if self.world.peaceful else rng.choice([2.0, 5.0, 12.0, 30.0])
        while scheduler.now < end and scheduler.failure is None:
            scheduler.run(min(end, scheduler.now + rng.expovariate(1 / pace)))
            rng.choices([act for _, act in acts], weights)[0]()
            if not self.world.live:
                self.world.start()

    def _produce(self) -> None:
        if not self.world.storming:
            return
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            self.world.fleet.put(self.kinesis.put(self.rng.choice(self.world.keys)))
        pace = 2.5 if self.world.peaceful else self.world.load
        self.scheduler.at(self.scheduler.now + self.rng.expovariate(pace), self._produce)

    def _watch(self) -> None:
        processes = [each.process for each in self.world.instances]
        for monitor in self.world.fleet.all:
            monitor.readers.look(processes, enough=self.world.enough(monitor))
        self.scheduler.at(self.scheduler.now + 1.0, self._watch)

    def _start_one(self) -> None:
        if len(self.world.live) < _MOST_INSTANCES:
            self.world.start()

    def _some(self) -> Instance | None:
        live = self.world.live
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
            self.trace.note(instance, "paused", seconds)
            self.trace.disturbed(seconds)
            instance.process.pause(seconds)

    def _block_one(self) -> None:
        instance = self._some()
        if instance is not None:
            seconds = self.rng.choice([3.0, 20.0, 60.0])
            self.trace.note(instance, "blocked", seconds)
            self.trace.disturbed(seconds)
            instance.process.block(seconds)

    def _seek_one(self) -> None:
        instance = self._some()
        if instance is not None:
            instance.seek(self.rng.choice(instance.subscriptions))

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
        self.trace.note(name, "weather", weather, seconds)
        # What hangs then has its own deadline, and what was refused its back-off.
        self.trace.disturbed(seconds + 20.0)
        link.weather = weather

        def clear() -> None:
            if link.weather is weather:
                link.weather = FAIR

        self.scheduler.at(self.scheduler.now + seconds, clear)

    def _split(self) -> None:
        if len(self.kinesis.open) < _MOST_SHARDS:
            shard = self.rng.choice(self.kinesis.open)
            self.trace.note("stream", "split", shard.shard_id)
            self.kinesis.split(shard, self.rng.choice([0.0, 0.0, 2.0, 12.0]))

    def _merge(self) -> None:
        self.trace.note("stream", "merge")
        self.kinesis.merge(self.rng.choice([0.0, 0.0, 2.0, 12.0]))
