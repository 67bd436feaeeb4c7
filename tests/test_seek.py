"""Rewinding: what moves, what becomes void, what is stored, and who is not waited for.

A service on the transport in memory, where time moves only by hand; a restart is a second
application of the same world. What is stored is in `test_seek_kept.py`, parents and children are in
`test_seek_shards.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisMessage,
    Seeker,
    retry,
    retry_after,
)
from ruststream_kinesis.errors import ConfigurationError, KinesisError, NotConnected
from tests.support.seeking import HORIZON, LATEST, at, noting, row, turns, world
from tests.support.world import Call, running, until

# -- where it goes ---------------------------------------------------------------------------------


async def test_the_horizon_delivers_everything_again_and_the_checkpoint_follows():
    it = world()
    seen: list[Any] = []
    it.put("orders", 1, 2, 3)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: seen == [1, 2, 3])
        await app.seeker("orders").seek(HORIZON)
        await until(lambda: seen == [1, 2, 3] * 2)
    assert await it.checkpoint() == "3"
    assert (await row(it)).resume_from is None


async def test_a_sequence_number_delivers_exactly_that_record_first():
    it = world(shards=2)
    seen: list[Any] = []
    it.put("orders", 1, 2, 3)
    it.put("orders", 10, shard=1)
    app = noting(it, seen, start_at=HORIZON)
    async with running(app):
        await until(lambda: len(seen) == 4)
        await app.seeker("orders").seek(at(2))
        await until(lambda: len(seen) == 6)
        await turns()
    assert seen[4:] == [2, 3]


async def test_the_tip_skips_what_is_queued_and_delivers_what_is_put_after_it():
    it = world()
    seen: list[Any] = []
    free = asyncio.Event()
    it.put("orders", *range(200))
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        await free.wait()

    async with running(app):
        await until(lambda: seen == [0])
        await app.seeker("orders").seek(LATEST)
        it.put("orders", 1000)
        free.set()
        for _ in range(3):
            await it.clock.advance(1)
        assert seen == [0, 1000]


async def test_a_shard_that_is_not_held_cannot_be_moved_by_sequence_number():
    it = world()
    seen: list[Any] = []
    app = noting(it, seen)
    async with running(app):
        with pytest.raises(KinesisError, match="does not hold the shard") as caught:
            await app.seeker("orders").seek(at(5, shard=7))
    assert caught.value.shard_id == "shardId-000000000007"
    assert caught.value.stream == "orders"


async def test_a_service_that_does_not_run_cannot_be_moved():
    app = noting(world(), [])
    with pytest.raises(NotConnected, match="does not run"):
        await app.seeker("orders").seek(HORIZON)


async def test_a_subscription_that_is_not_declared_has_no_seeker():
    app = noting(world(), [], group="audit")
    for stream, group in (("payments", None), ("orders", None)):
        with pytest.raises(ConfigurationError, match="no subscription"):
            app.seeker(stream, group)
    assert app.seeker("orders", "audit") is not None


async def test_what_is_no_position_is_refused():
    app = noting(world(), [])
    wrong: Any = "horizon"
    with pytest.raises(ConfigurationError, match="KinesisPosition"):
        await app.seeker("orders").seek(wrong)


# -- what becomes void -----------------------------------------------------------------------------


async def test_case_w2_acks_twice_late_and_after_a_rewind_change_nothing():
    it = world()
    kept: list[Any] = []
    free = asyncio.Event()
    it.put("orders", 1, 2, 3)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(message: KinesisMessage[int]) -> None:
        kept.append(message)
        if len(kept) == 3:
            await free.wait()

    async with running(app):
        await until(lambda: len(kept) == 3)
        await turns()
        assert await it.checkpoint() == "2"
        await app.seeker("orders").seek(at(2))
        for message in kept[:3]:
            await message.ack()
            await message.ack()
        await it.clock.advance(1)
        found = await row(it)
        assert (found.checkpoint, found.resume_from) == ("2", at(2))
        # The handler that is at 3 ends after the rewind, and says ack.
        free.set()
        await until(lambda: len(kept) == 5)
        await turns()
    assert [message.payload for message in kept] == [1, 2, 3, 2, 3]
    assert await it.checkpoint() == "3"


@pytest.mark.parametrize("options", [{}, {"workers": 4}, {"batch": 2}, {"batch": 2, "workers": 3}])
async def test_a_handler_may_seek_and_its_own_delivery_is_void(options: dict[str, Any]):
    it = world()
    seen: list[Any] = []
    moved: list[Any] = []
    it.put("orders", 1, 2, 3, 4)
    app = it.app()

    async def note(order: int, seeker: Seeker) -> None:
        seen.append(order)
        if order == 4 and not moved:
            moved.append(True)
            await seeker.seek(HORIZON)

    if "batch" in options:

        @app.subscriber("orders", start_at=HORIZON, **options)
        async def many(orders: list[int], seeker: Seeker) -> None:
            for order in orders:
                await note(order, seeker)
    else:

        @app.subscriber("orders", start_at=HORIZON, **options)
        async def one(order: int, seeker: Seeker) -> None:
            await note(order, seeker)

    async with running(app):
        # A batch is a page: the reader keeps its pace between two of them.
        await it.clock.advance(5)
        await until(lambda: len(seen) == 8)
    assert seen == [1, 2, 3, 4] * 2
    assert await it.checkpoint() == "4"


async def test_a_plain_handler_may_seek_from_a_loop_of_its_own():
    it = world()
    seen: list[Any] = []
    it.put("orders", 1, 2)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    def handle(order: int, seeker: Seeker) -> None:
        seen.append(order)
        if len(seen) == 2:
            asyncio.run(seeker.seek(HORIZON))

    async with running(app):
        await until(lambda: len(seen) == 4)
    assert seen == [1, 2, 1, 2]


async def test_waiting_copies_are_cancelled_and_their_records_come_again():
    it = world()
    seen: list[Any] = []
    it.put("orders", 1)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON, max_attempts=3)
    async def handle(order: int) -> Any:
        seen.append(order)
        return retry_after(3600) if len(seen) == 1 else None

    async with running(app):
        await until(lambda: seen == [1])
        await turns()
        service = app._service
        assert service is not None
        (subscription,) = service.subscriptions
        assert subscription.copies.waiting == 1
        await app.seeker("orders").seek(HORIZON)
        assert subscription.copies.waiting == 0
        await until(lambda: seen == [1, 1])
        await it.clock.advance(300)
    assert len(it.records("orders")) == 1
    assert await it.checkpoint() == "1"


@pytest.mark.parametrize("deferred", ["hold", "settle"])
async def test_copies_of_records_before_the_new_position_are_cancelled_and_do_not_come_again(
    deferred: Any,
):
    it = world()
    seen: list[Any] = []
    it.put("orders", 1, 2)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON, max_attempts=3, deferred=deferred)
    async def handle(message: KinesisMessage[int], seeker: Seeker) -> Any:
        seen.append(message.payload)
        if message.payload == 1:
            return retry_after(60)
        if len(seen) == 2:
            await seeker.seek(message.position)
        return None

    async with running(app):
        await until(lambda: seen == [1, 2, 2])
        await turns()
        service = app._service
        assert service is not None
        assert service.subscriptions[0].copies.waiting == 0
        await it.clock.advance(300)
    assert seen == [1, 2, 2]
    assert len(it.records("orders")) == 2
    assert await it.checkpoint() == "2"


async def test_a_reader_that_waits_for_room_or_for_time_is_woken_at_once():
    it = world()
    seen: list[Any] = []
    free = asyncio.Event()
    it.put("orders", *range(500))
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> None:
        seen.append(order)
        await free.wait()

    async with running(app):
        await until(lambda: seen == [0])
        await app.seeker("orders").seek(at(400))
        free.set()
        # No time passes here, so nothing that sleeps goes on by itself.
        await until(lambda: len(seen) == 102)
        assert seen[1:] == list(range(399, 500))
        await turns()
        await app.seeker("orders").seek(at(500))
        await until(lambda: len(seen) == 103)


async def test_a_read_that_hangs_is_cut_off_and_its_records_are_dropped():
    it = world()
    seen: list[Any] = []
    hang = asyncio.Event()
    it.put("orders", 1)
    app = noting(it, seen, start_at=HORIZON)

    async def hold(call: Call) -> None:
        if call.operation == "get_records" and hang.is_set():
            hang.clear()
            await asyncio.Event().wait()

    it.hooks.append(hold)
    async with running(app):
        await until(lambda: seen == [1])
        hang.set()
        await it.clock.advance(2)
        assert not hang.is_set()
        await app.seeker("orders").seek(HORIZON)
        await until(lambda: seen == [1, 1])


async def test_held_records_are_given_up_by_a_rewind():
    it = world()
    seen: list[Any] = []
    it.put("orders", 1, 2)
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int) -> Any:
        seen.append(order)
        return retry() if len(seen) == 1 else None

    async with running(app):
        await until(lambda: seen == [1, 2])
        await app.seeker("orders").seek(HORIZON)
        await until(lambda: seen == [1, 2, 1, 2])
    assert await it.checkpoint() == "2"


# -- the stop --------------------------------------------------------------------------------------


async def test_a_rewind_during_the_stop_is_refused():
    it = world()
    errors: list[Any] = []
    it.put("orders", 1)
    entered, free = asyncio.Event(), asyncio.Event()
    app = it.app()

    @app.subscriber("orders", start_at=HORIZON)
    async def handle(order: int, seeker: Seeker) -> None:
        entered.set()
        await free.wait()
        try:
            await seeker.seek(HORIZON)
        except NotConnected as error:
            errors.append(error)

    async with running(app):
        await asyncio.wait_for(entered.wait(), 5)
        app.stop()
        await turns()
        free.set()
    assert len(errors) == 1
    assert await it.checkpoint() == "1"
