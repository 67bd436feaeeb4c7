"""Leases in DynamoDB on servers that others wrote: the sibling's rows, lost answers, races, loops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ruststream_kinesis import DynamoLeaseStore, KinesisPosition, LeaseStore
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import LeaseLost, LeaseTableMismatch, LeaseTableUnreachable
from ruststream_kinesis.leases import Opening
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.testing import ManualClock
from tests.support import servers
from tests.support.aws import client_arguments
from tests.support.leasing import KEY, PERIOD, row, take
from tests.support.scripted import FaultProxy, applied_then, drop_connection, error
from tests.support.servers import REGION, Server
from tests.support.sibling import Sibling
from tests.support.tables import SESSION, dynamo_table, unique_table

MEMBER = Member("m1", "me", ("orders",))
WRITES = ("UpdateItem", "PutItem", "DeleteItem")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(dynamodb: Server, clock: ManualClock) -> AsyncIterator[TableLeaseStore]:
    store = TableLeaseStore(dynamo_table(dynamodb.url, create=True), clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def client(dynamodb: Server) -> AsyncIterator[Any]:
    create: Any = SESSION.create_client
    async with create("dynamodb", **client_arguments(dynamodb.url)) as client:
        yield client


@pytest.fixture
def sibling(client: Any, store: TableLeaseStore, clock: ManualClock) -> Sibling:
    return Sibling(client, store._table.name, clock)


# -- the sibling -----------------------------------------------------------------------------------


async def test_what_the_sibling_holds_is_held_and_what_it_released_is_free(
    store: LeaseStore, sibling: Sibling, clock: ManualClock
):
    assert await sibling.acquire()
    assert await sibling.checkpoint("41")
    assert await store.acquire(KEY, "me", duration=PERIOD) is None
    for _ in range(4):
        await clock.advance(4)
        assert await sibling.renew()
        assert await store.acquire(KEY, "me", duration=PERIOD) is None
    held = await row(store)
    assert (held.owner, held.checkpoint, held.free, held.member) == ("rust", "41", False, None)

    assert await sibling.release()

    lease = await take(store)
    assert lease.checkpoint == "41"
    assert not await sibling.renew()
    assert not await sibling.checkpoint("42")


async def test_what_we_hold_is_held_to_the_sibling_and_what_we_released_is_free(
    store: LeaseStore, sibling: Sibling, clock: ManualClock
):
    lease = await take(store)
    item = await sibling.item()
    for number, write in enumerate(
        (lambda: store.renew(lease), lambda: store.checkpoint(lease, "41", number=9)), start=2
    ):
        await clock.advance(6)
        assert not await sibling.acquire()
        await write()
        item = await sibling.item()
        assert item["lease_owner"] == {"S": lease.owner}
        assert int(item["lease_expiry"]["N"]) == round((clock.time() + PERIOD) * 1000)
        assert item["lease_counter"] == {"N": str(number)}
    assert item["checkpoint"] == {"S": "41"}

    await store.release(lease, checkpoint="43", number=10, successor="m2")

    item = await sibling.item()
    assert item["checkpoint"] == {"S": "43"}
    assert "lease_owner" not in item
    assert "lease_expiry" not in item
    assert await sibling.acquire()
    # Ours are still there, and mean nothing to it, nor to us now.
    assert (await row(store)).owner == "rust"


async def test_a_checkpoint_of_the_sibling_makes_our_position_void(
    store: LeaseStore, sibling: Sibling
):
    lease = await take(store)
    await store.checkpoint(lease, "5", number=1)
    await store.checkpoint(lease, None, number=2, resume_from=KinesisPosition.horizon())
    await store.release(lease)
    assert (await row(store)).resume_from is not None
    assert await sibling.acquire()
    assert (await row(store)).resume_from is not None
    assert await sibling.checkpoint("6")
    assert await sibling.release()

    again = await take(store)
    assert (again.checkpoint, again.resume_from) == ("6", None)
    # A number of an earlier acquisition of ours does not hinder this one.
    await store.checkpoint(again, "7", number=1)
    assert (await row(store)).checkpoint == "7"


# -- the table -------------------------------------------------------------------------------------


async def test_instances_that_start_together_make_one_table(dynamodb: Server):
    name = unique_table()
    stores = [
        DynamoLeaseStore(
            name, create=True, region=REGION, endpoint_url=dynamodb.url, test_credentials=True
        )
        for _ in range(4)
    ]
    await asyncio.gather(*(store.open() for store in stores))
    lease = await take(stores[0])
    assert (await row(stores[3])).owner == lease.owner
    for store in stores:
        await store.close()


async def test_a_table_of_the_client_library_is_refused(dynamodb: Server, client: Any):
    name = unique_table()
    await client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table = dynamo_table(dynamodb.url, name)
    with pytest.raises(LeaseTableMismatch, match="leaseKey"):
        await table.open()
    await table.close()


async def test_a_scan_has_every_row_however_many_pages(store: LeaseStore, client: Any):
    # A page is 1 MiB: eight rows of 300 KB are several.
    name = store._table.name  # type: ignore[attr-defined]  # a test looks inside
    for n in range(8):
        key = {"S": f"orders:shardId-{n}"}
        await client.put_item(
            TableName=name, Item={"lease_key": key, "padding": {"S": "x" * 300_000}}
        )
    assert len(await store.leases("orders")) == 8


# -- failures --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def proxied(server: Server, clock: ManualClock) -> AsyncIterator[tuple[Any, Any]]:
    """Run a store behind a proxy that can spoil answers."""
    async with FaultProxy(server.url) as proxy:
        store = TableLeaseStore(dynamo_table(proxy.url, create=True), clock=clock)
        await store.open()
        yield store, proxy
        await store.close()


@pytest.mark.parametrize(
    "spoiled",
    [drop_connection(), error("InternalServerError", 500), error("ThrottlingException")],
    ids=["dropped", "500", "throttled"],
)
async def test_case_l3_writes_that_were_applied_and_not_answered_succeed(
    dynamodb: Server, clock: ManualClock, spoiled: Any
):
    """Also where the retry then fails its condition, since the first attempt was applied."""
    async with proxied(dynamodb, clock) as (store, proxy):
        armed = [True]
        rule = proxy.inject(
            lambda call: call.target in WRITES and bool(armed) and armed.pop(),
            applied_then(spoiled),
        )
        first = Opening(1.5, None)
        assert await store.opening("orders", None, first) is first
        armed.append(True)
        lease = await take(store)
        for write in (
            lambda: store.renew(lease),
            lambda: store.checkpoint(lease, "5", number=1),
            lambda: store.beat(MEMBER, duration=PERIOD),
            lambda: store.leave(MEMBER.nonce),
            lambda: store.release(lease, checkpoint="6", number=2, successor="m2"),
        ):
            armed.append(True)
            await write()
            assert not armed
        left = await row(store)
        assert (left.checkpoint, left.free, left.successor) == ("6", True, "m2")
        armed.append(True)
        await store.delete(KEY)
        assert await store.read(KEY) is None
        assert rule.hits == 8


async def test_a_table_that_cannot_be_reached_costs_nothing_but_time(
    dynamodb: Server, clock: ManualClock
):
    async with proxied(dynamodb, clock) as (store, proxy):
        lease = await take(store)
        store._table._deadline = 0.2
        down = proxy.inject(lambda _: True, drop_connection())
        for call in (
            lambda: store.renew(lease),
            lambda: store.checkpoint(lease, "5", number=1),
            lambda: store.survey("orders", max_age=3.0),
        ):
            with pytest.raises(LeaseTableUnreachable):
                await call()
        down.remove()
        await store.renew(lease)
        await store.checkpoint(lease, "5", number=2)
        (seen,) = (await store.survey("orders", max_age=3.0)).leases
        assert seen.checkpoint == "5"


async def test_a_server_that_is_killed_is_told_as_unreachable():
    with servers.dynalite() as server:
        store = TableLeaseStore(dynamo_table(server.url, create=True, deadline=0.5))
        lease = await take(store)
        server.process.kill()
        await asyncio.to_thread(server.process.wait)
        with pytest.raises(LeaseTableUnreachable):
            await store.renew(lease)
        await store.close()


# -- many processes, many loops --------------------------------------------------------------------

RACER = textwrap.dedent("""
    import asyncio, json, sys
    from ruststream_kinesis import DynamoLeaseStore, LeaseKey

    url, table, name = sys.argv[1:]

    async def main():
        store = DynamoLeaseStore(
            table, region="us-east-1", endpoint_url=url, test_credentials=True
        )
        await store.open()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        won = {}
        for n in range(5):
            key = LeaseKey("orders", f"shardId-{n}")
            asked = [store.acquire(key, f"{name}{i}", duration=10.0) for i in range(10)]
            won[n] = [lease.owner for lease in await asyncio.gather(*asked) if lease]
        print(json.dumps(won))
        await store.close()

    asyncio.run(main())
