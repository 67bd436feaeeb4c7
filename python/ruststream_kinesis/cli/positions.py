"""Positions as they are typed: `horizon`, `latest`, a time, or a record of a shard."""

from __future__ import annotations

import re
from datetime import datetime

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.position import KinesisPosition

__all__ = ["parse_position"]

_AGO = re.compile(r"([0-9]+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# The shard id is not only `shardId-…`, but a time never looks like this one.
_RECORD = re.compile(r"([a-zA-Z][a-zA-Z0-9_.-]*):([0-9]+)", re.ASCII)


def parse_position(text: str, now: float) -> KinesisPosition:
    """The position that a text means.

    Args:
        text: `horizon`, `latest`, `SHARD:SEQ`, `15m` (so long ago; s, m, h or d), or a time as
            `2026-01-31T12:00:00Z`.
        now: Seconds since the epoch.

    Raises:
        ConfigurationError: It means none.
    """
    match text.lower():
        case "horizon":
            return KinesisPosition.horizon()
        case "latest":
            return KinesisPosition.latest()
    if (record := _RECORD.fullmatch(text)) is not None:
        return KinesisPosition.sequence(record[1], record[2])
    if (ago := _AGO.fullmatch(text)) is not None:
        return KinesisPosition.timestamp(max(0.0, now - int(ago[1]) * _SECONDS[ago[2]]))
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{text!r} is no position: horizon, latest, SHARD:SEQ, a time ago as 15m, or a time as "
            "2026-01-31T12:00:00Z"
        ) from error
    if when.tzinfo is None:
        raise ConfigurationError(f"{text!r} has no time zone: add Z for UTC, or +01:00")
    return KinesisPosition.timestamp(when)
