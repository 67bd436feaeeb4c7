"""Where to read: the whole vocabulary for positions in a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.limits import check_seconds
from ruststream_kinesis.wording import instant

__all__ = ["KinesisPosition"]

# API reference of GetShardIterator: `0|([1-9]\d{0,128})`.
_SEQUENCE_NUMBER = re.compile(r"0|[1-9][0-9]{0,128}", re.ASCII)
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KinesisPosition:
    """A place in a stream; made by one of the four class methods.

    `horizon`, `latest` and `timestamp` speak of every shard, `sequence` of the one it names.
    """

    kind: Literal["horizon", "latest", "timestamp", "sequence"]
    when: float | None = None
    """Seconds since the epoch, for `timestamp`."""
    shard_id: str | None = None
    sequence_number: str | None = None

    @classmethod
    def horizon(cls) -> KinesisPosition:
        """The oldest record that is still retained."""
        return cls("horizon")

    @classmethod
    def latest(cls) -> KinesisPosition:
        """The tip: records that arrive from now on."""
        return cls("latest")

    @classmethod
    def timestamp(cls, when: datetime | float) -> KinesisPosition:
        """The first record that arrived at `when` or later.

        Args:
            when: An aware `datetime`, or seconds since the epoch.

        Raises:
            ConfigurationError: A naive `datetime` (it would mean another instant on every
                machine), or a number that is negative or not finite.
        """
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ConfigurationError(
                    f"timestamp position {when!r} has no time zone: pass an aware datetime, for "
                    "example datetime.now(timezone.utc)"
                )
            when = when.timestamp()
        return cls("timestamp", when=check_seconds("timestamp position", when))

    @classmethod
    def sequence(cls, shard_id: str, sequence_number: str) -> KinesisPosition:
        """Exactly that record first, then those after it.

        Raises:
            ConfigurationError: Not a shard id, or not a sequence number.
        """
        if not isinstance(shard_id, str) or _SHARD_ID.fullmatch(shard_id) is None:
            raise ConfigurationError(f"invalid shard id {shard_id!r}")
        if (
            not isinstance(sequence_number, str)
            or _SEQUENCE_NUMBER.fullmatch(sequence_number) is None
        ):
            raise ConfigurationError(
                f"invalid sequence number {sequence_number!r}: decimal digits, as text",
                shard_id=shard_id,
            )
        return cls("sequence", shard_id=shard_id, sequence_number=sequence_number)

    def to_text(self) -> str:
        """The position as a store keeps it; `from_text` reads it back exactly."""
        match self.kind:
            case "timestamp":
                return f"timestamp:{self.when!r}"
            case "sequence":
                return f"sequence:{self.shard_id}:{self.sequence_number}"
            case _:
                return self.kind

    @classmethod
    def from_text(cls, text: str) -> KinesisPosition:
        """The position that `to_text` wrote.

        Raises:
            ConfigurationError: It is no such text, for example one of a later version.
        """
        kind, *details = text.split(":")
        try:
            match kind, details:
                case "horizon", []:
                    return cls.horizon()
                case "latest", []:
                    return cls.latest()
                case "timestamp", [when]:
                    return cls.timestamp(float(when))
                case "sequence", [shard_id, sequence_number]:
                    return cls.sequence(shard_id, sequence_number)
        except ValueError as error:
            raise ConfigurationError(f"{text!r} is no stored position: {error}") from error
        raise ConfigurationError(
            f"{text!r} is no stored position: horizon, latest, timestamp:<seconds> or "
            "sequence:<shard id>:<sequence number>"
        )

    def __str__(self) -> str:
        match self.kind:
            case "timestamp":
                return instant(self.when or 0.0)
            case "sequence":
                return f"sequence({self.shard_id}, {self.sequence_number})"
            case _:
                return self.kind
