"""Splits and merges on a real server: nothing is lost, and no key overtakes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    RustStream,
    drop,
)
from ruststream_kinesis.errors import StopTimeout
from ruststream_kinesis.leases import SHARD_END, LeaseKey
from tests.support.aws import Aws
from tests.support.running import Inbox, Running, running
from tests.support.servers import Server

HORIZON = KinesisPosition.horizon()
LOWEST, HIGHEST = "0", str(2**128 - 1)
"""Hash keys of the first and the last shard of a stream."""


def service(
    server: Server,
    name: str,
    handle: Callable[[bytes], Awaitable[Any]],
    *,
    store: MemoryLeaseStore | None = None,
    start_at: KinesisPosition | None = HORIZON,
    workers: int = 1,
    **options: Any,
) -> RustStream:
    """Return a service that reads without long pauses."""
    broker = KinesisBroker(endpoint_url=server.url, test_credentials=True, lease_store=store)
    app = RustStream(broker, title="test", version="0", **options)

    async def take(payload: bytes) -> Any:
        return await handle(payload)

    stream = KinesisStream(name, poll_interval=0.02, read_interval=0.02)
    app.subscriber(stream, start_at=start_at, workers=workers)(take)
    return app


def noting(inbox: Inbox, result: Any = None) -> Callable[[bytes], Awaitable[Any]]:
    """Return a handler that notes what it gets and returns always the same."""

    async def handle(payload: bytes) -> Any:
        inbox.put(payload)
        return result

    return handle


async def checkpoint(store: MemoryLeaseStore, name: str, shard_id: str) -> str | None:
    """Return the stored checkpoint of a shard."""
    row = await store.read(LeaseKey(name, shard_id))
    return None if row is None else row.checkpoint


async def stored(
    it: Running, store: MemoryLeaseStore, name: str, shard_id: str, wanted: str
) -> None:
    """Wait until a checkpoint is stored."""

    async def look() -> None:
        while await checkpoint(store, name, shard_id) != wanted:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)

    await it.wait(look(), f"checkpoint {wanted} of {shard_id}")


async def only_shard(aws: Aws, name: str) -> str:
    """Return the id of a stream's one shard."""
    (shard,) = await aws.shards(name)
    return shard["ShardId"]


