"""Renewal: on a thread of its own where the store allows it, and never longer than it should."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from ruststream_kinesis import LeaseKey, LeaseState, LeaseStore, MemoryLeaseStore
from ruststream_kinesis import heartbeat as heartbeat_module
from ruststream_kinesis.clock import Clock, SystemClock
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.heartbeat import LEASE_DURATION, Heartbeat, Tenure
from ruststream_kinesis.leases.base import Member
from ruststream_kinesis.loopthread import run_in_thread
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.testing import ManualClock

KEY = LeaseKey("orders", "shardId-0")


class ThreadStore(MemoryLeaseStore):
    """A store that may be renewed from another thread, and says from which one it was."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.renewals = 0
        self.threads: set[str] = set()
        self.closed_in: set[str] = set()
        self.members: list[Member] = []
        self.fails: Exception | None = None
        self.renewed: Callable[[], None] = lambda: None

    def renewer(self) -> LeaseStore | None:
        return self

    async def renew(self, held: LeaseState) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fails is not None:
            raise self.fails
        await super().renew(held)
        self.renewals += 1
        self.renewed()

    async def beat(self, member: Member, *, duration: float) -> None:
        await super().beat(member, duration=duration)
        self.members.append(member)

    async def close(self) -> None:
        self.closed_in.add(threading.current_thread().name)


class Split(MemoryLeaseStore):
    """A store with a renewer that is another object, as one with a client for each loop has."""

    def __init__(self, inner: ThreadStore) -> None:
        super().__init__()
        self.inner = inner

    def renewer(self) -> LeaseStore | None:
        return self.inner


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    failures: list[BaseException] = []
    made = Supervisor(failures.append)
    yield made
    await made.close()
    assert failures == []


async def taken(store: MemoryLeaseStore) -> LeaseState:
    lease = await store.acquire(KEY, "me", duration=LEASE_DURATION)
    assert lease is not None
    return lease


class TestInTheMainLoop:
    async def test_a_lease_is_renewed_every_pass_and_stays_ours(self, supervisor: Supervisor):
        clock = ManualClock()
        store = MemoryLeaseStore(clock=clock)
        beat = Heartbeat(store, clock, "me")
        await beat.join("orders", supervisor)
        over: list[str] = []
        tenure = beat.hold(await taken(store), clock.monotonic(), over.append)

        for _ in range(20):
            await clock.advance(3)
            assert not tenure.expire(clock.monotonic())
            assert await store.acquire(KEY, "you", duration=LEASE_DURATION) is None
        assert over == []

    async def test_what_is_dropped_is_not_renewed_any_more(self, supervisor: Supervisor):
        clock = ManualClock()
        store = MemoryLeaseStore(clock=clock)
        beat = Heartbeat(store, clock, "me")
        await beat.join("orders", supervisor)
        beat.drop(beat.hold(await taken(store), clock.monotonic(), lambda _: None))

        await clock.advance(LEASE_DURATION + 0.1)

        assert await store.acquire(KEY, "you", duration=LEASE_DURATION) is not None

    async def test_a_lost_lease_is_told_once(self, supervisor: Supervisor):
        clock = ManualClock()
        store = MemoryLeaseStore(clock=clock)
        beat = Heartbeat(store, clock, "me")
        await beat.join("orders", supervisor)
        over: list[str] = []
        tenure = beat.hold(await taken(store), clock.monotonic(), over.append)
        store._rows[KEY].owner = "thief#1"

        await clock.advance(9)

        assert len(over) == 1
        assert "thief#1" in over[0]
        assert tenure.expire(clock.monotonic())
        assert len(over) == 1

    async def test_a_store_that_is_down_ends_the_tenure_before_the_lease_runs_out(
        self, supervisor: Supervisor
    ):
        clock = ManualClock()
        store = ThreadStore(clock)
        store.fails = ConnectionError("down")
        store.renewer = lambda: None  # type: ignore[method-assign] # in the main loop, here
        beat = Heartbeat(store, clock, "me")
        await beat.join("orders", supervisor)
        over: list[str] = []
        tenure = beat.hold(await taken(store), clock.monotonic(), over.append)

        await clock.advance(9.4)
        assert not tenure.expire(clock.monotonic())
        await clock.advance(0.2)

        assert tenure.expire(clock.monotonic())
        assert over == ["its lease ran out unrenewed"]
        assert await store.acquire(KEY, "you", duration=LEASE_DURATION) is None

    async def test_a_late_answer_revives_nothing(self):
        over: list[str] = []
        tenure = Tenure(LeaseState(KEY, "me#1", 1, None), 10.0, over.append)
        assert tenure.expire(10.0)

        tenure.prolong(100.0)

        assert tenure.expire(11.0)
        assert len(over) == 1

    async def test_a_beat_that_arrives_after_the_member_left_leaves_no_ghost(
        self, supervisor: Supervisor
    ):
        clock = ManualClock()
        store = MemoryLeaseStore(clock=clock)
        beat = Heartbeat(store, clock, "me")
        await beat.join("orders", supervisor)
        on_its_way, arrives = asyncio.Event(), asyncio.Event()
        write = store.beat

        async def late(member: Member, *, duration: float) -> None:
            on_its_way.set()
            await arrives.wait()
            await write(member, duration=duration)

        store.beat = late  # type: ignore[method-assign] # a store that is slow once
        await clock.advance(3)
        assert on_its_way.is_set()
        await beat.part("orders")
        arrives.set()
        await clock.advance(0)

        assert (await store.survey("orders")).members == ()

    async def test_members_come_go_and_die(self, supervisor: Supervisor):
        clock = ManualClock()
        store = MemoryLeaseStore(clock=clock)
        beats = [Heartbeat(store, clock, "twin") for _ in range(2)]
        for beat in beats:
            await beat.join("orders", supervisor)
        await beats[0].join("bills", supervisor)

        async def nonces(stream: str) -> set[str]:
            return {member.nonce for member in (await store.survey(stream)).members}

        await clock.advance(30)
        assert await nonces("orders") == {beat.member.nonce for beat in beats}
        assert await nonces("bills") == {beats[0].member.nonce}
        await beats[0].part("orders")
        assert await nonces("orders") == {beats[1].member.nonce}
        assert await nonces("bills") == {beats[0].member.nonce}
        await beats[0].part("bills")
        assert await nonces("bills") == set()
        await supervisor.close()
        await clock.advance(7.1)
        assert await nonces("orders") == set()


