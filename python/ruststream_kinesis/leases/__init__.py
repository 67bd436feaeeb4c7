"""Leases and checkpoints: who reads a shard, and from where."""

from ruststream_kinesis.leases.base import (
    SHARD_END,
    LeaseKey,
    LeaseState,
    LeaseStore,
    Opening,
)
from ruststream_kinesis.leases.dynamodb import DynamoLeaseStore
from ruststream_kinesis.leases.memory import MemoryLeaseStore

__all__ = [
    "SHARD_END",
    "DynamoLeaseStore",
    "LeaseKey",
    "LeaseState",
    "LeaseStore",
    "MemoryLeaseStore",
    "Opening",
]
