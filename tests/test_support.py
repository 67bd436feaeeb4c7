"""The test tools themselves: each can fail, and each fault arrives at a client as it should."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Never

import aiohttp
import pytest
from botocore.exceptions import ClientError

from tests.support import aws as raw_client
from tests.support import servers
from tests.support.replies import Next, applied_then
from tests.support.scripted import (
    Call,
    FaultProxy,
    Reply,
    ScriptedKinesis,
    Shard,
    drop_connection,
    error,
    hang_after_headers,
    held,
    html,
    ok,
    page,
    pass_on,
    raw,
    record,
    truncated,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from types_aiobotocore_kinesis import KinesisClient

SHARD = "shardId-000000000000"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedKinesis]:
    async with ScriptedKinesis() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedKinesis) -> AsyncIterator[KinesisClient]:
    async with raw_client.connect(server.url) as aws:
        yield aws.client


async def opened(client: KinesisClient, shard: str = SHARD) -> str:
    answer = await client.get_shard_iterator(
        StreamName="s", ShardId=shard, ShardIteratorType="LATEST"
    )
    return answer["ShardIterator"]


async def post(url: str, target: str = "GetRecords") -> tuple[int, bytes]:
    """Send one request without a client's idea of what an answer should be."""
    headers = {"X-Amz-Target": f"Kinesis_20131202.{target}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=b"{}", headers=headers) as response,
    ):
        return response.status, await response.read()


