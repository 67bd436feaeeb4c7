"""Positions: what is accepted, what is refused, and how they compare."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.errors import ConfigurationError, KinesisError

SHARD = "shardId-000000000000"


def test_each_kind_says_what_it_is():
    assert str(KinesisPosition.horizon()) == "horizon"
    assert str(KinesisPosition.latest()) == "latest"
    assert str(KinesisPosition.timestamp(12.5)) == "1970-01-01T00:00:12.500Z"
    assert str(KinesisPosition.sequence(SHARD, "42")) == f"sequence({SHARD}, 42)"


def test_equal_positions_are_equal_and_hashable():
    assert KinesisPosition.timestamp(1) == KinesisPosition.timestamp(1.0)
    assert len({KinesisPosition.horizon(), KinesisPosition.horizon()}) == 1
    assert KinesisPosition.sequence(SHARD, "1") != KinesisPosition.sequence(SHARD, "2")


def test_one_instant_in_two_zones_is_one_position():
    instant = datetime(2024, 5, 1, 12, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert KinesisPosition.timestamp(instant) == KinesisPosition.timestamp(elsewhere)
    assert KinesisPosition.timestamp(instant).when == instant.timestamp()


def test_a_naive_datetime_is_refused_since_it_means_another_instant_everywhere():
    with pytest.raises(ConfigurationError, match="no time zone"):
        KinesisPosition.timestamp(datetime(2024, 5, 1))  # noqa: DTZ001 - what is refused


@pytest.mark.parametrize(
    "when", [-1, -0.5, float("nan"), float("inf"), 10**400, True, "2024-05-01", None, b"1"]
)
def test_a_timestamp_that_is_no_instant_is_refused(when: Any):
    with pytest.raises(ConfigurationError, match="timestamp position"):
        KinesisPosition.timestamp(when)


def test_a_datetime_before_the_epoch_is_refused():
    with pytest.raises(ConfigurationError, match="at least 0 s"):
        KinesisPosition.timestamp(datetime(1969, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize(
    "number", ["0", "1", "9" * 129, "49590338271490256608559692538361571095921"]
)
def test_a_sequence_number_stays_text_however_long(number: str):
    assert KinesisPosition.sequence(SHARD, number).sequence_number == number


@pytest.mark.parametrize(
    "number", ["", "01", "-1", "1.0", "1 ", "1\n", "٣", "9" * 130, "latest", 7, None]
)
def test_what_is_no_sequence_number_is_refused_with_its_value(number: Any):
    with pytest.raises(ConfigurationError) as caught:
        KinesisPosition.sequence(SHARD, number)

    assert repr(number) in str(caught.value)
    assert caught.value.shard_id == SHARD


@pytest.mark.parametrize("shard", ["", "shard 1", "a/b", "x" * 129, "shardId-0\n", None, 3])
def test_what_is_no_shard_id_is_refused_with_its_value(shard: Any):
    with pytest.raises(KinesisError) as caught:
        KinesisPosition.sequence(shard, "1")

    assert repr(shard) in str(caught.value)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (KinesisPosition.horizon(), "horizon"),
        (KinesisPosition.latest(), "latest"),
        (KinesisPosition.timestamp(1_700_000_000.125), "timestamp:1700000000.125"),
        (
            KinesisPosition.sequence("shardId-000000000000", "42"),
            "sequence:shardId-000000000000:42",
        ),
    ],
)
def test_a_position_as_text_reads_back_exactly(position: KinesisPosition, text: str):
    assert position.to_text() == text
    assert KinesisPosition.from_text(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tip",
        "horizon:1",
        "timestamp",
        "timestamp:soon",
        "timestamp:-1",
        "timestamp:nan",
        "sequence:S0",
        "sequence:S0:x",
        "sequence:S 0:1",
        "sequence:S0:1:2",
    ],
)
def test_text_that_is_no_position_is_a_clear_error(text: str):
    with pytest.raises(ConfigurationError, match="no stored position"):
        KinesisPosition.from_text(text)
