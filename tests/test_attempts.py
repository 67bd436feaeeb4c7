"""What a refused delivery means, and how its copy and its dead letter look, byte for byte."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis import (
    KinesisBroker,
    KinesisStream,
    Outcome,
    RustStream,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.attempts import Action, Copy, RetryPolicy, dead_letter_blobs, error_line
from ruststream_kinesis.errors import ConfigurationError, HandlerError
from ruststream_kinesis.message import attempt_of
from tests.support.copying import DEAD, Script, Shard, enveloped, run_of

COUNT = "x-ruststream-retry-count"
NOT_BEFORE = "x-ruststream-not-before"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/"


class TestDecisions:
    @pytest.mark.parametrize("outcome", [retry(), retry_after(5)])
    @pytest.mark.parametrize(
        ("policy", "actions"),
        [
            (RetryPolicy(max_attempts=1), [Action.GIVE_UP, Action.GIVE_UP]),
            (RetryPolicy(max_attempts=2), [Action.COPY, Action.GIVE_UP, Action.GIVE_UP]),
            (RetryPolicy(max_attempts=2, dead_letter=DEAD), [Action.COPY, Action.DEAD_LETTER]),
            (RetryPolicy(dead_letter=DEAD), [Action.DEAD_LETTER, Action.DEAD_LETTER]),
        ],
    )
    def test_a_cap_counts_every_delivery_of_a_record(
        self, policy: RetryPolicy, actions: list[Action], outcome: Outcome
    ):
        assert [policy.action(outcome, n) for n in range(1, len(actions) + 1)] == actions

    def test_without_a_cap_retry_holds_and_retry_after_copies_for_ever(self):
        policy = RetryPolicy()

        for attempt in (1, 2, 1_000_000):
            assert policy.action(retry(), attempt) is Action.HOLD
            assert policy.action(retry_after(0), attempt) is Action.COPY


class TestRegistration:
    @staticmethod
    def declare(stream: KinesisStream | str = "orders", **options: Any) -> None:
        app = RustStream(KinesisBroker(), title="t", version="0")

        async def handle(value: int) -> None: ...

        app.subscriber(stream, **options)(handle)

    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "3", math.nan])
    def test_fewer_than_one_attempt_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError, match="max_attempts"):
            self.declare(max_attempts=value)

    @pytest.mark.parametrize("value", ["later", "", None, True, []])
    def test_an_unknown_way_to_defer_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError, match="deferred"):
            self.declare(deferred=value)

    @pytest.mark.parametrize(
        ("stream", "dead_letter"),
        [
            ("orders", "orders"),
            (ARN + "orders", "orders"),
            ("orders", ARN + "orders"),
            (ARN + "orders", ARN + "orders"),
            (KinesisStream("orders"), "orders"),
        ],
    )
    def test_a_dead_letter_stream_that_is_the_stream_itself_is_refused(
        self, stream: Any, dead_letter: str
    ):
        with pytest.raises(ConfigurationError, match="stream itself"):
            self.declare(stream, dead_letter=dead_letter)

    def test_a_dead_letter_stream_of_that_name_in_another_region_is_another_stream(self):
        self.declare(ARN + "orders", dead_letter=ARN.replace("west", "north") + "orders")

    @pytest.mark.parametrize("value", ["no blanks", "", 3, object(), KinesisStream("dead")])
    def test_a_dead_letter_that_names_no_stream_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError):
            self.declare(dead_letter=value)

    @pytest.mark.parametrize("value", [0, -1, True, 2.0, "10"])
    def test_a_batch_of_less_than_one_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError, match="batch"):
            self.declare(batch=value)

    @pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1"])
    def test_a_batch_window_that_is_no_time_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError, match="batch_window"):
            self.declare(batch=2, batch_window=value)

    @pytest.mark.parametrize("annotation", [int, "list", "dict[str, int]", "tuple[int, ...]"])
    def test_a_batch_handler_that_takes_no_list_is_refused(self, annotation: Any):
        app = RustStream(KinesisBroker(), title="t", version="0")

        async def handle(values: Any) -> None: ...

        handle.__annotations__["values"] = annotation
        with pytest.raises(HandlerError, match=r"values.*list\[T\]"):
            app.subscriber("orders", batch=10)(handle)

    @pytest.mark.parametrize(
        "value",
        [-1, -0.001, math.nan, math.inf, 10**400, "1", None, True],
        ids=lambda v: str(v)[:9],
    )
    def test_a_delay_that_is_no_time_is_refused(self, value: Any):
        with pytest.raises(ConfigurationError, match="retry_after"):
            retry_after(value)


class TestCopies:
    def test_a_copy_counts_the_earlier_deliveries_and_carries_the_rest_byte_for_byte(self):
        block = b"trace: 7\nodd line\n bad\xff :\xfe \r\n\nlast: without end"
        payload = bytes(range(256))

        blob = Script().copy(enveloped(block, payload), attempts=3).blob()

        # Only the line that had no end gets one: ours must stand on a line of its own.
        assert blob == enveloped(block + f"\n{COUNT}: 3\n".encode(), payload)

    def test_a_record_without_headers_gets_an_envelope_with_the_count_alone(self):
        assert Script().copy(b"1", attempts=1).blob() == enveloped(f"{COUNT}: 1\n".encode(), b"1")

    def test_a_copy_of_a_copy_has_one_count_and_does_not_grow(self):
        script = Script()
        blob = script.copy(b"1", attempts=1).blob()
        for attempts in range(2, 10):
            grown = script.copy(blob, attempts=attempts).blob()
            assert len(grown) == len(blob)
            blob = grown

        assert decode_envelope(blob) == ({COUNT: "9"}, b"1")

    def test_the_facts_of_a_delivery_are_left_out(self):
        block = b"partition-key: somebody's\nkinesis-sequence-number: 1\na: b\nkinesis-shard-id: shard\n"

        copy = Script().copy(enveloped(block, b"1"))

        assert decode_envelope(copy.blob())[0] == {"a": "b", COUNT: "1"}
        for blob in dead_letter_blobs(copy, None):
            assert b"partition-key" not in blob
            assert b"kinesis-" not in blob

    def test_a_copy_that_goes_out_early_says_when_it_is_due(self):
        copy = Script().copy(due=1_700_000_000.0001)

        assert decode_envelope(copy.blob(early=True))[0][NOT_BEFORE] == "1700000000001"
        assert NOT_BEFORE not in decode_envelope(copy.blob())[0]

    @pytest.mark.parametrize("delay", [1e11, 1e300, 1.7e308])
    def test_a_delay_of_ages_still_makes_a_time_that_its_receiver_takes(self, delay: float):
        copy = Script().copy(due=delay)

        assert decode_envelope(copy.blob(early=True))[0][NOT_BEFORE] == "9" * 13

    def test_the_mark_of_a_copy_that_came_early_is_gone_from_the_next_one(self):
        script = Script()
        early = script.copy(due=5.0).blob(early=True)

        assert decode_envelope(script.copy(early, attempts=2).blob())[0] == {COUNT: "2"}

    @pytest.mark.parametrize(
        "value", ["", "-1", "+1", "1.5", "1e3", "\u0663", "two", "1" * 10, "0x1", "1 2", "\xb2"]
    )
    def test_a_malformed_count_is_none(self, value: str):
        blob = enveloped(f"{COUNT}: {value}\n".encode(), b"1")
        run = run_of(Shard([]), blob)

        assert attempt_of(run.page, 0) == 1
        assert decode_envelope(Copy(run, 0, 1).blob())[0][COUNT] == "1"

    @pytest.mark.parametrize(("value", "attempt"), [("0", 1), ("1", 2), (" 41 ", 42), ("007", 8)])
    def test_the_attempt_is_one_more_than_the_count(self, value: str, attempt: int):
        run = run_of(Shard([]), enveloped(f"{COUNT}: {value}\n".encode(), b"1"))

        assert attempt_of(run.page, 0) == attempt


class TestDeadLetters:
    def test_it_carries_origin_attempts_and_error_beside_what_was_received(self):
        copy = Script().copy(enveloped(b"trace: 7\n" + f"{COUNT}: 2\n".encode(), b"\x00\xff"), 3)

        headers, payload = decode_envelope(next(dead_letter_blobs(copy, ValueError("no\nsuch"))))

        assert payload == b"\x00\xff"
        assert headers == {
            "trace": "7",
            "x-ruststream-origin-stream": "orders",
            "x-ruststream-origin-shard": "shardId-0",
            "x-ruststream-origin-sequence-number": "1",
            "x-ruststream-attempts": "3",
            "x-ruststream-error": "ValueError: no such",
        }

    def test_there_is_no_error_where_nothing_was_raised(self):
        blobs = dead_letter_blobs(Script().copy(), None)

        assert "x-ruststream-error" not in decode_envelope(next(blobs))[0]

    def test_the_headers_of_an_earlier_dead_letter_are_replaced(self):
        script = Script()
        first = next(dead_letter_blobs(script.copy(attempts=4), ValueError("first")))

        headers, _ = decode_envelope(next(dead_letter_blobs(script.copy(first, 1), None)))

        assert "x-ruststream-error" not in headers
        assert headers["x-ruststream-attempts"] == "1"

    def test_our_headers_give_way_one_by_one_and_the_last_is_no_larger_than_the_record(self):
        copy = Script().copy(b"1")

        *marked, bare = dead_letter_blobs(copy, ValueError("no"))

        assert [len(decode_envelope(blob)[0]) for blob in marked] == [5, 4, 3]
        assert bare == b"1"

    def test_a_payload_that_looks_like_an_envelope_and_is_none_reads_back_the_same(self):
        payload = b"RSK1\xff\xff\xff\xff"

        for blob in dead_letter_blobs(Script().copy(payload), None):
            assert decode_envelope(blob)[1] == payload


class TestErrorLines:
    @given(st.text(st.characters(), max_size=2000))
    def test_any_message_becomes_one_line_that_an_envelope_takes(self, text: str):
        copy = Script().copy()

        headers, _ = decode_envelope(next(dead_letter_blobs(copy, ValueError(text))))

        line = headers["x-ruststream-error"]
        assert line.startswith("ValueError:")
        assert len(line.encode()) <= 1024
        assert line == error_line(ValueError(text))

    def test_a_long_message_is_cut_between_characters(self):
        line = error_line(ValueError("日" * 1000))

        assert line is not None
        assert 1020 < len(line.encode()) <= 1024
        assert set(line.removeprefix("ValueError: ")) == {"日"}

    def test_an_error_that_cannot_say_what_it_is_still_makes_a_line(self):
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even this")

        assert error_line(Mute()) == "Mute: (its message cannot be made)"


def test_an_outcome_is_frozen_so_that_one_object_serves_everybody():
    with pytest.raises(AttributeError):
        drop().delay = 1.0  # type: ignore[misc]  # the point of the test
