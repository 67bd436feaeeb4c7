"""Reading from servers that others wrote: positions, iterators and faults on the way."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    RustStream,
)
from ruststream_kinesis.testing import ManualClock
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.scripted import (
    FaultProxy,
    drop_connection,
    error,
    held,
    html,
    ok,
    raw,
    truncated,
)
from tests.support.servers import Server

HORIZON = KinesisPosition.horizon()
EXPIRED = "ExpiredIteratorException"


def service(
    url: str, name: str, inbox: Inbox, *, start_at: KinesisPosition | None = HORIZON, **options: Any
) -> RustStream:
    """Return a service that notes each payload it gets, and reads without long pauses."""
    broker = KinesisBroker(endpoint_url=url, test_credentials=True, **options)
    app = RustStream(broker, title="test", version="0")

    @app.subscriber(KinesisStream(name, poll_interval=0.02, read_interval=0.02), start_at=start_at)
    async def take(payload: bytes) -> None:
        inbox.put(payload)

    return app


async def fill(aws: Aws, name: str, count: int, first: int = 0) -> list[bytes]:
    """Put numbered records in one call and return their payloads."""
    payloads = [str(number).encode() for number in range(first, first + count)]
    await aws.client.put_records(
        StreamName=name,
        Records=[{"Data": each, "PartitionKey": f"key-{each.decode()}"} for each in payloads],
    )
    return payloads


async def test_everything_is_read_once_and_in_the_order_of_its_shard(kinesis: Server, aws: Aws):
    name = await aws.create_stream(shards=3)
    payloads = await fill(aws, name, 200)
    inbox = Inbox()
    async with running(service(kinesis.url, name, inbox)) as it:
        await it.wait(inbox.first(200))
    assert sorted(inbox.items) == sorted(payloads)
    place = {payload: position for position, payload in enumerate(inbox.items)}
    for shard in await aws.shards(name):
        order = [place[each["Data"]] for each in await aws.shard_records(name, shard["ShardId"])]
        assert order == sorted(order)


async def test_a_second_run_goes_on_behind_what_the_first_one_settled(kinesis: Server, aws: Aws):
    name = await aws.create_stream(shards=2)
    store, first, second = MemoryLeaseStore(), Inbox(), Inbox()
    await fill(aws, name, 20)
    async with running(service(kinesis.url, name, first, lease_store=store)) as it:
        await it.wait(first.first(20))
    more = await fill(aws, name, 10, first=20)
    app = service(kinesis.url, name, second, start_at=None, lease_store=store)
    async with running(app) as it:
        await it.wait(second.first(10))
    assert sorted(second.items) == more


async def test_what_is_put_once_the_service_has_started_at_the_tip_is_read(
    kinesis: Server, aws: Aws
):
    name = await aws.create_stream()
    await aws.put(name, b"old")
    inbox = Inbox()
    async with running(service(kinesis.url, name, inbox, start_at=None)) as it:
        await aws.put(name, b"new")
        await it.wait(inbox.has(b"new"))
    assert inbox.items == [b"new"]


async def test_case_r3_an_iterator_that_expires_repeats_nothing_and_skips_nothing(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    payloads = await fill(aws, name, 50)
    inbox = Inbox()
    async with FaultProxy(kinesis_local.url) as proxy:
        async with running(service(proxy.url, name, inbox)) as it:
            await it.wait(inbox.first(50))
            rule = proxy.on("GetRecords", [error(EXPIRED)])
            await it.until(lambda: rule.hits == 1)
            more = await fill(aws, name, 50, first=50)
            await it.wait(inbox.first(100))
        _, rebuilt = proxy.calls("GetShardIterator")
    assert inbox.items == payloads + more
    last = (await aws.records(name))[49]["SequenceNumber"]
    assert rebuilt.body["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
    assert rebuilt.body["StartingSequenceNumber"] == last


async def test_case_r4_a_tip_that_expires_unread_loses_nothing_put_since(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    inbox = Inbox()
    async with FaultProxy(kinesis_local.url) as proxy:
        hold = held(error(EXPIRED))
        proxy.on("GetRecords", [hold])
        async with running(service(proxy.url, name, inbox, start_at=None)) as it:
            await it.wait(hold.reached.wait())
            await aws.put(name, b"put meanwhile")
            hold.release()
            await it.wait(inbox.has(b"put meanwhile"))
        kinds = [call.body["ShardIteratorType"] for call in proxy.calls("GetShardIterator")]
    assert kinds == ["LATEST", "AT_TIMESTAMP"]


async def test_case_r5_faults_between_all_pages_of_a_real_server_cost_no_record(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream(shards=2)
    inbox = Inbox()
    faults = [
        error("ProvisionedThroughputExceededException"),
        error("InternalFailure", 500),
        html(503),
        raw(b"not JSON"),
        drop_connection(),
        error(EXPIRED),
    ]
    payloads: list[bytes] = []
    async with (
        FaultProxy(kinesis_local.url) as proxy,
        running(service(proxy.url, name, inbox)) as it,
    ):
        for fault in faults:
            # The fault comes between the two halves, whatever is on its way meanwhile.
            payloads += await fill(aws, name, 10, first=len(payloads))
            rule = proxy.on("GetRecords", [fault, fault])
            await it.until(lambda rule=rule: rule.hits == 2)  # type: ignore[misc]  # mypy: default
            payloads += await fill(aws, name, 10, first=len(payloads))
            await it.wait(inbox.first(len(payloads)))
    assert sorted(inbox.items) == sorted(payloads)


async def test_a_page_that_is_cut_off_is_read_again_with_the_same_iterator(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    payloads = await fill(aws, name, 100)
    inbox = Inbox()
    async with FaultProxy(kinesis_local.url) as proxy:
        answers: list[bytes] = []

        async def cut(call: Any) -> Any:
            answers.append((await proxy.default(call)).body)
            return truncated(answers[-1])

        rule = proxy.inject(lambda call: call.target == "GetRecords" and call.count <= 2, cut)
        async with running(service(proxy.url, name, inbox)) as it:
            await it.wait(inbox.first(100))
        reads = proxy.calls("GetRecords")[:3]
    assert rule.hits == 2
    assert len({call.body["ShardIterator"] for call in reads}) == 1
    assert inbox.items == payloads


async def test_case_r8_one_shards_connection_drops_and_the_other_is_read_on(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream(shards=2)
    first, second = [shard["ShardId"] for shard in await aws.shards(name)]
    inbox = Inbox()
    async with (
        FaultProxy(kinesis_local.url) as proxy,
        running(service(proxy.url, name, inbox)) as it,
    ):
        rule = proxy.on("GetRecords", drop_connection(), shard=first)
        await it.until(lambda: rule.hits > 0)
        await aws.put(name, b"second", hash_key=str(2**128 - 1))
        await aws.put(name, b"first", hash_key="0")
        await it.wait(inbox.has(b"second"))
        assert b"first" not in inbox.items
        rule.remove()
        await it.wait(inbox.has(b"first"))
        assert len(proxy.calls("GetShardIterator", shard=second)) == 1


async def test_an_iterator_the_server_does_not_know_is_given_up_after_five_minutes(
    kinesis_local: Server, aws: Aws
):
    name = await aws.create_stream()
    await aws.put(name, b"there")
    inbox, clock = Inbox(), ManualClock()
    async with FaultProxy(kinesis_local.url) as proxy:
        proxy.on("GetShardIterator", [ok(ShardIterator="not yours")])
        async with running(service(proxy.url, name, inbox, clock=clock)) as it:
            # The server's own answer to it is a 500 without a code, for ever.
            await it.drive(clock, lambda: b"there" in inbox.items, step=1.0)
        assert clock.monotonic() >= 300
        assert len(proxy.calls("GetShardIterator")) == 2


async def test_a_missing_stream_is_named_by_both_servers(kinesis: Server, aws: Aws):
    name = aws.unique("missing")
    with pytest.raises(Exception, match=f"stream {name} does not exist"):
        await service(kinesis.url, name, Inbox()).run(signals=False)


async def test_a_stream_is_created_where_the_descriptor_asks_for_it(kinesis: Server, aws: Aws):
    name = aws.unique("created")
    broker = KinesisBroker(endpoint_url=kinesis.url, test_credentials=True)
    app, inbox = RustStream(broker, title="test", version="0"), Inbox()

    @app.subscriber(KinesisStream(name, poll_interval=0.02, create_if_missing=2))
    async def take(payload: bytes) -> None:
        inbox.put(payload)

    async with running(app) as it:
        aws.created.append(name)
        assert len(await aws.shards(name)) == 2
        await aws.put(name, b"first")
        await it.wait(inbox.has(b"first"))
