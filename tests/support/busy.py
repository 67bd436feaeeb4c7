"""States of a busy service, made up: what the dashboard has to show, without waiting for it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from ruststream_kinesis.counters import Counters, PublishCounters, ReadCounters
from ruststream_kinesis.health import Health, judge_health
from ruststream_kinesis.state import (
    AppState,
    PublishState,
    ShardOwner,
    ShardState,
    SourceState,
    SubscriptionState,
)

__all__ = ["BusyApp"]


@dataclass(eq=False)
class BusyApp:
    """What the probe needs of an application; each look at it is two seconds later.

    Args:
        title: The application's.
        shards: How many it holds.
        elsewhere: How many other instances hold.
        held: How many of its shards hold a record back.
        failing: How many cannot be read now.
    """

    title: str = "orders"
    instance: str = "orders-7d9f6c-2xkqv-1-a41c09e2"
    stream: str = "orders"
    error: str = "RequestError ProvisionedThroughputExceededException"
    shards: int = 8
    elsewhere: int = 4
    held: int = 1
    failing: int = 0
    looks: int = 0
    handler_times: None = None
    _rng: random.Random = field(default_factory=lambda: random.Random(7))
    _handled: int = 1_184_203
    _failed: int = 12

    def state(self) -> AppState:
        """The state at this look."""
        self.looks += 1
        rng = self._rng
        self._handled += round(2 * (2_400 + 500 * math.sin(self.looks / 9) + rng.gauss(0, 80)))
        shards = tuple(self._shard(at) for at in range(self.shards))
        owners = tuple(
            ShardOwner(
                f"shardId-{at:012}",
                self.instance if at < self.shards else "orders-7d9f6c-9mzwt-1-5be20d17",
                mine=at < self.shards,
                finished=False,
                checkpoint=self._number(at),
            )
            for at in range(self.shards + self.elsewhere)
        )
        reading = ReadCounters(self.looks * 40, self._handled, {}, self.looks * 30)
        source = SourceState(
            reading, owners, (self.instance, "orders-7d9f6c-9mzwt-1-5be20d17"), 1.2
        )
        counters = Counters(self._handled, self._failed, 3, 3, self.held, 41, 2, self._handled // 3)
        subscription = SubscriptionState(
            stream=self.stream,
            group=None,
            shards=shards,
            queued=23,
            waiting_copies=9,
            running=(f"record {self._number(2)} of shard {shards[0].shard_id}, stream orders",),
            counters=counters,
            opened=True,
            source=source,
        )
        published = PublishState("orders.settled", PublishCounters(counters.replies, 0))
        return AppState(
            title=self.title,
            version="1.4.2",
            running=True,
            subscriptions=(subscription,),
            instance=self.instance,
            phase="running",
            running_for=40_000.0 + 2 * self.looks,
            published=(published,),
        )

    def health(self) -> Health:
        """Judged as a real one is."""
        return judge_health(self.state())

    def _number(self, at: int) -> str:
        return f"49670{at:03}40188172300571{(self.looks * 7919 + at * 104729) % 10**34:034}"

    def _shard(self, at: int) -> ShardState:
        wave = max(0.0, math.sin(self.looks / (11 + at % 5) + at)) * (900 + 350 * (at % 4))
        lag = wave + self._rng.random() * 150 if at % 3 else self._rng.random() * 40
        shard = ShardState(
            shard_id=f"shardId-{at:012}",
            checkpoint=self._number(at),
            lag_ms=round(lag),
            open=round(20 + lag / 12),
            held=0,
            held_for=None,
            ended=False,
            reading_for=9_000.0,
            polled_ago=0.1 + self._rng.random(),
        )
        if at in range(5, 5 + self.held):
            return replace(shard, held=1, held_for=254.0 + 2 * self.looks, open=shard.open + 840)
        if at in range(1, 1 + self.failing):
            return replace(shard, read_error=self.error, polled_ago=75.0 + 2 * self.looks)
        return shard
