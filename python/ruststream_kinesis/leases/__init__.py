"""Leases and checkpoints: who reads a shard, and from where.

`DynamoLeaseStore` is imported when it is asked for: a service with leases in memory needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ruststream_kinesis.leases.base import (
    SHARD_END,
    LeaseKey,
    LeaseState,
    LeaseStore,
    Member,
    Opening,
    Survey,
)
from ruststream_kinesis.leases.memory import MemoryLeaseStore

if TYPE_CHECKING:
    from ruststream_kinesis.leases.dynamodb import DynamoLeaseStore

__all__ = [
    "SHARD_END",
    "DynamoLeaseStore",
    "LeaseKey",
    "LeaseState",
    "LeaseStore",
    "Member",
    "MemoryLeaseStore",
    "Opening",
    "Survey",
]


def __getattr__(name: str) -> Any:
    if name != "DynamoLeaseStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ruststream_kinesis.leases.dynamodb import (  # noqa: PLC0415 - see the module's header
        DynamoLeaseStore,
    )

    return DynamoLeaseStore
