"""The outcome table on a real server: what is put where, what is settled, and what comes again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from asyncio import FIRST_COMPLETED
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    MemoryLeaseStore,
    Outcome,
    RustStream,
    ack,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import StopTimeout
from ruststream_kinesis.leases import SHARD_END
from ruststream_kinesis.testing import ManualClock
from tests.support.aws import Aws
from tests.support.copying import enveloped
from tests.support.running import running
from tests.support.scripted import FaultProxy, error
from tests.support.servers import Server

HORIZON = KinesisPosition.horizon()
COUNT = "x-ruststream-retry-count"
NOT_BEFORE = "x-ruststream-not-before"


def application(
    url: str, store: MemoryLeaseStore | None = None, clock: ManualClock | None = None
) -> RustStream:
    broker = KinesisBroker(
        endpoint_url=url, test_credentials=True, lease_store=store or MemoryLeaseStore()
    )
    if clock is not None:
        broker.connection.clock = clock
    return RustStream(broker, title="test", version="0", shutdown_timeout=5.0)


def quickly(name: str) -> KinesisStream:
    return KinesisStream(name, poll_interval=0.02, read_interval=0.02)


async def checkpoint(store: MemoryLeaseStore, name: str, shard: int = 0) -> str | None:
    rows = sorted(await store.leases(name), key=lambda row: row.key.shard_id)
    return rows[shard].checkpoint


async def envelopes(aws: Aws, name: str) -> list[tuple[dict[str, str], bytes]]:
    return [decode_envelope(each["Data"]) for each in await aws.records(name)]


@pytest.mark.parametrize("outcome", [None, ack(), drop()])
async def test_ack_and_drop_settle_and_put_nothing(
    kinesis_local: Server, aws: Aws, outcome: Outcome | None
):
    name, dead, store = await aws.create_stream(), await aws.create_stream(), MemoryLeaseStore()
    number = await aws.put(name, b"1")
    app = application(kinesis_local.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=3, dead_letter=dead)
    async def handle(value: int) -> Outcome | None:
        return outcome

    async with running(app) as it:
        await it.until(lambda: app.counters[name].handled == 1)

    assert await checkpoint(store, name) == number
    assert len(await aws.records(name)) == 1
    assert await aws.records(dead) == []


async def test_a_held_record_keeps_the_checkpoint_and_comes_again_with_what_follows(
    kinesis_local: Server, aws: Aws
):
    """Case W7, its first half."""
    name, store = await aws.create_stream(), MemoryLeaseStore()
    numbers = [await aws.put(name, b"%d" % n) for n in range(4)]
    seen: list[int] = []

    def service(*, holds: bool) -> RustStream:
        app = application(kinesis_local.url, store)

        @app.subscriber(quickly(name), start_at=HORIZON if holds else None)
        async def handle(value: int) -> Outcome | None:
            seen.append(value)
            return retry() if holds and value == 1 else None

        return app

    async with running(service(holds=True)) as it:
        await it.until(lambda: len(seen) == 4)
    assert await checkpoint(store, name) == numbers[0]
    async with running(service(holds=False)) as it:
        await it.until(lambda: len(seen) == 7)
    assert await checkpoint(store, name) == numbers[-1]

    assert seen == [0, 1, 2, 3, 1, 2, 3]


async def test_copies_then_a_dead_letter_byte_for_byte(kinesis_local: Server, aws: Aws):
    name, dead, store = await aws.create_stream(), await aws.create_stream(), MemoryLeaseStore()
    block, payload = b"odd line\nbad: \xff\nkinesis-shard-id: x\nlast: no end", b'"\xc3\xa9"'
    await aws.put(name, enveloped(block, payload), "\U0001f600" * 128)
    app = application(kinesis_local.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=3, dead_letter=dead)
    async def handle(value: str) -> None:
        raise ValueError(f"not\n{value}")

    async with running(app) as it:
        await it.until(lambda: app.counters[name].dead_lettered == 1)

    kept = b"odd line\nbad: \xff\nlast: no end\n"
    stored = await aws.records(name)
    assert [each["Data"] for each in stored[1:]] == [
        enveloped(kept + f"{COUNT}: {n}\n".encode(), payload) for n in (1, 2)
    ]
    (letter,) = await aws.records(dead)
    assert {each["PartitionKey"] for each in [*stored, letter]} == {"\U0001f600" * 128}
    assert letter["Data"].endswith(payload)
    assert letter["Data"][8:].startswith(kept)
    shard = (await aws.shards(name))[0]["ShardId"]
    headers, _ = decode_envelope(letter["Data"])
    assert {key: text for key, text in headers.items() if key.startswith("x-")} == {
        "x-ruststream-origin-stream": name,
        "x-ruststream-origin-shard": shard,
        "x-ruststream-origin-sequence-number": stored[-1]["SequenceNumber"],
        "x-ruststream-attempts": "3",
        "x-ruststream-error": 'ValueError: not "é"',
    }
    assert await checkpoint(store, name) == stored[-1]["SequenceNumber"]


async def test_what_does_not_decode_goes_to_the_dead_letter_at_once(
    kinesis_local: Server, aws: Aws
):
    name, dead, store = await aws.create_stream(), await aws.create_stream(), MemoryLeaseStore()
    number = await aws.put(name, b"\xff{")
    app = application(kinesis_local.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=5, dead_letter=dead)
    async def handle(value: int) -> None: ...

    async with running(app) as it:
        await it.until(lambda: app.counters[name].dead_lettered == 1)

    ((headers, payload),) = await envelopes(aws, dead)
    assert (payload, headers["x-ruststream-attempts"]) == (b"\xff{", "1")
    assert len(await aws.records(name)) == 1
    assert await checkpoint(store, name) == number


async def test_at_the_cap_without_a_dead_letter_the_checkpoint_goes_on(
    kinesis_local: Server, aws: Aws
):
    name, store = await aws.create_stream(), MemoryLeaseStore()
    await aws.put(name, b"1")
    app = application(kinesis_local.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=2)
    async def handle(value: int) -> Outcome:
        return retry()

    async with running(app) as it:
        await it.until(lambda: app.counters[name].dropped == 1)

    stored = await aws.records(name)
    assert len(stored) == 2
    assert await checkpoint(store, name) == stored[-1]["SequenceNumber"]


async def test_the_original_stays_open_until_its_copy_is_there_and_a_crash_brings_it_again(
    kinesis_local: Server, aws: Aws
):
    """Case W7, its second half: while the put fails, 5 stays open; 6 is acked and waits behind."""
    name, store = await aws.create_stream(), MemoryLeaseStore()
    numbers = [await aws.put(name, b"%d" % n) for n in (5, 6)]
    async with FaultProxy(kinesis_local.url) as proxy:
        proxy.on("PutRecord", error("ThrottlingException"))
        app = application(proxy.url, store)

        @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=2, workers=2)
        async def handle(value: int) -> Outcome | None:
            return retry() if value == 5 else None

        with pytest.raises(StopTimeout):
            async with running(app) as it:
                await it.wait(proxy.seen("PutRecord", 2), "two tries of the copy")
                assert await checkpoint(store, name) is None
                app.stop()
                app.stop()  # waits for no handler: as good as a crash

    assert len(await aws.records(name)) == 2
    assert await checkpoint(store, name) is None
    again: list[tuple[int, int]] = []
    second = application(kinesis_local.url, store)

    @second.subscriber(quickly(name), start_at=HORIZON, max_attempts=2)
    async def take(message: KinesisMessage[int]) -> None:
        again.append((message.payload, message.attempt))

    async with running(second) as it:
        await it.until(lambda: len(again) == 2)

    assert again == [(5, 1), (6, 1)]
    assert await checkpoint(store, name) == numbers[-1]


@pytest.mark.parametrize(("deferred", "settled"), [("hold", False), ("settle", True)])
async def test_a_waiting_copy_goes_out_at_the_stop_and_its_receiver_waits_out_the_rest(
    kinesis_local: Server, aws: Aws, deferred: Any, settled: bool
):
    name, store = await aws.create_stream(), MemoryLeaseStore()
    number = await aws.put(name, b"1", "ada")
    app = application(kinesis_local.url, store)

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=2, deferred=deferred)
    async def handle(value: int) -> Outcome:
        return retry_after(3600)

    async with running(app) as it:
        await it.until(lambda: app.counters[name].retried == 1)
        if settled:
            await it.wait(stored(store, name, number), "the original to be settled")
        else:
            assert await checkpoint(store, name) is None

    ((headers, payload),) = (await envelopes(aws, name))[1:]
    assert (headers[COUNT], payload) == ("1", b"1")
    assert await checkpoint(store, name) == number

    # An hour later, by the clock of the next service; it reads by its own time, too.
    clock = ManualClock(wall=int(headers[NOT_BEFORE]) / 1000 - 5)
    calls: list[int] = []
    second = application(kinesis_local.url, store, clock)

    @second.subscriber(quickly(name), max_attempts=2)
    async def take(message: KinesisMessage[int]) -> None:
        assert clock.monotonic() >= 5
        calls.append(message.attempt)

    async with running(second) as it:
        # Time stands still until it is read: it comes before it is due.
        await it.until(lambda: second.state().subscriptions[0].waiting_copies == 1)
        await it.drive(clock, lambda: bool(calls), step=0.01, what="the copy")

    assert calls == [2]
    assert (await envelopes(aws, name))[2:] == [({COUNT: "1"}, b"1")]


async def stored(store: MemoryLeaseStore, name: str, number: str) -> None:
    while await checkpoint(store, name) != number:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)


@pytest.mark.parametrize("last", ["dropped", "dead-lettered", "copied", "waiting"])
async def test_a_closed_shard_ends_whatever_becomes_of_its_last_record(
    kinesis_local: Server, aws: Aws, last: str
):
    """Cases S3 and S4: the copy is in a child then, and the parent's end waits for it."""
    name, dead, store = await aws.create_stream(), await aws.create_stream(), MemoryLeaseStore()
    for n in (7, 8):
        await aws.put(name, b"%d" % n)
    parent = (await aws.shards(name))[0]["ShardId"]
    await aws.split(name, parent)
    app = application(kinesis_local.url, store)
    cap = 1 if last == "dead-lettered" else 2

    @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=cap, dead_letter=dead)
    async def handle(message: KinesisMessage[int]) -> Outcome | None:
        if message.payload == 7 or message.attempt > 1:
            return None
        return {"dropped": drop(), "waiting": retry_after(3600)}.get(last, retry())

    async def ended() -> None:
        rows: dict[str, str | None] = {}
        while rows.get(parent) != SHARD_END:
            rows = {row.key.shard_id: row.checkpoint for row in await store.leases(name)}
            await asyncio.sleep(0)

    async with running(app) as it:
        await it.wait(ended(), "SHARD_END")
        if last == "copied":
            await it.until(lambda: app.counters[name].handled == 3)

    copies = (await envelopes(aws, name))[2:]
    assert len(copies) >= (last in {"copied", "waiting"})
    assert all(payload == b"8" for _, payload in copies)
    if last == "waiting":
        assert NOT_BEFORE in copies[0][0]
    assert len(await aws.records(dead)) == (last == "dead-lettered")


