"""One tree of errors that say where they happened, also after a trip through pickle."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from ruststream_kinesis import errors
from ruststream_kinesis.errors import KinesisError, LeaseTableError, RequestError, StreamNotFound

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


def make(kind: type[KinesisError]) -> KinesisError:
    place: dict[str, Any] = {
        "stream": "orders",
        "shard_id": "shardId-0",
        "sequence_number": "7",
    }
    if issubclass(kind, RequestError):
        return kind("it broke", code="Broken", status=400, **place)
    if issubclass(kind, LeaseTableError):
        place |= {"table": "leases", "code": "Broken"}
        return kind("it broke", **place)
    return kind("it broke", **place)


def test_every_error_is_exported_and_below_the_base():
    assert {kind.__name__ for kind in ALL} == set(errors.__all__)
    assert all(issubclass(kind, KinesisError) for kind in ALL)


@pytest.mark.parametrize("kind", ALL)
def test_every_error_says_where_it_happened(kind: type[KinesisError]):
    error = make(kind)

    assert str(error) == "it broke [stream orders, shard shardId-0, sequence number 7]"
    assert (error.stream, error.shard_id, error.sequence_number) == ("orders", "shardId-0", "7")


def test_an_error_without_a_place_is_its_message():
    assert str(KinesisError("it broke")) == "it broke"
    assert str(KinesisError("it broke", shard_id="shardId-0")) == "it broke [shard shardId-0]"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_being_copied_with_all_it_says(kind: type[KinesisError], through):
    error = make(kind)

    other = through(error)

    assert type(other) is kind
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_an_error_of_the_users_value_is_caught_as_the_builtin_kind_too():
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.InvalidRecord, ValueError)
    assert issubclass(errors.EnvelopeError, ValueError)
    assert issubclass(errors.HandlerError, TypeError)


def test_a_request_error_keeps_code_and_status_for_decisions():
    error = StreamNotFound("no", code="ResourceNotFoundException", status=400)

    assert (error.code, error.status) == ("ResourceNotFoundException", 400)
    assert RequestError("no answer", code="Timeout").status is None
