"""Positions as they are typed."""

from __future__ import annotations

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.cli.positions import parse_position
from ruststream_kinesis.errors import ConfigurationError

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("horizon", KinesisPosition.horizon()),
        ("LATEST", KinesisPosition.latest()),
        ("shardId-000000000001:42", KinesisPosition.sequence("shardId-000000000001", "42")),
        ("15m", KinesisPosition.timestamp(NOW - 900)),
        ("2d", KinesisPosition.timestamp(NOW - 172_800)),
        ("2023-11-14T22:13:20Z", KinesisPosition.timestamp(NOW)),
        ("2023-11-14T23:13:20+01:00", KinesisPosition.timestamp(NOW)),
    ],
)
def test_a_position_is_what_it_says(text, means):
    assert parse_position(text, NOW) == means


@pytest.mark.parametrize(
    "text", ["", "tip", "42", "shard:", "shardId-1:0x1", "15", "15x", "12:30", "1e400", "shard:01"]
)
def test_what_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"position|sequence number"):
        parse_position(text, NOW)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ConfigurationError, match="time zone"):
        parse_position("2023-11-14T22:13:20", NOW)
