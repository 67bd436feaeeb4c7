"""One reader: pace, errors, position. Time is the test's own, so that it can be exact.

What needs a real socket or a whole service is below, on a scripted server, and in
`live/test_reading.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    RustStream,
)
from ruststream_kinesis import reader as reader_module
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.errors import KinesisError, RequestError
from ruststream_kinesis.leases import LeaseKey, LeaseState
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing import ManualClock
from tests.support.running import Inbox, Running, running
from tests.support.scripted import (
    Next,
    ScriptedKinesis,
    drop_connection,
    error,
    hang_after_headers,
    html,
    page,
    raw,
    record,
    truncated,
)

SHARD = "shardId-000000000000"
OTHER = "shardId-000000000001"
HORIZON = KinesisPosition.horizon()
AT = KinesisPosition.timestamp


def body(numbers: Sequence[int] = (), lag: int | None = 0, following: str | None = "next") -> bytes:
    """Return a GetRecords response with records of these sequence numbers."""
    found: dict[str, Any] = {
        "Records": [record(number, str(number).encode()) for number in numbers],
        "NextShardIterator": following,
    }
    if lag is not None:
        found["MillisBehindLatest"] = lag
    return json.dumps(found).encode()


def refusal(code: str, status: int | None = 400) -> RequestError:
    """Return a failure with this code."""
    return RequestError("made by a test", code=code, status=status, stream="orders", shard_id=SHARD)


EXPIRED = "ExpiredIteratorException"
THROTTLED = "ProvisionedThroughputExceededException"


@dataclass(frozen=True)
class Asked:
    """One GetShardIterator."""

    position: KinesisPosition
    after: bool


class Scripted:
    """A transport that answers reads from a list, and notes when it was asked for what."""

    def __init__(self, clock: ManualClock, answers: Sequence[bytes | KinesisError]) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.refusals: list[KinesisError] = []
        """What the next GetShardIterator calls raise."""
        self.asked: list[Asked] = []
        self.reads: list[tuple[float, str]] = []
        """Time and iterator of each GetRecords."""

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Refuse, or give the next iterator: `new-1`, then `new-2`."""
        await asyncio.sleep(0)
        self.asked.append(Asked(position, after))
        if self.refusals:
            raise self.refusals.pop(0)
        return f"new-{len(self.asked)}"

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Give the next answer; at their end never answer again."""
        self.reads.append((self.clock.monotonic(), iterator))
        await asyncio.sleep(0)
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, KinesisError):
            raise answer
        return answer

    @property
    def times(self) -> list[Any]:
        """When it was read, in seconds, to be compared with numbers."""
        return [pytest.approx(when) for when, _ in self.reads]


class Bench:
    """A reader with everything around it: clock, channel, and a worker that acks what comes."""

    def __init__(
        self,
        *answers: bytes | KinesisError,
        opening: KinesisPosition = HORIZON,
        after: bool = False,
        at_tip: bool = False,
        transport: Any = None,
    ) -> None:
        self.clock = ManualClock()
        self.transport: Any = transport or Scripted(self.clock, answers)
        self.channel = Channel()
        self.received: list[str] = []
        self.generations: list[int] = []
        """The stamp of each delivery that reached the worker."""
        self.acking = True
        self.moves = 0
        lease = LeaseState(LeaseKey("orders", SHARD), "me#1", 1, None)
        self.shard = HeldShard(
            lease, opening, after=after, clock=self.clock, moved=self._moved, at_tip=at_tip
        )
        calls: Any = self.transport
        self.reader = Reader(
            self.shard,
            KinesisStream("orders"),
            calls,
            self.channel,
            self.clock,
        )
        self.task: asyncio.Task[None] = asyncio.create_task(self.reader.run())
        self.worker = asyncio.create_task(self._work())

    def _moved(self, _: HeldShard) -> None:
        self.moves += 1

    async def _work(self) -> None:
        while (run := await self.channel.take(0)) is not None:
            for index in run.indices:
                self.channel.release()
                if self.shard.generation != run.generation:
                    continue
                self.received.append(run.page.sequence_number(index))
                self.generations.append(run.generation)
                if self.acking:
                    self.shard.ack(run.base + index)

    async def stop(self) -> None:
        """Cancel reader and worker."""
        for task in (self.task, self.worker):
            task.cancel()
        await asyncio.gather(self.task, self.worker, return_exceptions=True)


@contextlib.asynccontextmanager
async def bench(*answers: bytes | KinesisError, **options: Any) -> AsyncIterator[Bench]:
    """Run a reader over these answers."""
    made = Bench(*answers, **options)
    try:
        yield made
    finally:
        await made.stop()


# -- pace ------------------------------------------------------------------------------------------


async def test_case_r1_a_shard_that_lags_is_read_on_at_the_floor_and_an_idle_one_is_not():
    async with bench(
        body((), 60_000), body((), 30_000), body((1, 2, 3), 5_000), body((), 0), body((), 0)
    ) as it:
        await it.clock.advance(10)
        assert it.transport.times == [0, 0.2, 0.4, 0.6, 1.6, 2.6]
        assert it.received == ["1", "2", "3"]


async def test_case_r2_empty_pages_with_lag_are_followed_at_five_a_second_and_keep_the_position():
    pages = [body((), lag, f"i-{lag}") for lag in range(1, 21)]
    async with bench(body((7,), 50), *pages, refusal(EXPIRED), body()) as it:
        await it.clock.advance(10)
        followed = [iterator for _, iterator in it.transport.reads]
        assert followed[:22] == ["new-1", "next", *(f"i-{lag}" for lag in range(1, 21))]
        times = [when for when, _ in it.transport.reads][:22]
        assert all(later - earlier > 0.199 for earlier, later in itertools.pairwise(times))
        # What the position is shows when an iterator has to be built from it.
        assert it.transport.asked[1:] == [Asked(KinesisPosition.sequence(SHARD, "7"), after=True)]


async def test_records_without_a_lag_mean_that_there_may_be_more():
    async with bench(body((1,), None), body((), None), body((), None)) as it:
        await it.clock.advance(5)
        assert it.transport.times == [0, 0.2, 1.2, 2.2]
        assert it.shard.lag_ms is None
        assert it.received == ["1"]


async def test_time_spent_waiting_for_handlers_counts_towards_the_pause():
    async with bench(body(range(1, 201), 10), body((), 0)) as it:
        it.worker.cancel()
        await it.clock.advance(7)
        assert it.transport.times == [0]
        it.worker = asyncio.create_task(it._work())
        await it.clock.advance(0)
        assert it.transport.times == [0, 7]


# -- errors ----------------------------------------------------------------------------------------


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


SURVIVED = [
    (THROTTLED, 400),
    ("LimitExceededException", 400),
    ("KMSThrottlingException", 400),
    ("InternalFailure", 500),
    ("HTTP500", 500),
    ("HTTP503", 503),
    ("ClientPayloadError", None),
    ("Timeout", None),
]


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


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [body((8, 9), 0, None), body((8, 9), 0, "")])
async def test_a_shard_ends_where_its_iterators_do_and_the_last_records_are_delivered(last: bytes):
    async with bench(body((7,), 1), last) as it:
        await it.clock.advance(1)
        assert it.task.done()
        assert it.received == ["7", "8", "9"]
        assert it.shard.finished


async def test_a_shard_that_ends_empty_is_finished_at_once():
    async with bench(body((), 0, None)) as it:
        await it.clock.advance(0)
        assert it.shard.finished
        assert it.moves == 1


async def test_a_shard_that_holds_too_many_records_back_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reader_module, "MAX_HELD", 3)
    async with bench(*[body((number,), 100) for number in range(1, 9)]) as it:
        it.acking = False
        for place in range(8):
            await it.clock.advance(0.2)
            it.shard.hold(place)
        assert it.task.done()
        # One was on its way when the fourth was refused.
        assert it.received == ["1", "2", "3", "4", "5"]
        assert it.shard.watermark.drained


async def test_a_large_page_is_read_beside_the_loop_and_delivered_whole():
    records = [record(number, b"x" * 40_000) for number in range(1, 41)]
    large = json.dumps({"Records": records, "NextShardIterator": None}).encode()
    assert len(large) > 1024 * 1024
    async with bench(large) as it:
        await asyncio.wait_for(it.task, 10)
        await it.clock.advance(0)
        assert it.received == [str(number) for number in range(1, 41)]


# -- interruptions at every await ------------------------------------------------------------------


class Log:
    """A shard of twenty records, read three at a time, with some turns of the loop in each call."""

    count = 20

    def __init__(self) -> None:
        self.turns = 3

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Return the place as text."""
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if position.kind == "horizon":
            return "1"
        return str(int(position.sequence_number or "") + after)

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Return three records from there, and no iterator at the end."""
        for _ in range(self.turns):
            await asyncio.sleep(0)
        first = int(iterator)
        stop = min(first + 3, self.count + 1)
        return body(range(first, stop), 1, str(stop) if stop <= self.count else None)


EVERYTHING = [str(number) for number in range(1, Log.count + 1)]
TURNS = 90
"""More turns of the loop than the whole log takes."""


async def turn(it: Bench, turns: int) -> None:
    """Let the loop turn so often, with time moving as fast as it may."""
    for _ in range(turns):
        for _, _, woken in it.clock._sleepers:
            if not woken.done():
                woken.set_result(None)
        await asyncio.sleep(0)


@pytest.mark.parametrize("capacity", [2, 64])
async def test_a_reader_cut_off_at_any_await_leaves_position_and_places_that_skip_nothing(
    capacity: int,
):
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            it.channel._capacity = it.channel._free = capacity
            it.channel._enough = max(1, capacity // 2)
            await turn(it, turns)
            it.task.cancel()
            await asyncio.gather(it.task, return_exceptions=True)
            shard = it.shard
            taken = shard.watermark.next_place
            position = shard.read_from.sequence_number
            assert (int(position) if position else 0) == taken
            await turn(it, 10)
            # What was queued is handled, and the checkpoint covers that and not more.
            assert it.received == EVERYTHING[: len(it.received)]
            assert shard.watermark.position == (it.received[-1] if it.received else None)
            before = list(it.received)
        start = KinesisPosition.sequence(SHARD, before[-1]) if before else HORIZON
        async with bench(transport=Log(), opening=start, after=bool(before)) as again:
            await turn(again, 2 * TURNS)
            assert before + again.received == EVERYTHING
            assert again.shard.finished


async def test_a_rewind_at_any_await_gives_exactly_what_follows_the_new_position():
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            await turn(it, turns)
            if it.shard.ended:
                continue
            it.shard.void()
            it.shard.read_from, it.shard.read_after = KinesisPosition.sequence(SHARD, "5"), False
            it.channel.discard(it.shard)
            await turn(it, 2 * TURNS)
            new = [
                number
                for number, generation in zip(it.received, it.generations, strict=True)
                if generation == 1
            ]
            assert new == EVERYTHING[4:]
            assert it.shard.finished


@pytest.mark.parametrize("capacity", [2, 64])
async def test_a_shard_lost_at_any_await_gets_no_further_delivery_and_its_reader_ends(
    capacity: int,
):
    for turns in range(TURNS):
        async with bench(transport=Log()) as it:
            it.channel._capacity = it.channel._free = capacity
            it.channel._enough = max(1, capacity // 2)
            await turn(it, turns)
            if it.shard.ended:
                continue
            before = list(it.received)
            it.shard.lose()
            it.channel.discard(it.shard)
            await turn(it, 2 * TURNS)
            assert it.received == before
            assert it.task.done()
            assert it.channel.queued == 0


# -- a whole service on a scripted server ----------------------------------------------------------


@dataclass
class Served:
    """A running service, its server and what its handler got."""

    server: ScriptedKinesis
    clock: ManualClock
    inbox: Inbox
    service: Running
    store: MemoryLeaseStore

    async def gets(self, *payloads: bytes) -> None:
        """Move time until all of these came."""
        await self.service.drive(
            self.clock, lambda: set(payloads) <= set(self.inbox.items), what=repr(payloads)
        )


@contextlib.asynccontextmanager
async def serving(
    server: ScriptedKinesis,
    *,
    deadline: float = 10.0,
    start_at: KinesisPosition | None = None,
    handler: Callable[[Inbox], Any] | None = None,
) -> AsyncIterator[Served]:
    """Run a service on a scripted server; its time is the test's own, the sockets are real."""
    clock, inbox = ManualClock(), Inbox()
    store = MemoryLeaseStore(clock=clock)
    broker = KinesisBroker(
        endpoint_url=server.url, test_credentials=True, lease_store=store, clock=clock
    )
    transport = AwsTransport(broker.settings, clock, deadline=deadline)
    await transport.open()
    broker.connection.attach(transport)
    app = RustStream(broker, title="test", version="0")

    async def take(payload: bytes) -> None:
        inbox.put(payload)

    app.subscriber("orders", start_at=start_at)(handler(inbox) if handler else take)
    async with running(app) as service:
        yield Served(server, clock, inbox, service, store)


