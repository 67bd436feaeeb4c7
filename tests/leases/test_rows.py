"""Reading rows: those of the sibling, of later versions, and what somebody spoiled."""

from __future__ import annotations

import pytest

from ruststream_kinesis import KinesisPosition, LeaseKey
from ruststream_kinesis.errors import LeaseRowError
from ruststream_kinesis.leases import SHARD_END, Opening, rows
from ruststream_kinesis.leases.base import LeaseState, Member
from ruststream_kinesis.leases.rows import LeaseRow, MemberRow
from ruststream_kinesis.leases.table import Foreign, Row, Value

KEY = LeaseKey("orders", "shardId-000000000000")
NUMBER = "49590338271490256608559692538361571095921"


def state(row: Row) -> LeaseState:
    return LeaseRow(KEY, row).state(free=False)


def test_what_a_row_said_before_decides_nothing():
    before = state({"checkpoint": NUMBER})
    for row in ({"checkpoint": NUMBER}, {"checkpoint": "7"}, {}, {"checkpoint": SHARD_END}):
        assert LeaseRow(KEY, row).state(free=False, last=before) == state(row)
    for spoiled in ("", "soon", 7, None):
        with pytest.raises(LeaseRowError):
            LeaseRow(KEY, {"checkpoint": spoiled}).state(free=False, last=before)


@pytest.mark.parametrize(
    ("key", "lease"),
    [
        ("orders:shardId-000000000000", KEY),
        ("audit/orders:shardId-0", LeaseKey("orders", "shardId-0", "audit")),
        # Groups that are called like our other rows.
        ("member/orders:shardId-0", LeaseKey("orders", "shardId-0", "member")),
        ("opening/orders:shardId-0", LeaseKey("orders", "shardId-0", "opening")),
        ("member/0a1b", None),
        ("opening/orders", None),
        ("opening/audit/orders", None),
        ("shardId-000000000000", None),
        ("orders:", None),
        (":shardId-0", None),
        ("a/b/orders:shardId-0", None),
        ("a:orders:shardId-0", None),
    ],
)
def test_a_key_says_what_its_row_is(key: str, lease: LeaseKey | None):
    assert rows.lease_key(key) == lease
    if lease is not None:
        assert lease.row == key


@pytest.mark.parametrize("key", [rows.member_key("0a1b"), rows.opening_key("orders", "g")])
def test_our_own_kinds_are_no_strangers_and_no_leases(key: str):
    assert rows.lease_key(key) is None
    assert rows.key_kind(key) is None


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("shardId-000000000000", "a shard without its stream"),
        ("config/a/b", "config/"),
        ("a:b:c", "a:"),
        ("whatever", "without"),
    ],
)
def test_strangers_are_named_by_their_kind(key: str, kind: str):
    assert kind in (rows.key_kind(key) or "")


def test_a_row_of_the_sibling_is_understood():
    held = state(
        {
            "lease_owner": "host-1",
            "lease_expiry": 1_700_000_000_000,
            "lease_counter": 7,
            "checkpoint": NUMBER,
        }
    )
    assert held == LeaseState(KEY, "host-1", 7, NUMBER)
    assert held.member is None


@pytest.mark.parametrize("owner", [{}, {"lease_owner": ""}, {"lease_owner": None}], ids=str)
def test_a_row_without_owner_is_released_however_it_says_so(owner: Row):
    row = LeaseRow(KEY, {**owner, "lease_counter": 3})
    assert row.owner is None
    assert all(check.holds(row.row) for check in row.as_seen)


def test_a_row_with_nothing_in_it_is_a_free_lease_without_checkpoint():
    assert LeaseRow(KEY, {}).state(free=True) == LeaseState(KEY, None, 0, None, free=True)


@pytest.mark.parametrize(
    ("period", "seconds"),
    [({}, 10.0), ({"lease_ms": 30_000}, 30.0)]
    + [
        ({"lease_ms": value}, 10.0)
        for value in (0, -5, 1e12, float("nan"), "30", True, None, Foreign("M {}"))
    ],
    ids=str,
)
def test_the_period_of_a_row_is_ten_seconds_unless_it_says_so(period: Row, seconds: float):
    assert LeaseRow(KEY, period).period == seconds
    assert rows.period_of(period) == seconds


