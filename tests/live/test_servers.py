"""What the real servers do that the package and its tests lean on.

When one of these fails after an update of a server, the suite would otherwise fail somewhere far
from the cause. Deviations from the service are written down here and in `tests/README.md`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support.aws import connect
from tests.support.scripted import FaultProxy, error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.aws import Aws
    from tests.support.servers import Server

SHARD = "shardId-000000000000"
MIB = 1024 * 1024


async def code_of(call: Any) -> tuple[str, int]:
    """Return the error code and HTTP status that a call is answered with."""
    with pytest.raises(ClientError) as caught:
        await call
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def ended(answer: Mapping[str, Any]) -> bool:
    """Whether a page is the last of its shard: it has no member for the next iterator at all."""
    return "NextShardIterator" not in answer


async def data_from(aws: Aws, stream: str, shard: str, kind: str, **at: Any) -> list[bytes]:
    answer = await aws.client.get_records(
        ShardIterator=await aws.iterator(stream, shard, kind, **at)
    )
    return [record["Data"] for record in answer["Records"]]


class TestBoth:
    async def test_sequence_numbers_grow_as_numbers(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()

        numbers = [await aws.put(stream, b"x") for _ in range(11)]

        assert numbers == sorted(numbers, key=int)
        # moto counts 1, 2, 3, …: the tenth is the smaller text (case W3).
        assert (numbers != sorted(numbers)) == (kinesis.name == "moto")

    async def test_reading_starts_after_at_and_from_the_horizon(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()
        numbers = [await aws.put(stream, data) for data in (b"0", b"1", b"2")]

        after = await data_from(
            aws, stream, SHARD, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[0]
        )
        at = await data_from(
            aws, stream, SHARD, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]
        )

        assert after == at == [b"1", b"2"]
        assert await data_from(aws, stream, SHARD, "TRIM_HORIZON") == [b"0", b"1", b"2"]

    async def test_a_timestamp_includes_the_record_that_arrived_then(
        self, kinesis: Server, aws: Aws
    ):
        stream = await aws.create_stream()
        for data in (b"0", b"1"):
            await aws.put(stream, data)
        first, second = await aws.records(stream)
        then = second["ApproximateArrivalTimestamp"].timestamp()

        found = await data_from(aws, stream, SHARD, "AT_TIMESTAMP", Timestamp=then)
        # In one millisecond, both are "at" it.
        together = first["ApproximateArrivalTimestamp"] == second["ApproximateArrivalTimestamp"]

        assert found == ([b"0", b"1"] if together else [b"1"])

    async def test_a_timestamp_before_the_put_finds_it(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()
        iterator = await aws.iterator(stream, SHARD, "AT_TIMESTAMP", Timestamp=time.time() - 1)
        await aws.put(stream, b"x")

        answer = await aws.client.get_records(ShardIterator=iterator)

        assert [record["Data"] for record in answer["Records"]] == [b"x"]

    async def test_an_iterator_at_the_tip_sees_what_is_put_after_it_was_made(
        self, kinesis: Server, aws: Aws
    ):
        stream = await aws.create_stream()
        await aws.put(stream, b"old")
        tip = await aws.iterator(stream, SHARD, "LATEST")
        await aws.put(stream, b"new")

        answer = await aws.client.get_records(ShardIterator=tip)

        assert [record["Data"] for record in answer["Records"]] == [b"new"]

    async def test_lag_is_positive_before_the_end_and_zero_at_it(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()
        for _ in range(3):
            await aws.put(stream, b"x")

        first = await aws.client.get_records(
            ShardIterator=await aws.iterator(stream, SHARD), Limit=1
        )
        rest = await aws.client.get_records(ShardIterator=first["NextShardIterator"])

        assert len(first["Records"]) == 1
        assert first["MillisBehindLatest"] > 0
        assert rest["MillisBehindLatest"] == 0

    async def test_a_missing_stream_or_shard_is_not_found(self, kinesis: Server, aws: Aws):
        stream, nothing = await aws.create_stream(), aws.unique()
        client = aws.client
        expected = ("ResourceNotFoundException", 400)

        assert await code_of(client.describe_stream_summary(StreamName=nothing)) == expected
        assert await code_of(client.list_shards(StreamName=nothing)) == expected
        assert await code_of(aws.put(nothing, b"x")) == expected
        assert await code_of(aws.iterator(nothing, SHARD)) == expected
        assert await code_of(aws.iterator(stream, "shardId-000000000009")) == expected

    async def test_reading_a_deleted_stream_is_not_found(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()
        iterator = await aws.iterator(stream, SHARD)
        await aws.client.delete_stream(StreamName=stream)
        while True:  # 10 ms on kinesis-local; pytest's timeout bounds it
            try:
                await aws.client.describe_stream_summary(StreamName=stream)
            except ClientError:
                break

        found = await code_of(aws.client.get_records(ShardIterator=iterator))

        assert found == ("ResourceNotFoundException", 400)

    async def test_a_garbage_iterator_is_an_http_500_without_a_code(
        self, kinesis: Server, aws: Aws
    ):
        # The service says InvalidArgumentException, HTTP 400. Neither server ever says
        # ExpiredIteratorException within a test: that is for ScriptedKinesis and FaultProxy.
        assert await code_of(aws.client.get_records(ShardIterator="garbage")) == ("500", 500)

    async def test_an_expired_iterator_can_be_played_before_both(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()
        iterator = await aws.iterator(stream, SHARD)
        async with FaultProxy(kinesis.url) as proxy:
            proxy.on("GetRecords", [error("ExpiredIteratorException")])
            async with connect(proxy.url) as through:
                read = through.client.get_records
                expired = await code_of(read(ShardIterator=iterator))
                assert expired == ("ExpiredIteratorException", 400)
                assert (await read(ShardIterator=iterator))["Records"] == []

    async def test_the_service_time_is_in_the_date_header(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()

        answer = await aws.client.list_shards(StreamName=stream)

        assert answer["ResponseMetadata"]["HTTPHeaders"]["date"].endswith(" GMT")

    async def test_a_partition_key_is_counted_in_characters(self, kinesis: Server, aws: Aws):
        stream = await aws.create_stream()

        await aws.put(stream, b"x", "é" * 256)

        assert (await code_of(aws.put(stream, b"x", "k" * 257)))[0] == "InvalidArgumentException"
        assert [record["PartitionKey"] for record in await aws.records(stream)] == ["é" * 256]


class TestKinesisLocal:
    async def test_a_split_ends_the_iterator_with_both_children(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream()
        tip = await aws.iterator(stream, SHARD, "LATEST")
        await aws.put(stream, b"before")

        low, high = await aws.split(stream, SHARD)
        await aws.put(stream, b"after")
        last = await aws.client.get_records(ShardIterator=tip)

        # The page that reaches the end already has no next iterator: no empty page follows.
        assert [record["Data"] for record in last["Records"]] == [b"before"]
        assert ended(last)
        assert last["MillisBehindLatest"] == 0
        assert [child["ShardId"] for child in last["ChildShards"]] == [
            low["ShardId"],
            high["ShardId"],
        ]
        assert all(child["ParentShards"] == [SHARD] for child in last["ChildShards"])
        children = [await aws.shard_records(stream, each["ShardId"]) for each in (low, high)]
        assert [record["Data"] for each in children for record in each] == [b"after"]

    async def test_a_merge_ends_both_parents_with_their_child(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream(shards=2)
        first, second = [shard["ShardId"] for shard in await aws.shards(stream)]

        child = await aws.merge(stream, first, second)

        assert (child["ParentShardId"], child["AdjacentParentShardId"]) == (first, second)
        for parent in (first, second):
            last = await aws.client.get_records(ShardIterator=await aws.iterator(stream, parent))
            assert ended(last)
            assert [each["ShardId"] for each in last["ChildShards"]] == [child["ShardId"]]

    async def test_a_closed_shard_opened_at_its_tip_is_at_its_end(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream()
        await aws.put(stream, b"x")
        await aws.split(stream, SHARD)

        last = await aws.client.get_records(
            ShardIterator=await aws.iterator(stream, SHARD, "LATEST")
        )

        assert last["Records"] == []
        assert ended(last)

    async def test_a_child_is_read_from_its_starting_sequence_number(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream()
        for child in await aws.split(stream, SHARD):
            start = child["SequenceNumberRange"]["StartingSequenceNumber"]
            await aws.put(stream, b"x", hash_key=child["HashKeyRange"]["StartingHashKey"])

            found = await data_from(
                aws, stream, child["ShardId"], "AT_SEQUENCE_NUMBER", StartingSequenceNumber=start
            )

            assert found == [b"x"]

    async def test_a_closed_shard_has_an_ending_number_that_is_none(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream()
        await aws.split(stream, SHARD)
        parent, *_ = await aws.shards(stream)
        numbers = parent["SequenceNumberRange"]

        # That there is one tells a closed shard; its value is 2**63 - 1, below every record's.
        assert int(numbers["EndingSequenceNumber"]) < int(numbers["StartingSequenceNumber"])

    async def test_shards_are_listed_by_the_hundred(self, kinesis_local, aws: Aws):
        stream = await aws.create_stream(shards=250)
        first = await aws.client.list_shards(StreamName=stream)

        assert len(first["Shards"]) == 100
        with_name = aws.client.list_shards(StreamName=stream, NextToken=first["NextToken"])
        assert await code_of(with_name) == ("InvalidArgumentException", 400)
        garbage = aws.client.list_shards(NextToken="garbage")
        assert await code_of(garbage) == ("InvalidArgumentException", 400)
        assert len({shard["ShardId"] for shard in await aws.shards(stream)}) == 250

    async def test_a_record_too_large_is_refused_but_its_key_is_not_counted(
        self, kinesis_local, aws: Aws
    ):
        stream = await aws.create_stream()

        await aws.put(stream, b"x" * MIB, "a key that the service would count")

        too_large = aws.put(stream, b"x" * (MIB + 1))
        assert await code_of(too_large) == ("InvalidArgumentException", 400)

    async def test_a_timestamp_in_the_future_is_refused_once_there_are_records(
        self, kinesis_local, aws: Aws
    ):
        stream = await aws.create_stream()
        ahead = {"Timestamp": time.time() + 60}

        assert await aws.iterator(stream, SHARD, "AT_TIMESTAMP", **ahead)
        await aws.put(stream, b"x")
        refused = await code_of(aws.iterator(stream, SHARD, "AT_TIMESTAMP", **ahead))

        assert refused == ("InvalidArgumentException", 400)


class TestMoto:
    async def test_a_closed_shard_goes_on_for_ever_and_even_takes_records(
        self, moto_server, aws: Aws
    ):
        stream = await aws.create_stream()
        await aws.put(stream, b"before")
        await aws.split(stream, SHARD)
        await aws.put(stream, b"after")

        answer = await aws.client.get_records(ShardIterator=await aws.iterator(stream, SHARD))

        assert [record["Data"] for record in answer["Records"]] == [b"before", b"after"]
        assert answer["NextShardIterator"]
        assert "ChildShards" not in answer

    async def test_shards_come_in_one_page_and_a_next_token_cannot_be_followed(
        self, moto_server, aws: Aws
    ):
        stream = await aws.create_stream(shards=250)

        assert len((await aws.client.list_shards(StreamName=stream))["Shards"]) == 250
        first = await aws.client.list_shards(StreamName=stream, MaxResults=100)
        # It checks the token against the stream name, which the service forbids beside a token.
        following = aws.client.list_shards(NextToken=first["NextToken"])
        assert await code_of(following) == ("InvalidToken", 400)

    async def test_a_record_of_any_size_is_taken(self, moto_server, aws: Aws):
        stream = await aws.create_stream()

        assert await aws.put(stream, b"x" * (MIB + 1))

    async def test_an_iterator_that_finds_nothing_is_its_own_next(self, moto_server, aws: Aws):
        stream = await aws.create_stream()
        await aws.put(stream, b"x")
        read = await aws.client.get_records(ShardIterator=await aws.iterator(stream, SHARD))

        empty = await aws.client.get_records(ShardIterator=read["NextShardIterator"])

        assert empty["NextShardIterator"] == read["NextShardIterator"]