async def test_case_r4_the_tip_is_the_services_time_less_a_second_whatever_ours_is():
    async with ScriptedKinesis() as server:
        server.clock = lambda: 1_000_000_000.0
        server.on("GetRecords", [page(), error(EXPIRED), page([record(1, b"late")])])
        async with serving(server) as it:
            await it.gets(b"late")
        tip, rebuilt = server.calls("GetShardIterator")
        assert tip.body["ShardIteratorType"] == "LATEST"
        assert rebuilt.body["ShardIteratorType"] == "AT_TIMESTAMP"
        assert rebuilt.body["Timestamp"] == 999_999_999


async def test_case_r5_every_passing_answer_in_a_row_costs_no_record_and_no_iterator():
    faults = [
        *(error(code, status or 500) for code, status in SURVIVED[:4]),
        html(500),
        html(503),
        raw(b"<html>"),
        raw(b'{"Records": [{"Data": 5}]}'),
        truncated(page([record(2, b"two")])),
        truncated(page([record(2, b"two")]), keep=0),
        drop_connection(),
    ]
    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page([record(1, b"one")], 5), *faults, page([record(2, b"two")])])
        async with serving(server) as it:
            await it.gets(b"one", b"two")
            assert it.inbox.items == [b"one", b"two"]
        assert len(server.calls("GetShardIterator")) == 1
        reads = server.calls("GetRecords")[1 : len(faults) + 2]
        assert len({call.body["ShardIterator"] for call in reads}) == 1


