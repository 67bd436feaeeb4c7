"""What `retry`, `retry_after` and the end of all attempts mean: a copy, a dead letter, or to hold.

Only decisions and the making of records live here; `copies.py` keeps and publishes them. Invariant:
a copy carries the received header block byte for byte, with our own headers set, and exactly the
payload that was received, so that it can be handled, or put back, as if it were the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from ruststream_kinesis._core import rewrite_envelope
from ruststream_kinesis.channel import Run
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.limits import check_count
from ruststream_kinesis.message import (
    PARTITION_KEY_HEADER,
    RETRY_COUNT_HEADER,
    SEQUENCE_NUMBER_HEADER,
    SHARD_ID_HEADER,
)
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.stream import StreamRef

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
# Facts of a delivery, never of a record. A producer that put them into an envelope was mistaken.
_DELIVERY_HEADERS: Final[dict[str, str | None]] = {
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
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts)
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
    """A record on its way to be delivered again: it owns its bytes and keeps no page in memory.

    Args:
        run: The run its original stands in.
        index: Which record of the page.
        attempt: Which delivery the copy will be; the first delivery of a record is 1.
        due: When it may be handled, on the wall clock in seconds; 0 means now.
    """

    __slots__ = (
        "attempt",
        "block",
        "due",
        "generation",
        "partition_key",
        "payload",
        "place",
        "shard",
    )

    def __init__(self, run: Run, index: int, attempt: int, due: float = 0.0) -> None:
        page = run.page
        self.shard = run.shard
        self.generation = run.generation
        self.place = run.base + index
        self.block = page.header_block(index)
        self.payload = page.payload(index)
        self.partition_key = page.partition_key(index)
        self.attempt = attempt
        self.due = due

    @property
    def void(self) -> bool:
        """Whether the shard was lost or rewound meanwhile: its original is read again, or skipped
        on purpose, and the copy must not be published."""
        return self.shard.generation != self.generation

    def blob(self, *, early: bool = False) -> bytes:
        """The copy as it stands in the stream.

        Args:
            early: It is published before it is due; whoever receives it waits out the rest.
        """
        changes: dict[str, str | None] = {
            **_DELIVERY_HEADERS,
            RETRY_COUNT_HEADER: str(self.attempt - 1) if self.attempt > 1 else None,
            NOT_BEFORE_HEADER: str(int(self.due * 1000)) if early else None,
        }
        return rewrite_envelope(self.block, changes, self.payload)


def dead_letter_blobs(
    run: Run, index: int, attempts: int, error: BaseException | None
) -> Iterator[bytes]:
    """The dead letter, with everything first, then with fewer of our headers.

    Payload and received headers always stay. A record near the limit gets the first form that fits.
    """
    page, shard = run.page, run.shard
    origin: dict[str, str | None] = {
        ORIGIN_STREAM_HEADER: shard.stream,
        ORIGIN_SHARD_HEADER: shard.shard_id,
        ORIGIN_SEQUENCE_NUMBER_HEADER: page.sequence_number(index),
    }
    told: dict[str, str | None] = {**origin, ATTEMPTS_HEADER: str(attempts)}
    everything = {**told, ERROR_HEADER: error_line(error)}
    block, payload = page.header_block(index), page.payload(index)
    for headers in (everything, told, origin, {}):
        changes = {**_DELIVERY_HEADERS, RETRY_COUNT_HEADER: None, NOT_BEFORE_HEADER: None, **headers}
        yield rewrite_envelope(block, changes, payload)


def error_line(error: BaseException | None) -> str | None:
    """Type and message in one line of at most 1 KiB; `None` where there was no error."""
    if error is None:
        return None
    # White space of any kind becomes one blank; what is no text in UTF-8 is replaced.
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return line.encode(errors="replace")[:_ERROR_BYTES].decode(errors="ignore").strip()
