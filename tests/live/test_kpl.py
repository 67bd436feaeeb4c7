"""Aggregates on real servers: read as what they hold, and read again as a whole."""

from __future__ import annotations

import json

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    retry,
)
from ruststream_kinesis._core import hash_key
from ruststream_kinesis.testing import TestApp
from tests.reference import aggregate
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.servers import Server

pytestmark = pytest.mark.live
HORIZON = KinesisPosition.horizon()
SHARD = "shardId-000000000000"


def orders(*values: bytes) -> bytes:
    return aggregate([("key", None, each) for each in values])


def application(server: Server, store: MemoryLeaseStore) -> RustStream:
    broker = KinesisBroker(endpoint_url=server.url, test_credentials=True, lease_store=store)
    return RustStream(broker, title="test", version="0")


def service(
    server: Server,
    name: str,
    inbox: Inbox,
    store: MemoryLeaseStore,
    *,
    held: bytes | None = None,
    again: bool = False,
) -> tuple[RustStream, list[KinesisMessage[bytes]]]:
    """A service that holds one payload back, and what it was given.

    With `again` it goes on from its checkpoint.
    """
    app, messages = application(server, store), []
    stream = KinesisStream(name, poll_interval=0.02, read_interval=0.02)

    @app.subscriber(stream, start_at=None if again else HORIZON)
    async def take(message: KinesisMessage[bytes]) -> Outcome | None:
        messages.append(message)
        inbox.put(message.payload)
        return retry() if message.payload == held else None

    return app, messages


async def test_an_aggregate_is_handled_as_its_records(kinesis: Server, aws: Aws):
    name, inbox = await aws.create_stream(), Inbox()
    await aws.put(name, b"before")
    number = await aws.put(name, aggregate([("a", "5", b"1"), ("b", None, b"2")]), key="whole")
    await aws.put(name, b"after")

    app, messages = service(kinesis, name, inbox, MemoryLeaseStore())
    async with running(app) as it:
        await it.wait(inbox.first(4))
    assert inbox.items == [b"before", b"1", b"2", b"after"]
    inside = [
        (each.partition_key, each.explicit_hash_key, each.sub_sequence_number)
        for each in messages
        if each.sequence_number == number
    ]
    assert inside == [("a", "5", 0), ("b", None, 1)]


async def test_after_a_stop_in_its_middle_the_whole_aggregate_comes_again(
    kinesis: Server, aws: Aws
):
    name, store = await aws.create_stream(), MemoryLeaseStore()
    before = await aws.put(name, b"before")
    await aws.put(name, orders(b"1", b"2", b"3", b"4"))
    after = await aws.put(name, b"after")

    first = Inbox()
    app, _ = service(kinesis, name, first, store, held=b"3")
    async with running(app) as it:
        await it.wait(first.first(6))
    assert [each.checkpoint for each in await store.leases(name)] == [before]

    second = Inbox()
    app, _ = service(kinesis, name, second, store, again=True)
    async with running(app) as it:
        await it.wait(second.first(5))
    assert second.items == [b"1", b"2", b"3", b"4", b"after"]
    assert [each.checkpoint for each in await store.leases(name)] == [after]


async def test_a_rewind_to_a_record_of_an_aggregate_brings_the_whole(kinesis: Server, aws: Aws):
    name, inbox = await aws.create_stream(), Inbox()
    await aws.put(name, b"before")
    await aws.put(name, orders(b"1", b"2", b"3"))

    app, messages = service(kinesis, name, inbox, MemoryLeaseStore())
    async with running(app) as it:
        await it.wait(inbox.first(4))
        await it.wait(app.seeker(name).seek(messages[-1].position))
        await it.wait(inbox.first(7))
    assert inbox.items == [b"before", b"1", b"2", b"3", b"1", b"2", b"3"]


async def test_the_checkpoint_passes_an_aggregate_without_records(kinesis_local: Server, aws: Aws):
    name, inbox, store = await aws.create_stream(), Inbox(), MemoryLeaseStore()
    number = await aws.put(name, aggregate())

    app, _ = service(kinesis_local, name, inbox, store)
    async with running(app) as it:
        await it.until(
            lambda: [each.checkpoint for each in app.state().subscriptions[0].shards] == [number]
        )
    assert [each.checkpoint for each in await store.leases(name)] == [number]
    assert inbox.items == []


async def test_case_k2_the_server_puts_a_key_where_its_hash_is(kinesis: Server, aws: Aws):
    name = await aws.create_stream(shards=2)
    half = 2**127
    for key in ("user-1", "user-2", "日本", "k" * 256):
        answer = await aws.client.put_record(StreamName=name, Data=b"x", PartitionKey=key)
        assert (hash_key(key) >= half) == (answer["ShardId"] == "shardId-000000000001"), key


@pytest.mark.parametrize("size", [0, 1, 5, 200])
async def test_a_test_on_a_server_waits_for_all_of_an_aggregate(kinesis: Server, size: int):
    app, seen = RustStream(KinesisBroker(), title="test", version="0"), []

    @app.subscriber("orders-in-parts", workers=3)
    async def handle(order: int) -> None:
        seen.append(order)

    async with TestApp(app, live=kinesis.url) as test:
        blob = aggregate([(f"k{n}", None, json.dumps(n).encode()) for n in range(size)])
        await test.publish(blob, "orders-in-parts")
        assert sorted(seen) == list(range(size))
        assert len(test.published("orders-in-parts")) == size
