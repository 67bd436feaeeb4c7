"""The lease loop within a whole service, on a scripted server."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis import KinesisBroker, MemoryLeaseStore, RustStream, drop
from ruststream_kinesis.errors import StreamNotFound, StreamRecreated
from ruststream_kinesis.leases import LeaseKey
from ruststream_kinesis.testing import ManualClock
from tests.support.coordinating import HORIZON
from tests.support.running import Inbox, running
from tests.support.scripted import ScriptedKinesis, Shard, error, page, record

SHARD = "shardId-000000000000"
CHILD = "shardId-000000000001"


def service(
    server: ScriptedKinesis, store: MemoryLeaseStore, clock: ManualClock, **options: Any
) -> RustStream:
    """Return an application on a scripted server."""
    broker = KinesisBroker(
        endpoint_url=server.url, test_credentials=True, lease_store=store, clock=clock
    )
    return RustStream(broker, title="test", version="0", **options)


@pytest.mark.parametrize("last", ["nothing", "dropped", "undecodable"])
async def test_case_s4_a_closed_shard_is_finished_whatever_became_of_its_last_record(last: str):
    shards = [
        Shard(SHARD, ending_sequence_number="900"),
        Shard(CHILD, parent=SHARD),
    ]
    pages = {
        "nothing": page([], 0, None),
        "dropped": page([record(1, b'{"id": 1}')], 0, None),
        "undecodable": page([record(1, b"{")], 0, None),
    }
    clock, inbox = ManualClock(), Inbox()
    store = MemoryLeaseStore(clock=clock)
    async with ScriptedKinesis(shards) as server:
        server.on("GetRecords", [pages[last]], shard=SHARD)
        server.on("GetRecords", [page([record(2, b'{"id": 2}')])], shard=CHILD)
        app = service(server, store, clock)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(order: dict[str, int]) -> Any:
            inbox.put(str(order["id"]).encode())
            return drop()

        async with running(app) as it:
            await it.drive(clock, lambda: b"2" in inbox.items)
        row = await store.read(LeaseKey("orders", SHARD))
        assert row is not None
        assert row.finished


async def test_a_missing_stream_stops_the_service_at_the_start_with_its_name():
    async with ScriptedKinesis() as server:
        server.missing.add("orders")
        app = service(server, MemoryLeaseStore(), ManualClock())

        @app.subscriber("orders")
        async def handle(payload: bytes) -> None:
            """Never called."""

        with pytest.raises(StreamNotFound, match="stream orders does not exist"):
            await app.run(signals=False)


async def test_a_stream_that_was_made_anew_under_its_name_stops_the_service_and_says_so():
    clock, store = ManualClock(), MemoryLeaseStore()
    async with ScriptedKinesis() as server:
        for created in (1_600_000_000.0, 1_600_009_000.0):
            server.created = created
            app = service(server, store, clock)

            @app.subscriber("orders")
            async def handle(payload: bytes) -> None:
                """Never called."""

            if created == 1_600_000_000.0:
                async with running(app):
                    pass
            else:
                with pytest.raises(StreamRecreated, match="created anew"):
                    await app.run(signals=False)


async def test_a_shard_that_is_denied_leaves_the_others_reading_and_is_tried_again():
    clock, inbox = ManualClock(), Inbox()
    async with ScriptedKinesis([SHARD, CHILD]) as server:
        rule = server.on("GetRecords", error("AccessDeniedException"), shard=SHARD)
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 9), shard=CHILD)
        app = service(server, MemoryLeaseStore(clock=clock), clock)

        @app.subscriber("orders", start_at=HORIZON)
        async def handle(payload: bytes) -> None:
            inbox.put(payload)

        async with running(app) as it:
            await it.drive(clock, lambda: len(server.calls("GetRecords", shard=SHARD)) == 3)
            assert inbox.items.count(b"other") > 5
            rule.remove()
            server.on("GetRecords", [page([record(1, b"mended")])], shard=SHARD)
            await it.drive(clock, lambda: b"mended" in inbox.items)