async def test_case_s2_a_record_put_into_a_child_before_it_is_found_is_delivered(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    parent = await only_shard(aws, name)
    await aws.put(name, b"before the start")
    inbox, store = Inbox(), MemoryLeaseStore()
    app = service(kinesis_local, name, noting(inbox), store=store, start_at=None)
    async with running(app) as it:
        await aws.put(name, b"parent")
        await it.wait(inbox.has(b"parent"))
        await aws.split(name, parent)
        await aws.put(name, b"lower", hash_key=LOWEST)
        await aws.put(name, b"upper", hash_key=HIGHEST)
        await it.wait(inbox.first(3))
        await stored(it, store, name, parent, SHARD_END)
    assert inbox.items[0] == b"parent"
    assert sorted(inbox.items[1:]) == [b"lower", b"upper"]


async def test_case_s2_a_child_of_a_shard_that_had_nothing_yet_opens_at_the_first_instant(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    inbox = Inbox()
    app = service(kinesis_local, name, noting(inbox), start_at=None)
    async with running(app) as it:
        await aws.split(name, await only_shard(aws, name))
        await aws.put(name, b"lower", hash_key=LOWEST)
        await aws.put(name, b"upper", hash_key=HIGHEST)
        await it.wait(inbox.first(2))
    assert sorted(inbox.items) == [b"lower", b"upper"]


async def test_a_merged_child_comes_after_everything_of_both_parents(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream(shards=2)
    first, second = [shard["ShardId"] for shard in await aws.shards(name)]
    for number in range(10):
        await aws.put(name, b"lower %d" % number, hash_key=LOWEST)
        await aws.put(name, b"upper %d" % number, hash_key=HIGHEST)
    await aws.merge(name, first, second)
    for number in range(10):
        await aws.put(name, b"merged %d" % number)
    inbox = Inbox()
    async with running(service(kinesis_local, name, noting(inbox))) as it:
        await it.wait(inbox.first(30))
    assert all(item.startswith(b"merged") for item in inbox.items[20:])
    for kind in (b"lower", b"upper", b"merged"):
        of_kind = [item for item in inbox.items if item.startswith(kind)]
        assert of_kind == [kind + b" %d" % number for number in range(10)]


async def test_a_key_keeps_its_order_through_a_split_of_a_split_while_the_service_runs(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    inbox = Inbox()
    async with running(service(kinesis_local, name, noting(inbox), workers=4)) as it:
        number = 0
        for _ in range(3):
            for _ in range(5):
                await aws.put(name, b"%d" % number, key="the one key", hash_key=LOWEST)
                number += 1
            open_shards = [
                shard
                for shard in await aws.shards(name)
                if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
            ]
            lowest = min(open_shards, key=lambda shard: int(shard["HashKeyRange"]["EndingHashKey"]))
            await aws.split(name, lowest["ShardId"])
        await aws.put(name, b"%d" % number, key="the one key", hash_key=LOWEST)
        await it.wait(inbox.first(number + 1))
    assert inbox.items == [b"%d" % each for each in range(number + 1)]


async def test_case_r10_a_shard_that_ends_does_not_hold_up_its_neighbour(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream(shards=2)
    first, _ = [shard["ShardId"] for shard in await aws.shards(name)]
    inbox, store = Inbox(), MemoryLeaseStore()
    async with running(service(kinesis_local, name, noting(inbox), store=store)) as it:
        await aws.split(name, first)
        await stored(it, store, name, first, SHARD_END)
        records: list[Any] = [
            {"Data": b"%d" % n, "PartitionKey": "k", "ExplicitHashKey": HIGHEST} for n in range(100)
        ]
        await aws.client.put_records(StreamName=name, Records=records)
        await it.wait(inbox.first(100))
    assert inbox.items == [b"%d" % n for n in range(100)]


class Gates:
    """A handler in which each record waits until the test lets it go."""

    def __init__(self, *payloads: bytes) -> None:
        self.inbox = Inbox()
        self.gates = {payload: asyncio.Event() for payload in payloads}

    async def handle(self, payload: bytes) -> None:
        """Note it, and wait at its gate if it has one."""
        self.inbox.put(payload)
        if payload in self.gates:
            await self.gates[payload].wait()

    def open(self, *payloads: bytes) -> None:
        """Let these go."""
        for payload in payloads:
            self.gates[payload].set()


async def split_with_three_open(aws: Aws) -> tuple[str, str, list[str]]:
    """Put 7, 8 and 9 with keys of their own, split, and put 10 into a child.

    Returns:
        Stream, parent, and the sequence numbers of the three.
    """
    name = await aws.create_stream()
    parent = await only_shard(aws, name)
    # The keys go to three different ones of 64 workers, so that all are at work at once.
    numbers = [
        await aws.put(name, payload, key=f"key-{payload!r}") for payload in (b"7", b"8", b"9")
    ]
    await aws.split(name, parent)
    await aws.put(name, b"10", key="key-b'7'")
    return name, parent, numbers


async def test_case_s3_the_child_waits_for_the_last_open_record_of_its_parent(
    kinesis_local: Server, aws: Aws
):
    name, parent, (seven, _, _) = await split_with_three_open(aws)
    gates, store = Gates(b"7", b"8", b"9"), MemoryLeaseStore()
    async with running(service(kinesis_local, name, gates.handle, store=store, workers=64)) as it:
        await it.wait(gates.inbox.first(3))
        gates.open(b"7", b"9")
        await stored(it, store, name, parent, seven)
        assert b"10" not in gates.inbox.items
        gates.open(b"8")
        await it.wait(gates.inbox.has(b"10"))
        assert await checkpoint(store, name, parent) == SHARD_END
    assert len(gates.inbox.items) == 4


async def test_case_s3_records_open_at_the_end_of_a_run_come_again_in_the_next_one(
    kinesis_local: Server, aws: Aws
):
    name, parent, (seven, _, _) = await split_with_three_open(aws)
    gates, store = Gates(b"7", b"8", b"9"), MemoryLeaseStore()
    app = service(kinesis_local, name, gates.handle, store=store, workers=64, shutdown_timeout=0.0)
    # 8 is cut off in its handler: that is no outcome.
    with pytest.raises(StopTimeout):
        async with running(app) as it:
            await it.wait(gates.inbox.first(3))
            gates.open(b"7", b"9")
            await stored(it, store, name, parent, seven)
    assert await checkpoint(store, name, parent) == seven
    again = Inbox()
    async with running(
        service(kinesis_local, name, noting(again), store=store, start_at=None)
    ) as it:
        await it.wait(again.first(3))
        await stored(it, store, name, parent, SHARD_END)
    assert again.items == [b"8", b"9", b"10"]


@pytest.mark.parametrize("last", ["nothing", "dropped"])
async def test_case_s4_a_closed_shard_is_finished_whatever_became_of_its_last_record(
    kinesis_local: Server, aws: Aws, last: str
):
    name = await aws.create_stream()
    parent = await only_shard(aws, name)
    if last == "dropped":
        await aws.put(name, b"dropped")
    await aws.split(name, parent)
    await aws.put(name, b"child")
    inbox, store = Inbox(), MemoryLeaseStore()
    app = service(kinesis_local, name, noting(inbox, drop()), store=store)
    async with running(app) as it:
        await it.wait(inbox.has(b"child"))
        assert await checkpoint(store, name, parent) == SHARD_END


async def test_two_instances_of_one_store_read_every_record_of_a_resharded_stream_once(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream(shards=4)
    store, first, second = MemoryLeaseStore(), Inbox(), Inbox()
    one = service(kinesis_local, name, noting(first), store=store)
    two = service(kinesis_local, name, noting(second), store=store)
    async with running(one) as it, running(two) as other:
        expected = []
        for shard in await aws.shards(name):
            await aws.split(name, shard["ShardId"])
            middle = shard["HashKeyRange"]["StartingHashKey"]
            await aws.put(name, shard["ShardId"].encode(), hash_key=middle)
            expected.append(shard["ShardId"].encode())
        await it.until(lambda: len(first.items) + len(second.items) >= 4)
        assert not other.task.done()
    assert sorted(first.items + second.items) == expected
