"""How errors and places read in a line of the log: one line each, with nothing to decipher."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from ruststream_kinesis.errors import KinesisError

__all__ = ["asked_at", "instant", "label", "listing", "short", "shown", "trace"]

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
