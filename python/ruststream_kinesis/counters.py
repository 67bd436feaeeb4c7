"""`Counters`: what became of the deliveries of a subscription, in numbers.

A file of its own, since both the settlement and the copies, which come before it, count.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


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
