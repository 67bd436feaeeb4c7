"""`TableLeaseStore` keeps the promises of a lease store, over a table in memory and real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ruststream_kinesis import LeaseStore
from ruststream_kinesis.clients import Way
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.leases.contract import LeaseStoreContract
from tests.support.servers import Server
from tests.support.tables import MemoryTable, dynamo_table


class TestOverMemory(LeaseStoreContract):
    @pytest.fixture
    def store(self, table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
        return TableLeaseStore(table, clock=clock)

    @pytest.fixture
    def another(self, table: MemoryTable, clock: ManualClock) -> TableLeaseStore:
        return TableLeaseStore(table, clock=clock)


class TestOverDynamoDB(LeaseStoreContract):
    transport: Way = "thin"

    @pytest.fixture
    async def store(self, dynamodb: Server, clock: ManualClock) -> AsyncIterator[TableLeaseStore]:
        table = dynamo_table(dynamodb.url, create=True, transport=self.transport)
        store = TableLeaseStore(table, clock=clock)
        await store.open()
        yield store
        await store.close()

    async def test_of_many_who_ask_at_once_exactly_one_gets_it(  # type: ignore[override]  # pytest gives what is asked for
        self, store: LeaseStore, another: LeaseStore, dynamodb: Server
    ):
        if dynamodb.name == "moto":
            pytest.skip("moto's conditional writes are not atomic: two may win")
        await super().test_of_many_who_ask_at_once_exactly_one_gets_it(store, another)

    @pytest.fixture
    async def another(
        self, store: TableLeaseStore, dynamodb: Server, clock: ManualClock
    ) -> AsyncIterator[TableLeaseStore]:
        table = dynamo_table(dynamodb.url, store._table.name, transport=self.transport)
        another = TableLeaseStore(table, clock=clock)
        yield another
        await another.close()


class TestOverDynamoDBByTheStockWay(TestOverDynamoDB):
    transport = "botocore"

    @pytest.fixture
    def dynamodb(self, dynalite_server: Server) -> Server:
        """One server: what differs is on our side."""
        return dynalite_server
