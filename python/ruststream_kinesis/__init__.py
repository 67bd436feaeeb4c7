"""Python services on Amazon Kinesis Data Streams.

Handlers say `ack`, `drop`, `retry` or `retry_after`; the package turns that into one checkpoint a
shard, which never passes a record still in progress.

Importing the package imports none of its modules: a name does, when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.broker import KinesisBroker
    from ruststream_kinesis.codec import Codec, JsonCodec
    from ruststream_kinesis.context import Context
    from ruststream_kinesis.health import Health
    from ruststream_kinesis.leases import (
        DynamoLeaseStore,
        LeaseKey,
        LeaseState,
        LeaseStore,
        Member,
        MemoryLeaseStore,
        Opening,
        Survey,
    )
    from ruststream_kinesis.message import Headers, KinesisMessage
    from ruststream_kinesis.metrics import app_metrics
    from ruststream_kinesis.outcomes import Outcome, ack, drop, retry, retry_after
    from ruststream_kinesis.position import KinesisPosition
    from ruststream_kinesis.probe import Probe
    from ruststream_kinesis.publications import Publication
    from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
    from ruststream_kinesis.router import Router
    from ruststream_kinesis.seek import Seeker
    from ruststream_kinesis.state import AppState, ShardState, SubscriptionState
    from ruststream_kinesis.stream import KinesisStream

__all__ = [
    "AppState",
    "Codec",
    "Context",
    "DynamoLeaseStore",
    "Headers",
    "Health",
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
    "Probe",
    "Publication",
    "Router",
    "RustStream",
    "Seeker",
    "ShardState",
    "SubscriptionState",
    "Survey",
    "ack",
    "app_metrics",
    "drop",
    "retry",
    "retry_after",
]

# Which module a name comes from.
_MODULES = {
    "AppState": "state",
    "Codec": "codec",
    "Context": "context",
    "DynamoLeaseStore": "leases",
    "Headers": "message",
    "Health": "health",
    "JsonCodec": "codec",
    "KinesisBroker": "broker",
    "KinesisMessage": "message",
    "KinesisPosition": "position",
    "KinesisPublish": "publisher",
    "KinesisPublisher": "publisher",
    "KinesisStream": "stream",
    "LeaseKey": "leases",
    "LeaseState": "leases",
    "LeaseStore": "leases",
    "Member": "leases",
    "MemoryLeaseStore": "leases",
    "Opening": "leases",
    "Outcome": "outcomes",
    "Publication": "publications",
    "Probe": "probe",
    "Router": "router",
    "RustStream": "app",
    "Seeker": "seek",
    "ShardState": "state",
    "SubscriptionState": "state",
    "Survey": "leases",
    "ack": "outcomes",
    "app_metrics": "metrics",
    "drop": "outcomes",
    "retry": "outcomes",
    "retry_after": "outcomes",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    # From now on it is an attribute like any other.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
