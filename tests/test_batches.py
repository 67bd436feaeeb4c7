"""Batches: when they close, what they may hold, and that each element is settled on its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ruststream_kinesis import KinesisMessage, Outcome, ack, drop, retry, retry_after
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import HandlerFailed
from ruststream_kinesis.leases import LeaseKey
from tests.support.batching import (
    Batches,
    payloads,
    settle,
    world_of_batches,  # noqa: F401 - a fixture
)
from tests.support.world import World, running, until

pytestmark = pytest.mark.usefixtures("lease_store")


class TestClosing:
    async def test_at_n_records_without_any_time(self, world: World):
        world.put("orders", *range(10))
        service = Batches(world, batch_window=1000.0)
        async with running(service.app):
            await service.until_handled(10)
            assert world.clock.monotonic() == 0

        assert service.seen == [list(range(10))]

    async def test_when_its_window_is_over_after_its_first_record(self, world: World):
        service = Batches(world, batch_window=5.0)
        async with running(service.app):
            world.put("orders", 1)
            await world.clock.advance(1.5)
            for n in (2, 3):
                world.put("orders", n)
                await world.clock.advance(1)
            assert service.seen == []
            await world.clock.advance(2.5)

        assert service.seen == [[1, 2, 3]]

    async def test_a_window_of_nothing_waits_for_nobody(self, world: World):
        world.put("orders", 1, 2)
        service = Batches(world, batch_window=0)
        async with running(service.app):
            await service.until_handled(2)

        assert service.seen == [[1, 2]]

    async def test_it_may_mix_shards_and_settles_each_against_its_own(self, world: World):
        first = world.put("orders", *range(5))
        second = world.put("orders", *range(5, 10), shard=1)
        service = Batches(world)
        async with running(service.app):
            await service.until_handled(10)

        assert sorted(service.seen[0]) == list(range(10))
        assert await world.checkpoint(shard=0) == first[-1]
        assert await world.checkpoint(shard=1) == second[-1]

    async def test_a_page_is_asked_for_in_the_size_of_a_batch(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        limits = []
        for size in (1, 700, 20_000):
            service = Batches(world, batch=size)
            transport = world.transports[-1]
            get = transport.get_records

            async def noted(*arguments: Any, get: Callable[..., Any] = get) -> bytes:
                limits.append(arguments[-1])
                body: bytes = await get(*arguments)
                return body

            monkeypatch.setattr(transport, "get_records", noted)
            async with running(service.app):
                await until(lambda: bool(limits), "a read")
            assert set(limits) == {min(size, 10_000)}
            limits.clear()

    async def test_each_worker_forms_its_own_and_a_key_stays_with_one(self, world: World):
        keys = [f"key-{n % 7}" for n in range(70)]
        for n, key in enumerate(keys):
            world.put("orders", n, key=key)
        service = Batches(world, workers=3, batch=5)
        async with running(service.app):
            while sum(map(len, service.seen)) < 70:
                await world.clock.advance(0.1)

        order = [n for batch in service.seen for n in batch]
        for number in range(7):
            mine = [n for n in order if n % 7 == number]
            assert mine == sorted(mine)
        assert len({n % 7 for n in service.seen[0]}) < 7

    async def test_one_that_is_forming_at_the_stop_is_left_to_the_next_owner(self, world: World):
        """Cases L7, W6: nothing is repeated, and nothing is lost."""
        world.put("orders", *range(14))
        first = Batches(world)
        async with running(first.app):
            await first.until_handled(10)
        second = Batches(world, start_at=None)
        async with running(second.app):
            await world.clock.advance(0.1)

        assert first.seen == [list(range(10))]
        assert second.seen == [list(range(10, 14))]

    async def test_of_one_that_is_forming_at_the_stop_nothing_is_looked_at(self, world: World):
        """What does not decode is the next owner's as well: else it would be given up twice."""
        world.put("orders", *range(10), b"{")
        service = Batches(world, batch_window=1000.0, dead_letter="dead")
        async with running(service.app):
            await world.clock.advance(5)
            counters = service.counters

        assert service.seen == [list(range(10))]
        assert counters.undecodable == 0
        assert world.records("dead") == []

    async def test_what_is_older_than_what_ran_still_runs_at_the_stop(self, world: World):
        """Another worker is further: its batch is covered by a checkpoint, so ours must run."""
        lanes = two_keys_of_different_workers(world)
        world.put("orders", 0, key=lanes[0])
        world.put("orders", *range(1, 4), key=lanes[1])
        first = Batches(world, workers=2, batch=3, batch_window=1000.0)
        async with running(first.app):
            await world.clock.advance(5)
            assert first.seen == [[1, 2, 3]]

        assert first.seen == [[1, 2, 3], [0]]
        assert await world.checkpoint() == "4"


def two_keys_of_different_workers(world: World) -> tuple[str, str]:
    from ruststream_kinesis._core import Page  # noqa: PLC0415 - only here

    listed = [{"SequenceNumber": "1", "Data": "", "PartitionKey": f"key-{n}"} for n in range(20)]
    page = Page.parse(json.dumps({"Records": listed}).encode())
    left, right = page.partitions(0, 20, 2)
    return f"key-{left[0]}", f"key-{right[0]}"


