"""Aggregates of orders, and responses that hold some."""

from __future__ import annotations

import itertools
import json
from typing import Any

from ruststream_kinesis._core import decode_aggregate, hash_key
from ruststream_kinesis.limits import LAST_HASH_KEY
from ruststream_kinesis.transport import PutEntry, ShardInfo
from tests.reference import aggregate, record, response

__all__ = ["HALF", "body", "halves", "held", "keys_in", "orders"]

HALF = 2**127
"""Where the hash keys of two even shards part."""


def orders(*values: object, key: str = "k") -> bytes:
    """An aggregate of JSON values."""
    return aggregate([(key, None, json.dumps(each).encode()) for each in values])


def body(
    *blobs: bytes, first: int = 1, following: str | None = "next", lag: int | None = 0
) -> bytes:
    """A response with these blobs, numbered from `first`."""
    listed = [record(blob, str(n), PartitionKey="whole") for n, blob in enumerate(blobs, first)]
    return response(listed, NextShardIterator=following, MillisBehindLatest=lag)


def halves(low: str = "low", high: str = "high", parent: str | None = None) -> list[ShardInfo]:
    """Two shards, and the one that they came from."""
    ended = [ShardInfo(parent, hash_keys=("0", LAST_HASH_KEY), ended=True)] if parent else []
    parents = (parent,) if parent else ()
    return [
        *ended,
        ShardInfo(high, parents, hash_keys=(str(HALF), LAST_HASH_KEY)),
        ShardInfo(low, parents, hash_keys=("0", str(HALF - 1))),
    ]


def keys_in(low: bool) -> Any:
    """Partition keys of one half of the hash keys."""
    return (key for n in itertools.count() if (hash_key(key := f"k{n}") < HALF) is low)


def held(entry: PutEntry) -> list[bytes]:
    """The data of the records that an entry stands for."""
    inside = decode_aggregate(entry[0])
    return [entry[0]] if inside is None else [data for _, _, data in inside]