async def test_case_r7_a_read_that_hangs_is_cut_off_and_read_again_while_others_go_on():
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        hang = hang_after_headers()
        server.on(
            "GetRecords",
            [page([record(1, b"one")], 5), hang, page([record(2, b"two")])],
            shard=SHARD,
        )
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 5), shard=OTHER)
        async with serving(server, deadline=0.5) as it:
            await it.service.drive(it.clock, hang.reached.is_set)
            rows = {row.key.shard_id: row.owner for row in await it.store.leases("orders")}
            others = it.inbox.items.count(b"other")
            await it.service.drive(it.clock, lambda: it.inbox.items.count(b"other") > others + 20)
            await it.gets(b"two")
            assert it.inbox.items.count(b"one") == 1
            # The same acquisition still holds both shards.
            assert {row.key.shard_id: row.owner for row in await it.store.leases("orders")} == rows
        _, hung, again, *_ = server.calls("GetRecords", shard=SHARD)
        assert hung.body["ShardIterator"] == again.body["ShardIterator"]
        assert len(server.calls("GetShardIterator")) == 2


async def test_case_r8_a_dropped_connection_is_its_own_shards_failure_only(
    caplog: pytest.LogCaptureFixture,
):
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        server.on("GetRecords", [drop_connection()] * 3, shard=SHARD)
        server.on("GetRecords", lambda call: page([record(call.count, b"other")], 5), shard=OTHER)
        async with serving(server) as it:
            await it.service.drive(
                it.clock, lambda: len(server.calls("GetRecords", shard=SHARD)) > 5
            )
        assert all(
            OTHER not in entry.getMessage() for entry in caplog.records if entry.levelno > 20
        )
        assert len(server.calls("GetShardIterator")) == 2


