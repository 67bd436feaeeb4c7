"""A publish through `TestApp` that waits for its handler: what each line of a user's test costs.

The counterpart is FastStream's in-memory test broker, which works alike: publish, and the handler
has run when that returns. It is an optional peer (`peer_faststream.py`).
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING

import msgspec

from benches.cpu import Sample, Stopwatch
from benches.pages import Order, Spec, render_payload
from benches.raw_loop import REGION, STREAM
from benches.tally import WrongResultError
from ruststream_kinesis import KinesisBroker, RustStream
from ruststream_kinesis.testing import TestApp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

# Before the clock starts: caches and the adaptive interpreter have settled.
WARMUP = 200
BYTES = 512


def has_faststream() -> bool:
    """Whether the peer is installed."""
    return all(map(importlib.util.find_spec, ("faststream", "nats")))


def orders(count: int) -> list[Order]:
    """So many orders, of 512 bytes each as JSON."""
    decode = msgspec.json.Decoder(Order).decode
    return [decode(render_payload(one, BYTES)) for one in Spec(records=count).ids(0, 1)]


async def time_publishes(
    publish: Callable[[Any], Awaitable[object]], values: Sequence[Any], seen: Sequence[int]
) -> Sample:
    """Publishes one value after the other; the ids that the handler saw are checked.

    Raises:
        WrongResultError: A handler had not run when its publish returned, or not in order.
    """
    watch = Stopwatch()
    for place, value in enumerate(values):
        if place == WARMUP:
            watch.start()
        elif place < WARMUP and len(seen) != place:
            raise WrongResultError("a publish returned before its handler had run")
        await publish(value)
    sample = watch.stop(len(values) - WARMUP)
    if seen != [value.id for value in values]:
        raise WrongResultError("the handler did not see every order, once and in order")
    return sample


def run_ours(publishes: int) -> Sample:
    """One checked run of `TestApp`."""
    return asyncio.run(_ours(publishes))


async def _ours(publishes: int) -> Sample:
    app = RustStream(
        KinesisBroker(region=REGION, test_credentials=True), title="benchmark", version="0.0.0"
    )
    seen: list[int] = []

    @app.subscriber(STREAM)
    async def handle(order: Order) -> None:
        seen.append(order.id)

    values = orders(WARMUP + publishes)
    async with TestApp(app) as test:
        sample = await time_publishes(lambda order: test.publish(order, STREAM), values, seen)
    if len(test.published(STREAM)) != len(values):
        raise WrongResultError("the log does not hold every record")
    return sample