class TestScriptedKinesis:
    async def test_a_list_of_replies_is_given_in_order_and_then_the_default(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        server.on("GetRecords", [page([record(7, b"x")], lag=60_000), pass_on(), error("Slow")])
        iterator = await opened(client)

        first = await client.get_records(ShardIterator=iterator)
        second = await client.get_records(ShardIterator=first["NextShardIterator"])
        with pytest.raises(ClientError, match="Slow"):
            await client.get_records(ShardIterator=iterator)
        last = await client.get_records(ShardIterator=iterator)

        assert first["Records"][0]["Data"] == b"x"
        assert first["Records"][0]["SequenceNumber"] == "7"
        assert first["MillisBehindLatest"] == 60_000
        assert second["Records"] == last["Records"] == []

    async def test_one_reply_is_given_every_time_until_its_rule_is_removed(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        rule = server.on("PutRecord", error("InternalFailure", 500))
        for _ in range(2):
            with pytest.raises(ClientError, match="InternalFailure"):
                await client.put_record(StreamName="s", Data=b"x", PartitionKey="k")

        rule.remove()

        assert rule.hits == 2
        assert await client.put_record(StreamName="s", Data=b"x", PartitionKey="k")

    async def test_a_function_sees_the_call_and_may_wait(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        async def answer(call: Call) -> Reply:
            await asyncio.sleep(0)
            return ok(ShardIterator=f"{call.body['ShardIteratorType']}-{call.count}")

        server.on("GetShardIterator", answer)

        assert await opened(client) == "LATEST-1"
        assert await opened(client) == "LATEST-2"

    async def test_a_rule_of_one_shard_leaves_its_neighbour_alone(self) -> None:
        async with (
            ScriptedKinesis(["shard-a", "shard-b"]) as server,
            raw_client.connect(server.url) as aws,
        ):
            server.on("GetRecords", error("ExpiredIteratorException"), shard="shard-a")
            broken, healthy = [await opened(aws.client, each) for each in ("shard-a", "shard-b")]

            with pytest.raises(ClientError, match="ExpiredIterator"):
                await aws.client.get_records(ShardIterator=broken)
            for _ in range(3):  # the next iterators stay known
                answer = await aws.client.get_records(ShardIterator=healthy)
                healthy = answer["NextShardIterator"]

            assert len(await server.seen("GetRecords", 3, shard="shard-b")) == 3
            assert len(server.calls("GetRecords")) == 4

    async def test_requests_are_recorded_with_a_monotonic_time(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        await client.put_record(StreamName="s", Data=b"x", PartitionKey="k")
        await opened(client)

        put, iterator = server.requests
        assert (put.target, put.body["PartitionKey"], put.shard_id) == ("PutRecord", "k", None)
        assert (iterator.target, iterator.shard_id) == ("GetShardIterator", SHARD)
        assert put.at <= iterator.at

    async def test_waiting_for_a_request_that_never_comes_says_what_came(
        self, server: ScriptedKinesis, client: KinesisClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.support.faults.PATIENCE", 0.01)
        await opened(client)

        with pytest.raises(TimeoutError, match=r"PutRecord did not come.*GetShardIterator': 1"):
            await server.seen("PutRecord")

    async def test_seen_wakes_up_when_the_request_arrives(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(server.seen("GetShardIterator", 2))
            for _ in range(2):
                await opened(client)

        assert [call.count for call in waiting.result()] == [1, 2]

    async def test_shards_are_listed_in_pages_that_carry_no_name(self) -> None:
        shards = [Shard(f"shardId-{n:012}") for n in range(25)]
        async with ScriptedKinesis(shards) as server, raw_client.connect(server.url) as aws:
            server.page_size = 10

            listed = await aws.shards("s")
            with pytest.raises(ClientError, match="together"):
                await aws.client.list_shards(StreamName="s", NextToken="token-10")

        assert [shard["ShardId"] for shard in listed] == [shard.shard_id for shard in shards]
        assert ["StreamName" in call.body for call in server.calls("ListShards")][:3] == [
            True,
            False,
            False,
        ]

    async def test_a_shard_ends_in_each_of_three_ways_with_its_children(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        child = Shard("shardId-000000000001", parent=SHARD, last_hash=99)
        server.on(
            "GetRecords", [page(next=end, children=[child]) for end in (None, "", Next.MISSING)]
        )
        iterator = await opened(client)

        pages = [await client.get_records(ShardIterator=iterator) for _ in range(3)]

        assert [each.get("NextShardIterator") or None for each in pages] == [None] * 3
        assert all(each["ChildShards"][0]["ParentShards"] == [SHARD] for each in pages)

    async def test_unknown_streams_shards_and_iterators_are_errors(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        server.missing.add("gone")

        for call, code in [
            (client.describe_stream_summary(StreamName="gone"), "ResourceNotFoundException"),
            (client.list_shards(StreamName="gone"), "ResourceNotFoundException"),
            (opened(client, "shard-x"), "ResourceNotFoundException"),
            (client.get_records(ShardIterator="garbage"), "InvalidArgumentException"),
            (client.list_streams(), "UnknownOperationException"),
        ]:
            with pytest.raises(ClientError, match=code):
                await call

    async def test_the_date_is_the_servers_own(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        server.clock = lambda: 1_000_000_000.0

        answer = await client.describe_stream_summary(StreamName="s")

        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        assert headers["date"] == "Sun, 09 Sep 2001 01:46:40 GMT"
        assert answer["ResponseMetadata"]["RequestId"]

    async def test_a_mistake_in_a_script_fails_the_test(self) -> None:
        def typo(call: Call) -> Never:
            raise LookupError(call.target)

        with pytest.raises(ExceptionGroup) as caught:
            async with ScriptedKinesis() as server:
                server.on("GetRecords", typo)
                assert (await post(server.url))[0] == 500

        assert caught.group_contains(LookupError, match="GetRecords")


class TestFaults:
    async def test_errors_have_the_shape_of_the_service(
        self, server: ScriptedKinesis, client: KinesisClient
    ) -> None:
        server.on("PutRecord", error("ProvisionedThroughputExceededException", message="too fast"))

        with pytest.raises(ClientError) as caught:
            await client.put_record(StreamName="s", Data=b"x", PartitionKey="k")

        assert caught.value.response["Error"] == {
            "Code": "ProvisionedThroughputExceededException",
            "Message": "too fast",
        }
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400

    async def test_a_dropped_connection_is_no_answer(self, server: ScriptedKinesis) -> None:
        server.on("GetRecords", drop_connection())

        with pytest.raises(aiohttp.ClientConnectionError):
            await post(server.url)

    async def test_a_truncated_body_breaks_off(self, server: ScriptedKinesis) -> None:
        server.on("GetRecords", truncated(page([record(1)])))

        with pytest.raises(aiohttp.ClientPayloadError):
            await post(server.url)

    async def test_headers_and_then_silence_until_released(self, server: ScriptedKinesis) -> None:
        hang = hang_after_headers()
        server.on("GetRecords", hang)

        async with (
            aiohttp.ClientSession() as session,
            session.post(server.url, headers={"X-Amz-Target": "x.GetRecords"}) as response,
        ):
            await hang.reached.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await response.read()

            assert response.status == 200

    async def test_a_hanging_reply_breaks_off_on_release(self, server: ScriptedKinesis) -> None:
        hang = hang_after_headers()
        server.on("GetRecords", hang)

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_broken(server.url))
            await hang.reached.wait()
            assert not reading.done()
            hang.release()

    async def test_a_held_request_is_answered_on_release(self, server: ScriptedKinesis) -> None:
        hold = held(ok(answer=42))
        server.on("PutRecord", hold)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(post(server.url, "PutRecord"))
            await hold.reached.wait()
            assert not waiting.done()
            hold.release()

        assert json.loads(waiting.result()[1]) == {"answer": 42}

    async def test_a_server_with_a_held_request_closes_at_once(self) -> None:
        async with ScriptedKinesis() as server, asyncio.TaskGroup() as group:
            hold = held()
            server.on("GetRecords", hold)
            group.create_task(post(server.url))
            await hold.reached.wait()
            await server.__aexit__(None, None, None)

    async def test_bodies_that_are_no_json(self, server: ScriptedKinesis) -> None:
        server.on("GetRecords", [html(), raw(b"\x00{", 200)])

        assert (await post(server.url))[0] == 503
        assert await post(server.url) == (200, b"\x00{")


class TestFaultProxy:
    async def test_what_has_no_rule_passes_unchanged(
        self, kinesis: servers.Server, aws: raw_client.Aws
    ) -> None:
        stream = await aws.create_stream(shards=2)
        async with FaultProxy(kinesis.url) as proxy, raw_client.connect(proxy.url) as through:
            number = await through.put(stream, b"x", "k")

            assert [r["SequenceNumber"] for r in await through.records(stream)] == [number]
            assert len(proxy.calls("GetRecords", shard=SHARD)) >= 1

    async def test_only_what_a_rule_chooses_is_spoiled(
        self, kinesis: servers.Server, aws: raw_client.Aws
    ) -> None:
        stream = await aws.create_stream()
        async with FaultProxy(kinesis.url) as proxy, raw_client.connect(proxy.url) as through:
            rule = proxy.inject(
                lambda call: call.target == "PutRecord" and call.body["PartitionKey"] == "bad",
                [error("InternalFailure", 500)],
            )
            await through.put(stream, b"1", "good")
            with pytest.raises(ClientError, match="InternalFailure"):
                await through.put(stream, b"2", "bad")
            await through.put(stream, b"3", "bad")

            assert rule.hits == 1
        assert [each["Data"] for each in await aws.records(stream)] == [b"1", b"3"]

    async def test_a_request_can_take_effect_while_its_answer_is_lost(
        self, kinesis: servers.Server, aws: raw_client.Aws
    ) -> None:
        stream = await aws.create_stream()
        async with FaultProxy(kinesis.url) as proxy, raw_client.connect(proxy.url) as through:
            proxy.on("PutRecord", [applied_then(error("InternalFailure", 500))])

            with pytest.raises(ClientError, match="InternalFailure"):
                await through.put(stream, b"x")

        assert [each["Data"] for each in await aws.records(stream)] == [b"x"]

    async def test_an_unreachable_server_is_a_mistake_of_the_test(self) -> None:
        with pytest.raises(ExceptionGroup):
            async with FaultProxy(f"http://127.0.0.1:{servers.free_port()}") as proxy:
                await post(proxy.url)


async def _broken(url: str) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(url)
