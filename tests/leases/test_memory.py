"""`MemoryLeaseStore` keeps the promises of a lease store."""

from __future__ import annotations

import pytest

from ruststream_kinesis import LeaseKey, MemoryLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.leases.contract import LeaseStoreContract


class TestMemoryLeaseStore(LeaseStoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> MemoryLeaseStore:
        return MemoryLeaseStore(clock=clock)


def test_the_row_key_is_the_one_shared_with_the_sibling():
    assert LeaseKey("orders", "shardId-0").row == "orders:shardId-0"
    assert LeaseKey("orders", "shardId-0", "audit").row == "audit/orders:shardId-0"


async def test_two_stores_share_nothing():
    key = LeaseKey("orders", "shardId-0")
    one, other = MemoryLeaseStore(), MemoryLeaseStore()

    assert await one.acquire(key, "me", duration=10) is not None
    assert await other.acquire(key, "me", duration=10) is not None
