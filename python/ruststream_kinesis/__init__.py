"""Python services on Amazon Kinesis Data Streams.

Handlers say `ack`, `drop`, `retry` or `retry_after`; the package turns that into one checkpoint a
shard, which never passes a record still in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ruststream_kinesis.app import RustStream
from ruststream_kinesis.broker import KinesisBroker
from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.leases import (
    LeaseKey,
    LeaseState,
    LeaseStore,
    Member,
    MemoryLeaseStore,
    Opening,
    Survey,
)
from ruststream_kinesis.message import Headers, KinesisMessage
from ruststream_kinesis.outcomes import Outcome, ack, drop, retry, retry_after
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.router import Router
from ruststream_kinesis.seek import Seeker
from ruststream_kinesis.state import AppState, ShardState, SubscriptionState
from ruststream_kinesis.stream import KinesisStream

if TYPE_CHECKING:
    from ruststream_kinesis.leases import DynamoLeaseStore

__all__ = [
    "AppState",
    "Codec",
    "DynamoLeaseStore",
    "Headers",
    "JsonCodec",
    "KinesisBroker",
    "KinesisMessage",
    "KinesisPosition",
    "KinesisPublish",
    "KinesisPublisher",
    "KinesisStream",
    "LeaseKey",
    "LeaseState",
    "LeaseStore",
    "Member",
    "MemoryLeaseStore",
    "Opening",
    "Outcome",
    "Router",
    "RustStream",
    "Seeker",
    "ShardState",
    "SubscriptionState",
    "Survey",
    "ack",
    "drop",
    "retry",
    "retry_after",
]


def __getattr__(name: str) -> Any:
    if name != "DynamoLeaseStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # When it is asked for: most services of one instance never do.
    from ruststream_kinesis.leases import DynamoLeaseStore  # noqa: PLC0415

    return DynamoLeaseStore
