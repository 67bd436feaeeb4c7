"""A service with its leases in DynamoDB: it goes on where it stopped, and nobody reads beside it."""

from __future__ import annotations

import asyncio

import pytest

from ruststream_kinesis import DynamoLeaseStore, KinesisBroker, KinesisStream, LeaseKey, RustStream
from ruststream_kinesis.errors import LeaseTableNotFound
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.servers import REGION, Server
from tests.support.tables import SESSION, unique_table


def leases(server: Server, table: str, *, create: bool = False) -> DynamoLeaseStore:
    return DynamoLeaseStore(
        table,
        create=create,
        region=REGION,
        endpoint_url=server.url,
        session=SESSION,
        test_credentials=True,
    )


def application(aws: Aws, stream: str, store: DynamoLeaseStore) -> tuple[RustStream, Inbox]:
    """Return a service that notes what it reads."""
    broker = KinesisBroker(endpoint_url=aws.url, test_credentials=True, lease_store=store)
    app, inbox = RustStream(broker, title="test", version="0"), Inbox()

    @app.subscriber(KinesisStream(stream, poll_interval=0.02, read_interval=0.02))
    async def handle(payload: bytes) -> None:
        inbox.put(payload)

    return app, inbox


async def test_a_service_that_starts_again_goes_on_where_the_last_one_stopped(
    aws: Aws, dynalite_server: Server
):
    stream, table = await aws.create_stream(), unique_table()
    store = leases(dynalite_server, table, create=True)
    app, inbox = application(aws, stream, store)
    async with running(app) as service:
        for n in range(3):
            await aws.put(stream, b"%d" % n)
        await service.wait(inbox.first(3), "three records")
    await store.close()
    await aws.put(stream, b"3")

    store = leases(dynalite_server, table)
    app, inbox = application(aws, stream, store)
    async with running(app) as service:
        await service.wait(inbox.first(1), "the record from between")
    left = await store.read(LeaseKey(stream, "shardId-000000000000"))
    await store.close()

    assert inbox.items == [b"3"]
    assert left is not None
    assert left.free


async def test_two_instances_never_read_one_shard(aws: Aws, dynalite_server: Server):
    stream, table = await aws.create_stream(), unique_table()
    stores = [leases(dynalite_server, table, create=True) for _ in range(2)]
    (first, one), (second, other) = (application(aws, stream, store) for store in stores)
    async with running(first) as service, running(second):
        for n in range(20):
            await aws.put(stream, b"%d" % n)
        await service.wait(one.first(20), "twenty records")
    assert (len(one.items), len(other.items)) == (20, 0)
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_service_whose_table_is_missing_stops_at_the_start(
    aws: Aws, dynalite_server: Server
):
    store = leases(dynalite_server, unique_table())
    app, _ = application(aws, await aws.create_stream(), store)
    with pytest.raises(LeaseTableNotFound, match=store.table):
        async with running(app):
            pytest.fail("it cannot have started")
    await store.close()
