"""`tail`: every record once, parents first, whatever happens meanwhile; and how it is printed."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.cli.following import follow
from ruststream_kinesis.cli.tail import Wanted, parse_wanted, payload_text, tail_stream
from ruststream_kinesis.errors import AccessDenied, ConfigurationError, RequestError
from ruststream_kinesis.stream import StreamRef
from tests.reference import aggregate
from tests.support.shardlog import ShardLog, shard
from tests.support.world import PATIENCE, Call

ORDERS = StreamRef("orders")
HORIZON, LATEST = KinesisPosition.horizon(), KinesisPosition.latest()
# 0 was split into 2 and 3; 3 and 1 were merged into 4.
FAMILY: dict[int, tuple[int, ...]] = {0: (), 1: (), 2: (0,), 3: (0,), 4: (3, 1)}


def family() -> ShardLog:
    log = ShardLog(FAMILY)
    for number in FAMILY:
        log.put(number, *(f"{number}.{n}" for n in range(5)))
    return log


async def read(
    log: ShardLog, position: KinesisPosition = HORIZON, *, enough: int | None = None
) -> list[Any]:
    """Follow a stream to its tip, or for ever until there are enough records."""
    got: list[Any] = []
    following = follow(log, log.clock, ORDERS, position, endless=enough is not None)
    async with asyncio.timeout(PATIENCE), aclosing(following):
        async for _, page in following:
            got += [json.loads(page.payload(index)) for index in range(len(page))]
            if enough is not None and len(got) >= enough:
                break
    return got


def fail(log: ShardLog, operation: str, *errors: Exception) -> None:
    """The next calls of an operation fail."""
    left = list(errors)

    async def hook(call: Call) -> None:
        if call.operation == operation and left:
            raise left.pop(0)

    log.world.hooks.append(hook)


def second_read_fails(log: ShardLog, error: Exception) -> None:
    async def hook(call: Call) -> None:
        reads = [each for each in log.world.calls if each.operation == "get_records"]
        if call.operation == "get_records" and len(reads) == 2:
            raise error

    log.world.hooks.append(hook)


class TestFollowing:
    async def test_every_record_comes_once_and_children_come_behind_their_parents(self):
        got = await read(family())

        assert sorted(got) == [f"{number}.{n}" for number in FAMILY for n in range(5)]
        for child, parents in FAMILY.items():
            for parent in parents:
                assert got.index(f"{child}.0") > got.index(f"{parent}.4")
        for number in FAMILY:
            mine = [each for each in got if each.startswith(f"{number}.")]
            assert mine == sorted(mine)

    async def test_one_record_of_one_shard_is_followed_into_its_children_and_nowhere_else(self):
        log = ShardLog(FAMILY)
        numbers = log.put(0, *(f"0.{n}" for n in range(4)))
        for number in (1, 2, 3, 4):
            log.put(number, f"{number}.0")

        got = await read(log, KinesisPosition.sequence(shard(0), numbers[2]), enough=5)

        assert got[:2] == ["0.2", "0.3"]
        # Shard 1 is the other parent of 4, and was not asked for.
        assert sorted(got[2:]) == ["2.0", "3.0", "4.0"]

    async def test_the_tip_is_followed_over_a_split(self):
        log = ShardLog({0: ()})
        log.put(0, "old")
        steps = iter(range(10))

        async def during() -> None:
            match next(steps, None):
                case 0:
                    log.put(0, "new")
                case 1:
                    log.put(0, "last of its shard")
                    log.add(1, 0)
                    log.add(2, 0)
                    log.put(1, "child")

        log.clock.during = during

        assert await read(log, LATEST, enough=3) == ["new", "last of its shard", "child"]

    async def test_a_shard_that_the_stream_does_not_list_is_said_to_be_none(self):
        with pytest.raises(ConfigurationError, match="lists no shard 'shardId-000000000009'"):
            await read(family(), KinesisPosition.sequence(shard(9), "1"))

    async def test_throttling_is_said_and_waited_out(self, caplog):
        log = ShardLog({0: ()})
        log.put(0, 1, 2, 3)
        throttled = RequestError("slow", code="ProvisionedThroughputExceededException", status=400)
        fail(log, "get_records", throttled, throttled)

        assert await read(log) == [1, 2, 3]
        assert [record.message for record in caplog.records] == ["trying again: slow"] * 2

    async def test_a_lost_iterator_is_made_anew_behind_what_was_read(self):
        log = ShardLog({0: ()}, page=1)
        log.put(0, 1, 2, 3)
        second_read_fails(log, RequestError("old", code="ExpiredIteratorException", status=400))

        assert await read(log) == [1, 2, 3]

    async def test_at_the_tip_a_lost_iterator_passes_over_nothing(self):
        log = ShardLog({0: ()})
        second_read_fails(log, RequestError("old", code="ExpiredIteratorException", status=400))
        began = log.clock.time()

        async def during() -> None:
            if not log.world.records("orders"):
                log.put(0, 1)

        log.clock.during = during

        assert await read(log, LATEST, enough=1) == [1]
        assert log.opened == [LATEST, KinesisPosition.timestamp(began - 1)]

    async def test_what_nobody_may_read_is_an_error_behind_what_was_read(self):
        log = ShardLog({0: ()}, page=1)
        log.put(0, 1, 2)
        got: list[int] = []

        second_read_fails(log, AccessDenied("not yours", code="AccessDeniedException", status=400))
        following = follow(log, log.clock, ORDERS, HORIZON, endless=True)
        with pytest.raises(AccessDenied, match="not yours"):
            async for _, page in following:
                got += [json.loads(page.payload(index)) for index in range(len(page))]

        assert got == [1]

    async def test_whoever_has_enough_leaves_no_task_behind(self):
        before = asyncio.all_tasks()

        await read(family(), enough=1)

        assert asyncio.all_tasks() == before


async def lines(log: ShardLog, wanted: Wanted, capsys: Any, *, as_json: bool = True) -> str:
    async with asyncio.timeout(PATIENCE):
        code = await tail_stream(
            log, log.clock, ORDERS, HORIZON, wanted, endless=False, as_json=as_json
        )
    assert code == 0
    out: str = capsys.readouterr().out
    return out


class TestPrinting:
    async def test_a_line_of_json_has_every_documented_field(self, capsys):
        log = ShardLog({0: ()})
        (number,) = log.put(0, encode_envelope({"trace": "1"}, "grüße".encode()), key="ada")

        (line,) = map(json.loads, (await lines(log, Wanted(), capsys)).splitlines())

        assert line.pop("arrival").endswith("Z")
        assert line == {
            "stream": "orders",
            "shard_id": shard(0),
            "sequence_number": number,
            "sub_sequence_number": None,
            "partition_key": "ada",
            "headers": {"trace": "1"},
            "payload": "grüße",
            "encoding": "utf-8",
        }

    async def test_what_is_no_text_is_base64_in_json(self, capsys):
        log = ShardLog({0: ()})
        log.put(0, b"\x00\xff")

        (line,) = map(json.loads, (await lines(log, Wanted(), capsys)).splitlines())

        assert line["encoding"] == "base64"
        assert base64.b64decode(line["payload"]) == b"\x00\xff"

    async def test_an_aggregate_is_shown_as_its_records(self, capsys):
        log = ShardLog({0: ()})
        log.put(0, aggregate([("ada", None, b"1"), ("bob", None, b"2")]))

        got = [json.loads(line) for line in (await lines(log, Wanted(), capsys)).splitlines()]

        assert [(each["partition_key"], each["payload"]) for each in got] == [
            ("ada", "1"),
            ("bob", "2"),
        ]
        assert [each["sub_sequence_number"] for each in got] == [0, 1]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"key": "bob"}, ["3"]),
            ({"limit": 2}, ["1", "2"]),
            ({"headers": {"trace": None}}, ["1", "2"]),
            ({"headers": {"trace": "b"}}, ["2"]),
            ({"headers": {"trace": None, "other": None}}, []),
        ],
    )
    async def test_only_what_is_wanted_is_shown(self, capsys, options, expected):
        log = ShardLog({0: ()})
        log.put(0, encode_envelope({"trace": "a"}, b"1"), encode_envelope({"trace": "b"}, b"2"))
        log.put(0, b"3", key="bob")

        out = await lines(log, Wanted(**options), capsys)

        assert [json.loads(line)["payload"] for line in out.splitlines()] == expected

    async def test_a_record_for_people_says_where_it_stands_as_from_takes_it(self, capsys):
        log = ShardLog({0: ()})
        (number,) = log.put(0, encode_envelope({"trace": "a\x1b[2J"}, b'{"id": 1}'), key="ada")

        out = (await lines(log, Wanted(), capsys, as_json=False)).splitlines()

        assert out[0] == f"{shard(0)}:{number}"
        assert out[1].endswith("key ada")
        assert out[2:] == ["trace: a\\x1b[2J", '{"id": 1}', ""]

    def test_a_payload_cannot_move_the_cursor(self):
        assert payload_text(b"a\x1b[31mb\x07\nc\td") == "a\\x1b[31mb\\x07\nc\td"
        assert payload_text("\x9b2J".encode()) == "\\x9b2J"

    def test_a_payload_that_is_no_text_is_hexadecimal_and_not_endless(self):
        assert payload_text(b"\x00\xff\x10") == "00ff 10"
        assert payload_text(b"\xff" * 5_000).endswith("… (5,000 bytes; --json has all)")
        assert payload_text(b"x" * 9_000).endswith("… (9,000 characters; --json has all)")

    def test_a_header_without_a_name_is_refused(self):
        assert parse_wanted(None, ["a=b=c", "d"], None).headers == {"a": "b=c", "d": None}
        with pytest.raises(ConfigurationError, match="write NAME"):
            parse_wanted(None, ["=x"], None)