@pytest.mark.parametrize(
    "value",
    ["LATEST", "TRIM_HORIZON", "", "12a", "-5", "٣", f"{NUMBER} ", 5, Foreign("M {}"), True],
    ids=repr,
)
def test_a_checkpoint_that_is_none_is_an_error_that_names_row_and_value(value: Value):
    with pytest.raises(LeaseRowError) as caught:
        state({"checkpoint": value})
    assert "'orders:shardId-000000000000'" in str(caught.value)
    assert repr(value) in str(caught.value)
    assert (caught.value.stream, caught.value.shard_id) == (KEY.stream, KEY.shard_id)


@pytest.mark.parametrize(
    "row",
    [
        {"lease_owner": 5},
        {"lease_owner": Foreign("SS []")},
        {"lease_counter": "7"},
        {"lease_counter": 1.5},
        {"resume_from": "moon", "resume_beside": "-"},
        {"resume_from": 7, "resume_beside": "-"},
    ],
    ids=str,
)
def test_what_decides_and_cannot_be_understood_is_an_error(row: Row):
    with pytest.raises(LeaseRowError, match="orders:shardId-000000000000"):
        state(row)


@pytest.mark.parametrize("checkpoint", [None, "5", SHARD_END])
def test_a_position_is_void_once_somebody_wrote_another_checkpoint(checkpoint: str | None):
    """The sibling writes checkpoints and knows of no positions."""
    horizon = KinesisPosition.horizon()
    before: dict[str, Value] = {} if checkpoint is None else {"checkpoint": checkpoint}
    row = rows.stored(None, horizon, 1, until=(0.0, 10.0)).apply(before)
    assert state(row).resume_from == horizon
    assert state(row).checkpoint == checkpoint

    assert state({**row, "checkpoint": "6"}).resume_from is None


def test_a_position_that_is_void_may_be_anything():
    assert state({"resume_from": "moon", "resume_beside": "5", "checkpoint": "6"}).checkpoint == "6"


def test_a_released_row_keeps_its_checkpoint_and_nothing_of_its_owner():
    row = rows.acquired("me#1", 10.0, 100.0).apply({"checkpoint": "5", "other": "kept"})
    assert (row["lease_owner"], row["lease_expiry"], row["lease_ms"]) == ("me#1", 110_000, 10_000)
    row = rows.stored("6", None, 3, until=(105.0, 10.0)).apply(row)
    assert row["lease_expiry"] == 115_000
    row = rows.released(rows.stored("7", None, 4, until=None), "m2").apply(row)
    assert row == {
        "checkpoint": "7",
        "lease_counter": 3,
        "lease_ms": 10_000,
        "other": "kept",
        "successor": "m2",
    }


def test_a_member_comes_back_as_it_was():
    member = Member("m1", "me", ("g/orders", "orders"), 3)
    for each in (member, Member("m1", "me", ()), Member("m1", "me", ("orders",))):
        change, condition = rows.beaten(each, 10.0)
        row = change.apply(None)
        assert MemberRow("m1", row).member() == each
        assert all(check.holds(None) and check.holds(row) for check in condition)
        assert not all(check.holds({**row, "owner_id": "you"}) for check in condition)


@pytest.mark.parametrize("row", [{}, {"owner_id": "me"}, {"owner_id": "me", "subscriptions": "x"}])
def test_a_row_that_is_no_members_is_nobody(row: Row):
    assert MemberRow("m1", row).member() is None


@pytest.mark.parametrize("created", [None, 1_600_000_000.123])
def test_an_opening_comes_back_as_it_was(created: float | None):
    opening = Opening(1_700_000_000.987654, created)
    assert rows.opening_of("k", rows.opening_row(opening, "mark")) == (opening, "mark")


@pytest.mark.parametrize(
    "row",
    [{}, {"opening_instant": "now"}, {"opening_instant": True}, {"opening_instant": -1}],
)
def test_an_opening_that_cannot_be_understood_is_an_error(row: Row):
    with pytest.raises(LeaseRowError, match="opening/orders"):
        rows.opening_of("opening/orders", row)
