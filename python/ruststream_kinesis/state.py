"""What a running service is at: for an operator, a probe, a test.

Plain values, taken at one moment; nothing here is kept up to date.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ruststream_kinesis.counters import Counters, PublishCounters, ReadCounters

__all__ = [
    "AppState",
    "Phase",
    "PublishState",
    "ShardOwner",
    "ShardState",
    "SourceState",
    "SubscriptionState",
]

Phase = Literal["stopped", "starting", "running", "stopping"]


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard that this instance holds."""

    shard_id: str
    checkpoint: str | None
    """Sequence number up to which all is settled since the shard was taken; `SHARD_END` at its
    end; `None` while nothing was settled."""
    lag_ms: int | None
    """How far the last page was behind the tip; `None` where the service did not say."""
    open: int
    """Deliveries that are not settled: queued, running, waiting as copies, held."""
    held: int
    """Those of them that hold the checkpoint: refused by `retry()`, or not publishable."""
    held_for: float | None
    """Seconds since the first of the held ones was; `None` where nothing is."""
    ended: bool
    """Everything of the shard was read."""
    reading_for: float | None = None
    """Seconds since its reader began; `None` while it has none: the shard ended, holds too many
    records, is on its way to another instance, or waits for its parents."""
    polled_ago: float | None = None
    """Seconds since the last answer to a GetRecords of that reader; `None` before the first."""
    read_error: str | None = None
    """Class and code of the last failure, while reads fail."""
    waiting: bool = False
    """A page of it waits until handlers make room: it is not read because they are busy."""


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """One shard of the stream, as this instance last saw it in the lease store."""

    shard_id: str
    owner: str | None
    """Owner id of the instance that holds it; `None` where nobody does."""
    mine: bool
    """That instance is this one."""
    finished: bool
    """It was read to its end, everything settled."""
    checkpoint: str | None
    error: str | None = None
    """Class and code of what reading it failed with here, so that it was given up; it is taken again
    after a while."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """Where the deliveries of a subscription come from, beside the shards that are held."""

    counters: ReadCounters
    owners: tuple[ShardOwner, ...] = ()
    """Every shard that the stream lists, and whose it is."""
    members: tuple[str, ...] = ()
    """Owner ids of the instances that share the subscription, this one included."""
    store_answered_ago: float | None = None
    """Seconds since the lease store was read last; `None` before the first time."""
    store_error: str | None = None
    """Class and code of the last failure of the lease store, while it fails."""
    poll_interval: float = 1.0
    """Seconds between two reads of a shard that is read to its tip."""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """One subscription."""

    stream: str
    group: str | None
    shards: tuple[ShardState, ...]
    queued: int
    """Deliveries between readers and handlers; at most 64, or a batch."""
    waiting_copies: int
    """Copies of `retry_after` that are not due yet."""
    running: tuple[str, ...]
    """The records whose handlers run now."""
    counters: Counters
    """What became of the deliveries so far."""
    opened: bool
    """Its first shards have their iterators, or failed once."""
    source: SourceState
    """Who holds which shard, and what passed between them, the stream and the lease store."""


@dataclass(frozen=True, slots=True)
class PublishState:
    """What was put into one stream since this process began."""

    stream: str
    counters: PublishCounters


@dataclass(frozen=True, slots=True)
class AppState:
    """The whole application."""

    title: str
    version: str
    running: bool
    subscriptions: tuple[SubscriptionState, ...]
    """Empty while the service does not run."""
    instance: str
    """Owner id: what this instance is called in the lease store."""
    phase: Phase = "stopped"
    """Where the service is between its start and its stop."""
    running_for: float | None = None
    """Seconds since it was started; `None` while it does not run."""
    failure: str | None = None
    """Class and code of what ends the service, or ended its last run."""
    published: tuple[PublishState, ...] = ()
    """By stream."""
