"""The producer of aiokpl, an optional peer: a Python rewriting of the Kinesis Producer Library.

Its limits a shard are lifted, since the canned server has none and waiting is not what is measured.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

from benches.cpu import Sample, Stopwatch
from benches.raw_loop import REGION, STREAM
from benches.tally import WrongResultError

if TYPE_CHECKING:
    from collections.abc import Callable

_WARMUP = 2_000
# Records that are given to it before their results are awaited, as to ours.
_AT_ONCE = 2_000


def has_aiokpl() -> bool:
    """Whether the peer is installed."""
    return importlib.util.find_spec("aiokpl") is not None


def run_kpl(
    url: str, count: int, data: bytes, calls: Callable[[str], dict[str, int]], *, aggregate: bool
) -> Sample:
    """`put_record` with a key for each; every result is awaited.

    Args:
        url: The server's.
        count: Records.
        data: Of each.
        calls: Counts the server's calls.
        aggregate: Pack them into aggregates.
    """
    from aiokpl import Config, Producer  # noqa: PLC0415 (optional peer)

    async def put(producer: Any, count: int) -> list[Any]:
        results: list[Any] = []
        for first in range(0, count, _AT_ONCE):
            outcomes = [
                await producer.put_record(stream=STREAM, partition_key=f"key-{n}", data=data)
                for n in range(first, min(first + _AT_ONCE, count))
            ]
            await producer.flush()
            results += [await outcome.wait() for outcome in outcomes]
        return results

    async def main() -> Sample:
        config = Config(
            region=REGION,
            endpoint_url=url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            aggregation_enabled=aggregate,
            # As much in a record as ours puts there.
            aggregation_max_size=1_000_000,
            rate_limit_records_per_sec_per_shard=1e9,
            rate_limit_bytes_per_sec_per_shard=1e12,
            record_max_buffered_time_ms=10_000.0,
        )
        async with Producer(config) as producer:
            await put(producer, _WARMUP)
            before = calls(url)["PutRecords"]
            watch = Stopwatch()
            watch.start()
            results = await put(producer, count)
            sample = watch.stop(count)
            requests = calls(url)["PutRecords"] - before
        bad = sum(not each.success or each.sequence_number is None for each in results)
        if bad or len(results) != count:
            raise WrongResultError(f"{bad} of {len(results)} records failed")
        if not aggregate and requests > count // 500 + count // _AT_ONCE + 2:
            raise WrongResultError(f"{requests} requests for {count} records")
        return sample

    return asyncio.run(main())
