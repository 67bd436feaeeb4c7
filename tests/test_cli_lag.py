"""`lag`, `shards --table` and `leases`: what they say of a stream and of a lease table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.cli.lag import Subject, print_lag, watch_lag
from ruststream_kinesis.cli.lagging import ShardLag
from ruststream_kinesis.cli.lease_view import view
from ruststream_kinesis.cli.leases import print_leases
from ruststream_kinesis.cli.shards import print_shards, tree
from ruststream_kinesis.cli.tables import duration
from ruststream_kinesis.errors import AccessDenied, RequestError, StreamRecreated
from ruststream_kinesis.leases import rows
from ruststream_kinesis.leases.base import SHARD_END, Member, Opening
from ruststream_kinesis.leases.table import Value
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo
from tests.support.shardlog import QuickClock, ShardLog, shard
from tests.support.tables import MemoryTable
from tests.support.world import PATIENCE, Call

ORDERS = StreamRef("orders")
NOW = QuickClock().time()
MEMBER = Member("m1", "web-1", ("orders",))


def lease(checkpoint: str | None = None, *, owner: str | None = None, ago: float = 1.0) -> Any:
    """Return a row whose owner, if any, renewed it so many seconds ago."""
    row: dict[str, Value] = {rows.COUNTER: 7}
    if checkpoint is not None:
        row["checkpoint"] = checkpoint
    if owner is not None:
        row |= {
            rows.OWNER: owner,
            rows.EXPIRY: round(1_000 * (NOW - ago + 10.0)),
            "lease_ms": 10_000,
        }
    return row


def table_of(**leases: Any) -> MemoryTable:
    """Return a table with leases of `orders`, named `s0`, `s1` and so on."""
    table = MemoryTable()
    for name, row in leases.items():
        table.rows[f"orders:{shard(int(name[1:]))}"] = row
    return table


async def measured(
    log: ShardLog, table: MemoryTable, group: str | None = None
) -> dict[str, ShardLag]:
    async with asyncio.timeout(PATIENCE):
        found = await Subject(log, log.clock, ORDERS, table, group).measure()
    return {each.shard.shard_id: each for each in found}


async def printed(work: Awaitable[int], capsys: Any) -> str:
    async with asyncio.timeout(PATIENCE):
        assert await work == 0
    out: str = capsys.readouterr().out
    return out


class TestLag:
    async def test_only_a_service_that_answered_is_asked_again_for_the_first_thing(self):
        log = ShardLog({0: ()})
        errors = [RequestError("nobody", code="ClientConnectorError")]
        errors += [RequestError("slow", code="LimitExceededException", status=400)] * 2

        async def hook(call: Call) -> None:
            if call.operation == "describe_stream" and errors:
                raise errors.pop(0)

        log.world.hooks.append(hook)

        with pytest.raises(RequestError, match="nobody"):
            await measured(log, table_of(s0=lease("1")))
        assert [each.operation for each in log.world.calls] == ["describe_stream"]
        assert await measured(log, table_of(s0=lease("1")))

    async def test_it_is_measured_behind_the_checkpoint(self):
        log = ShardLog({0: ()}, page=1)
        numbers = log.put(0, *range(5))

        found = await measured(log, table_of(s0=lease(numbers[1])))

        # Three records are left, of a second each.
        assert (found[shard(0)].progress, found[shard(0)].lag_ms) == ("reading", 3_000)

    async def test_the_last_record_is_as_late_as_it_is_old(self):
        """The service says 0 with it: nothing is behind it."""
        log = ShardLog({0: ()}, page=1)
        numbers = log.put(0, 1, 2)
        log.clock.now += 90

        found = await measured(log, table_of(s0=lease(numbers[0])))
        assert found[shard(0)].lag_ms == 90_000

        found = await measured(log, table_of(s0=lease(numbers[1])))
        assert found[shard(0)].lag_ms == 0

    async def test_each_shard_is_read_once(self):
        log = ShardLog({0: (), 1: ()})
        numbers = [*log.put(0, *range(5)), *log.put(1, *range(5))]

        await measured(log, table_of(s0=lease(numbers[0]), s1=lease(numbers[5])))

        reads = [each.shard_id for each in log.world.calls if each.operation == "get_records"]
        assert sorted(map(str, reads)) == [shard(0), shard(1)]

    async def test_a_finished_shard_is_not_read(self):
        log = ShardLog({0: (), 1: (0,)})
        log.put(0, 1, 2)

        found = await measured(log, table_of(s0=lease(SHARD_END)))

        assert (found[shard(0)].progress, found[shard(0)].lag_ms) == ("finished", 0)
        assert not [each for each in log.world.calls if each.operation == "get_records"]

    async def test_a_rewound_shard_is_measured_from_where_it_was_moved_to(self):
        log = ShardLog({0: ()}, page=1)
        numbers = log.put(0, *range(5))
        row = lease(numbers[4]) | {
            "resume_from": KinesisPosition.sequence(shard(0), numbers[2]).to_text(),
            "resume_beside": numbers[4],
        }

        found = await measured(log, table_of(s0=row))

        # At the record that it names, not behind it.
        assert found[shard(0)].lag_ms == 3_000

    async def test_a_shard_that_nobody_started_is_measured_from_the_opening(self):
        log = ShardLog({0: ()}, page=1)
        log.put(0, 1, 2)
        table = table_of()

        found = await measured(log, table)
        assert (found[shard(0)].progress, found[shard(0)].lag_ms) == ("not-started", None)

        opening = Opening(NOW - 60, log.world.created)
        table.rows[rows.opening_key("orders", None)] = dict(rows.opening_row(opening, "x"))
        found = await measured(log, table)
        assert (found[shard(0)].progress, found[shard(0)].lag_ms) == ("not-started", 2_000)
        assert log.opened == [KinesisPosition.timestamp(NOW - 60)]

    async def test_rows_of_an_earlier_stream_of_that_name_are_not_measured(self):
        table = table_of(s0=lease("1"))
        opening = Opening(NOW - 60, 1.0)
        table.rows[rows.opening_key("orders", None)] = dict(rows.opening_row(opening, "x"))

        with pytest.raises(StreamRecreated):
            await measured(ShardLog({0: ()}), table)

    async def test_a_row_or_a_position_that_cannot_be_used_holds_up_no_other_shard(self):
        log = ShardLog({0: (), 1: (), 2: ()})
        gone = RequestError(
            "no such record", code="InvalidArgumentException", status=400, shard_id=shard(1)
        )

        async def hook(call: Call) -> None:
            if call.operation == "get_shard_iterator" and call.shard_id == shard(1):
                raise gone

        log.world.hooks.append(hook)

        found = await measured(log, table_of(s0=lease("x"), s1=lease("5"), s2=lease("6")))

        assert [each.progress for each in found.values()] == ["unreadable", "unreadable", "reading"]
        assert "cannot be understood" in (found[shard(0)].problem or "")
        assert "no such record" in (found[shard(1)].problem or "")

    async def test_what_nobody_may_read_is_one_error(self):
        log = ShardLog({0: (), 1: ()})

        async def hook(call: Call) -> None:
            if call.operation == "get_records":
                raise AccessDenied("not yours", code="AccessDeniedException", status=400)

        log.world.hooks.append(hook)

        with pytest.raises(AccessDenied):
            await measured(log, table_of(s0=lease("1"), s1=lease("2")))

    async def test_another_group_has_its_own_rows_and_a_wrong_one_is_told_of(self, caplog):
        log = ShardLog({0: ()})
        table = table_of(s0=lease(SHARD_END))

        found = await measured(log, table, "audit")

        assert found[shard(0)].progress == "not-started"
        assert caplog.messages == [
            "the lease table has no row of orders@audit; it has rows of: orders"
        ]

    async def test_the_table_sums_up(self, capsys):
        log = ShardLog({0: (), 1: (), 2: (1,)}, page=1)
        numbers = log.put(0, *range(4))
        table = table_of(s0=lease(numbers[1], owner="web-1#m1.t"), s1=lease(SHARD_END))

        out = await printed(
            print_lag(Subject(log, log.clock, ORDERS, table, None), as_json=False), capsys
        )

        assert out.splitlines() == [
            "shard                 state     lag  checkpoint   owner",
            f"{shard(0)}  open    2.0 s  {numbers[1]:11}  web-1",
            f"{shard(1)}  closed      -  finished     -",
            f"{shard(2)}  open        -  not started  -",
            f"worst 2.0 s ({shard(0)}), total 2.0 s, 1 finished, 1 not started",
        ]

    async def test_json_has_every_documented_field(self, capsys):
        log = ShardLog({0: ()}, page=1)
        numbers = log.put(0, 1, 2, 3)
        table = table_of(s0=lease(numbers[0], owner="web-1#m1.t"))

        told = json.loads(
            await printed(
                print_lag(Subject(log, log.clock, ORDERS, table, "g"), as_json=True), capsys
            )
        )
        assert set(told) == {"time", "stream", "group", "worst_ms", "total_ms", "shards"}
        table.rows[f"g/orders:{shard(0)}"] = table.rows[f"orders:{shard(0)}"]
        told = json.loads(
            await printed(
                print_lag(Subject(log, log.clock, ORDERS, table, "g"), as_json=True), capsys
            )
        )

        assert (told["worst_ms"], told["total_ms"]) == (2_000, 2_000)
        assert told["shards"] == [
            {
                "shard_id": shard(0),
                "open": True,
                "progress": "reading",
                "lag_ms": 2_000,
                "owner_id": "web-1",
                "alive": True,
                "renewed_ago_seconds": 1.0,
                "checkpoint": numbers[0],
                "resume_from": None,
                "problem": None,
            }
        ]

    async def test_watching_goes_on_through_what_passes(self, capsys):
        """A line each time; while nobody answers it is said, and the next one comes."""
        log = ShardLog({0: ()}, page=1)
        table = table_of(s0=lease(log.put(0, 1, 2)[0]))
        rounds = 0

        async def hook(call: Call) -> None:
            nonlocal rounds
            if call.operation == "describe_stream":
                rounds += 1
                if rounds == 2:
                    raise RequestError("nobody is there", code="ClientConnectorError")
                if rounds == 4:
                    raise AccessDenied("not yours", code="AccessDeniedException", status=400)

        log.world.hooks.append(hook)
        with pytest.raises(AccessDenied):
            await watch_lag(Subject(log, log.clock, ORDERS, table, None), 5.0, as_json=True)

        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 2
        assert "nobody is there" in told.err
        assert log.clock.slept == [5.0, 5.0, 5.0]


class TestView:
    async def test_an_owner_that_writes_is_alive_whatever_its_clock_says(self):
        table = table_of(s0=lease("5", owner="web-1#m1.t", ago=600.0))
        clock = QuickClock()

        async def during() -> None:
            row = table.rows[f"orders:{shard(0)}"]
            row[rows.COUNTER] = 8

        assert not (await view(table, clock)).subscription("orders", None)[shard(0)].alive
        clock.during = during
        seen = await view(table, clock, wait=4.0)

        assert seen.subscription("orders", None)[shard(0)].alive
        # As soon as it is known, nobody waits any longer.
        assert clock.slept == [1.0]

    async def test_one_that_moves_does_not_speak_for_another(self):
        table = table_of(s0=lease(owner="a#m1.t"), s1=lease(owner="b#m2.t", ago=60.0))
        clock = QuickClock()

        async def during() -> None:
            late = 1 if clock.now - NOW > 2.5 else 0
            table.rows[f"orders:{shard(late)}"][rows.COUNTER] = 100 + len(clock.slept)

        clock.during = during
        found = (await view(table, clock, wait=4.0)).subscription("orders", None)

        assert [found[shard(n)].alive for n in (0, 1)] == [True, True]
        assert clock.slept == [1.0, 1.0, 1.0]

    async def test_who_does_not_write_is_dead_when_its_time_is_over(self):
        table = table_of(s0=lease(owner="a#m1.t", ago=9.0), s1=lease(owner="b#m2.t", ago=11.0))

        found = (await view(table, QuickClock())).subscription("orders", None)

        assert [found[shard(n)].alive for n in (0, 1)] == [True, False]
        assert [found[shard(n)].renewed_ago for n in (0, 1)] == pytest.approx([9.0, 11.0])

    async def test_a_member_is_alive_by_its_leases_or_not_seen(self):
        table = table_of(s0=lease(owner="web-1#m1.t"))
        for nonce in ("m1", "m2"):
            change, _ = rows.beaten(Member(nonce, f"of {nonce}", ("orders",)), 7.0)
            table.rows[rows.member_key(nonce)] = change.apply(None)

        soon = (await view(table, QuickClock(), wait=4.0)).members
        late = (await view(table, QuickClock(), wait=8.0)).members

        assert (soon["m1"].alive, soon["m1"].shards) == (True, 1)
        assert soon["m2"].alive is None
        assert late["m2"].alive is False

    async def test_rows_of_others_are_counted_and_do_no_harm(self):
        table = MemoryTable()
        table.rows |= {"shardId-1": {}, "member/x": {}, "something": {"a": 1}}
        table.rows["opening/orders"] = {"opening_instant": "never"}

        seen = await view(table, QuickClock(), wait=4.0)

        assert seen.foreign == 3
        assert len(seen.problems) == 1

    async def test_leases_are_shown_by_subscription(self, capsys):
        table = table_of(s0=lease("5", owner="web-1#m1.t"), s1=lease(SHARD_END), s2=lease("7"))
        table.rows[f"orders:{shard(2)}"]["successor"] = "m1"
        table.rows[f"audit/orders:{shard(0)}"] = lease(owner="old#m9.t", ago=120.0)
        table.rows[rows.member_key("m1")] = rows.beaten(MEMBER, 7.0)[0].apply(None)

        out = await printed(
            print_leases("leases", table, QuickClock(), wait=0.0, as_json=False), capsys
        )

        assert out.splitlines() == [
            "stream orders, group audit",
            "shard                 owner  alive  renewed        checkpoint",
            f"{shard(0)}  old    no     2 min 0 s ago  -",
            "",
            "stream orders",
            "shard                 owner            alive  renewed    checkpoint",
            f"{shard(0)}  web-1            yes    1.0 s ago  5",
            f"{shard(1)}  -                -      -          finished",
            f"{shard(2)}  handed to web-1  -      -          7",
            "",
            "instances",
            "instance  alive  shards  reads",
            "web-1     yes         1  orders",
        ]

    async def test_leases_as_json(self, capsys):
        table = table_of(s0=lease("5", owner="web-1#m1.t"))
        table.rows[rows.member_key("m1")] = rows.beaten(MEMBER, 7.0)[0].apply(None)
        table.rows[rows.opening_key("orders", None)] = dict(
            rows.opening_row(Opening(0.0, None), "x")
        )

        told = json.loads(
            await printed(
                print_leases("leases", table, QuickClock(), wait=0.0, as_json=True), capsys
            )
        )

        (row,) = told.pop("leases")
        assert (row["stream"], row["group"], row["handed_to"]) == ("orders", None, None)
        assert told == {
            "table": "leases",
            "watched_seconds": 0.0,
            "instances": [
                {
                    "nonce": "m1",
                    "owner_id": "web-1",
                    "alive": True,
                    "shards": 1,
                    "max_shards": None,
                    "subscriptions": ["orders"],
                }
            ],
            "openings": [
                {
                    "subscription": "orders",
                    "opened": "1970-01-01T00:00:00Z",
                    "stream_created": None,
                }
            ],
            "problems": [],
            "other_rows": 0,
        }


class TestShards:
    def test_the_tree_has_every_shard_once_below_its_first_listed_parent(self):
        family = {0: (), 1: (), 2: (0,), 3: (0,), 4: (3, 1), 5: (99,), 6: (98, 5)}
        infos = [ShardInfo(shard(n), tuple(map(shard, of))) for n, of in family.items()]

        drawn = [f"{branch.drawn}{int(branch.shard.shard_id[8:])}" for branch in tree(infos)]

        # 99 and 98 have aged out.
        assert drawn == ["0", "├ 2", "└ 3", "  └ 4", "1", "5", "└ 6"]

    def test_a_line_of_a_thousand_generations_is_drawn(self):
        infos = [ShardInfo(shard(n), (shard(n - 1),) if n else ()) for n in range(1_500)]

        assert len(tree(infos)) == 1_500

    async def test_with_a_table_it_says_who_is_how_far(self, capsys):
        log = ShardLog({0: (), 1: (), 2: (0, 1)}, page=1)
        (number, *_) = log.put(2, 1, 2, 3)
        table = table_of(
            s0=lease(SHARD_END), s1=lease(SHARD_END), s2=lease(number, owner="w#m.t", ago=60.0)
        )

        out = await printed(
            print_shards(log, log.clock, ORDERS, rows=table, group=None, as_json=False), capsys
        )

        assert out.splitlines() == [
            "shard                     state   hash %    lag  checkpoint  owner",
            f"{shard(0)}      closed  ?           -  finished    -",
            f"└ {shard(2)} *  open    ?       2.0 s  {number:10}  w (dead)",
            f"{shard(1)}      closed  ?           -  finished    -",
            "1 open, 2 closed",
            f"* {shard(2)} is also a child of {shard(1)}",
        ]

    async def test_without_a_table_no_shard_is_read(self, capsys):
        log = ShardLog({0: (), 1: (0,)})

        told = json.loads(
            await printed(
                print_shards(log, log.clock, ORDERS, rows=None, group=None, as_json=True), capsys
            )
        )

        assert told["shards"][1] == {
            "shard_id": shard(1),
            "parents": [shard(0)],
            "open": True,
            "hash_key_range": None,
            "starting_sequence_number": None,
        }
        assert {each.operation for each in log.world.calls} == {"describe_stream", "list_shards"}


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (59_900, "59.9 s"),
        (59_999, "1 min 0 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_read_at_a_glance(ms, said):
    assert duration(ms) == said
