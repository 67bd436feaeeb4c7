"""Two stores, as of two processes, on one table in memory."""

from __future__ import annotations

import pytest

from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.support.tables import MemoryTable


@pytest.fixture
def clock() -> ManualClock:
    """Time stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def table() -> MemoryTable:
    """The table of both stores."""
    return MemoryTable()


@pytest.fixture
def store(table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
    """A store."""
    return TableLeaseStore(table, clock=clock)


@pytest.fixture
def another(table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
    """A store of another process."""
    return TableLeaseStore(table, clock=clock)
