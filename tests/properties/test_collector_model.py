"""Random publishes, failures, cancellations and stops: what a collector promises about each record."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_kinesis.errors import (
    AccessDenied,
    BufferFull,
    KinesisError,
    NotConnected,
    PublishError,
    RequestError,
)
from ruststream_kinesis.transport import PutEntry, PutResult
from tests.support.putting import Sink, throttled

_BUFFER = 12

actions = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.2, 3.0])),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("hold"), st.booleans()),
)


@settings(max_examples=120, deadline=None)
@given(
    script=st.lists(actions, min_size=5, max_size=60),
    seed=st.integers(0, 2**16),
    refusals=st.sampled_from([0.0, 0.2, 0.6]),
    failures=st.sampled_from([0.0, 0.3]),
    denials=st.sampled_from([0.0, 0.1]),
    stop=st.booleans(),
)
def test_every_record_has_its_own_result_and_every_key_its_order(
    script: list[tuple[str, Any]],
    seed: int,
    refusals: float,
    failures: float,
    denials: float,
    stop: bool,
) -> None:
    asyncio.run(_run(script, random.Random(seed), refusals, failures, denials, stop=stop))


async def _run(  # noqa: PLR0912 - one story, whatever the script says
    script: list[tuple[str, Any]],
    rng: random.Random,
    refusals: float,
    failures: float,
    denials: float,
    *,
    stop: bool,
) -> None:
    sink = Sink()
    acknowledged: set[bytes] = set()

    def refuse(entry: PutEntry) -> KinesisError | None:
        assert entry[0] not in acknowledged, "what was put is never sent again"
        if rng.random() < denials:
            return AccessDenied("no", code="AccessDeniedException", status=400)
        if rng.random() < refusals:
            return throttled()
        acknowledged.add(entry[0])
        return None

    def fail() -> BaseException | None:
        return RequestError("gone", code="HTTP503", status=503) if rng.random() < failures else None

    sink.refuse, sink.fail = refuse, fail
    own = sink.publisher(batch=3, buffer_records=_BUFFER, deadline=20)
    published: dict[str, list[bytes]] = defaultdict(list)
    futures: dict[bytes, asyncio.Future[PutResult]] = {}
    cancelled: set[bytes] = set()
    buffer: Any = None
    for number, (what, argument) in enumerate(script):
        data = b"%d" % number
        if what in {"publish", "wait"}:
            key = f"k{argument}"
            try:
                if what == "wait":
                    futures[data] = asyncio.ensure_future(
                        own.publish(data, "orders", partition_key=key)
                    )
                    await asyncio.sleep(0)
                else:
                    futures[data] = own.publish_nowait(data, "orders", partition_key=key)
            except BufferFull:
                continue
            published[key].append(data)
            (collector,) = sink.connection.collectors._busy or (None,)
            buffer = None if collector is None else collector._buffer
        elif what == "advance":
            await sink.clock.advance(argument)
        elif what == "hold":
            (sink.open.clear if argument else sink.open.set)()
        elif futures:
            chosen = sorted(futures)[argument % len(futures)]
            if futures[chosen].cancel():
                cancelled.add(chosen)
        assert buffer is None or buffer.records <= _BUFFER
        for entries in sink.requests:
            keys = [entry[1] for entry in entries]
            assert len(keys) == len(set(keys))
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
            assert data in acknowledged
        else:
            assert isinstance(future.exception(), PublishError | NotConnected)
            assert stop or data not in acknowledged
    for key, order in published.items():
        taken = [data for at, data in sink.records["orders"] if at == key]
        assert taken == [data for data in order if data in set(taken)]
        assert len(taken) == len(set(taken))
    await asyncio.sleep(0)
    if buffer is not None:
        assert (buffer.records, buffer.bytes, len(buffer), buffer.keys) == (0, 0, 0, 0)
        assert buffer.ready_bytes == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
