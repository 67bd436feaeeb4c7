"""What happened, in numbers: to deliveries, between shards and service, and to what is published.

A file of its own, since the settlement, the copies, the readers and the publishers count, none of
which may know of the others. Nothing here is counted for every record that is not counted anyway: a
read adds a page, a request adds a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Counters", "PublishCounters", "ReadCounters"]


@dataclass(slots=True)
class Counters:
    """What became of the deliveries of a subscription."""

    handled: int = 0
    """Deliveries whose handler returned."""
    failed: int = 0
    """Deliveries whose handler raised."""
    undecodable: int = 0
    """Payloads that were not of the handler's type."""
    dropped: int = 0
    """Settled without being done: by `drop()`, `on_error`, `on_decode_error`, or spent attempts."""
    held: int = 0
    """Left open: by `retry()` without a cap, or by a reply or copy that could not be published."""
    retried: int = 0
    """`retry()` and `retry_after()` that led to a copy."""
    dead_lettered: int = 0
    """Records that are durably in the dead letter stream."""
    replies: int = 0
    """Replies that are durably in their stream."""


@dataclass(slots=True)
class ReadCounters:
    """What passed between the shards of a subscription, their stream and the lease store."""

    reads: int = 0
    """GetRecords calls that were answered."""
    records: int = 0
    """Records that they brought, those of aggregates one by one."""
    read_errors: dict[str, int] = field(default_factory=dict)
    """Reads, and iterators, that failed, throttled ones included, by error code."""
    checkpoints: int = 0
    """Checkpoint writes that took effect."""
    checkpoint_errors: int = 0
    """Checkpoint writes that failed, and were made again."""
    leases_lost: int = 0
    """Shards that were lost while they were held: taken by another instance, or not renewed."""

    def failed(self, code: str) -> None:
        """Counts a failed read."""
        self.read_errors[code] = self.read_errors.get(code, 0) + 1


@dataclass(slots=True)
class PublishCounters:
    """What was put into one stream, by whatever way: publishers, replies, copies, dead letters.

    Publishers of several threads share it. No lock: nothing here is decided by these numbers, and an
    addition is only ever cut short by another one where there is no GIL.
    """

    records: int = 0
    """Records that are durably in the stream."""
    errors: int = 0
    """Attempts at a record that were refused, throttled or not answered; most are made again."""