async def test_a_stop_that_cuts_a_handler_off_puts_nothing_and_the_attempt_stays_the_same(
    kinesis_local: Server, aws: Aws
):
    """Case X1."""
    name, dead, store = await aws.create_stream(), await aws.create_stream(), MemoryLeaseStore()
    await aws.put(name, b"1")
    attempts: list[int] = []

    def service(*, hangs: bool) -> tuple[RustStream, asyncio.Event]:
        app, started = application(kinesis_local.url, store), asyncio.Event()

        @app.subscriber(quickly(name), start_at=HORIZON, max_attempts=2, dead_letter=dead)
        async def handle(message: KinesisMessage[int]) -> None:
            attempts.append(message.attempt)
            started.set()
            if hangs:
                await asyncio.Event().wait()

        return app, started

    app, started = service(hangs=True)
    with pytest.raises(StopTimeout, match="worker"):
        async with running(app) as it:
            await it.wait(started.wait(), "the record")
            app.stop()
            app.stop()
    assert await checkpoint(store, name) is None
    app, started = service(hangs=False)
    async with running(app) as it:
        await it.wait(started.wait(), "the record")

    assert attempts == [1, 1]
    assert len(await aws.records(name)) == 1
    assert await aws.records(dead) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_over_restarts_every_record_ends_settled_and_none_is_lost(
    kinesis_local: Server, aws: Aws, seed: int
):
    """Random outcomes and stops, hard and soft; records left open come back."""
    name, dead = await aws.create_stream(shards=2), await aws.create_stream()
    store, rng, total = MemoryLeaseStore(), random.Random(seed), 40
    await aws.client.put_records(
        StreamName=name,
        Records=[
            {"Data": json.dumps(n).encode(), "PartitionKey": f"key-{n % 7}"} for n in range(total)
        ],
    )
    done: set[int] = set()
    spent: set[int] = set()
    ways = [None, None, None, drop(), retry(), retry_after(0.05), retry_after(3)]

    def service(*, first: bool, stop_after: int) -> RustStream:
        app, calls = application(kinesis_local.url, store), itertools.count(1)

        @app.subscriber(
            quickly(name),
            start_at=HORIZON if first else None,
            workers=3,
            max_attempts=3,
            dead_letter=dead,
        )
        async def handle(message: KinesisMessage[int]) -> Outcome | None:
            if next(calls) == stop_after:
                for _ in range(rng.randint(1, 2)):
                    app.stop()  # twice: what runs is cut off
            outcome = rng.choice(ways)
            await asyncio.sleep(0)
            if outcome is None or outcome is drop():
                done.add(message.payload)
            elif message.attempt == 3:
                spent.add(message.payload)
            return outcome

        return app

    async def lettered() -> set[int]:
        return {json.loads(payload) for _, payload in await envelopes(aws, dead)}

    async def all_ended() -> None:
        while len(done | await lettered()) < total:
            pass  # a round trip is a pause

    ended = False
    for round_ in range(40):
        app = service(first=round_ == 0, stop_after=rng.randint(3, 25))
        with contextlib.suppress(StopTimeout):
            async with running(app) as it:
                finish = asyncio.ensure_future(all_ended())
                await asyncio.wait({it.task, finish}, timeout=20, return_when=FIRST_COMPLETED)
                ended = finish.done()
                finish.cancel()
        if ended:
            break

    assert done | await lettered() == set(range(total))
    # What stands in the dead letter stream had three attempts, and nothing else does.
    assert await lettered() <= spent
