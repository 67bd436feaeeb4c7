"""Stream descriptors: refused before any I/O, naming the value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ruststream_kinesis import KinesisStream
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.stream import StreamRef

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128, "-", "..."])
def test_a_name_that_the_service_takes_is_taken(name: str):
    assert KinesisStream(name).name == name
    assert KinesisStream(name).ref.parameters() == {"StreamName": name}


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "a b", "a/b", "a:b", "orders\n", "naïve", "日本", "a,b", None, 5, b"orders"],
)
def test_a_name_that_the_service_refuses_is_refused_with_its_value(name: Any):
    with pytest.raises(ConfigurationError) as caught:
        KinesisStream(name)

    assert repr(name) in str(caught.value)


def test_an_arn_is_called_by_its_arn_and_known_by_its_name():
    stream = KinesisStream(ARN)

    assert stream.name == "orders"
    assert stream.ref.parameters() == {"StreamARN": ARN}
    assert (stream.ref.region, stream.ref.account) == ("eu-west-1", "123456789012")
    assert str(stream.ref) == ARN


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_an_arn_of_any_partition_is_one(partition: str):
    assert KinesisStream(ARN.replace("arn:aws:", f"arn:{partition}:")).name == "orders"


@pytest.mark.parametrize(
    "arn",
    [
        "arn:",
        "arn:aws:kinesis:eu-west-1:123456789012:stream/",
        "arn:aws:kinesis:eu-west-1:12345678901:stream/orders",
        "arn:aws:kinesis::123456789012:stream/orders",
        "arn:aws:firehose:eu-west-1:123456789012:stream/orders",
        ARN + "/consumer/app:1",
        ARN + "\n",
        "arn:aws:kinesis:eu-west-1:123456789012:stream/" + "x" * 129,
    ],
)
def test_what_starts_like_an_arn_and_is_none_is_refused_with_its_value(arn: str):
    with pytest.raises(ConfigurationError) as caught:
        KinesisStream(arn)

    assert repr(arn) in str(caught.value)


@pytest.mark.parametrize("field", ["poll_interval", "read_interval"])
@pytest.mark.parametrize(
    "value", [-0.1, float("nan"), float("inf"), True, None, "1", 10**400], ids=repr
)
def test_an_interval_that_is_no_time_is_refused_by_name(field: str, value: Any):
    with pytest.raises(ConfigurationError, match=field):
        KinesisStream("orders", **{field: value})


def test_an_interval_of_whole_seconds_or_none_at_all_is_fine():
    stream = KinesisStream("orders", poll_interval=2, read_interval=0)

    assert (stream.poll_interval, stream.read_interval) == (2.0, 0.0)


@pytest.mark.parametrize("shards", [0, -1, True, 1.5, "2"])
def test_a_number_of_shards_that_is_none_is_refused(shards: Any):
    with pytest.raises(ConfigurationError, match="create_if_missing"):
        KinesisStream("orders", create_if_missing=shards)


def test_a_stream_named_by_arn_cannot_be_created():
    with pytest.raises(ConfigurationError, match="ARN cannot be created"):
        KinesisStream(ARN, create_if_missing=1)


def test_a_descriptor_is_a_value():
    assert KinesisStream("orders") == KinesisStream("orders")
    assert KinesisStream("orders") != KinesisStream("orders", poll_interval=3)
    assert len({KinesisStream("orders"), KinesisStream("orders")}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        KinesisStream("orders").poll_interval = 3  # type: ignore[misc]  # what must not work


def test_a_plain_name_means_the_default_descriptor():
    stream = KinesisStream("orders", poll_interval=3)

    assert KinesisStream.of("orders") == KinesisStream("orders")
    assert KinesisStream.of(stream) is stream
    with pytest.raises(ConfigurationError, match="None"):
        KinesisStream.of(None)  # type: ignore[arg-type]  # what must be refused


def test_a_name_and_an_arn_of_one_stream_are_two_references():
    assert StreamRef.parse("orders") != StreamRef.parse(ARN)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("orders", "orders", True),
        ("orders", "bills", False),
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "orders", True),
        (
            "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
            "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
            True,
        ),
        (
            "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
            "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
            False,
        ),
    ],
)
def test_two_names_mean_one_stream_unless_they_say_otherwise(one: str, other: str, *, same: bool):
    assert StreamRef.parse(one).may_be(StreamRef.parse(other)) is same
    assert StreamRef.parse(other).may_be(StreamRef.parse(one)) is same
