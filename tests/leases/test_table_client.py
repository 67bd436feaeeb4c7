"""Calls for rows take the short way, and nobody can tell by what comes back."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiobotocore.client
import aiobotocore.session
import pytest

from ruststream_kinesis import DynamoLeaseStore, LeaseKey
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.leases.dynamo_table import DynamoTable
from ruststream_kinesis.leases.table import Change, Check, Outcome
from tests.support.scripted import raw
from tests.support.scripted_table import ScriptedTable
from tests.support.servers import REGION
from tests.support.tables import settings


@pytest.fixture
async def server() -> AsyncIterator[ScriptedTable]:
    async with ScriptedTable() as scripted:
        yield scripted


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what goes the client's own way; that it is watched changes nothing."""
    went: list[str] = []
    client_class: Any = aiobotocore.client.AioBaseClient
    convert = client_class._convert_to_request_dict

    async def watched(self: Any, *args: Any, **more: Any) -> Any:
        went.append((more.get("operation_model") or args[1]).name)
        return await convert(self, *args, **more)

    monkeypatch.setattr(client_class, "_convert_to_request_dict", watched)
    return went


async def use(server: ScriptedTable, session: Any) -> DynamoTable:
    table = DynamoTable("leases", settings(server.url, session=session), SystemClock())
    await table.get("k")
    await table.put("k", {"lease_owner": "a"})
    await table.update("k", Change({"lease_owner": "a", "lease_ms": 7}), [Check("row")])
    await table.delete("k", [Check("row")])
    [_ async for _ in table.pages()]
    await table.close()
    return table


ROWS = ["GetItem", "PutItem", "UpdateItem", "DeleteItem", "Scan"]


async def test_both_ways_ask_for_the_same(
    server: ScriptedTable, stock: list[str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "ruststream_kinesis")
    await use(server, aiobotocore.session.get_session())
    assert stock == ["DescribeTable"]
    assert "slower way" not in caplog.text
    short = [(call.target, call.body) for call in server.requests]
    headers = {name.lower(): value for name, value in server.calls("UpdateItem")[0].headers.items()}
    assert headers["content-type"] == "application/x-amz-json-1.0"
    assert "/dynamodb/aws4_request" in headers["authorization"]

    server.requests.clear()
    stock.clear()
    session = aiobotocore.session.get_session()
    session.register("before-sign.dynamodb", lambda **_: None)
    await use(server, session)
    assert stock == ["DescribeTable", *ROWS]
    assert [(call.target, call.body) for call in server.requests] == short
    assert caplog.text.count("slower way") == 1


async def test_the_stock_way_makes_no_other_and_says_nothing_of_it(
    server: ScriptedTable,
    stock: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[Any] = []
    monkeypatch.setattr("ruststream_kinesis.leases.table_client.Plane", lambda *_: made.append(1))
    caplog.set_level(logging.INFO, "ruststream_kinesis")
    store = DynamoLeaseStore(
        "leases",
        region=REGION,
        endpoint_url=server.url,
        test_credentials=True,
        transport="botocore",
    )
    assert await store.read(LeaseKey("orders", "s")) is None
    await store.close()
    assert stock == ["DescribeTable", "GetItem"]
    assert made == []
    assert caplog.records == []


@pytest.mark.parametrize("own_way", [False, True])
async def test_a_failed_condition_brings_the_row_with_it(server: ScriptedTable, *, own_way: bool):
    session = aiobotocore.session.get_session()
    if own_way:
        session.register("before-sign.dynamodb", lambda **_: None)
    table = DynamoTable("leases", settings(server.url, session=session), SystemClock())
    row = {"lease_key": {"S": "k"}, "lease_counter": {"N": "3"}}
    refusal = {"__type": "ns#ConditionalCheckFailedException", "message": "", "Item": row}
    server.on("UpdateItem", raw(json.dumps(refusal).encode(), 400))
    outcome = await table.update("k", Change(), [Check("row")])
    assert outcome == Outcome(False, {"lease_counter": 3})
    assert server.calls("GetItem") == []
    await table.close()
