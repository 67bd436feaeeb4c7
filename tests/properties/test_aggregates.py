"""Random publishes in aggregates, with refusals, cancellations, reshardings and stops."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_kinesis._core import (
    HashRanges,
    aggregate_fitting,
    decode_aggregate,
    encode_aggregate,
    hash_key,
)
from ruststream_kinesis.errors import (
    BufferFull,
    KinesisError,
    NotConnected,
    PublishError,
    RequestError,
)
from ruststream_kinesis.limits import LAST_HASH_KEY
from ruststream_kinesis.transport import PutEntry, PutResult, ShardInfo
from tests.support.putting import Sink, throttled

_BUFFER = 12
_MAGIC = b"\xf3\x89\x9a\xc2"

hash_keys = st.integers(0, 2**128 - 1)
entries = st.lists(
    st.tuples(
        st.binary(max_size=60),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
        st.none() | hash_keys.map(str),
    ),
    min_size=1,
    max_size=40,
)


def shards_of(cuts: set[int], generation: int) -> list[ShardInfo]:
    """A stream that is cut at these hash keys."""
    starts = sorted({0, *cuts})
    ends = [*(at - 1 for at in starts[1:]), int(LAST_HASH_KEY)]
    return [
        ShardInfo(f"s{generation}-{n:02}", hash_keys=(str(first), str(last)))
        for n, (first, last) in enumerate(zip(starts, ends, strict=True))
    ]


def at_of(key: str, explicit: str | None) -> int:
    """The hash key that a record goes by."""
    return hash_key(key) if explicit is None else int(explicit)


@given(given_entries=entries, limit=st.integers(0, 2_000))
def test_what_fits_reads_back_and_one_more_would_not_fit(
    given_entries: list[tuple[bytes, str, str | None]], limit: int
) -> None:
    count = aggregate_fitting(given_entries, limit)
    blob = encode_aggregate(given_entries[:count])
    key_bytes = len(given_entries[0][1].encode())
    inside = decode_aggregate(blob)
    assert inside == [(key, own, data) for data, key, own in given_entries[:count]]
    assert count == 1 or len(blob) + key_bytes <= limit
    if count < len(given_entries):
        more = encode_aggregate(given_entries[: count + 1])
        nested = any(data.startswith(_MAGIC) for data, _, _ in given_entries[: count + 1])
        assert len(more) + key_bytes > limit or nested


@given(given_entries=entries, cuts=st.sets(hash_keys, max_size=5), drop=st.booleans())
def test_a_record_is_placed_where_its_hash_key_is(
    given_entries: list[tuple[bytes, str, str | None]], cuts: set[int], *, drop: bool
) -> None:
    bounds = [each.hash_keys for each in shards_of(cuts, 0) if each.hash_keys is not None]
    known = bounds[1:] if drop else bounds
    random.Random(len(cuts)).shuffle(known)
    places = HashRanges(known).places(given_entries)
    for (_, key, own), place in zip(given_entries, places, strict=True):
        at = at_of(key, own)
        fitting = [n for n, (first, last) in enumerate(known) if int(first) <= at <= int(last)]
        assert fitting == ([] if place is None else [place])


actions = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.06, 0.2, 3.0])),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("reshard"), st.sets(hash_keys, max_size=3)),
)


@settings(max_examples=150, deadline=None)
@given(
    script=st.lists(actions, min_size=5, max_size=70),
    seed=st.integers(0, 2**16),
    refusals=st.sampled_from([0.0, 0.2, 0.6]),
    failures=st.sampled_from([0.0, 0.3]),
    listing=st.sampled_from([0.0, 0.4]),
    stop=st.booleans(),
)
def test_every_record_has_its_own_result_every_key_its_order_every_aggregate_one_shard(
    script: list[tuple[str, Any]],
    seed: int,
    refusals: float,
    failures: float,
    listing: float,
    stop: bool,
) -> None:
    asyncio.run(_run(script, random.Random(seed), refusals, failures, listing, stop=stop))


async def _run(  # noqa: PLR0912 - one story, whatever the script says
    script: list[tuple[str, Any]],
    rng: random.Random,
    refusals: float,
    failures: float,
    listing: float,
    *,
    stop: bool,
) -> None:
    sink = Sink()
    generations = [shards_of({2**127}, 0)]
    sink.shards = generations[0]
    acknowledged: dict[bytes, tuple[str, int | None]] = {}
    """Sequence number and sub-sequence number by data."""

    def refuse(entry: PutEntry) -> KinesisError | None:
        inside = decode_aggregate(entry[0])
        if inside is not None:
            assert len(inside) > 1
            assert any(_in_one_shard(inside, shards) for shards in generations)
            assert (entry[1], entry[2]) == inside[0][:2]
        if rng.random() < refusals:
            return throttled()
        number = str(len(sink.records["orders"]) + 1)
        for at, data in enumerate(_data(entry[0])):
            assert data not in acknowledged, "what was put is never sent again"
            acknowledged[data] = (number, None if inside is None else at)
        return None

    def fail() -> BaseException | None:
        return RequestError("gone", code="HTTP503", status=503) if rng.random() < failures else None

    sink.refuse, sink.fail = refuse, fail
    sink.fail_listing = lambda: throttled() if rng.random() < listing else None
    own = sink.publisher(aggregate=True, batch=2, buffer_records=_BUFFER, deadline=20)
    published: dict[str, list[bytes]] = defaultdict(list)
    futures: dict[bytes, asyncio.Future[PutResult]] = {}
    cancelled: set[bytes] = set()
    buffer: Any = None
    for number, (what, argument) in enumerate(script):
        data = b"%d" % number
        if what in {"publish", "wait"}:
            # Each key has one way of saying where it goes.
            key, explicit = f"k{argument}", str(argument * 2**125) if argument % 2 else None
            try:
                if what == "wait":
                    futures[data] = asyncio.ensure_future(
                        own.publish(data, "orders", partition_key=key, explicit_hash_key=explicit)
                    )
                    await asyncio.sleep(0)
                else:
                    futures[data] = own.publish_nowait(
                        data, "orders", partition_key=key, explicit_hash_key=explicit
                    )
            except BufferFull:
                continue
            published[key].append(data)
            (collector,) = sink.connection.collectors._busy or (None,)
            buffer = None if collector is None else collector._buffer
        elif what == "advance":
            await sink.clock.advance(argument)
        elif what == "hold":
            (sink.open.clear if argument else sink.open.set)()
        elif what == "reshard":
            sink.shards = shards_of(argument, len(generations))
            generations.append(sink.shards)
        elif futures:
            chosen = sorted(futures)[argument % len(futures)]
            if futures[chosen].cancel():
                cancelled.add(chosen)
        assert buffer is None or buffer.records <= _BUFFER
    if stop:
        await sink.connection.close()
    sink.open.set()
    for _ in range(40):
        await sink.clock.advance(3.0)
    assert all(each.done() for each in futures.values())

    for data, future in futures.items():
        if future.cancelled():
            assert data in cancelled
        elif future.exception() is None:
            found = future.result()
            assert (found.sequence_number, found.sub_sequence_number) == acknowledged[data]
        else:
            assert isinstance(future.exception(), PublishError | NotConnected)
            assert stop or data not in acknowledged
    stored = [data for _, blob in sink.records["orders"] for data in _data(blob)]
    for order in published.values():
        taken = [data for data in stored if data in set(order)]
        assert taken == [data for data in order if data in set(taken)]
        assert len(taken) == len(set(taken))
    await asyncio.sleep(0)
    if buffer is not None:
        assert (buffer.records, buffer.bytes, len(buffer), buffer.keys) == (0, 0, 0, 0)
        assert not any((buffer._lanes, buffer._busy, buffer._groups, buffer.ready_bytes))
    assert asyncio.all_tasks() == {asyncio.current_task()}


def _data(blob: bytes) -> list[bytes]:
    inside = decode_aggregate(blob)
    return [blob] if inside is None else [data for _, _, data in inside]


def _in_one_shard(inside: list[tuple[str, str | None, bytes]], shards: list[ShardInfo]) -> bool:
    places = [at_of(key, own) for key, own, _ in inside]
    return any(
        int(each.hash_keys[0]) <= min(places) and max(places) <= int(each.hash_keys[1])
        for each in shards
        if each.hash_keys is not None
    )
