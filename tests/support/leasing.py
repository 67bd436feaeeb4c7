"""What the promises of a lease store are tested with: keys, positions, and how a lease is taken."""

from __future__ import annotations

from ruststream_kinesis import KinesisPosition, LeaseKey, LeaseState, LeaseStore
from ruststream_kinesis.testing import ManualClock

KEY = LeaseKey("orders", "shardId-000000000000")
OTHER = LeaseKey("orders", "shardId-000000000001")
HORIZON = KinesisPosition.horizon()
POSITIONS = [
    HORIZON,
    KinesisPosition.timestamp(1_700_000_000.123),
    KinesisPosition.sequence(
        KEY.shard_id, "49650000000000000000000000000000000000000000000000000002"
    ),
]
PERIOD = 10.0
"""Seconds that a lease lives in these tests."""


async def take(store: LeaseStore, owner_id: str = "me", key: LeaseKey = KEY) -> LeaseState:
    """Take a shard that is free."""
    lease = await store.acquire(key, owner_id, duration=PERIOD)
    assert lease is not None
    return lease


async def take_over(clock: ManualClock, store: LeaseStore, owner_id: str = "you") -> LeaseState:
    """Take the shard from an owner that renews no more."""
    assert await store.acquire(KEY, owner_id, duration=PERIOD) is None
    await clock.advance(PERIOD + 0.1)
    return await take(store, owner_id)


async def row(store: LeaseStore, key: LeaseKey = KEY) -> LeaseState:
    """Read a row that is there."""
    state = await store.read(key)
    assert state is not None
    return state