""")


async def test_of_twenty_in_two_processes_exactly_one_gets_each_shard(
    dynalite_server: Server,
):
    """Not on moto, whose conditional writes are not atomic."""
    store = TableLeaseStore(dynamo_table(dynalite_server.url, create=True))
    await store.open()
    table = store._table.name
    pipe = asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RACER, dynalite_server.url, table, name, stdin=pipe, stdout=pipe
        )
        for name in ("a", "b")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"
    told = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
    won = [json.loads(out) for out, _ in told]
    owners = {lease.key.shard_id: lease.owner for lease in await store.leases("orders")}
    for n in range(5):
        (winner,) = [owner for each in won for owner in each[str(n)]]
        assert owners[f"shardId-{n}"] == winner
    await store.close()


async def test_a_renewer_works_on_a_loop_of_its_own_while_the_main_loop_is_blocked(
    dynamodb: Server,
):
    """Case L1 at the store."""
    store = TableLeaseStore(dynamo_table(dynamodb.url, create=True), clock=SystemClock())
    lease = await take(store)
    await store.survey("orders", max_age=3600.0)
    renewer = store.renewer()
    assert renewer is not None
    renewed, ended, failed = threading.Event(), threading.Event(), list[BaseException]()

    async def renew() -> None:
        for _ in range(3):
            await renewer.renew(lease)
            await renewer.beat(MEMBER, duration=PERIOD)
        renewed.set()
        await asyncio.to_thread(ended.wait)
        with pytest.raises(LeaseLost):
            await renewer.renew(lease)

    def work() -> None:
        try:
            asyncio.run(renew())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)
            renewed.set()

    thread = threading.Thread(target=work)
    thread.start()
    # Blocks this loop, as a handler does.
    assert renewed.wait(30)
    assert failed == []
    survey = await store.survey("orders", max_age=3600.0)
    assert [each.counter for each in survey.leases] == [lease.counter + 3]
    assert survey.members == (MEMBER,)
    await store.release(lease)
    ended.set()
    await asyncio.to_thread(thread.join)
    assert failed == []
    await store.close()
