"""Aggregates of orders, and responses that hold some."""

from __future__ import annotations

import json

from tests.reference import aggregate, record, response

__all__ = ["body", "orders"]


def orders(*values: object, key: str = "k") -> bytes:
    """An aggregate of JSON values."""
    return aggregate([(key, None, json.dumps(each).encode()) for each in values])


def body(
    *blobs: bytes, first: int = 1, following: str | None = "next", lag: int | None = 0
) -> bytes:
    """A response with these blobs, numbered from `first`."""
    listed = [record(blob, str(n), PartitionKey="whole") for n, blob in enumerate(blobs, first)]
    return response(listed, NextShardIterator=following, MillisBehindLatest=lag)
