"""What `app.health()` says: of made-up states, and of services in each kind of trouble."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ruststream_kinesis import KinesisBroker, KinesisPosition, RustStream
from ruststream_kinesis.counters import Counters, ReadCounters
from ruststream_kinesis.errors import AccessDenied, HandlerFailed, RequestError
from ruststream_kinesis.health import judge_health
from ruststream_kinesis.state import (
    AppState,
    ShardOwner,
    ShardState,
    SourceState,
    SubscriptionState,
)
from ruststream_kinesis.testing import TestApp
from tests.support.world import PATIENCE, Call, World, running, until

HORIZON = KinesisPosition.horizon()
READ = ShardState("s-0", "7", 0, 0, 0, None, False, reading_for=900.0, polled_ago=0.4)
SOURCE = SourceState(ReadCounters(), store_answered_ago=1.0)
ORDERS = SubscriptionState("orders", None, (READ,), 0, 0, (), Counters(), True, SOURCE)


def state(*shards: ShardState, phase: Any = "running", **source: Any) -> AppState:
    of = replace(ORDERS, shards=shards, source=replace(SOURCE, **source))
    return AppState("t", "1", True, (of,), "me", phase, 1000.0)


def owned(owner: str | None, *, finished: bool = False, error: str | None = None) -> ShardOwner:
    return ShardOwner("s-9", owner, False, finished, None, error)


class TestJudgement:
    def test_a_service_that_reads_has_nothing_wrong_with_it(self):
        health = judge_health(state(READ))
        assert (health.live, health.ready, health.reasons) == (True, True, ())

    def test_a_shard_whose_reads_fail_for_too_long_is_named_with_the_error(self):
        bad = replace(READ, polled_ago=61.0, read_error="RequestError HTTP503")
        health = judge_health(state(READ, replace(bad, shard_id="s-1")))

        assert health.ready  # the other one is read
        (reason,) = health.reasons
        assert reason == (
            "shard s-1 of stream orders was not read for 61 s (more than 60): its reads fail "
            "(RequestError HTTP503)"
        )

    def test_a_shard_that_waits_for_handlers_is_told_from_one_that_fails(self):
        health = judge_health(state(replace(READ, polled_ago=400.0, waiting=True)))
        assert health.ready
        assert "waits for handlers" in health.reasons[0]

    def test_where_no_shard_is_read_it_is_not_ready(self):
        health = judge_health(state(replace(READ, polled_ago=61.0)))
        assert (health.live, health.ready) == (True, False)
        assert "its reads are not answered" in health.reasons[0]

    def test_a_shard_that_was_never_read_counts_from_when_reading_began(self):
        began = replace(READ, polled_ago=None, reading_for=61.0)
        assert judge_health(state(began)).reasons
        assert not judge_health(state(replace(began, reading_for=59.0))).reasons

    @pytest.mark.parametrize("change", [{"ended": True}, {}])
    def test_a_shard_that_nobody_is_to_read_is_not_missed(self, change: dict[str, Any]):
        done = replace(READ, reading_for=None, polled_ago=900.0, **change)
        assert judge_health(state(done)) == judge_health(state(READ))

    def test_the_time_is_a_parameter_and_longer_where_polls_are_rare(self):
        late = replace(READ, polled_ago=61.0)
        assert judge_health(state(late), 120.0).ready
        assert judge_health(state(late, poll_interval=30.0)).ready
        assert not judge_health(state(replace(READ, polled_ago=91.0), poll_interval=30.0)).ready

    def test_all_shards_at_other_instances_is_as_good_as_reading(self):
        assert judge_health(state(owners=(owned("other"), owned(None, finished=True)))).ready

    @pytest.mark.parametrize("owners", [(), (owned(None),), (owned("other"), owned(None))])
    def test_no_shard_at_all_is_not_ready_while_one_may_be_had(self, owners: Any):
        health = judge_health(state(owners=owners))
        assert not health.ready
        assert health.reasons == ("no shard of stream orders is held yet",)

    def test_a_shard_that_was_given_up_is_named(self):
        given_up = owned(None, error="AccessDenied AccessDeniedException")
        (reason,) = judge_health(state(READ, owners=(given_up,))).reasons
        assert "shard s-9 of stream orders is not read here" in reason
        assert "AccessDeniedException" in reason

    def test_a_lease_store_that_does_not_answer_is_named(self):
        said = judge_health(state(READ, store_answered_ago=11.0, store_error="TimeoutError"))
        assert said.reasons == (
            "the lease store of stream orders has not answered for 11 s (TimeoutError)",
        )
        assert said.ready

    def test_what_is_not_open_yet_is_named(self):
        starting = state(READ, phase="starting")
        closed = replace(starting.subscriptions[0], opened=False, group="billing")
        health = judge_health(replace(starting, subscriptions=(closed,)))
        assert (health.live, health.ready) == (True, False)
        assert health.reasons[0] == "the service is starting; not open yet: orders@billing"

    def test_a_service_that_stops_or_failed_is_not_ready(self):
        assert not judge_health(state(READ, phase="stopping")).ready
        failed = judge_health(replace(state(READ, phase="stopping"), failure="HandlerFailed"))
        assert not failed.live
        assert "HandlerFailed" in failed.reasons[0]


def test_an_application_that_does_not_run_is_not_live():
    health = RustStream(KinesisBroker(), title="t", version="1").health()
    assert (health.live, health.ready) == (False, False)
    assert health.reasons == ("the service does not run",)


async def test_one_on_the_in_process_log_is_ready():
    app = RustStream(KinesisBroker(), title="t", version="1")
    app.subscriber("orders")(_nothing)
    async with TestApp(app):
        assert app.health().ready, app.health().reasons


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders", shards=2)
    return world


async def test_failing_reads_show_up_with_their_code_and_go_away(world: World):
    failing = True

    async def fail(call: Call) -> None:
        if call.operation == "get_records" and call.shard_id == "shardId-000000000001" and failing:
            raise RequestError("slow", code="ProvisionedThroughputExceededException", status=400)

    world.hooks.append(fail)
    app = world.app()
    app.subscriber("orders", start_at=HORIZON)(_nothing)

    async with running(app):
        await world.clock.advance(70.0)
        good, bad = app.state().subscriptions[0].shards
        health = app.health()

        assert good.polled_ago is not None
        assert good.polled_ago <= 1.0
        assert (bad.polled_ago, bad.read_error) == (
            None,
            "RequestError ProvisionedThroughputExceededException",
        )
        assert (health.live, health.ready) == (True, True)
        assert "shard shardId-000000000001 of stream orders was not read" in health.reasons[0]
        counters = app.state().subscriptions[0].source.counters
        assert counters.read_errors["ProvisionedThroughputExceededException"] > 5
        assert counters.reads > 50

        failing = False
        await world.clock.advance(12.0)
        assert app.health().reasons == ()
        assert app.state().subscriptions[0].shards[1].read_error is None


async def test_a_handler_that_is_stuck_is_what_a_shard_waits_for(world: World):
    stuck = asyncio.Event()
    world.put("orders", *range(200))
    app = world.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(number: int) -> None:
        await stuck.wait()

    async with running(app):
        await world.clock.advance(70.0)
        shard = app.state().subscriptions[0].shards[0]

        assert (shard.waiting, shard.read_error) == (True, None)
        (reason,) = app.health().reasons
        assert "shard shardId-000000000000 of stream orders" in reason
        assert "waits for handlers" in reason
        stuck.set()


async def test_a_shard_that_may_not_be_read_is_named_while_nobody_holds_it(world: World):
    async def refuse(call: Call) -> None:
        if call.operation == "get_records" and call.shard_id == "shardId-000000000001":
            raise AccessDenied("no", code="AccessDeniedException", status=400)

    world.hooks.append(refuse)
    app = world.app()
    app.subscriber("orders", start_at=HORIZON)(_nothing)

    async with running(app):
        await until(lambda: len(app.state().subscriptions[0].shards) == 1)
        (reason,) = app.health().reasons
        assert "shard shardId-000000000001 of stream orders is not read here" in reason
        assert "AccessDenied AccessDeniedException" in reason

        world.hooks.clear()
        await world.clock.advance(10.0)
        assert app.health().reasons == ()
        assert len(app.state().subscriptions[0].shards) == 2


async def test_a_lease_store_that_fails_is_named_and_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    app = world.app()
    app.subscriber("orders")(_nothing)

    async def fail(*_: Any, **__: Any) -> Any:
        raise RequestError("the text of it", code="InternalServerError", status=500)

    async with running(app):
        monkeypatch.setattr(world.store, "survey", fail)
        await world.clock.advance(12.0)
        health = app.health()
        assert health.ready
        assert health.reasons[0].startswith("the lease store of stream orders has not answered for")
        assert "RequestError InternalServerError" in health.reasons[0]
        assert "the text of it" not in str(health.reasons)

        monkeypatch.undo()
        await world.clock.advance(4.0)
        assert app.health().reasons == ()


async def test_what_ended_the_service_stays_to_be_seen(world: World):
    world.put("orders", 1)
    app = world.app()

    @app.subscriber("orders", start_at=HORIZON, on_error="stop")
    async def handle(number: int) -> None:
        raise ValueError("secret")

    with pytest.raises(HandlerFailed):
        async with asyncio.timeout(PATIENCE):
            await app.run(signals=False)

    health = app.health()
    assert not health.live
    assert health.reasons == ("the service has failed (HandlerFailed); its log says more",)


async def test_the_state_tells_who_owns_which_shard(world: World):
    first, second = world.app(), world.app()
    first.subscriber("orders")(_nothing)
    second.subscriber("orders")(_nothing)

    async with running(first), running(second):
        await world.clock.advance(20.0)
        source = first.state().subscriptions[0].source
        mine, theirs = first.state().instance, second.state().instance

        assert sorted(source.members) == sorted([mine, theirs])
        assert {each.owner for each in source.owners} == {mine, theirs}
        (held,) = first.state().subscriptions[0].shards
        assert [each.shard_id for each in source.owners if each.mine] == [held.shard_id]


async def _nothing(payload: bytes) -> None:
    pass
