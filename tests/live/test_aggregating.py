"""Aggregates that the publisher writes, on real servers: read back in order, also through a split."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    KinesisStream,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    retry,
)
from ruststream_kinesis._core import decode_aggregate, hash_key
from ruststream_kinesis.testing import TestApp
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.servers import Server

pytestmark = pytest.mark.live


def service(server: Server, name: str, inbox: Inbox, messages: list[Any]) -> RustStream:
    """Notes what it is given."""
    broker = KinesisBroker(
        endpoint_url=server.url, test_credentials=True, lease_store=MemoryLeaseStore()
    )
    app = RustStream(broker, title="test", version="0")
    stream = KinesisStream(name, poll_interval=0.02, read_interval=0.02)

    @app.subscriber(stream, start_at=KinesisPosition.horizon(), workers=4)
    async def take(message: KinesisMessage[bytes]) -> None:
        messages.append(message)
        inbox.put(message.payload)

    return app


async def stored(aws: Aws, name: str) -> tuple[int, list[str]]:
    """How many records the stream has, and those of them that hold some of another shard."""
    count, strays = 0, []
    for shard in await aws.shards(name):
        keys = shard["HashKeyRange"]
        for record in await aws.shard_records(name, shard["ShardId"]):
            count += 1
            for key, own, _ in decode_aggregate(record["Data"]) or ():
                at = hash_key(key) if own is None else int(own)
                if not int(keys["StartingHashKey"]) <= at <= int(keys["EndingHashKey"]):
                    strays.append(record["SequenceNumber"])
                    break
    return count, strays


async def test_what_is_published_in_aggregates_is_read_back_each_key_in_order(
    kinesis: Server, aws: Aws
):
    name, inbox = await aws.create_stream(shards=3), Inbox()
    messages: list[Any] = []
    app = service(kinesis, name, inbox, messages)
    publisher = app.publisher(KinesisPublish(aggregate=True, linger=0.02))
    async with running(app) as it:
        results = []
        for part in range(4):
            results += await it.wait(
                asyncio.gather(
                    *[
                        publisher.publish(
                            b"%d" % n,
                            name,
                            partition_key=f"k{n % 20}",
                            headers={"n": str(n)} if n % 3 else None,
                            explicit_hash_key="7" if n % 20 == 0 else None,
                        )
                        for n in range(100 * part, 100 * (part + 1))
                    ]
                )
            )
        await it.wait(inbox.first(400))

    by_key: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        by_key[message.partition_key].append(int(message.payload))
        result = results[int(message.payload)]
        assert (message.shard_id, message.sequence_number, message.sub_sequence_number) == (
            result.shard_id, result.sequence_number, result.sub_sequence_number,
        )  # fmt: skip
    assert by_key == {f"k{key}": list(range(key, 400, 20)) for key in range(20)}
    count, strays = await stored(aws, name)
    assert count <= 12, "four rounds, three shards"
    assert strays == []


async def test_a_split_while_aggregates_are_published_loses_nothing_and_is_noticed(
    kinesis_local: Server, aws: Aws
):
    name, inbox = await aws.create_stream(shards=1), Inbox()
    messages: list[Any] = []
    (parent,) = [shard["ShardId"] for shard in await aws.shards(name)]
    app = service(kinesis_local, name, inbox, messages)
    publisher = app.publisher(KinesisPublish(aggregate=True, linger=0.01))
    count, stop = 0, asyncio.Event()

    async def publish() -> list[Any]:
        nonlocal count
        results: list[Any] = []
        while not stop.is_set() or len({each.shard_id for each in results[-40:]}) < 2:
            first, count = count, count + 40
            results += await asyncio.gather(
                *[
                    publisher.publish(b"%d" % n, name, partition_key=f"k{n % 20}")
                    for n in range(first, count)
                ]
            )
        return results

    async with running(app) as it:
        publishing = asyncio.create_task(publish())
        await it.wait(inbox.first(80))
        await aws.split(name, parent)
        stop.set()
        results = await it.wait(publishing)
        await it.wait(inbox.first(count))

    assert sorted(int(each) for each in inbox.items) == list(range(count))
    assert {each.shard_id for each in results[-40:]}.isdisjoint({parent})
    by_place: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in messages:
        by_place[message.shard_id, message.partition_key].append(int(message.payload))
    assert all(each == sorted(each) for each in by_place.values())
    # The one that went to a child before the split was seen.
    _, strays = await stored(aws, name)
    assert len(strays) <= 1


async def test_a_test_on_a_server_waits_for_what_comes_of_aggregates(kinesis: Server, aws: Aws):
    app = RustStream(KinesisBroker(), title="test", version="0")
    orders, replies = aws.unique("orders"), aws.unique("replies")

    @app.subscriber(
        orders, max_attempts=2, publish=KinesisPublish(to=replies, aggregate=True, linger=0.02)
    )
    async def double(number: int) -> int | Outcome:
        return retry() if number < 0 else 2 * number

    publisher = app.publisher(KinesisPublish(aggregate=True, linger=0.02))
    async with TestApp(app, live=kinesis.url) as test:
        await asyncio.gather(*[publisher.publish(n, orders) for n in (1, 2, -3, 4)])
        await test.settled()
        assert app.counters[orders].replies == 3
        assert sorted(test.subscriber(orders).values) == [-3, -3, 1, 2, 4]
        assert sorted(each.payload for each in test.published(replies)) == [b"2", b"4", b"8"]
