"""`DynamoTable` against a server that fails on command: errors, retries, deadlines, the table itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiobotocore.session
import pytest

from ruststream_kinesis import DynamoLeaseStore
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import (
    ConfigurationError,
    LeaseTableDenied,
    LeaseTableError,
    LeaseTableMismatch,
    LeaseTableNotFound,
    LeaseTableUnreachable,
)
from ruststream_kinesis.leases.dynamo_table import DynamoTable
from ruststream_kinesis.leases.table import Change, Check
from tests.support.replies import Answer, Reply
from tests.support.scripted import (
    applied_then,
    drop_connection,
    error,
    hang_after_headers,
    held,
    html,
    ok,
    raw,
    truncated,
)
from tests.support.scripted_table import ROW, SCHEMA, ScriptedTable, described
from tests.support.servers import free_port
from tests.support.tables import dynamo_table

THROTTLED = error("ProvisionedThroughputExceededException")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedTable]:
    async with ScriptedTable() as scripted:
        yield scripted


@pytest.fixture
async def table(server: ScriptedTable) -> AsyncIterator[DynamoTable]:
    table = dynamo_table(server.url, "leases", attempt=1.0, deadline=20.0)
    yield table
    await table.close()


async def touch(table: DynamoTable) -> Any:
    return await table.update("k", Change(), [Check("row")])


# -- passing failures ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        THROTTLED,
        error("RequestLimitExceeded"),
        error("ThrottlingException"),
        error("InternalServerError", 500),
        error("ServiceUnavailable", 503),
        error("ExpiredTokenException"),
        html(503),
        drop_connection(),
        truncated(ok(Attributes=ROW)),
        raw(b"<html>proxy</html>"),
        applied_then(drop_connection()),
    ],
    ids=str,
)
async def test_what_passes_is_survived_within_the_call(
    server: ScriptedTable, table: DynamoTable, reply: Reply
):
    server.on("UpdateItem", [reply, reply])
    outcome = await touch(table)
    assert outcome.applied
    assert len(server.calls("UpdateItem")) == 3


async def test_an_answer_that_never_ends_is_cut_off_and_asked_for_again(
    server: ScriptedTable, table: DynamoTable
):
    server.on("UpdateItem", [hang_after_headers()])
    assert (await touch(table)).applied


async def test_throttling_without_end_is_told_in_time_and_wrote_nothing(
    server: ScriptedTable, table: DynamoTable
):
    server.on("UpdateItem", THROTTLED)
    table._deadline = 2.0
    async with asyncio.timeout(20):
        with pytest.raises(LeaseTableUnreachable, match=r"'leases'.*update item") as caught:
            await touch(table)
    assert caught.value.code == "ProvisionedThroughputExceededException"
    assert not caught.value.uncertain
    assert 1 < len(server.calls("UpdateItem")) < 20


async def test_once_an_answer_was_lost_a_later_refusal_proves_nothing(
    server: ScriptedTable, table: DynamoTable
):
    replies = iter([drop_connection()])
    server.on("UpdateItem", lambda _: next(replies, THROTTLED))
    table._deadline = 2.0
    with pytest.raises(LeaseTableUnreachable) as caught:
        await touch(table)
    assert caught.value.code == "ProvisionedThroughputExceededException"
    assert caught.value.uncertain


async def test_botocore_itself_tries_once(server: ScriptedTable):
    table = dynamo_table(server.url, "leases", deadline=0.0)
    server.on("UpdateItem", error("InternalServerError", 500))
    with pytest.raises(LeaseTableUnreachable):
        await touch(table)
    await table.close()
    assert len(server.calls("UpdateItem")) == 1


async def test_an_endpoint_where_nobody_listens_is_told_in_time():
    table = dynamo_table(f"http://127.0.0.1:{free_port()}", "leases", deadline=0.3)
    async with asyncio.timeout(20):
        with pytest.raises(LeaseTableUnreachable, match="'leases'"):
            await table.open()
    await table.close()


async def test_a_table_that_goes_down_and_comes_back_is_used_again(
    server: ScriptedTable, table: DynamoTable
):
    await touch(table)
    table._deadline = 0.2
    down = server.inject(lambda _: True, drop_connection())
    with pytest.raises(LeaseTableUnreachable):
        await touch(table)
    with pytest.raises(LeaseTableUnreachable):
        [_ async for _ in table.pages()]
    down.remove()
    assert (await touch(table)).applied


async def test_a_call_that_is_cancelled_stays_cancelled(server: ScriptedTable, table: DynamoTable):
    await table.open()
    hold = held()
    server.on("UpdateItem", hold)
    writing = asyncio.create_task(touch(table))
    await hold.reached.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


# -- what does not pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (error("AccessDeniedException"), LeaseTableDenied),
        (error("UnrecognizedClientException"), LeaseTableDenied),
        (error("ResourceNotFoundException"), LeaseTableNotFound),
        (error("ValidationException"), LeaseTableError),
    ],
    ids=str,
)
async def test_what_does_not_pass_is_told_at_once(
    server: ScriptedTable, table: DynamoTable, reply: Reply, kind: type[LeaseTableError]
):
    server.on("GetItem", reply)
    with pytest.raises(LeaseTableError) as caught:
        await table.get("k")
    assert type(caught.value) is kind
    assert caught.value.table == "leases"
    assert not caught.value.uncertain
    assert len(server.calls("GetItem")) == 1


async def test_a_scan_by_somebody_who_is_no_table_is_no_empty_table(
    server: ScriptedTable, table: DynamoTable
):
    table._deadline = 0.2
    for body, said in (
        (b"<html>proxy</html>", "unreadable"),
        (b"[1]", "unreadable"),
        (b"{}", "Items"),
    ):
        server.on("Scan", raw(body))
        with pytest.raises(LeaseTableUnreachable, match=said):
            [_ async for _ in table.pages()]


async def test_reads_are_consistent_and_scans_follow_their_pages(
    server: ScriptedTable, table: DynamoTable
):
    more = {"lease_key": {"S": "k"}}
    server.on("Scan", [ok(Items=[ROW], LastEvaluatedKey=more), ok(Items=[], LastEvaluatedKey=more)])
    assert [list(page) async for page in table.pages()] == [[("k", {"lease_counter": 1})], [], []]
    await table.get("k")
    reads = [*server.calls("Scan"), *server.calls("GetItem")]
    assert [call.body["ConsistentRead"] for call in reads] == [True] * 4
    assert [call.body.get("ExclusiveStartKey") for call in reads[:3]] == [None, more, more]


async def test_the_row_that_failed_a_condition_is_taken_from_the_answer_or_read(
    server: ScriptedTable, table: DynamoTable
):
    failed = {"__type": "ConditionalCheckFailedException", "message": "no"}
    answer = ok({**failed, "Item": ROW})
    server.on("UpdateItem", [Answer(400, answer.body), error("ConditionalCheckFailedException")])
    server.on("GetItem", ok(Item={**ROW, "lease_counter": {"N": "2"}}))
    assert (await touch(table)).row == {"lease_counter": 1}
    assert server.calls("GetItem") == []
    outcome = await touch(table)
    assert (outcome.applied, outcome.row) == (False, {"lease_counter": 2})
    assert server.calls("UpdateItem")[0].body["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


# -- the table itself ------------------------------------------------------------------------------


async def test_a_table_that_is_missing_says_how_to_make_it(
    server: ScriptedTable, table: DynamoTable
):
    server.on("DescribeTable", error("ResourceNotFoundException"))
    with pytest.raises(LeaseTableNotFound) as caught:
        await table.get("k")
    told = str(caught.value)
    assert "'leases'" in told
    assert "create=True" in told
    assert "aws dynamodb create-table --table-name leases" in told
    assert "AttributeName=lease_key,KeyType=HASH --billing-mode PAY_PER_REQUEST" in told
    assert server.url.removeprefix("http://") in told
    assert "region" in told
    assert server.calls("CreateTable") == []
    assert server.calls("GetItem") == []


@pytest.mark.parametrize(
    ("other", "says", "kcl"),
    [
        (
            {
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
            },
            ["'leaseKey'"],
            True,
        ),
        (
            {
                "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            },
            ["'id'"],
            False,
        ),
        (
            {"AttributeDefinitions": [{"AttributeName": "lease_key", "AttributeType": "N"}]},
            ["type N"],
            False,
        ),
        (
            {
                "KeySchema": [*SCHEMA["KeySchema"], {"AttributeName": "sort", "KeyType": "RANGE"}],
                "AttributeDefinitions": [
                    *SCHEMA["AttributeDefinitions"],
                    {"AttributeName": "sort", "AttributeType": "S"},
                ],
            },
            ["'sort' (RANGE)"],
            False,
        ),
    ],
    ids=["KCL", "name", "number", "sorted"],
)
@pytest.mark.parametrize("create", [True, False])
async def test_a_table_with_another_key_is_refused_and_told_what_is_wrong(
    server: ScriptedTable, other: dict[str, Any], says: list[str], *, kcl: bool, create: bool
):
    server.on("DescribeTable", described(**other))
    table = dynamo_table(server.url, "leases", create=create)
    with pytest.raises(LeaseTableMismatch, match="'leases' is no lease table") as caught:
        await table.open()
    await table.close()
    told = str(caught.value)
    assert all(part in told for part in says)
    assert ("Kinesis Client Library" in told) is kcl
    # Not the name that is taken.
    assert "another table name" in told
    assert "--table-name leases" not in told
    assert {call.target for call in server.requests} == {"DescribeTable"}


async def test_a_table_that_is_made_is_waited_for(server: ScriptedTable):
    missing = error("ResourceNotFoundException")
    server.on("DescribeTable", [missing, described("CREATING"), described("CREATING")])
    table = dynamo_table(server.url, "leases", create=True)
    await table.get("k")
    await table.close()
    (made,) = server.calls("CreateTable")
    assert made.body == {"TableName": "leases", "BillingMode": "PAY_PER_REQUEST", **SCHEMA}
    assert [call.target for call in server.requests].index("GetItem") == 5


async def test_a_table_that_another_instance_makes_at_this_moment_is_the_one(
    server: ScriptedTable,
):
    server.on("DescribeTable", [error("ResourceNotFoundException")])
    server.on("CreateTable", error("ResourceInUseException"))
    table = dynamo_table(server.url, "leases", create=True)
    await table.open()
    await table.close()


async def test_without_the_right_to_look_at_the_table_it_is_used_with_a_warning(
    server: ScriptedTable, table: DynamoTable, caplog: pytest.LogCaptureFixture
):
    server.on("DescribeTable", error("AccessDeniedException"))
    await table.get("k")
    await table.get("k")
    (record,) = caplog.records
    assert "describe table" in record.getMessage()
    assert len(server.calls("DescribeTable")) == 1


async def test_a_table_that_could_not_be_looked_at_is_looked_at_again(
    server: ScriptedTable, table: DynamoTable
):
    server.on("DescribeTable", [error("ResourceNotFoundException")])
    with pytest.raises(LeaseTableNotFound):
        await table.get("k")
    assert await table.get("k") is None


# -- configuration ---------------------------------------------------------------------------------


def test_importing_the_package_imports_no_client():
    program = (
        "import sys; from ruststream_kinesis import DynamoLeaseStore; DynamoLeaseStore('leases')\n"
        "sys.exit(any(name.split('.')[0] in ('aiobotocore', 'botocore') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", ["", "ab", "a" * 256, "a/b", "orders leases", None, "arn:aws:x"])
def test_a_name_that_is_none_is_refused(name: Any):
    with pytest.raises(ConfigurationError, match="invalid lease table"):
        DynamoLeaseStore(name)


def test_an_endpoint_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="endpoint_url"):
        DynamoLeaseStore("leases", endpoint_url="localhost:8000")


@pytest.mark.parametrize("transport", ["", "aiobotocore", None, []])
def test_a_transport_that_is_none_is_refused(transport: Any):
    with pytest.raises(ConfigurationError, match="transport must be one of 'thin', 'botocore'"):
        DynamoLeaseStore("leases", transport=transport)


async def test_settings_reach_the_service(server: ScriptedTable):
    arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/leases"
    store = DynamoLeaseStore(
        arn, region="eu-west-1", endpoint_url=server.url, test_credentials=True
    )
    await store.open()
    await store.close()
    (call,) = server.requests
    assert "/eu-west-1/dynamodb/" in call.headers["Authorization"]
    assert call.body == {"TableName": arn}


class NoWhere(aiobotocore.session.AioSession):
    """Has no region anywhere."""

    def get_config_variable(self, logical_name: str, methods: Any = None) -> Any:
        """Nothing of the region."""
        if logical_name == "region":
            return None
        return super().get_config_variable(logical_name, methods)


async def test_no_region_is_told_with_what_to_do(server: ScriptedTable):
    clients = ClientSettings(endpoint_url=server.url, session=NoWhere())
    table = DynamoTable("leases", clients, SystemClock())
    # No option of the command line is about the table.
    with pytest.raises(ConfigurationError, match=r"DynamoLeaseStore\(region=\.\.\.\)$"):
        await table.open()
