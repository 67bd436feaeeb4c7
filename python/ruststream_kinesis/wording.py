"""How errors and places read in a line of the log: one line each, with nothing to decipher."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from ruststream_kinesis.errors import KinesisError

__all__ = [
    "asked_at",
    "fields",
    "fields_of",
    "instant",
    "kind",
    "label",
    "listing",
    "short",
    "shown",
    "stream_of",
    "trace",
]

# Of a sequence number of 56 digits: the first ones tell it from others of its age, the last ones
# from its neighbours.
_FIRST, _LAST = 4, 8
# A line names so many things; of hundreds nobody reads more.
_NAMED = 5


def shown(error: BaseException) -> str:
    """An error for a message: ours says all by itself, another one needs the name of its type."""
    try:
        # `repr` escapes the quotes of what may hold a whole command line.
        return str(error) if isinstance(error, KinesisError) else repr(error)
    except Exception:  # noqa: BLE001 - somebody else's; whatever it raises, there is a name left
        return type(error).__name__


def trace(error: BaseException, logger: logging.Logger) -> BaseException | None:
    """What to pass as `exc_info`: a failure that we raised on purpose is explained by its message.

    Where somebody debugs, its traceback is there all the same.
    """
    on_purpose = isinstance(error, KinesisError) and not logger.isEnabledFor(logging.DEBUG)
    return None if on_purpose else error


def fields(
    stream: str | None = None, shard_id: str | None = None, sequence_number: str | None = None
) -> dict[str, str]:
    """Where something happened, for the `extra` of every message that names a stream or a shard.

    What is not concerned is left out: an attribute of a log record that is there says something.
    """
    found = {"stream": stream, "shard_id": shard_id, "sequence_number": sequence_number}
    return {name: value for name, value in found.items() if value is not None}


def fields_of(error: BaseException) -> dict[str, str]:
    """The same of an error: ours know where they happened."""
    if not isinstance(error, KinesisError):
        return {}
    return fields(error.stream, error.shard_id, error.sequence_number)


def stream_of(label: str) -> str:
    """The stream of a subscription's label: a stream's name holds no '@'."""
    return label.partition("@")[0]


def kind(error: BaseException) -> str:
    """An error by class and code: for whoever must not see its text, which may hold anything."""
    code = getattr(error, "code", None)
    return f"{type(error).__name__} {code}" if isinstance(code, str) else type(error).__name__


def label(stream: str, group: str | None) -> str:
    """A subscription: the stream, and the group where there is one."""
    return f"{stream}@{group}" if group else stream


def instant(seconds: float) -> str:
    """A time since the epoch, in UTC."""
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return f"{seconds:g} s after 1970"
    exact = "milliseconds" if when.microsecond else "seconds"
    return when.isoformat(timespec=exact).replace("+00:00", "Z")


def short(sequence_number: str | None) -> str:
    """A sequence number that a line has room for."""
    text = sequence_number or ""
    return text if len(text) <= _FIRST + _LAST else f"{text[:_FIRST]}…{text[-_LAST:]}"


def listing(names: Sequence[str]) -> str:
    """Some things by name, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def asked_at(meta: Any) -> str:
    """Which service a client talks to: host and region, nothing else of the URL.

    Args:
        meta: The `meta` of an aiobotocore client.
    """
    parts = urlsplit(meta.endpoint_url)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.hostname}{port}, region {meta.region_name}"
