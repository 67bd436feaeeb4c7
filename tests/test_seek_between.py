"""Rewinding while shards are between owners: being taken, being released, given up, run out.

Whatever the moment: each shard that this instance held, gave up or was about to take moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, LeaseState
from ruststream_kinesis.errors import KinesisError, NotConnected
from ruststream_kinesis.leases import SHARD_END, LeaseKey
from tests.support.coordinating import (
    HORIZON,
    Instance,
    Part,
    World,
    denied,
    split_of,
    world,
)

LATEST = KinesisPosition.latest()
TIMESTAMP = KinesisPosition.timestamp(5.0)
PAST = pytest.mark.parametrize("position", [HORIZON, TIMESTAMP])
ALL = pytest.mark.parametrize("position", [HORIZON, TIMESTAMP, LATEST])
pytestmark = pytest.mark.usefixtures("lease_store")


class Gate:
    """Calls to one method of the store that wait to be let through."""

    def __init__(self, it: World, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.shard: str | None = None
        """The only shard that waits."""
        inner: Callable[..., Awaitable[Any]] = getattr(it.store, method)

        async def wait(first: LeaseKey | LeaseState, *args: Any, **options: Any) -> Any:
            key = first if isinstance(first, LeaseKey) else first.key
            if key.shard_id == self.shard:
                self.arrived.set()
                await self.open.wait()
            return await inner(first, *args, **options)

        monkeypatch.setattr(it.store, method, wait)


def seeking(instance: Instance, position: KinesisPosition) -> asyncio.Task[None]:
    return asyncio.create_task(instance.coordinator.seek(position))


async def ends(it: World, seek: asyncio.Task[None], seconds: float = 1.0) -> None:
    """Let time pass, less than any pass or back-off takes, until the seek ended."""
    await it.clock.advance(seconds)
    assert seek.done()
    await seek


async def moved(it: World, instance: Instance, position: KinesisPosition) -> None:
    """Shard A holds 1, 2, 3 and all of them were acked: they come again, or none does."""
    it.stream.parts["A"].records.append(4)
    await it.clock.advance(3)
    found = await it.store.of("A")
    assert found is not None
    assert (found.checkpoint, found.resume_from) == ("4", None)
    place = [place for shard, place, _ in it.stream.opened if shard == "A"][-1]
    if place.kind == "latest":
        assert position == LATEST
        assert instance.numbers("A") == [4]
        return
    # Records have no time in this stream: an instant, as the tip is one, means all of them.
    assert instance.numbers("A") == [1, 2, 3, 4]
    if position == LATEST:
        assert (place.when or 0.0) > 1.0
    else:
        assert place == position


def family() -> dict[str, Part]:
    return {"A": Part(records=[1, 2, 3]), "B": Part(records=[10])}


# -- being released --------------------------------------------------------------------------------


@ALL
async def test_a_shard_whose_release_is_on_its_way_moves(
    position: KinesisPosition, monkeypatch: pytest.MonkeyPatch
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        gate = Gate(it, "release", monkeypatch)
        gate.shard = "A"
        instance.let_go("A")
        await asyncio.wait_for(gate.arrived.wait(), 5)
        instance.received.clear()
        seek = seeking(instance, position)
        await it.clock.advance(1)
        assert not seek.done()
        gate.open.set()
        await ends(it, seek)
        await moved(it, instance, position)


async def test_a_shard_that_is_concluded_while_rows_are_moved_moves_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.coordinator.held.give_up(instance.coordinator.holdings["B"])
        await it.clock.advance(0)
        gate = Gate(it, "acquire", monkeypatch)
        gate.shard = "B"
        instance.received.clear()
        seek = seeking(instance, HORIZON)
        await it.clock.advance(0)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        # The row of B is being moved; A goes and is released meanwhile.
        instance.let_go("A")
        await it.clock.advance(0)
        assert "A" not in instance.coordinator.holdings
        gate.open.set()
        await ends(it, seek)
        await moved(it, instance, HORIZON)
        assert instance.numbers("B") == [10]


@PAST
async def test_a_parent_that_finished_just_now_is_replayed_before_its_children_are_taken(
    position: KinesisPosition, monkeypatch: pytest.MonkeyPatch
):
    async with world(P=Part(records=[1, 2], closed=True), C=split_of("P", 3)) as it:
        gate = Gate(it, "release", monkeypatch)
        gate.shard = "P"
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        assert await it.store.checkpoint_of("P") == SHARD_END
        assert instance.received == [("P", 1), ("P", 2)]
        seek = seeking(instance, position)
        await it.clock.advance(1)
        gate.open.set()
        await ends(it, seek)
        await it.clock.advance(10)
        assert instance.received == [("P", 1), ("P", 2)] * 2 + [("C", 3)]


async def test_a_release_that_never_comes_ends_the_seek_and_nothing_moves():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        it.store.faults.fails["release"] = 1000
        instance.let_go("A")
        instance.received.clear()
        seek = seeking(instance, HORIZON)
        await it.clock.advance(11)
        with pytest.raises(KinesisError, match="nothing was moved") as caught:
            await asyncio.wait_for(seek, 5)
        assert (caught.value.stream, caught.value.shard_id) == ("orders", "A")
        assert instance.received == []
        it.store.faults.fails.clear()
        await it.clock.advance(5)
        # Taken again, from its checkpoint: the lease loop is free.
        assert set(instance.coordinator.holdings) == {"A", "B"}
        assert instance.received == []
        await ends(it, seeking(instance, HORIZON))
        await moved(it, instance, HORIZON)


# -- given up --------------------------------------------------------------------------------------


@ALL
async def test_a_shard_that_was_given_up_moves_and_is_taken_again_at_once(
    position: KinesisPosition,
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.coordinator.held.give_up(instance.coordinator.holdings["A"])
        # Once more, so that the back-off is longer than what passes here.
        for _ in range(6):
            instance.coordinator.held.absent.add(instance.coordinator.holdings["A"])
        await it.clock.advance(0)
        assert set(instance.coordinator.holdings) == {"B"}
        instance.received.clear()
        await ends(it, seeking(instance, position))
        await moved(it, instance, position)


async def test_a_shard_that_cannot_be_read_moves_once_it_can():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        it.stream.parts["A"].fails = denied
        await it.clock.advance(5)
        instance.received.clear()
        await ends(it, seeking(instance, HORIZON))
        found = await it.store.of("A")
        assert found is not None
        assert found.resume_from == HORIZON
        it.stream.parts["A"].fails = None
        await it.clock.advance(60)
        assert instance.numbers("A") == [1, 2, 3]


async def test_a_shard_that_was_given_up_before_its_first_ack_moves():
    async with world(A=Part(records=[1, 2, 3])) as it:
        instance = await it.start(None)
        instance.coordinator.held.give_up(instance.coordinator.holdings["A"])
        await it.clock.advance(0)
        await ends(it, seeking(instance, HORIZON))
        await instance.kill()
        await it.clock.advance(11)
        second = await it.start(None)
        await it.clock.advance(30)
        assert second.numbers("A") == [1, 2, 3]


async def test_a_shard_that_another_instance_took_stays_where_it_is():
    async with world(**family()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(5)
        first.coordinator.held.give_up(first.coordinator.holdings["A"])
        for _ in range(6):
            first.coordinator.held.absent.add(first.coordinator.holdings["A"])
        await it.clock.advance(0)
        second = await it.start(None, acking=True)
        assert set(second.coordinator.holdings) == {"A"}
        first.received.clear()
        await ends(it, seeking(first, HORIZON))
        await it.clock.advance(5)
        assert first.received == [("B", 10)]
        assert second.received == []


async def test_a_lease_that_ran_out_and_that_nobody_took_moves():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        coordinator = instance.coordinator
        coordinator.held.lost(
            coordinator.holdings["A"].shard, "it ran out unrenewed: made by a test"
        )
        it.store.faults.fails["acquire"] = 1
        await it.clock.advance(0)
        assert set(coordinator.holdings) == {"B"}
        instance.received.clear()
        await ends(it, seeking(instance, HORIZON))
        await moved(it, instance, HORIZON)


async def test_a_lease_that_ran_out_after_a_rewind_goes_on_behind_what_was_settled_since():
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        await ends(it, seeking(instance, HORIZON))
        await it.clock.advance(3)
        instance.received.clear()
        coordinator = instance.coordinator
        coordinator.held.lost(
            coordinator.holdings["A"].shard, "it ran out unrenewed: made by a test"
        )
        await it.clock.advance(5)
        assert set(coordinator.holdings) == {"A", "B"}
        assert instance.received == []


async def test_a_lease_that_runs_out_before_its_rewind_is_stored_keeps_it():
    async with world(A=Part(records=[1, 2, 3])) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        it.store.faults.fails.update(checkpoint=1000, release=1000)
        instance.acking = False
        seek = seeking(instance, HORIZON)
        await it.clock.advance(1)
        coordinator = instance.coordinator
        coordinator.held.lost(
            coordinator.holdings["A"].shard, "it ran out unrenewed: made by a test"
        )
        await it.clock.advance(1)
        # It says that the position is stored, so it may not return before.
        assert not seek.done()
        it.store.faults.fails.clear()
        await it.clock.advance(10)
        await asyncio.wait_for(seek, 5)
        found = await it.store.of("A")
        assert found is not None
        assert (found.checkpoint, found.resume_from) == ("3", HORIZON)


async def test_finished_parents_are_written_before_what_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
):
    """A crash in between leaves a replay of too much, never of too little."""
    parts = {"C": split_of("P", 3), "P": Part(records=[1, 2], closed=True), "D": split_of("P", 4)}
    async with world(**parts) as it:
        # C has its row first, as a store may list them in any order.
        lease = await it.store.acquire(LeaseKey("orders", "C"), "somebody", duration=1.0)
        assert lease is not None
        await it.store.release(lease)
        instance = await it.start(acking=True)
        await it.clock.advance(30)
        assert set(instance.coordinator.holdings) == {"C", "D"}
        instance.coordinator.held.give_up(instance.coordinator.holdings["C"])
        await it.clock.advance(0)
        written: list[str] = []

        def noting(method: str) -> None:
            write: Callable[..., Awaitable[None]] = getattr(it.store, method)

            async def note(held: LeaseState, *args: Any, **options: Any) -> None:
                if options.get("resume_from") is not None:
                    written.append(held.key.shard_id)
                await write(held, *args, **options)

            monkeypatch.setattr(it.store, method, note)

        noting("release")
        noting("checkpoint")
        instance.received.clear()
        await ends(it, seeking(instance, HORIZON))
        assert written[:2] == ["P", "C"]
        await it.clock.advance(10)
        assert instance.received[:2] == [("P", 1), ("P", 2)]
        assert sorted(instance.received[2:]) == [("C", 3), ("D", 4)]


async def test_a_stop_while_rows_are_moved_moves_nothing_that_is_held(
    monkeypatch: pytest.MonkeyPatch,
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.coordinator.held.give_up(instance.coordinator.holdings["A"])
        await it.clock.advance(0)
        gate = Gate(it, "acquire", monkeypatch)
        gate.shard = "A"
        seek = seeking(instance, HORIZON)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        await instance.coordinator.stop_reading()
        gate.open.set()
        with pytest.raises(NotConnected, match="stopping"):
            await asyncio.wait_for(seek, 5)
        await instance.stop()
        found = await it.store.of("B")
        assert found is not None
        assert (found.checkpoint, found.resume_from) == ("10", None)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_row_that_could_not_be_moved_moves_when_it_is_asked_for_again(
    lost: str, monkeypatch: pytest.MonkeyPatch
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.coordinator.held.give_up(instance.coordinator.holdings["A"])
        for _ in range(6):
            instance.coordinator.held.absent.add(instance.coordinator.holdings["A"])
        await it.clock.advance(0)
        instance.received.clear()
        store = it.store.acquire
        failing = [True]

        async def fail(*args: Any, **options: Any) -> Any:
            if failing.pop() if failing else False:
                if lost == "answer":
                    await store(*args, **options)
                raise ConnectionError("made by a test")
            return await store(*args, **options)

        monkeypatch.setattr(it.store, "acquire", fail)
        with pytest.raises(ConnectionError):
            await ends(it, seeking(instance, HORIZON))
        assert instance.received == []
        # Where the answer was lost, the row is this member's own: it is taken anew at once.
        await ends(it, seeking(instance, HORIZON))
        await moved(it, instance, HORIZON)


async def all_given_up(it: World) -> Instance:
    """An instance that holds nothing, and takes nothing for a while."""
    instance = await it.start(acking=True)
    await it.clock.advance(5)
    for holding in list(instance.coordinator.holdings.values()):
        for _ in range(6):
            instance.coordinator.held.absent.add(holding)
        instance.coordinator.held.over(holding.shard)
    await it.clock.advance(0)
    assert not instance.coordinator.holdings
    return instance


async def test_a_seek_that_fails_writes_nothing_after_its_end(monkeypatch: pytest.MonkeyPatch):
    """Or it would undo what a later one has written."""
    async with world(**family()) as it:
        instance = await all_given_up(it)
        gate = Gate(it, "release", monkeypatch)
        gate.shard = "A"
        acquire = it.store.acquire

        async def fail(key: LeaseKey, *args: Any, **options: Any) -> Any:
            if key.shard_id == "B":
                raise ConnectionError("made by a test")
            return await acquire(key, *args, **options)

        monkeypatch.setattr(it.store, "acquire", fail)
        seek = seeking(instance, HORIZON)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        await it.clock.advance(1)
        # B has failed, A is still on its way.
        assert not seek.done()
        gate.open.set()
        with pytest.raises(ConnectionError):
            await ends(it, seek)


async def test_a_row_whose_seek_was_cancelled_is_not_passed_over(monkeypatch: pytest.MonkeyPatch):
    async with world(**family()) as it:
        instance = await all_given_up(it)
        gate = Gate(it, "release", monkeypatch)
        gate.shard = "A"
        seek = seeking(instance, HORIZON)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        seek.cancel()
        await asyncio.wait([seek])
        gate.open.set()
        instance.received.clear()
        await ends(it, seeking(instance, HORIZON))
        await moved(it, instance, HORIZON)


async def test_a_row_that_is_leased_to_nobody_we_know_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
):
    """A store that knows no members: the lease has to run out."""
    async with world(**family()) as it:
        instance = await all_given_up(it)
        store, failing = it.store.acquire, [True]

        async def fail(*args: Any, **options: Any) -> Any:
            lease = await store(*args, **{**options, "member": ""})
            if failing.pop() if failing else False:
                raise ConnectionError("made by a test")
            return lease

        monkeypatch.setattr(it.store, "acquire", fail)
        with pytest.raises(ConnectionError):
            await ends(it, seeking(instance, HORIZON))
        with pytest.raises(KinesisError, match="may be leased to nobody"):
            await ends(it, seeking(instance, HORIZON))
        await it.clock.advance(10)
        instance.received.clear()
        await ends(it, seeking(instance, HORIZON))
        await moved(it, instance, HORIZON)


# -- being taken -----------------------------------------------------------------------------------


@ALL
async def test_a_shard_that_is_being_taken_moves(
    position: KinesisPosition, monkeypatch: pytest.MonkeyPatch
):
    async with world(**family()) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        gate = Gate(it, "acquire", monkeypatch)
        gate.shard = "A"
        instance.received.clear()
        instance.let_go("A")
        await asyncio.wait_for(gate.arrived.wait(), 5)
        seek = seeking(instance, position)
        await it.clock.advance(1)
        assert not seek.done()
        gate.open.set()
        await ends(it, seek)
        await moved(it, instance, position)


@PAST
async def test_a_shard_that_the_first_pass_is_about_to_take_moves(
    position: KinesisPosition, monkeypatch: pytest.MonkeyPatch
):
    async with world(**family()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(5)
        await first.stop()
        gate = Gate(it, "acquire", monkeypatch)
        gate.shard = "A"
        second = Instance(it.stream, it.store, None)
        second.acking = True
        it.instances.append(second)
        opening = asyncio.create_task(second.start())
        await asyncio.wait_for(gate.arrived.wait(), 5)
        seek = seeking(second, position)
        await it.clock.advance(1)
        assert not seek.done()
        gate.open.set()
        await asyncio.wait_for(opening, 5)
        await ends(it, seek)
        await moved(it, second, position)
        assert second.numbers("B") == [10]


@pytest.mark.parametrize("lease_store", ["memory"], indirect=True)
async def test_what_the_first_pass_takes_while_all_are_moved_moves(
    monkeypatch: pytest.MonkeyPatch,
):
    async with world(**family()) as it:
        first = await it.start(acking=True)
        await it.clock.advance(5)
        await first.stop()
        arrived: list[asyncio.Event] = []
        leases = it.store.leases

        async def wait(stream: str, group: str | None = None) -> list[LeaseState]:
            if len(arrived) < 2:
                arrived.append(go := asyncio.Event())
                await go.wait()
            return await leases(stream, group)

        monkeypatch.setattr(it.store, "leases", wait)
        second = Instance(it.stream, it.store, None)
        second.acking = True
        it.instances.append(second)
        opening = asyncio.create_task(second.start())
        await it.clock.advance(0)
        seek = seeking(second, HORIZON)
        await it.clock.advance(0)
        passing, moving = arrived
        passing.set()
        await it.clock.advance(0)
        moving.set()
        await ends(it, seek)
        await asyncio.wait_for(opening, 5)
        await moved(it, second, HORIZON)


async def test_no_shard_is_taken_while_all_are_moved(monkeypatch: pytest.MonkeyPatch):
    async with world(A=Part(records=[1, 2, 3]), C=Part(records=[5])) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        instance.coordinator.held.give_up(instance.coordinator.holdings["A"])
        await it.clock.advance(0)
        gate = Gate(it, "acquire", monkeypatch)
        gate.shard = "A"
        instance.received.clear()
        seek = seeking(instance, HORIZON)
        await asyncio.wait_for(gate.arrived.wait(), 5)
        # Its row is being moved. A new shard would open where the old rule says.
        it.stream.parts["B"] = Part(records=[10])
        await it.clock.advance(3)
        await instance.coordinator._discovery.look()
        instance.coordinator.held.wake()
        await it.clock.advance(0)
        assert set(instance.coordinator.holdings) == {"C"}
        gate.open.set()
        await ends(it, seek)
        assert set(instance.coordinator.holdings) == {"A", "B", "C"}
        await moved(it, instance, HORIZON)
        assert instance.numbers("B") == [10]


# -- being handed over -----------------------------------------------------------------------------


async def handed(it: World) -> tuple[Instance, Instance, str]:
    """Two instances, and the shard that the first gave to the second, which has not taken it yet."""
    first = await it.start(acking=True)
    await it.clock.advance(1.5)
    second = await it.start(acking=True)
    while len(first.coordinator.holdings) == 2:
        await it.clock.advance(0.02)
    (gone,) = {"A", "B"} - set(first.coordinator.holdings)
    assert second.coordinator.holdings == {}
    return first, second, gone


@pytest.mark.parametrize("who", [0, 1], ids=["the one that gave it", "the one that is to have it"])
@PAST
async def test_a_shard_between_two_instances_moves_with_those_of_either(
    position: KinesisPosition, who: int
):
    async with world(**family()) as it:
        first, second, gone = await handed(it)
        before = first.numbers(gone)

        await ends(it, seeking((first, second)[who], position))
        await it.clock.advance(6)

        assert second.numbers(gone) == before


async def test_a_shard_that_the_successor_has_taken_is_its_own():
    async with world(**family()) as it:
        first, second, gone = await handed(it)
        await it.clock.advance(3)
        assert set(second.coordinator.holdings) == {gone}

        await ends(it, seeking(first, HORIZON))
        await second.stop()
        await it.clock.advance(6)

        assert second.numbers(gone) == []
        assert first.numbers(gone) == family()[gone].records


async def test_a_seek_whose_position_is_not_stored_at_the_stop_either_says_so():
    async with world(A=Part(records=[1, 2, 3])) as it:
        instance = await it.start(acking=True)
        await it.clock.advance(5)
        it.store.faults.fails.update(checkpoint=1000, release=1000)
        seek = seeking(instance, HORIZON)
        await it.clock.advance(1)
        assert not seek.done()
        stop = asyncio.create_task(instance.stop())
        await it.clock.advance(60)
        with pytest.raises(NotConnected, match="before it could store") as caught:
            await asyncio.wait_for(seek, 5)
        assert (caught.value.stream, caught.value.shard_id) == ("orders", "A")
        assert await it.store.checkpoint_of("A") == "3"
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(stop, 5)
