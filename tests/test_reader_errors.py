"""One reader and what goes wrong: which failures it survives, with which iterator and position."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.errors import RequestError
from tests.support.reading import (
    AT,
    EXPIRED,
    HORIZON,
    SHARD,
    SURVIVED,
    THROTTLED,
    Asked,
    bench,
    body,
    refusal,
)


async def test_case_r3_an_expired_iterator_is_rebuilt_behind_the_last_record_read():
    start = KinesisPosition.sequence(SHARD, "100")
    async with bench(body((100, 300, 500), 0), refusal(EXPIRED), body((600,)), opening=start) as it:
        it.acking = False
        await it.clock.advance(3)
        assert it.transport.asked == [
            Asked(start, after=False),
            Asked(KinesisPosition.sequence(SHARD, "500"), after=True),
        ]
        # No checkpoint was stored, and still nothing is read twice.
        assert it.shard.checkpoint is None
        assert it.received == ["100", "300", "500", "600"]


async def test_case_r4_an_iterator_at_the_tip_that_expires_unread_is_rebuilt_at_the_opening():
    async with bench(body(), refusal(EXPIRED), body((1,)), opening=AT(1000.0), at_tip=True) as it:
        await it.clock.advance(3)
        assert it.transport.asked == [
            Asked(KinesisPosition.latest(), after=False),
            Asked(AT(1000.0), after=False),
        ]
        assert it.received == ["1"]


async def test_the_tip_is_asked_for_once_even_when_that_call_fails():
    async with bench(body(), opening=AT(1000.0), at_tip=True) as it:
        it.transport.refusals = [refusal(THROTTLED)]
        await it.clock.advance(3)
        assert [asked.position.kind for asked in it.transport.asked] == ["latest", "timestamp"]


async def test_an_expired_iterator_is_replaced_at_once_but_not_in_a_loop():
    async with bench(*[refusal(EXPIRED)] * 30) as it:
        await it.clock.advance(0)
        assert it.transport.times == [0, 0]
        await it.clock.advance(1)
        assert len(it.transport.reads) < 6


@pytest.mark.parametrize(("code", "status"), SURVIVED)
@pytest.mark.parametrize("times", [1, 5])
async def test_case_r5_a_passing_failure_is_survived_with_the_same_iterator(
    code: str, status: int | None, times: int
):
    async with bench(
        body((1,), 5), *[refusal(code, status)] * times, body((2,)), opening=HORIZON
    ) as it:
        await it.clock.advance(30)
        assert it.received == ["1", "2"]
        assert [iterator for _, iterator in it.transport.reads[1 : times + 2]] == ["next"] * (
            times + 1
        )
        assert len(it.transport.asked) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"", body((2,))[:-7], b"[]"])
async def test_a_page_that_cannot_be_read_is_read_again_with_the_same_iterator(answer: bytes):
    async with bench(body((1,), 5), answer, body((2,))) as it:
        await it.clock.advance(5)
        assert it.received == ["1", "2"]
        assert [iterator for _, iterator in it.transport.reads[:3]] == ["new-1", "next", "next"]


async def test_case_r6_throttles_back_off_with_one_warning_a_minute_and_no_burst_after_them(
    caplog: pytest.LogCaptureFixture,
):
    throttles = [refusal(THROTTLED)] * 10
    pages = [body((number,), 900) for number in range(1, 6)]
    async with bench(*throttles, *pages) as it:
        await it.clock.advance(100)
        reads = it.transport.reads
        assert [iterator for _, iterator in reads[:11]] == ["new-1"] * 11
        times = [when for when, _ in reads]
        delays = [later - earlier for earlier, later in itertools.pairwise(times)]
        for place, delay in enumerate(delays[:10]):
            step = min(10.0, 0.2 * 2**place)
            assert step / 2 <= delay <= step
        # Jitter: not one of them is the bare step.
        assert (
            len({round(delay / min(10.0, 0.2 * 2**n), 6) for n, delay in enumerate(delays[:10])})
            > 5
        )
        assert all(delay > 0.199 for delay in delays[10:])
        warnings = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
        assert sum(delays[:10]) < 60
        assert len(warnings) == 1
        assert SHARD in warnings[0].getMessage()


async def test_case_r6_a_shard_that_is_throttled_for_long_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
):
    async with bench(*[refusal(THROTTLED)] * 200) as it:
        await it.clock.advance(239)
        warnings = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
        assert len(warnings) == 4


async def test_a_success_makes_the_next_failure_a_first_one_again():
    async with bench(*[refusal(THROTTLED)] * 8, body((), 5), refusal(THROTTLED), body()) as it:
        await it.clock.advance(100)
        times = [when for when, _ in it.transport.reads]
        assert times[10] - times[9] <= 0.2


@pytest.mark.parametrize("code", ["AccessDeniedException", "ResourceNotFoundException"])
async def test_a_failure_that_asking_again_cannot_mend_ends_the_reader_with_its_position(code: str):
    async with bench(body((5,), 1), refusal(code), body((6,))) as it:
        await it.clock.advance(5)
        with pytest.raises(RequestError, match="made by a test"):
            await it.task
        assert it.shard.read_from == KinesisPosition.sequence(SHARD, "5")
        assert not it.shard.ended


async def test_an_iterator_that_only_failed_for_five_minutes_is_built_anew_from_the_position():
    # kinesis-local answers a plain 500 for an iterator that it does not know.
    async with bench(body((5,), 1), *[refusal("HTTP500", 500)] * 60) as it:
        await it.clock.advance(290)
        assert len(it.transport.asked) == 1
        await it.clock.advance(30)
        assert it.transport.asked[1] == Asked(KinesisPosition.sequence(SHARD, "5"), after=True)
        assert len(it.transport.asked) == 2


async def test_an_iterator_that_gives_pages_is_kept_however_old_the_shard_is():
    async with bench(*[body()] * 400, *[refusal("HTTP500", 500)] * 5, body()) as it:
        await it.clock.advance(420)
        assert len(it.transport.asked) == 1


async def test_a_position_the_service_does_not_know_goes_on_from_the_horizon_with_a_loud_event(
    caplog: pytest.LogCaptureFixture,
):
    position = KinesisPosition.sequence(SHARD, "42")
    async with bench(body((90,)), opening=position, after=True) as it:
        it.transport.refusals = [refusal("InvalidArgumentException")]
        await it.clock.advance(1)
        assert it.transport.asked == [Asked(position, after=True), Asked(HORIZON, after=False)]
        assert it.received == ["90"]
    (loud,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert "DATA LOSS" in loud.getMessage()
    assert "42" in loud.getMessage()
    assert loud.__dict__["event"] == "data_loss"


async def test_a_rewind_while_the_old_position_is_refused_keeps_the_new_position():
    async with bench(body((7,)), opening=KinesisPosition.sequence(SHARD, "42")) as it:
        it.transport.refusals = [refusal("InvalidArgumentException")]
        await asyncio.sleep(0)
        it.shard.void()
        it.shard.read_from = new = KinesisPosition.sequence(SHARD, "7")
        await it.clock.advance(1)
        assert [asked.position for asked in it.transport.asked][1:] == [new]


async def test_an_invalid_iterator_is_no_reason_to_doubt_the_position(
    caplog: pytest.LogCaptureFixture,
):
    async with bench(body((5,), 1), refusal("InvalidArgumentException"), body((6,))) as it:
        await it.clock.advance(1)
        assert it.transport.asked[1] == Asked(KinesisPosition.sequence(SHARD, "5"), after=True)
        assert it.received == ["5", "6"]
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


async def test_a_timestamp_the_service_refuses_is_asked_for_again_and_never_turned_into_the_horizon():
    async with bench(body((1,)), opening=AT(1000.0)) as it:
        it.transport.refusals = [refusal("InvalidArgumentException")] * 3
        await it.clock.advance(5)
        assert it.transport.asked == [Asked(AT(1000.0), after=False)] * 4
        assert it.received == ["1"]


async def test_the_opening_is_over_at_the_first_failure_and_not_after_its_pause():
    async with bench(body()) as it:
        it.transport.refusals = [refusal(THROTTLED)]
        await it.clock.advance(0)
        assert it.shard.opened.is_set()