class TestSettling:
    @pytest.mark.parametrize("outcome", [None, ack(), drop()])
    async def test_one_outcome_is_that_of_all(self, world: World, outcome: Outcome | None):
        numbers = world.put("orders", *range(10))
        service = Batches(world, outcome)
        async with running(service.app):
            await service.until_handled(10)
            assert service.counters.dropped == (10 if outcome is drop() else 0)

        assert await world.checkpoint() == numbers[-1]

    async def test_a_list_has_one_for_each(self, world: World):
        numbers = world.put("orders", *range(10))
        said = [ack()] * 3 + [drop()] + [retry()] + [None] * 4 + [retry_after(60)]
        service = Batches(world, said, max_attempts=2)
        async with running(service.app):
            await service.until_handled(10)
            counters = service.counters
            assert (counters.dropped, counters.retried) == (1, 2)
            assert payloads(world, "orders") == [*range(10), 4]
            service.says = None
            # Record 9 waits open as a copy: the checkpoint stays before it.
            await world.clock.advance(1)
            assert await world.checkpoint() == numbers[8]

    async def test_a_held_element_holds_the_checkpoint_of_its_own_shard_only(self, world: World):
        first = world.put("orders", *range(5))
        second = world.put("orders", *range(5, 10), shard=1)
        service = Batches(world, lambda values: [retry() if v == 2 else ack() for v in values])
        async with running(service.app):
            await service.until_handled(10)

        assert await world.checkpoint(shard=0) == first[1]
        assert await world.checkpoint(shard=1) == second[-1]

    async def test_a_shorter_list_leaves_the_rest_open_with_a_warning(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        numbers = world.put("orders", *range(10))
        service = Batches(world, [ack()] * 4)
        async with running(service.app):
            await service.until_handled(10)
            assert service.counters.held == 6

        assert await world.checkpoint() == numbers[3]
        assert "said of 4 of 10 records" in caplog.text

    async def test_a_longer_list_is_an_error_of_the_handler(self, world: World):
        world.put("orders", *range(10))
        service = Batches(world, [ack()] * 11, dead_letter="dead")
        async with running(service.app):
            await service.until_handled(10)

        assert payloads(world, "dead") == list(range(10))
        headers, _ = decode_envelope(world.records("dead")[0].data)
        assert "11 outcomes for a batch of 10" in headers["x-ruststream-error"]

    async def test_an_error_counts_for_every_element_and_is_logged_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        numbers = world.put("orders", *range(10))
        service = Batches(world, ValueError("no"), max_attempts=1, dead_letter="dead")
        async with running(service.app):
            await service.until_handled(10)
            assert service.counters.failed == 10

        assert payloads(world, "dead") == list(range(10))
        assert await world.checkpoint() == numbers[-1]
        assert caplog.text.count("handler Batches") == 1

    async def test_an_error_policy_is_asked_for_each_element(self, world: World):
        numbers = world.put("orders", *range(10))

        def policy(_error: BaseException, message: KinesisMessage[Any]) -> Outcome:
            return drop() if message.payload % 2 == 0 else retry()

        service = Batches(world, ValueError("no"), on_error=policy)
        async with running(service.app):
            await service.until_handled(10)
            counters = service.counters
            assert (counters.dropped, counters.held) == (5, 5)

        assert await world.checkpoint() == numbers[0]

    async def test_elements_that_do_not_decode_are_settled_alone(self, world: World):
        world.put("orders", 0, b"{", 2, b'"three"', 4)
        service = Batches(world, batch=5, max_attempts=3, dead_letter="dead")
        async with running(service.app):
            await service.until_handled(3)
            assert service.counters.undecodable == 2

        assert service.seen == [[0, 2, 4]]
        dead = [decode_envelope(each.data)[1] for each in world.records("dead")]
        assert dead == [b"{", b'"three"']
        assert await world.checkpoint() == "5"

    async def test_a_batch_of_nothing_that_decodes_calls_nobody(self, world: World):
        world.put("orders", b"{", b"{")
        service = Batches(world, batch=2)
        async with running(service.app):
            await until(lambda: service.counters.undecodable == 2)
            await settle()

        assert service.seen == []
        assert await world.checkpoint() == "2"

    async def test_after_a_stop_asked_for_by_the_decode_policy_nothing_later_starts(
        self, world: World
    ):
        world.put("orders", 0, b"{", 2)
        service = Batches(world, batch=3, on_decode_error="stop")
        with pytest.raises(HandlerFailed):
            async with running(service.app) as task:
                await asyncio.wait({task})

        assert service.seen == [[0]]
        assert await world.checkpoint() == "1"

    async def test_the_copies_of_a_batch_that_came_early_wait_out_the_rest(self, world: World):
        due = int(world.clock.time() * 1000) + 30_000
        early = f"x-ruststream-not-before: {due}\n".encode()
        blob = b"RSK1" + len(early).to_bytes(4, "big") + early + b"1"
        world.put("orders", 0, blob, 2)
        service = Batches(world, batch=3)
        async with running(service.app):
            await world.clock.advance(1)
            assert service.seen == [[0, 2]]
            await world.clock.advance(32)

        assert service.seen == [[0, 2], [1]]


async def test_a_batch_whose_shard_was_lost_calls_nobody_and_settles_nothing(world: World):
    world.put("orders", *range(3))
    service = Batches(world, batch_window=60.0)
    async with running(service.app):
        await world.clock.advance(1)
        key = LeaseKey("orders", min(world.streams["orders"]))
        await world.store.release(await world.store.read(key))
        await world.store.acquire(key, "thief", duration=1000.0)
        await world.clock.advance(70)

    assert service.seen == []
    assert await world.checkpoint() is None
