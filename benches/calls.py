"""What one call costs that carries next to nothing: an empty poll, a put of one record.

The raw contenders are what a user's own code calls on an aiobotocore client; ours are the
transports of a service, with everything that a service's call goes through (turns, deadline,
errors). Each run's answers are checked: every poll is a page without records that reads on, every
put has its own sequence number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from benches.canned import serving, shard_id
from benches.cpu import Sample, Stopwatch, interleave, ratio
from benches.pages import Spec
from benches.raw_loop import REGION, STREAM, kinesis_client
from benches.report import Check, Table
from benches.tally import WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisPosition
from ruststream_kinesis._core import Page
from ruststream_kinesis.stream import StreamRef

if TYPE_CHECKING:
    from benches.sections import Context

# A call may cost a third of aiobotocore's.
CALL_RATIO = 3.0
# 500 idle shards, each polled once a second, may take a fifth of a core.
POLL_US = 400.0

# Connections, caches and the adaptive interpreter have settled after so many.
_WARMUP = 50
_LIMIT = 1_000
_DATA = b"x" * 512
_REF = StreamRef(STREAM)
_SHARD = shard_id(0)

_Call = Callable[[], Awaitable[Any]]


def _check_poll(pages: list[bytes]) -> None:
    for body in pages:
        page = Page.parse(body)
        if len(page) or not page.next_shard_iterator or page.millis_behind_latest != 0:
            raise WrongResultError("a poll was not an empty page that reads on")


def _check_puts(numbers: list[str], count: int) -> None:
    if len(set(numbers)) != count or not all(numbers):
        raise WrongResultError(f"{len(set(numbers))} sequence numbers for {count} puts")


async def _timed(call: _Call, count: int) -> tuple[Sample, list[Any]]:
    answers = [await call() for _ in range(_WARMUP)]
    watch = Stopwatch()
    watch.start()
    answers += [await call() for _ in range(count)]
    return watch.stop(count), answers


def raw_poll(url: str, count: int) -> Sample:
    """`get_records` of an aiobotocore client at the end of a shard."""

    async def main() -> Sample:
        async with kinesis_client(url) as client:
            answer = await client.get_shard_iterator(
                StreamName=STREAM, ShardId=_SHARD, ShardIteratorType="TRIM_HORIZON"
            )
            iterator = answer["ShardIterator"]
            sample, answers = await _timed(
                lambda: client.get_records(ShardIterator=iterator, Limit=_LIMIT), count
            )
        if any(answer["Records"] or not answer["NextShardIterator"] for answer in answers):
            raise WrongResultError("a poll was not an empty page that reads on")
        return sample

    return asyncio.run(main())


def raw_put(url: str, count: int) -> Sample:
    """`put_record` of an aiobotocore client."""

    async def main() -> Sample:
        async with kinesis_client(url) as client:
            sample, answers = await _timed(
                lambda: client.put_record(StreamName=STREAM, Data=_DATA, PartitionKey="key"), count
            )
        _check_puts([answer["SequenceNumber"] for answer in answers], len(answers))
        return sample

    return asyncio.run(main())


def our_poll(url: str, count: int, way: Any) -> Sample:
    """`get_records` of a service's transport at the end of a shard."""

    async def main() -> Sample:
        broker = KinesisBroker(
            endpoint_url=url, region=REGION, test_credentials=True, transport=way
        )
        await broker.connect()
        transport = broker.connection.transport
        iterator = await transport.get_shard_iterator(_REF, _SHARD, KinesisPosition.horizon())
        sample, answers = await _timed(
            lambda: transport.get_records(_REF, _SHARD, iterator, _LIMIT), count
        )
        await broker.close()
        _check_poll(answers)
        return sample

    return asyncio.run(main())


def our_put(url: str, count: int, way: Any) -> Sample:
    """`put_record` of a service's transport."""

    async def main() -> Sample:
        broker = KinesisBroker(
            endpoint_url=url, region=REGION, test_credentials=True, transport=way
        )
        await broker.connect()
        transport = broker.connection.transport
        sample, answers = await _timed(lambda: transport.put_record(_REF, _DATA, "key"), count)
        await broker.close()
        _check_puts([answer.sequence_number for answer in answers], len(answers))
        return sample

    return asyncio.run(main())


def run_calls_section(context: Context) -> None:
    """CPU a call: an empty poll and a put, aiobotocore's own and ours."""
    count = 20 if context.size.quick else 500
    polls, puts = "empty poll, aiobotocore", "put, aiobotocore"
    # A shard without a page: its first iterator is at its end.
    with serving(Spec(pages=0)) as server:
        url = server.url
        series = interleave(
            {
                polls: lambda: raw_poll(url, count),
                "empty poll, transport='botocore'": lambda: our_poll(url, count, "botocore"),
                "empty poll": lambda: our_poll(url, count, "thin"),
                puts: lambda: raw_put(url, count),
                "put, transport='botocore'": lambda: our_put(url, count, "botocore"),
                "put": lambda: our_put(url, count, "thin"),
            },
            context.size.rounds,
            context.progress,
        )
    table = Table("One call, CPU µs", ["", "median", "range", "of aiobotocore's"])
    for name, one in series.items():
        base = series[puts if name.startswith("put") else polls]
        low, high = one.spread
        compared = "1" if one is base else str(ratio(base, one))
        table.rows.append([name, f"{one.median:.0f}", f"{low:.0f} to {high:.0f}", compared])
    context.report.tables.append(table)
    context.record("calls", series)
    for base_name, name in ((polls, "empty poll"), (puts, "put")):
        found = ratio(series[base_name], series[name]).median
        what = f"aiobotocore ÷ {name}, CPU a call"
        context.report.checks.append(Check(what, found, CALL_RATIO, "x", at_least=True))
    context.report.checks.append(
        Check("empty poll, CPU", series["empty poll"].median, POLL_US, "µs")
    )
