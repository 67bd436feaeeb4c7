"""What a handler says of a delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ruststream_kinesis.limits import check_seconds

__all__ = ["ACK", "DROP", "RETRY", "Outcome", "ack", "drop", "retry", "retry_after"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of `ack()`, `drop()`, `retry()`, `retry_after(seconds)`."""

    kind: Literal["ack", "drop", "retry", "retry_after"]
    delay: float = 0.0
    """Seconds, for `retry_after`."""


# One object each: the hot path compares by identity and makes nothing.
ACK: Final = Outcome("ack")
DROP: Final = Outcome("drop")
RETRY: Final = Outcome("retry")


def ack() -> Outcome:
    """Done: the checkpoint may pass the record. Returning `None` means the same."""
    return ACK


def drop() -> Outcome:
    """Not done and never will be: settled like `ack`, and logged with its sequence number."""
    return DROP


def retry() -> Outcome:
    """Not done, try again.

    Without `max_attempts` and `dead_letter` the record stays open and holds the checkpoint of its
    shard: it is read again when the shard's lease is next taken.
    """
    return RETRY


def retry_after(seconds: float) -> Outcome:
    """Not done, try again when `seconds` have passed, with a copy at the end of the stream.

    Raises:
        ConfigurationError: Negative, not finite, or not a number.
    """
    return Outcome("retry_after", check_seconds("retry_after", seconds))
