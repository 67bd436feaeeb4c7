"""How errors and places read in the log: one line, nothing escaped, nothing that fills the screen."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.errors import StreamNotFound
from ruststream_kinesis.opening import Place
from ruststream_kinesis.wording import asked_at, instant, label, short, shown, trace

NUMBER = "49680000000000000000000000000000000000000000000000000018"
OURS = StreamNotFound("create it with 'aws kinesis'", code="X", stream="orders")


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_an_error_of_ours_is_its_message_and_anothers_has_its_type():
    assert shown(OURS) == "create it with 'aws kinesis' [stream orders]"
    assert shown(ValueError("x")) == "ValueError('x')"


def test_an_error_that_cannot_be_shown_has_a_name_left():
    assert shown(Unspeakable()) == "Unspeakable"


def test_a_failure_that_was_raised_on_purpose_has_no_traceback_unless_somebody_debugs():
    quiet, debugged = logging.getLogger("test.quiet"), logging.getLogger("test.debugged")
    quiet.setLevel(logging.INFO)
    debugged.setLevel(logging.DEBUG)
    other = ValueError()

    assert trace(OURS, quiet) is None
    assert trace(other, quiet) is other
    assert trace(OURS, debugged) is OURS


def test_times_are_in_utc_with_as_many_digits_as_they_need():
    assert instant(1_796_072_400.0) == "2026-11-30T21:00:00Z"
    assert instant(0.25) == "1970-01-01T00:00:00.250Z"
    assert "1e+300" in instant(1e300)


def test_a_sequence_number_keeps_the_digits_that_tell_it_from_others():
    assert short(NUMBER) == "4968…00000018"
    assert short("18") == "18"


def test_a_subscription_is_named_with_its_group():
    assert label("orders", None) == "orders"
    assert label("orders", "a") == "orders@a"


def test_where_a_shard_opens_fits_into_a_line():
    position = KinesisPosition.sequence("shardId-000000000000", NUMBER)

    assert str(Place(position, after=True)) == "after 4968…00000018"
    assert str(Place(position)) == "at 4968…00000018"
    assert str(Place(KinesisPosition.timestamp(0), at_tip=True)) == "from the tip"
    assert str(Place(KinesisPosition.timestamp(0))) == "from 1970-01-01T00:00:00Z"
    assert str(Place(KinesisPosition.horizon())) == "from horizon"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://kinesis.eu-west-1.example.com", "kinesis.eu-west-1.example.com"),
        ("http://me:secret@127.0.0.1:4567/path?x=1", "127.0.0.1:4567"),
    ],
)
def test_an_endpoint_is_its_host_and_no_more(url: str, host: str):
    meta = SimpleNamespace(endpoint_url=url, region_name="eu-west-1")

    assert asked_at(meta) == f"{host}, region eu-west-1"
