"""Rewinding on a real server: positions, splits, and what a restart finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    RustStream,
    Seeker,
)
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.leases import SHARD_END
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.servers import Server

HORIZON = KinesisPosition.horizon()
LATEST = KinesisPosition.latest()
SHARD = "shardId-000000000000"


def quick(name: str) -> KinesisStream:
    """Return a descriptor that is read without long pauses."""
    return KinesisStream(name, poll_interval=0.02, read_interval=0.02)


def application(server: Server, store: MemoryLeaseStore | None = None) -> RustStream:
    broker = KinesisBroker(endpoint_url=server.url, test_credentials=True, lease_store=store)
    return RustStream(broker, title="test", version="0")


def service(
    server: Server, name: str, inbox: Inbox, store: MemoryLeaseStore | None = None, **options: Any
) -> RustStream:
    """Return a service that notes each payload it gets."""
    app = application(server, store)

    @app.subscriber(quick(name), **options)
    async def take(payload: bytes) -> None:
        inbox.put(payload)

    return app


async def test_the_horizon_brings_everything_again(kinesis: Server, aws: Aws):
    name, inbox = await aws.create_stream(shards=2), Inbox()
    payloads = [str(number).encode() for number in range(30)]
    await aws.client.put_records(
        StreamName=name, Records=[{"Data": each, "PartitionKey": str(each)} for each in payloads]
    )
    app = service(kinesis, name, inbox, start_at=HORIZON)
    async with running(app) as it:
        await it.wait(inbox.first(30))
        await it.wait(app.seeker(name).seek(HORIZON))
        await it.wait(inbox.first(60))
    assert sorted(inbox.items) == sorted(payloads * 2)


async def test_a_sequence_number_brings_that_record_first(kinesis: Server, aws: Aws):
    name, inbox = await aws.create_stream(), Inbox()
    messages: list[KinesisMessage[bytes]] = []
    app = application(kinesis)

    @app.subscriber(quick(name), start_at=HORIZON)
    async def take(message: KinesisMessage[bytes]) -> None:
        messages.append(message)
        inbox.put(message.payload)

    for each in (b"a", b"b", b"c"):
        await aws.put(name, each)
    async with running(app) as it:
        await it.wait(inbox.first(3))
        await it.wait(app.seeker(name).seek(messages[1].position))
        await it.wait(inbox.first(5))
        with pytest.raises(KinesisError, match="does not hold the shard"):
            await app.seeker(name).seek(KinesisPosition.sequence("shardId-000000000009", "1"))
    assert inbox.items == [b"a", b"b", b"c", b"b", b"c"]


async def test_the_tip_skips_what_is_queued(kinesis: Server, aws: Aws):
    name, inbox, free = await aws.create_stream(), Inbox(), asyncio.Event()
    app = application(kinesis)

    @app.subscriber(quick(name), start_at=HORIZON)
    async def take(payload: bytes) -> None:
        inbox.put(payload)
        await free.wait()

    for number in range(5):
        await aws.put(name, b"old-%d" % number)
    async with running(app) as it:
        await it.wait(inbox.first(1))
        await it.wait(app.seeker(name).seek(LATEST))
        await aws.put(name, b"new")
        free.set()
        await it.wait(inbox.has(b"new"))
    assert inbox.items == [b"old-0", b"new"]


@pytest.mark.parametrize("options", [{}, {"workers": 3}, {"batch": 10}])
async def test_a_handler_rewinds_its_own_subscription(
    kinesis: Server, aws: Aws, options: dict[str, Any]
):
    name, inbox = await aws.create_stream(), Inbox()
    app, sought = application(kinesis), asyncio.Event()

    async def handle(payload: bytes, seeker: Seeker) -> None:
        inbox.put(payload)
        if payload == b"last" and not sought.is_set():
            sought.set()
            await seeker.seek(HORIZON)

    if "batch" in options:

        @app.subscriber(quick(name), start_at=HORIZON, **options)
        async def many(payloads: list[bytes], seeker: Seeker) -> None:
            for payload in payloads:
                await handle(payload, seeker)
    else:
        app.subscriber(quick(name), start_at=HORIZON, **options)(handle)

    for each in (b"first", b"last"):
        await aws.put(name, each)
    async with running(app) as it:
        await it.wait(inbox.first(4))
    assert inbox.items == [b"first", b"last"] * 2


async def test_a_replay_of_a_split_stream_keeps_parents_before_children(
    kinesis_local: Server, aws: Aws
):
    name, inbox, store = await aws.create_stream(), Inbox(), MemoryLeaseStore()
    await aws.put(name, b"before")
    app = service(kinesis_local, name, inbox, store, start_at=HORIZON)
    async with running(app) as it:
        await it.wait(inbox.first(1))
        await aws.client.split_shard(
            StreamName=name, ShardToSplit=SHARD, NewStartingHashKey=str(2**127)
        )
        await aws.client.get_waiter("stream_exists").wait(StreamName=name)
        await aws.put(name, b"after")
        await it.wait(inbox.first(2))

        async def end_of_parent() -> None:
            while True:
                rows = await store.leases(name)
                if any(row.checkpoint == SHARD_END for row in rows):
                    return
                await asyncio.sleep(0)

        await it.wait(end_of_parent())
        await it.wait(app.seeker(name).seek(HORIZON))
        await it.wait(inbox.first(4))
    assert inbox.items == [b"before", b"after"] * 2


async def test_a_rewind_that_nothing_was_settled_after_is_there_at_the_next_start(
    kinesis: Server, aws: Aws
):
    name, store, again = await aws.create_stream(), MemoryLeaseStore(), Inbox()
    for each in (b"a", b"b"):
        await aws.put(name, each)
    inbox, app, stuck = Inbox(), application(kinesis, store), asyncio.Event()

    @app.subscriber(quick(name), start_at=HORIZON)
    async def take(payload: bytes) -> None:
        inbox.put(payload)
        if len(inbox.items) > 2:
            app.stop()
            app.stop()
            await stuck.wait()

    with pytest.raises(KinesisError, match="did not finish"):
        async with running(app) as it:
            await it.wait(inbox.first(2))
            await it.wait(app.seeker(name).seek(HORIZON))
            await it.wait(inbox.first(3))
            await it.task
    async with running(service(kinesis, name, again, store)) as it:
        await it.wait(again.first(2))
    assert again.items == [b"a", b"b"]
