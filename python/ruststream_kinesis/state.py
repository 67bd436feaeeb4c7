"""What a running service is at: for an operator, a probe, a test.

Plain values, taken at one moment; nothing here is kept up to date.
"""

from __future__ import annotations

from dataclasses import dataclass

from ruststream_kinesis.counters import Counters

__all__ = ["AppState", "ShardState", "SubscriptionState"]


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


@dataclass(frozen=True, slots=True)
class AppState:
    """The whole application."""

    title: str
    version: str
    running: bool
    subscriptions: tuple[SubscriptionState, ...]
    """Empty while the service does not run."""
