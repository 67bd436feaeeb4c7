"""The reading commands, as somebody types them, on a real stream and a real lease table."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ruststream_kinesis import KinesisBroker, KinesisPosition, KinesisStream, RustStream
from ruststream_kinesis._core import encode_aggregate
from ruststream_kinesis.cli.commands import cli
from tests.live.test_leases_service import leases
from tests.support.aws import Aws
from tests.support.running import Inbox, running
from tests.support.servers import REGION, Server
from tests.support.tables import unique_table

PATIENCE = 60.0
FIRST, SECOND, THIRD = (f"shardId-{n:012}" for n in range(3))


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """A command sets what is logged."""
    level = logging.getLogger("ruststream_kinesis").level
    yield
    logging.getLogger("ruststream_kinesis").setLevel(level)


async def say(kinesis: Server, tables: Server | None, *arguments: str) -> list[Any]:
    """What a command prints, as JSON lines. In a thread: it has an event loop of its own."""
    options = ["--endpoint-url", kinesis.url, "--region", REGION, "--test-credentials", "--json"]
    if tables is not None:
        options += ["--table-endpoint-url", tables.url]
    async with asyncio.timeout(PATIENCE):
        result = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *options])
    assert result.exit_code == 0, (arguments, result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_a_service_on_a_split_stream_is_seen_from_outside(
    aws: Aws, kinesis_local: Server, dynalite_server: Server
):
    stream, table = await aws.create_stream(), unique_table()
    store = leases(dynalite_server, table, create=True)
    broker = KinesisBroker(endpoint_url=aws.url, test_credentials=True, lease_store=store)
    app, inbox = RustStream(broker, title="test", version="0"), Inbox()
    stuck = asyncio.Event()

    @app.subscriber(
        KinesisStream(stream, poll_interval=0.2, read_interval=0.2),
        start_at=KinesisPosition.horizon(),
    )
    async def handle(payload: bytes) -> None:
        inbox.put(payload)
        if payload == b"stuck":
            await stuck.wait()

    await aws.put(stream, b"before")
    await aws.split(stream, FIRST)
    for payload in (b"a", b"stuck", b"b"):
        await aws.put(stream, payload, "key")
    async with running(app) as service:
        await service.wait(inbox.first(3), "a record that holds up the shard")
        owner = broker.connection.owner_id
        (named,) = await say(kinesis_local, dynalite_server, "lag", stream, "--table", table)
        (shown,) = await say(kinesis_local, None, "shards", stream)
        (held,) = await say(kinesis_local, dynalite_server, "leases", table)
        stuck.set()
        await service.wait(inbox.first(4), "all records")
    await store.close()
    (after,) = await say(kinesis_local, dynalite_server, "leases", table)

    lag = {each["shard_id"]: each for each in named["shards"]}
    assert lag[FIRST]["progress"] == "finished"
    (busy,) = [each for each in lag.values() if each["lag_ms"]]
    assert busy["progress"] == "reading"
    assert busy["owner_id"] == owner
    assert named["worst_ms"] == busy["lag_ms"] > 0
    parents = {each["shard_id"]: each["parents"] for each in shown["shards"]}
    assert parents == {FIRST: [], SECOND: [FIRST], THIRD: [FIRST]}
    assert [each["alive"] for each in held["instances"]] == [True]
    assert held["instances"][0]["owner_id"] == owner
    # A clean stop leaves nobody.
    assert after["instances"] == []
    assert {each["owner_id"] for each in after["leases"]} == {None}


async def test_a_stream_is_tailed_over_a_split_with_everything_in_it(
    aws: Aws, kinesis_local: Server
):
    stream = await aws.create_stream()
    await aws.put(stream, b"before", "key")
    await aws.put(stream, b"\x00\xff", "key")
    await aws.split(stream, FIRST)
    await aws.put(stream, encode_aggregate([(b"x", "key", None), (b"y", "other", None)]), "key")

    got = await say(kinesis_local, None, "tail", stream, "--from", "horizon", "--no-follow")
    first = got[0]
    behind = await say(
        kinesis_local,
        None,
        *("tail", stream, "--from", f"{FIRST}:{first['sequence_number']}", "--limit", "3"),
    )
    mine = await say(
        kinesis_local, None, "tail", stream, "--from", "horizon", "--key", "other", "--no-follow"
    )

    assert [each["payload"] for each in got] == ["before", "AP8=", "x", "y"]
    assert [each["shard_id"] == FIRST for each in got] == [True, True, False, False]
    assert behind == got[:3]
    assert [each["payload"] for each in mine] == ["y"]
