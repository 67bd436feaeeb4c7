"""What the service accepts, checked here before anything is sent.

Source of the numbers: the quotas page of Kinesis Data Streams and the API reference of PutRecord,
PutRecords and GetRecords. The publisher and the in-process log share these checks, so a test
refuses what production refuses, with the same error. What every record is asked, its partition key,
is in the core.
"""

from __future__ import annotations

import math
import re

from ruststream_kinesis._core import MAX_PARTITION_KEY_LENGTH, check_partition_key
from ruststream_kinesis.errors import ConfigurationError, InvalidRecord

__all__ = [
    "DEFAULT_MAX_RECORD_BYTES",
    "LAST_HASH_KEY",
    "MAX_GET_RECORDS",
    "MAX_PARTITION_KEY_LENGTH",
    "MAX_PUT_RECORDS",
    "MAX_PUT_RECORDS_BYTES",
    "check_explicit_hash_key",
    "check_partition_key",
    "check_record_size",
    "check_seconds",
    "check_stream_name",
]

# Data and partition key together, unless the stream says more (`MaxRecordSizeInKiB`).
DEFAULT_MAX_RECORD_BYTES = 1024 * 1024
# The largest `MaxRecordSizeInKiB` is 10 MiB; a response of GetRecords holds at most as much.
MAX_GET_RECORDS = 10_000
# Records of one PutRecords request, and their data and partition keys together.
MAX_PUT_RECORDS = 500
MAX_PUT_RECORDS_BYTES = 10 * 1024 * 1024
# Hash keys are 128 bits; here as the service writes them.
_HASH_KEYS = 2**128
LAST_HASH_KEY = str(_HASH_KEYS - 1)

_STREAM_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)


def check_stream_name(name: object) -> str:
    """Returns `name` when the service takes it as a stream name.

    Raises:
        ConfigurationError: It is not a string of 1 to 128 letters, digits, `_`, `.` and `-`.
    """
    if not isinstance(name, str) or _STREAM_NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"invalid stream name {name!r}: 1 to 128 letters, digits, '_', '.' and '-'"
        )
    return name


def check_explicit_hash_key(key: object, stream: str | None) -> str:
    """Returns `key` when the service takes it as an explicit hash key.

    Raises:
        InvalidRecord: It is not the decimal digits of a number below 2^128.
    """
    if (
        not isinstance(key, str)
        or re.fullmatch(r"0|[1-9][0-9]{0,38}", key, re.ASCII) is None
        or int(key) >= _HASH_KEYS
    ):
        raise InvalidRecord(
            f"explicit_hash_key must be the decimal digits of a number below 2^128: {key!r}",
            stream=stream,
        )
    return key


def check_record_size(data_bytes: int, key_bytes: int, limit: int, stream: str) -> None:
    """Checks data and key together against the stream's limit.

    Args:
        data_bytes: Size of the blob as it is sent, envelope included.
        key_bytes: Size of the partition key in bytes of UTF-8.
        limit: The stream's limit in bytes.
        stream: For the error.

    Raises:
        InvalidRecord: They are larger than the limit.
    """
    if data_bytes + key_bytes > limit:
        raise InvalidRecord(
            f"record of {data_bytes + key_bytes} bytes (data {data_bytes}, partition key "
            f"{key_bytes}) is over the stream's limit of {limit}; make it smaller, or raise the "
            "stream's maximum record size",
            stream=stream,
        )


def check_seconds(name: str, value: object, *, least: float = 0.0) -> float:
    """Returns `value` as seconds.

    Raises:
        ConfigurationError: Not a finite number, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be a number of seconds, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:  # an integer beyond every float
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ConfigurationError(f"{name} must be a finite number of seconds, not {value!r}")
    if seconds < least:
        raise ConfigurationError(f"{name} must be at least {least:g} s, not {value!r}")
    return seconds
