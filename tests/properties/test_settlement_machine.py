"""The whole way from record to checkpoint, through any order of outcomes, faults, losses and stops.

A record is *accounted for* when a handler acked or dropped its value, or when a copy or a dead
letter of it is in a stream. No stored checkpoint may ever cover one that is not; and in the end
each is done or dead.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ruststream_kinesis import KinesisMessage, KinesisPosition, Outcome, drop, retry, retry_after
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import AccessDenied, RequestError
from ruststream_kinesis.leases import SHARD_END, LeaseKey
from ruststream_kinesis.testing import ManualClock
from tests.support.stores import Write, spy_store
from tests.support.world import Call, World, running

CAP = 3
DELAY = 5.0

outcomes = st.sampled_from(["retry", "retry_after", "raise", "ack", "ack", "drop"])
plans = st.lists(outcomes, min_size=1, max_size=CAP)
"""What the handler says at each attempt; after the last of them it acks."""


class SettlementMachine(RuleBasedStateMachine):
    """One subscription to two shards; `workers` and the cap are drawn once."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = spy_store(self.clock)
        self.world = World(clock=self.clock, store=self.store)
        self.world.stream("orders", 2)
        self.world.stream("dead", 1)
        self.world.hooks.append(self.fault)
        self.store.before = self.written
        self.plans: dict[int, list[str]] = {}
        self.keys: dict[int, str] = {}
        self.done: set[int] = set()
        self.calls: list[int] = []
        self.attempts: dict[int, int] = {}
        self.faults: list[str] = []
        self.broken: list[str] = []
        self.started = False
        self.app: AbstractAsyncContextManager[Any] | None = None
        self.options: dict[str, Any] = {}

    # What the world does

    async def fault(self, call: Call) -> None:
        if call.operation != "put_record" or not self.faults:
            return
        if self.faults.pop() == "terminal":
            raise AccessDenied("no", code="AccessDeniedException", status=400)
        raise RequestError("slow down", code="ThrottlingException", status=400)

    async def written(self, write: Write) -> None:
        """Before a checkpoint is stored: everything that it covers is accounted for."""
        if write.checkpoint is None:
            return
        for record in self.world.streams["orders"][write.shard_id]:
            number = int(record.sequence_number)
            covered = write.checkpoint == SHARD_END or number <= int(write.checkpoint)
            value = self.value(record.data)
            if covered and value not in self.done and not self.has_copy(value, number):
                self.broken.append(f"{value} at {number} is covered by {write}, and is nowhere")

    def value(self, data: bytes) -> int:
        found: int = json.loads(decode_envelope(data)[1])
        return found

    def has_copy(self, value: int, number: int) -> bool:
        later = (r for r in self.world.records("orders") if int(r.sequence_number) > number)
        everywhere = [*later, *self.world.records("dead")]
        return any(self.value(record.data) == value for record in everywhere)

    async def handle(self, message: KinesisMessage[int]) -> Outcome | None:
        value, attempt = message.payload, message.attempt
        self.calls.append(value)
        self.attempts[value] = max(attempt, self.attempts.get(value, 0))
        if attempt > CAP and self.options["max_attempts"]:
            self.broken.append(f"{value} has its attempt {attempt}")
        plan = self.plans[value]
        said = plan[attempt - 1] if attempt <= len(plan) else "ack"
        await asyncio.sleep(0)
        match said:
            case "retry":
                return retry()
            case "retry_after":
                return retry_after(DELAY)
            case "raise":
                raise ValueError(f"at {value}")
        self.done.add(value)
        return drop() if said == "drop" else None

    # What is done to it

    @initialize(
        workers=st.sampled_from([1, 3]),
        capped=st.sampled_from([True, True, True, False]),
        batch=st.sampled_from([None, 4]),
    )
    def begin(self, *, workers: int, capped: bool, batch: int | None) -> None:
        self.options = {
            "workers": workers,
            "max_attempts": CAP if capped else None,
            "dead_letter": "dead" if capped else None,
            "batch": batch,
        }
        self.start()

    def start(self) -> None:
        app = self.world.app(store=self.store)
        begins = None if self.started else KinesisPosition.horizon()
        self.started = True
        if self.options["batch"] is None:
            app.subscriber("orders", start_at=begins, **self.options)(self.handle)
        else:

            @app.subscriber("orders", start_at=begins, **self.options)
            async def handle_batch(messages: list[KinesisMessage[int]]) -> list[Outcome | None]:
                said: list[Outcome | None] = []
                for message in messages:
                    try:
                        said.append(await self.handle(message))
                    except ValueError:
                        said.append(retry())
                return said

        self.app = running(app)
        self.runner.run(self.app.__aenter__())

    def stop(self) -> None:
        assert self.app is not None

        async def leave() -> None:
            # A copy that waits for a fault to pass needs time to go on.
            ending = asyncio.ensure_future(self.app.__aexit__(None, None, None))  # type: ignore[union-attr]  # it is there
            while not ending.done():
                await self.clock.advance(1)
            await ending

        self.runner.run(leave())
        self.app = None

    @rule(
        planned=st.lists(
            st.tuples(plans, st.sampled_from("abc"), st.integers(0, 1)), min_size=1, max_size=12
        ),
        faults=st.lists(st.sampled_from(["terminal", "passing", "passing"]), max_size=4),
        seconds=st.sampled_from([1.1, 2 * DELAY, 0.0]),
    )
    def put(
        self, planned: list[tuple[list[str], str, int]], faults: list[str], seconds: float
    ) -> None:
        """The first puts of ours that follow fail; what is read is handled while time passes."""
        self.faults = faults
        for plan, key, shard in planned:
            value = len(self.plans)
            self.plans[value] = plan
            self.keys[value] = f"{key}{shard}"
            self.world.put("orders", value, key=self.keys[value], shard=shard)
        self.runner.run(self.clock.advance(seconds))

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 1.1, DELAY, 2 * DELAY]))
    def let_time_pass(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @rule(shard=st.integers(0, 1), seconds=st.sampled_from([0.0, 1.0, 4.0]))
    def lose_a_shard_and_have_it_back(self, shard: int, seconds: float) -> None:
        self.runner.run(self.steal(LeaseKey("orders", f"shardId-{shard:012}"), seconds))

    async def steal(self, key: LeaseKey, seconds: float) -> None:
        row = await self.store.read(key)
        if row is None or row.owner is None:
            return
        await self.store.release(row)
        theirs = await self.store.acquire(key, "thief", duration=1000.0)
        await self.clock.advance(seconds)
        if theirs is not None:
            await self.store.release(theirs)

    @precondition(lambda self: self.app is not None)
    @rule()
    def restart(self) -> None:
        self.stop()
        self.start()

    @invariant()
    def nothing_is_covered_that_is_nowhere(self) -> None:
        assert self.broken == []

    @invariant()
    def a_key_keeps_its_order(self) -> None:
        """Records that were never retried came in the order of their key, each for the first time."""
        first = list(dict.fromkeys(self.calls))
        for key in set(self.keys.values()):
            mine = [v for v in first if self.keys[v] == key and self.plans[v][0] in {"ack", "drop"}]
            assert mine == sorted(mine), (key, mine)

    def teardown(self) -> None:
        try:
            if self.app is not None:
                self.end()
        finally:
            self.runner.close()

    def end(self) -> None:
        """With nothing in its way, everything gets done, whatever was held or waiting."""
        self.faults = []
        if not self.options["max_attempts"]:
            self.plans = {value: ["ack"] for value in self.plans}  # nothing else ends
        dead: set[int] = set()
        for _ in range(20):
            self.stop()
            self.start()
            self.runner.run(self.clock.advance(6 * DELAY))
            dead = {self.value(record.data) for record in self.world.records("dead")}
            if self.done | dead == self.plans.keys():
                break
        self.stop()
        assert self.broken == []
        assert self.done | dead == self.plans.keys()
        for value in dead - self.done:
            assert self.attempts[value] == CAP


TestSettlement = SettlementMachine.TestCase
TestSettlement.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
