"""The readers of a whole service on a scripted server: real sockets, and time of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    MemoryLeaseStore,
    RustStream,
)
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.leases import LeaseKey
from ruststream_kinesis.testing import ManualClock
from tests.support.reading import EXPIRED, OTHER, SHARD, SURVIVED
from tests.support.running import Inbox, Running, running
from tests.support.scripted import (
    Next,
    ScriptedKinesis,
    drop_connection,
    error,
    hang_after_headers,
    html,
    page,
    raw,
    record,
    truncated,
)


@dataclass
class Served:
    """A running service, its server and what its handler got."""

    server: ScriptedKinesis
    clock: ManualClock
    inbox: Inbox
    service: Running
    store: MemoryLeaseStore

    async def gets(self, *payloads: bytes) -> None:
        """Move time until all of these came."""
        await self.service.drive(
            self.clock, lambda: set(payloads) <= set(self.inbox.items), what=repr(payloads)
        )


@contextlib.asynccontextmanager
async def serving(
    server: ScriptedKinesis,
    *,
    deadline: float = 10.0,
    start_at: KinesisPosition | None = None,
    handler: Callable[[Inbox], Any] | None = None,
) -> AsyncIterator[Served]:
    """Run a service on a scripted server; its time is the test's own, the sockets are real."""
    clock, inbox = ManualClock(), Inbox()
    store = MemoryLeaseStore(clock=clock)
    broker = KinesisBroker(
        endpoint_url=server.url, test_credentials=True, lease_store=store, clock=clock
    )
    transport = AwsTransport(broker.settings, clock, deadline=deadline)
    await transport.open()
    broker.connection.attach(transport)
    app = RustStream(broker, title="test", version="0")

    async def take(payload: bytes) -> None:
        inbox.put(payload)

    app.subscriber("orders", start_at=start_at)(handler(inbox) if handler else take)
    async with running(app) as service:
        yield Served(server, clock, inbox, service, store)


async def test_case_r4_the_tip_is_the_services_time_less_a_second_whatever_ours_is():
    async with ScriptedKinesis() as server:
        server.clock = lambda: 1_000_000_000.0
        server.on("GetRecords", [page(), error(EXPIRED), page([record(1, b"late")])])
        async with serving(server) as it:
            await it.gets(b"late")
        tip, rebuilt = server.calls("GetShardIterator")
        assert tip.body["ShardIteratorType"] == "LATEST"
        assert rebuilt.body["ShardIteratorType"] == "AT_TIMESTAMP"
        assert rebuilt.body["Timestamp"] == 999_999_999


async def test_case_r5_every_passing_answer_in_a_row_costs_no_record_and_no_iterator():
    faults = [
        *(error(code, status or 500) for code, status in SURVIVED[:4]),
        html(500),
        html(503),
        raw(b"<html>"),
        raw(b'{"Records": [{"Data": 5}]}'),
        truncated(page([record(2, b"two")])),
        truncated(page([record(2, b"two")]), keep=0),
        drop_connection(),
    ]
    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page([record(1, b"one")], 5), *faults, page([record(2, b"two")])])
        async with serving(server) as it:
            await it.gets(b"one", b"two")
            assert it.inbox.items == [b"one", b"two"]
        assert len(server.calls("GetShardIterator")) == 1
        reads = server.calls("GetRecords")[1 : len(faults) + 2]
        assert len({call.body["ShardIterator"] for call in reads}) == 1


async def test_case_r7_a_read_that_hangs_is_cut_off_and_read_again_while_others_go_on():
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        hang = hang_after_headers()
        server.on(
            "GetRecords",
            [page([record(1, b"one")], 5), hang, page([record(2, b"two")])],
            shard=SHARD,
        )
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 5), shard=OTHER)
        async with serving(server, deadline=0.5) as it:
            await it.service.drive(it.clock, hang.reached.is_set)
            rows = {row.key.shard_id: row.owner for row in await it.store.leases("orders")}
            others = it.inbox.items.count(b"other")
            await it.service.drive(it.clock, lambda: it.inbox.items.count(b"other") > others + 20)
            await it.gets(b"two")
            assert it.inbox.items.count(b"one") == 1
            # The same acquisition still holds both shards.
            assert {row.key.shard_id: row.owner for row in await it.store.leases("orders")} == rows
        _, hung, again, *_ = server.calls("GetRecords", shard=SHARD)
        assert hung.body["ShardIterator"] == again.body["ShardIterator"]
        assert len(server.calls("GetShardIterator")) == 2


async def test_case_r8_a_dropped_connection_is_its_own_shards_failure_only(
    caplog: pytest.LogCaptureFixture,
):
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        server.on("GetRecords", [drop_connection()] * 3, shard=SHARD)
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 5), shard=OTHER)
        async with serving(server) as it:
            await it.service.drive(
                it.clock, lambda: len(server.calls("GetRecords", shard=SHARD)) > 5
            )
        assert all(
            OTHER not in entry.getMessage() for entry in caplog.records if entry.levelno > 20
        )
        assert len(server.calls("GetShardIterator")) == 2


async def test_case_r9_a_missing_lag_and_an_odd_arrival_time_cost_no_record():
    odd = [
        record(1, b"none", arrival=None),
        record(2, b"huge", arrival=1e30),
        record(3, b"early", arrival=-1e30),
        record(4, b"right", arrival=1_700_000_000.0),
    ]
    times: list[Any] = []

    def handler(inbox: Inbox) -> Any:
        async def take(payload: bytes, message: KinesisMessage[bytes]) -> None:
            times.append(message.arrival)
            inbox.put(payload)

        return take

    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page(odd, None)])
        async with serving(server, handler=handler) as it:
            await it.gets(b"none", b"huge", b"early", b"right")
        assert times[:3] == [None, None, None]
        assert times[3] is not None


async def test_case_r10_the_end_of_a_shard_does_not_touch_its_neighbour():
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        server.on("GetRecords", [page([record(1, b"last")], 0, None)], shard=SHARD)
        following = [page([record(n, str(n).encode())], 5) for n in range(100)]
        server.on("GetRecords", following, shard=OTHER)
        async with serving(server) as it:
            await it.gets(b"last", *(str(n).encode() for n in range(100)))
            assert it.inbox.items.count(b"last") == 1
            row = await it.store.read(LeaseKey("orders", SHARD))
            assert row is not None
            assert row.finished
        assert len(server.calls("GetRecords", shard=SHARD)) == 1


@pytest.mark.parametrize("last", [None, "", Next.MISSING], ids=["null", "empty", "missing"])
async def test_each_way_in_which_a_shard_ends_finishes_it(last: Any):
    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page([record(1, b"last")], 0, last)])
        async with serving(server) as it:
            await it.gets(b"last")
            finished = asyncio.Event()

            async def look() -> None:
                while not finished.is_set():
                    row = await it.store.read(LeaseKey("orders", SHARD))
                    if row is not None and row.finished and row.owner is None:
                        finished.set()
                    await it.clock.advance(0.1)

            await it.service.wait(look())