async def test_case_r9_a_missing_lag_and_an_odd_arrival_time_cost_no_record():
    odd = [
        record(1, b"none", arrival=None),
        record(2, b"huge", arrival=1e30),
        record(3, b"early", arrival=-1e30),
        record(4, b"right", arrival=1_700_000_000.0),
    ]
    times: list[Any] = []

    def handler(inbox: Inbox) -> Any:
        async def take(payload: bytes, message: KinesisMessage[bytes]) -> None:
            times.append(message.arrival)
            inbox.put(payload)

        return take

    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page(odd, None)])
        async with serving(server, handler=handler) as it:
            await it.gets(b"none", b"huge", b"early", b"right")
        assert times[:3] == [None, None, None]
        assert times[3] is not None


async def test_case_r10_the_end_of_a_shard_does_not_touch_its_neighbour():
    async with ScriptedKinesis([SHARD, OTHER]) as server:
        server.on("GetRecords", [page([record(1, b"last")], 0, None)], shard=SHARD)
        following = [page([record(n, str(n).encode())], 5) for n in range(100)]
        server.on("GetRecords", following, shard=OTHER)
        async with serving(server) as it:
            await it.gets(b"last", *(str(n).encode() for n in range(100)))
            assert it.inbox.items.count(b"last") == 1
            row = await it.store.read(LeaseKey("orders", SHARD))
            assert row is not None
            assert row.finished
        assert len(server.calls("GetRecords", shard=SHARD)) == 1


@pytest.mark.parametrize("last", [None, "", Next.MISSING], ids=["null", "empty", "missing"])
async def test_each_way_in_which_a_shard_ends_finishes_it(last: Any):
    async with ScriptedKinesis() as server:
        server.on("GetRecords", [page([record(1, b"last")], 0, last)])
        async with serving(server) as it:
            await it.gets(b"last")
            finished = asyncio.Event()

            async def look() -> None:
                while not finished.is_set():
                    row = await it.store.read(LeaseKey("orders", SHARD))
                    if row is not None and row.finished and row.owner is None:
                        finished.set()
                    await it.clock.advance(0.1)

            await it.service.wait(look())
