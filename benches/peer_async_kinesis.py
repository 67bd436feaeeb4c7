"""Producer and consumer of async-kinesis, an optional peer.

The producer collects records into PutRecords as ours does. Its limits a shard are lifted, since the canned server has none and waiting is not what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

from benches.cpu import Sample, Stopwatch
from benches.pages import Order
from benches.raw_loop import LIMIT, REGION, STREAM
from benches.tally import Tally, WrongResultError

if TYPE_CHECKING:
    from benches.canned import Server
    from benches.tally import Plan

_TEXT = "x" * 512
_WARMUP = 2_000


def has_async_kinesis() -> bool:
    """Whether the peer is installed; its module is named `kinesis`."""
    found = importlib.util.find_spec("kinesis")
    return found is not None and importlib.util.find_spec("kinesis.producer") is not None


def _requests(url: str) -> int:
    with contextlib.closing(urllib.request.urlopen(f"{url}/calls")) as answer:
        return int(json.load(answer).get("PutRecords", 0))


def run_producer(server: Server, count: int) -> Sample:
    """`put` of so many records, and `flush`."""
    from aiobotocore.session import get_session  # noqa: PLC0415 (with the peer)
    from kinesis import Producer, StringProcessor  # noqa: PLC0415 (optional peer)

    async def main() -> Sample:
        session: Any = get_session()
        session.set_credentials("test", "test")
        producer: Any = Producer(
            stream_name=STREAM,
            session=session,
            endpoint_url=server.url,
            region_name=REGION,
            processor=StringProcessor(),
            skip_describe_stream=True,
            put_rate_limit_per_shard=10**9,
            put_bandwidth_limit_per_shard=10**9,
            max_queue_size=10_000,
            buffer_time=60.0,
        )
        async with producer:
            for n in range(_WARMUP):
                await producer.put(_TEXT, partition_key=f"key-{n}")
            await producer.flush()
            before = _requests(server.url)
            watch = Stopwatch()
            watch.start()
            for n in range(count):
                await producer.put(_TEXT, partition_key=f"key-{n}")
            await producer.flush()
            sample = watch.stop(count)
            requests = _requests(server.url) - before
        if not count // 500 <= requests <= count // 500 + 2:
            raise WrongResultError(f"{requests} requests for {count} records")
        return sample

    return asyncio.run(main())


def run_consumer(server: Server, plan: Plan) -> Sample:
    """One checked run of its consumer: the loop over its records, with a typed decode of each.

    It asks for a page a second and shard unless told otherwise, which only takes longer.
    """
    from aiobotocore.session import get_session  # noqa: PLC0415 (with the peer)
    from kinesis import Consumer, StringProcessor  # noqa: PLC0415 (optional peer)

    async def main() -> Sample:
        tally = Tally(plan)
        handle, decode = tally.handler(), msgspec.json.Decoder(Order).decode
        session: Any = get_session()
        session.set_credentials("test", "test")
        consumer: Any = Consumer(
            stream_name=STREAM,
            session=session,
            endpoint_url=server.url,
            region_name=REGION,
            processor=StringProcessor(),
            record_limit=LIMIT,
            shard_fetch_rate=1_000,
            idle_timeout=10.0,
            use_list_shards=True,
        )
        async with consumer:
            while not tally.done.is_set():
                async for text in consumer:
                    await handle(decode(text))
                    if tally.done.is_set():
                        break
        return tally.checked()

    return plan.run(main())
