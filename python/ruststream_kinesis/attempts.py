"""What `retry`, `retry_after` and the end of all attempts mean: a copy, a dead letter, or to hold.

Only decisions and the making of records live here; `copies.py` keeps and publishes them. Invariant:
a copy carries the received header block byte for byte, with our own headers set, and exactly the
payload that was received, so that it can be handled, or put back, as if it were the original. A copy
of a record out of an aggregate is a record of its own, never an aggregate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from ruststream_kinesis._core import rewrite_envelope
from ruststream_kinesis.channel import Run
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.message import (
    PARTITION_KEY_HEADER,
    RETRY_COUNT_HEADER,
    SEQUENCE_NUMBER_HEADER,
    SHARD_ID_HEADER,
)
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.wording import fields

__all__ = ["NOT_BEFORE_HEADER", "Action", "Copy", "Deferred", "RetryPolicy", "dead_letter_blobs"]

Deferred = Literal["hold", "settle"]
"""When the original of a waiting copy is settled: once the copy is in its stream, or at once."""

NOT_BEFORE_HEADER: Final = "x-ruststream-not-before"
"""On a copy that was published before its delay had passed: due time, ms since the epoch."""
ORIGIN_STREAM_HEADER: Final = "x-ruststream-origin-stream"
ORIGIN_SHARD_HEADER: Final = "x-ruststream-origin-shard"
ORIGIN_SEQUENCE_NUMBER_HEADER: Final = "x-ruststream-origin-sequence-number"
ATTEMPTS_HEADER: Final = "x-ruststream-attempts"
ERROR_HEADER: Final = "x-ruststream-error"

# Enough to recognise an error by; a header is not a place for tracebacks.
_ERROR_BYTES = 1024
# The year 2286: a copy's due time is no longer than what its receiver takes for a time of ours.
_LAST_MILLISECOND = 10**13 - 1
# Facts of a delivery, never of a record. A producer that put them into an envelope was mistaken.
_NOT_IN_COPIES: Final[dict[str, str | None]] = {
    PARTITION_KEY_HEADER: None,
    SEQUENCE_NUMBER_HEADER: None,
    SHARD_ID_HEADER: None,
}


class Action(Enum):
    """What becomes of a delivery that was not acked and not dropped."""

    HOLD = "hold"
    """It stays open."""
    COPY = "copy"
    """A copy goes to the stream, now or after the delay; then it is settled."""
    DEAD_LETTER = "dead letter"
    """It goes to the dead letter stream; then it is settled."""
    GIVE_UP = "give up"
    """It is settled like a drop: its attempts are spent and no dead letter stream is declared."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What a subscription declares about further attempts.

    Raises:
        ConfigurationError: A value is refused.
    """

    max_attempts: int | None = None
    dead_letter: StreamRef | None = None
    deferred: Deferred = "hold"

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if attempts is not None and (
            isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1
        ):
            raise ConfigurationError(f"max_attempts must be at least 1: {attempts!r}")
        if self.deferred not in ("hold", "settle"):
            raise ConfigurationError(f"deferred must be 'hold' or 'settle': {self.deferred!r}")

    @property
    def cap(self) -> int | None:
        """Deliveries of a record, the first included; a dead letter alone means one."""
        if self.max_attempts is not None:
            return self.max_attempts
        return None if self.dead_letter is None else 1

    def action(self, outcome: Outcome, attempt: int) -> Action:
        """What `retry()` or `retry_after()` means at this attempt."""
        cap = self.cap
        if cap is None:
            return Action.COPY if outcome.kind == "retry_after" else Action.HOLD
        if attempt < cap:
            return Action.COPY
        return Action.GIVE_UP if self.dead_letter is None else Action.DEAD_LETTER


class Copy:
    """A delivery that is to be published again: it owns its bytes and keeps no page in memory.

    Args:
        run: The run its original stands in.
        index: Which record of the page.
        attempts: Deliveries so far, this one included.
        due: When it may be handled again, on the wall clock in seconds; 0 means now.
    """

    __slots__ = (
        "attempts",
        "block",
        "due",
        "explicit_hash_key",
        "generation",
        "partition_key",
        "payload",
        "place",
        "sequence_number",
        "settled",
        "shard",
    )

    def __init__(self, run: Run, index: int, attempts: int, due: float = 0.0) -> None:
        page = run.page
        self.shard = run.shard
        self.generation = run.generation
        self.place = run.base + index
        self.block = page.header_block(index)
        self.payload = page.payload(index)
        self.partition_key = page.partition_key(index)
        self.explicit_hash_key = page.explicit_hash_key(index)
        """Goes with a copy, which is put where the original was meant to be; not with a dead
        letter, as another stream has shards of its own."""
        self.sequence_number = page.sequence_number(index)
        self.attempts = attempts
        self.due = due
        self.settled = False
        """Its original is settled already: it is the only trace of the record."""

    def is_void(self) -> bool:
        """Whether the shard was lost or rewound meanwhile: nothing of it may be published then.

        A copy whose original is settled outlives the loss of the shard: no next owner would read
        the record again.
        """
        shard = self.shard
        return shard.generation != self.generation and not (self.settled and shard.lost)

    def blob(self, *, early: bool = False) -> bytes:
        """The copy as it stands in the stream.

        Args:
            early: It is published before it is due; whoever receives it waits out the rest.
        """
        changes: dict[str, str | None] = {
            **_NOT_IN_COPIES,
            RETRY_COUNT_HEADER: str(self.attempts) if self.attempts else None,
            NOT_BEFORE_HEADER: self._not_before() if early else None,
        }
        return _blob(self, changes)

    def _not_before(self) -> str:
        return str(math.ceil(min(self.due * 1000, _LAST_MILLISECOND)))

    def log_fields(self) -> dict[str, str]:
        """Where the original stands, for `extra=`."""
        return fields(self.shard.stream, self.shard.shard_id, self.sequence_number)


def dead_letter_blobs(copy: Copy, error: BaseException | None) -> Iterator[bytes]:
    """The dead letter, with all of our headers first, then with fewer and fewer.

    Payload and received headers always stay. A record near the limit takes the first that fits.
    """
    origin: dict[str, str | None] = {
        ORIGIN_STREAM_HEADER: copy.shard.stream,
        ORIGIN_SHARD_HEADER: copy.shard.shard_id,
        ORIGIN_SEQUENCE_NUMBER_HEADER: copy.sequence_number,
    }
    told: dict[str, str | None] = {**origin, ATTEMPTS_HEADER: str(copy.attempts)}
    everything = {**told, ERROR_HEADER: error_line(error)}
    bare: dict[str, str | None] = {
        **_NOT_IN_COPIES,
        RETRY_COUNT_HEADER: None,
        NOT_BEFORE_HEADER: None,
        **dict.fromkeys(everything),
    }
    for headers in (everything, told, origin, {}):
        yield _blob(copy, {**bare, **headers})


def _blob(copy: Copy, changes: dict[str, str | None]) -> bytes:
    if copy.block is None and not any(changes.values()):
        # It came without an envelope and needs none: it may have no room for one.
        return copy.payload
    return rewrite_envelope(copy.block, changes, copy.payload)


def error_line(error: BaseException | None) -> str | None:
    """Type and message in one line of at most 1 KiB; `None` where there was no error."""
    if error is None:
        return None
    # White space of any kind becomes one blank; what is no text in UTF-8 is replaced.
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a message that cannot be made must not cost the record
        text = "(its message cannot be made)"
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return line.encode(errors="replace")[:_ERROR_BYTES].decode(errors="ignore").strip()
