"""A whole service against servers that others wrote: in, handled, replied, stored, started anew."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from datetime import datetime
from typing import Any

import msgspec
import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    KinesisPublisher,
    KinesisStream,
    LeaseKey,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    drop,
    opening,
)
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import (
    NotConnected,
    PublishError,
    StopTimeout,
    StreamNotFound,
    StreamRecreated,
)
from tests.support.aws import Aws
from tests.support.running import running
from tests.support.scripted import FaultProxy, drop_connection, error
from tests.support.servers import Server

HORIZON = KinesisPosition.horizon()


class Order(msgspec.Struct):
    """What comes in."""

    id: int
    total: float


class Confirmation(msgspec.Struct):
    """What goes out."""

    order: int


def application(
    url: str, store: MemoryLeaseStore | None = None, *, shutdown_timeout: float = 10.0
) -> RustStream:
    """Return an application on a server, without subscribers yet."""
    broker = KinesisBroker(endpoint_url=url, test_credentials=True, lease_store=store)
    return RustStream(broker, title="test", version="0", shutdown_timeout=shutdown_timeout)


def quickly(name: str) -> KinesisStream:
    """Read without long pauses."""
    return KinesisStream(name, poll_interval=0.02, read_interval=0.02)


async def fill(aws: Aws, name: str, values: list[Any], keys: int = 5) -> None:
    """Put values as JSON, spread over some keys, in one call."""
    await aws.client.put_records(
        StreamName=name,
        Records=[
            {"Data": json.dumps(value).encode(), "PartitionKey": f"key-{n % keys}"}
            for n, value in enumerate(values)
        ],
    )


async def checkpoints(store: MemoryLeaseStore, name: str) -> dict[str, str | None]:
    return {row.key.shard_id: row.checkpoint for row in await store.leases(name)}


async def last_numbers(aws: Aws, name: str) -> dict[str, str]:
    """Return the newest sequence number of each shard that has a record."""
    found = {}
    for shard in await aws.shards(name):
        records = await aws.shard_records(name, shard["ShardId"])
        if records:
            found[shard["ShardId"]] = records[-1]["SequenceNumber"]
    return found


async def test_orders_in_replies_out_poison_dropped_and_every_checkpoint_at_the_end(
    kinesis: Server, aws: Aws
):
    orders, replies = await aws.create_stream(shards=3), await aws.create_stream()
    await fill(aws, orders, [{"id": n, "total": 1.5} for n in range(50)] + ["poison"])
    store = MemoryLeaseStore()
    app = application(kinesis.url, store)

    @app.subscriber(
        quickly(orders),
        workers=8,
        start_at=HORIZON,
        publish=KinesisPublish(to=replies, partition_key=lambda reply: f"order-{reply.order}"),
    )
    async def handle(order: Order) -> Confirmation:
        return Confirmation(order.id)

    async with running(app) as it:
        counters = app.counters[orders]
        await it.until(lambda: counters.replies + counters.undecodable == 51)
        assert (counters.handled, counters.dropped) == (50, 1)

    found = await aws.records(replies)
    confirmed = sorted(json.loads(each["Data"])["order"] for each in found)
    assert confirmed == list(range(50))
    assert {each["PartitionKey"] for each in found} == {f"order-{n}" for n in range(50)}
    assert await checkpoints(store, orders) == {
        **dict.fromkeys([shard["ShardId"] for shard in await aws.shards(orders)]),
        **await last_numbers(aws, orders),
    }
    assert all(row.owner is None for row in await store.leases(orders))


async def test_a_clean_stop_repeats_nothing_however_often(kinesis: Server, aws: Aws):
    """Cases W6 and L7: each run stops somewhere in the middle; nothing comes twice."""
    name = await aws.create_stream(shards=2)
    await fill(aws, name, list(range(120)), keys=9)
    store = MemoryLeaseStore()
    rng = random.Random(7)  # where each run stops
    seen: list[int] = []
    while len(seen) < 120:
        app = application(kinesis.url, store)
        stop_at = len(seen) + rng.randint(1, 30)

        @app.subscriber(quickly(name), workers=4, start_at=None if seen else HORIZON)
        async def handle(value: int, stop_at: int = stop_at, app: RustStream = app) -> None:
            await asyncio.sleep(0)
            seen.append(value)
            if len(seen) in {stop_at, 120}:
                app.stop()

        async with asyncio.timeout(60):
            await app.run(signals=False)

    assert sorted(seen) == list(range(120)), Counter(seen).most_common(3)
    assert await checkpoints(store, name) == await last_numbers(aws, name)


async def test_a_record_that_failed_comes_again_after_a_restart_and_only_what_follows_it(
    kinesis: Server, aws: Aws
):
    """Case W7, its first half: the watermark stays before it."""
    name = await aws.create_stream()
    await fill(aws, name, list(range(1, 11)))
    numbers = [each["SequenceNumber"] for each in await aws.records(name)]
    store = MemoryLeaseStore()
    seen: list[int] = []
    app = application(kinesis.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON)
    async def handle(value: int) -> None:
        seen.append(value)
        if value == 5:
            raise RuntimeError("five")

    async with running(app) as it:
        await it.until(lambda: len(seen) == 10)
    assert list((await checkpoints(store, name)).values()) == [numbers[3]]

    again: list[int] = []
    app = application(kinesis.url, store)

    @app.subscriber(quickly(name))
    async def handle_again(value: int) -> None:
        again.append(value)

    async with running(app) as it:
        await it.until(lambda: len(again) == 6)
    assert again == [5, 6, 7, 8, 9, 10]
    assert list((await checkpoints(store, name)).values()) == [numbers[-1]]


async def test_handlers_that_take_longer_than_the_stop_leave_no_trace(kinesis: Server, aws: Aws):
    """Case X1: nothing is acked, nothing published, all come again at the same attempt."""
    name, replies = await aws.create_stream(), await aws.create_stream()
    await fill(aws, name, [1, 2, 3])
    store = MemoryLeaseStore()
    begun: list[int] = []
    app = application(kinesis.url, store, shutdown_timeout=0.05)

    @app.subscriber(quickly(name), workers=3, start_at=HORIZON, publish=replies)
    async def handle(value: int) -> int:
        begun.append(value)
        await asyncio.Event().wait()
        return value

    with pytest.raises(StopTimeout, match="worker"):
        async with running(app) as it:
            await it.until(lambda: bool(begun))
    assert list((await checkpoints(store, name)).values()) == [None]
    assert await aws.records(replies) == []

    again: list[tuple[int, int]] = []
    app = application(kinesis.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON)
    async def handle_again(value: int, message: KinesisMessage[int]) -> None:
        again.append((value, message.attempt))

    async with running(app) as it:
        await it.until(lambda: len(again) == 3)
    assert sorted(again) == [(1, 1), (2, 1), (3, 1)]


async def test_a_reply_whose_stream_is_away_keeps_its_record_open(kinesis: Server, aws: Aws):
    name, replies = await aws.create_stream(), await aws.create_stream()
    store = MemoryLeaseStore()
    app = application(kinesis.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, publish=replies)
    async def handle(value: int) -> int | None:
        return value if value == 1 else None

    async with running(app) as it:
        # It was there at the start, where a stream that is missing would have ended the service.
        await aws.delete_stream(replies)
        await fill(aws, name, [1, 2])
        await it.until(lambda: app.counters[name].held == 1)
        await it.until(lambda: app.counters[name].handled == 2)
    assert list((await checkpoints(store, name)).values()) == [None]


async def test_a_reply_stream_that_is_missing_at_the_start_is_named(kinesis: Server, aws: Aws):
    name, missing = await aws.create_stream(), aws.unique("missing")
    app = application(kinesis.url)

    @app.subscriber(quickly(name), publish=missing)
    async def handle(value: int) -> int | None:
        return value

    with pytest.raises(StreamNotFound, match=f"for the replies .* does not exist: .*{missing}"):
        await app.run(signals=False)


async def test_a_publish_is_tried_again_through_faults_of_a_real_server(kinesis: Server, aws: Aws):
    name = await aws.create_stream()
    async with FaultProxy(kinesis.url) as proxy:
        app = application(proxy.url)
        async with running(app):
            faults = [
                error("ProvisionedThroughputExceededException"),
                error("InternalFailure", 500),
                drop_connection(),
            ]
            proxy.on("PutRecord", faults)
            await app.publisher().publish({"a": 1}, name, headers={"trace": "t1"})
        assert len(proxy.calls("PutRecord")) == 4
    (record,) = await aws.records(name)
    assert decode_envelope(record["Data"]) == ({"trace": "t1"}, b'{"a":1}')


async def test_a_publish_to_a_stream_that_does_not_exist_fails_at_once(kinesis: Server, aws: Aws):
    app = application(kinesis.url)
    missing = aws.unique("missing")
    async with running(app):
        with pytest.raises(PublishError, match=missing):
            await app.publisher().publish(b"x", missing)


async def test_the_last_byte_that_fits_is_stored(kinesis: Server, aws: Aws):
    """Case P4: 1,048,570 bytes with a key of six; one more is refused before it is sent."""
    name = await aws.create_stream()
    app = application(kinesis.url)
    async with running(app):
        publisher = app.publisher()
        await publisher.publish(b"x" * 1_048_570, name, partition_key="日本")
        with pytest.raises(ValueError, match="1048577 bytes"):
            await publisher.publish(b"x" * 1_048_571, name, partition_key="日本")
    (record,) = await aws.records(name)
    assert len(record["Data"]) == 1_048_570
    assert record["PartitionKey"] == "日本"


@pytest.mark.parametrize("key", ["k" * 256, "é" * 256, "🦀"])
async def test_a_key_survives_the_service(kinesis: Server, aws: Aws, key: str):
    """Case P6: on the way out and on the way in."""
    name = await aws.create_stream()
    seen: list[str] = []
    app = application(kinesis.url)

    @app.subscriber(quickly(name), start_at=HORIZON)
    async def handle(message: KinesisMessage[bytes]) -> None:
        seen.append(message.partition_key)

    async with running(app) as it:
        await app.publisher().publish(b"x", name, partition_key=key)
        await it.until(lambda: bool(seen))
    assert seen == [key]


async def test_a_service_that_publishes_to_its_own_stream_reads_it(kinesis: Server, aws: Aws):
    name = await aws.create_stream()
    seen: list[int] = []
    app = application(kinesis.url)

    @app.subscriber(quickly(name))
    async def handle(value: int, publisher: KinesisPublisher) -> None:
        seen.append(value)
        if value < 5:
            await publisher.publish(value + 1, name, partition_key="key")

    async with running(app) as it:
        await app.publisher().publish(1, name, partition_key="key")
        await it.until(lambda: len(seen) == 5)
    assert seen == [1, 2, 3, 4, 5]


async def test_a_plain_handler_publishes_from_its_thread(kinesis: Server, aws: Aws):
    """A thread with a loop of its own has a client of its own."""
    name, replies = await aws.create_stream(), await aws.create_stream()
    await fill(aws, name, [1, 2, 3])
    app = application(kinesis.url)

    @app.subscriber(quickly(name), start_at=HORIZON)
    def handle(value: int, publisher: KinesisPublisher) -> Outcome | None:
        if value == 2:
            return drop()
        asyncio.run(publish(publisher, value, replies))
        return None

    async with running(app) as it:
        await it.until(lambda: app.counters[name].handled == 3)
    found = sorted(json.loads(each["Data"]) for each in await aws.records(replies))
    assert found == [1, 3]


async def publish(publisher: KinesisPublisher, value: int, to: str) -> None:
    await publisher.publish(value, to)


async def test_one_missing_stream_of_two_stops_the_start_with_its_name(kinesis: Server, aws: Aws):
    name, missing = await aws.create_stream(), aws.unique("missing")
    app = application(kinesis.url)

    async def handle(value: bytes) -> None: ...

    for each in (name, missing):
        app.subscriber(quickly(each))(handle)
    with pytest.raises(StreamNotFound, match=missing):
        async with asyncio.timeout(30):
            await app.run(signals=False)
    with pytest.raises(NotConnected):
        await app.publisher().publish(b"x", name)


async def test_two_services_on_one_store_share_a_stream_without_reading_anything_twice(
    kinesis: Server, aws: Aws
):
    name = await aws.create_stream(shards=4)
    await fill(aws, name, list(range(100)), keys=40)
    store = MemoryLeaseStore()
    seen: list[int] = []
    apps = [application(kinesis.url, store) for _ in range(2)]

    async def handle(value: int) -> None:
        seen.append(value)

    for app in apps:
        app.subscriber(quickly(name), start_at=HORIZON)(handle)
    async with running(apps[0]) as first, running(apps[1]):
        await first.until(lambda: len(seen) >= 100)
    assert sorted(seen) == list(range(100))
    for shard in await aws.shards(name):
        row = await store.read(LeaseKey(name, shard["ShardId"]))
        assert row is not None
        assert row.owner is None


async def test_a_stream_that_is_made_anew_while_it_is_read_stops_the_service(
    kinesis: Server, aws: Aws, monkeypatch: pytest.MonkeyPatch
):
    # A server here needs no second to make a stream anew.
    monkeypatch.setattr(opening, "_SAME_CREATION", 0.0)
    name = await aws.create_stream()
    await fill(aws, name, [1, 2])
    app = application(kinesis.url)
    seen: list[int] = []

    @app.subscriber(quickly(name), start_at=HORIZON)
    async def handle(value: int) -> None:
        seen.append(value)

    with pytest.raises(StreamRecreated, match=name):
        async with running(app) as it:
            await it.until(lambda: seen == [1, 2])
            first = await created(aws, name)
            await aws.delete_stream(name)
            # These servers know old iterators in the new stream: the service has to see it go.
            await it.until(lambda: not app.state().subscriptions[0].shards)
            await aws.create_stream(name)
            assert await created(aws, name) != first
            await fill(aws, name, [3])
            await asyncio.wait({it.task}, timeout=15)
    assert 3 not in seen


async def created(aws: Aws, name: str) -> datetime:
    """Return when the stream was created."""
    answer = await aws.client.describe_stream_summary(StreamName=name)
    return answer["StreamDescriptionSummary"]["StreamCreationTimestamp"]
