"""Outcomes are values: one object each where nothing differs."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis import Outcome, ack, drop, retry, retry_after
from ruststream_kinesis.errors import ConfigurationError


def test_the_plain_outcomes_are_one_object_each():
    assert ack() is ack()
    assert drop() is drop()
    assert retry() is retry()
    assert len({ack(), drop(), retry()}) == 3


def test_an_outcome_made_by_hand_equals_the_usual_one():
    assert Outcome("ack") == ack()
    assert Outcome("retry_after", 2.0) == retry_after(2)


@pytest.mark.parametrize("seconds", [0, 0.5, 86_400])
def test_a_delay_is_kept_in_seconds(seconds: float):
    assert retry_after(seconds).delay == seconds
    assert retry_after(seconds).kind == "retry_after"


@pytest.mark.parametrize(
    "seconds", [-1, -0.001, float("nan"), float("inf"), 10**400, True, None, "30"], ids=repr
)
def test_a_delay_that_is_no_time_is_refused(seconds: Any):
    with pytest.raises(ConfigurationError, match="retry_after"):
        retry_after(seconds)
