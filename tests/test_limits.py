"""The service's limits, at their exact edges."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis.errors import InvalidRecord
from ruststream_kinesis.limits import (
    DEFAULT_MAX_RECORD_BYTES,
    check_partition_key,
    check_record_size,
)


@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("k", 1),
        ("k" * 256, 256),
        ("é" * 256, 512),
        ("日本", 6),
        ("🦀", 4),
        ("🦀" * 256, 1024),
        (" ", 1),
        ("a\nb", 3),
    ],
)
def test_a_key_counts_characters_for_its_length_and_bytes_for_its_size(key: str, size: int):
    """Case P6: 256 characters are taken, whatever their bytes; an emoji is one."""
    assert check_partition_key(key, "orders") == size


@pytest.mark.parametrize("key", ["", "k" * 257, "é" * 257])
def test_a_key_that_is_empty_or_too_long_is_refused_with_its_length(key: str):
    """Case P6: 257 or none."""
    with pytest.raises(InvalidRecord, match=f"has {len(key)} characters") as caught:
        check_partition_key(key, "orders")

    assert caught.value.stream == "orders"


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_a_clear_error(key: str):
    """Case P6: no UTF-8 can carry it."""
    with pytest.raises(InvalidRecord, match="lone surrogate"):
        check_partition_key(key, "orders")


@pytest.mark.parametrize("key", [None, 5, b"key", ["key"]])
def test_a_key_that_is_not_text_is_refused_with_its_value(key: Any):
    with pytest.raises(InvalidRecord) as caught:
        check_partition_key(key, "orders")

    assert repr(key) in str(caught.value)


def test_data_and_key_count_together():
    """Case P4: the last byte that fits, and one more."""
    key_bytes = check_partition_key("日本", "orders")

    check_record_size(1_048_570, key_bytes, DEFAULT_MAX_RECORD_BYTES, "orders")
    with pytest.raises(InvalidRecord, match="1048577 bytes"):
        check_record_size(1_048_571, key_bytes, DEFAULT_MAX_RECORD_BYTES, "orders")


def test_the_limit_is_the_streams_own():
    check_record_size(10 * 1024 * 1024 - 1, 1, 10 * 1024 * 1024, "orders")
    with pytest.raises(InvalidRecord, match="over the stream's limit of 10485760"):
        check_record_size(10 * 1024 * 1024, 1, 10 * 1024 * 1024, "orders")