class TestOnAThread:
    async def test_a_handler_that_blocks_the_loop_does_not_lose_the_lease(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
    ):
        """Case L1: renewals go on while the main loop stands."""
        monkeypatch.setattr(heartbeat_module, "PASS_INTERVAL", 0.001)
        inner = ThreadStore()
        enough = threading.Event()
        beat = Heartbeat(Split(inner), SystemClock(), "me")
        await beat.join("orders", supervisor)
        tenure = beat.hold(await taken(inner), SystemClock().monotonic(), lambda _: None)
        until = tenure.until
        inner.renewed = lambda: enough.set() if inner.renewals >= 5 else None

        # The main loop stands still here, as in a handler that blocks.
        assert enough.wait(20)

        assert tenure.until > until
        assert inner.threads == {"heartbeat"}

    async def test_the_thread_ends_with_the_service_and_closes_what_it_opened(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(heartbeat_module, "PASS_INTERVAL", 0.001)
        inner = ThreadStore()
        works = threading.Event()
        inner.renewed = works.set
        beat = Heartbeat(Split(inner), SystemClock(), "me")
        await beat.join("orders", supervisor)
        beat.hold(await taken(inner), SystemClock().monotonic(), lambda _: None)
        assert works.wait(20)

        await supervisor.close()

        assert inner.closed_in == {"heartbeat"}
        assert "heartbeat" not in {thread.name for thread in threading.enumerate()}

    async def test_a_lost_lease_is_told_on_the_main_loop(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(heartbeat_module, "PASS_INTERVAL", 0.001)
        inner = ThreadStore()
        told: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        beat = Heartbeat(Split(inner), SystemClock(), "me")
        await beat.join("orders", supervisor)
        lease = await taken(inner)
        inner.fails = LeaseLost("taken")
        beat.hold(
            lease,
            SystemClock().monotonic(),
            lambda why: told.set_result((why, threading.current_thread().name)),
        )

        why, where = await asyncio.wait_for(told, 20)

        assert why == "taken"
        assert where == threading.main_thread().name

    async def test_a_loop_that_stands_for_too_long_lets_its_leases_run_out_loudly(
        self,
        supervisor: Supervisor,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(heartbeat_module, "PASS_INTERVAL", 0.001)
        said, again = threading.Event(), threading.Event()

        class Said(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.levelno == logging.CRITICAL:
                    said.set()

        handler = Said()
        logging.getLogger("ruststream_kinesis").addHandler(handler)
        inner = ThreadStore()
        beat = Heartbeat(Split(inner), SystemClock(), "me", stall_timeout=0.05)
        try:
            await beat.join("orders", supervisor)
            beat.hold(await taken(inner), SystemClock().monotonic(), lambda _: None)
            assert said.wait(20)
            before = inner.renewals
            inner.renewed = again.set
            assert not again.wait(0.05)
            assert inner.renewals == before
            # It moves again: leases are renewed as before.
            moves = asyncio.Event()
            loop = asyncio.get_running_loop()

            def moved() -> None:
                loop.call_soon_threadsafe(moves.set)

            inner.renewed = moved
            await asyncio.wait_for(moves.wait(), 20)
        finally:
            logging.getLogger("ruststream_kinesis").removeHandler(handler)
        assert "blocks" in caplog.text

    async def test_a_thread_that_dies_ends_the_service(self, monkeypatch: pytest.MonkeyPatch):
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        supervisor = Supervisor(failed.set_result)

        async def die(*_: object) -> None:
            raise OSError("no more")

        monkeypatch.setattr(Heartbeat, "_rounds", die)
        await Heartbeat(Split(ThreadStore()), SystemClock(), "me").join("orders", supervisor)

        assert isinstance(await asyncio.wait_for(failed, 20), OSError)
        await supervisor.close()


class TestRunInThread:
    async def test_the_end_of_the_work_is_the_end_of_the_call(self):
        names: list[str] = []

        async def work() -> None:
            names.append(threading.current_thread().name)

        await run_in_thread("mine", work)

        assert names == ["mine"]

    async def test_what_the_work_raises_is_raised_here(self):
        async def work() -> None:
            raise OSError("mine")

        with pytest.raises(OSError, match="mine"):
            await run_in_thread("mine", work)

    async def test_work_that_was_cancelled_by_somebody_else_is_no_silence(self):
        async def work() -> None:
            raise asyncio.CancelledError

        with pytest.raises(RuntimeError, match="mine"):
            await run_in_thread("mine", work)

    @pytest.mark.parametrize("turns", range(6))
    async def test_cancelled_at_any_moment_it_leaves_no_thread(self, turns: int):
        ended = threading.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(run_in_thread("mine", work))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert "mine" not in {thread.name for thread in threading.enumerate()}
