"""What a published record costs: one by one, in requests of 500, and in aggregates.

The raw contenders are what a user's own code calls on an aiobotocore client, with its records cut
into requests beforehand; ours are publishers of a connected broker, where each record has a future
of its own. Each run is checked: every record has a sequence number of its own, and the server has
seen as many requests as the records need.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from typing import TYPE_CHECKING

from benches.canned import serving
from benches.cpu import Sample, Stopwatch, interleave, ratio
from benches.pages import Spec
from benches.peer_aiokpl import has_aiokpl, run_kpl
from benches.peer_async_kinesis import has_async_kinesis, run_producer
from benches.raw_loop import REGION, STREAM, kinesis_client
from benches.report import Check, Table
from benches.tally import WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisPublish, KinesisPublisher

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.sections import Context
    from ruststream_kinesis.transport import PutResult

# Of a record, against `PutRecords` of aiobotocore with requests that are cut already.
BATCH_RATIO = 5.0
# Against the producer of async-kinesis, which collects as ours does.
PEER_RATIO = 25.0

BATCH = 500
_DATA = b"x" * 512
# Before the clock starts: connections, caches and the adaptive interpreter have settled.
_WARMUP = 4 * BATCH
# Records that are given to a publisher before their results are awaited.
_AT_ONCE = 4 * BATCH


def _calls(url: str) -> dict[str, int]:
    with contextlib.closing(urllib.request.urlopen(f"{url}/calls")) as answer:
        found: dict[str, int] = json.load(answer)
    return found


def _check(numbers: list[str], count: int) -> None:
    if len(set(numbers)) != count:
        raise WrongResultError(f"{len(set(numbers))} sequence numbers for {count} records")


def raw_put(url: str, count: int) -> Sample:
    """`put_record` of an aiobotocore client, one after the other."""

    async def main() -> Sample:
        async with kinesis_client(url) as client:
            await _put_each(client, 50)
            watch = Stopwatch()
            watch.start()
            numbers = await _put_each(client, count)
            sample = watch.stop(count)
        _check(numbers, count)
        return sample

    return asyncio.run(main())


async def _put_each(client: object, count: int) -> list[str]:
    return [
        (
            await client.put_record(  # type: ignore[attr-defined]  # made at run time
                StreamName=STREAM, Data=_DATA, PartitionKey=f"key-{n}"
            )
        )["SequenceNumber"]
        for n in range(count)
    ]


def raw_put_records(url: str, count: int) -> Sample:
    """`put_records` of an aiobotocore client, 500 records a request."""

    async def main() -> Sample:
        async with kinesis_client(url) as client:
            await _put_batches(client, _WARMUP)
            watch = Stopwatch()
            watch.start()
            numbers = await _put_batches(client, count)
            sample = watch.stop(count)
        _check(numbers, count)
        return sample

    return asyncio.run(main())


async def _put_batches(client: object, count: int) -> list[str]:
    numbers: list[str] = []
    for first in range(0, count, BATCH):
        records = [{"Data": _DATA, "PartitionKey": f"key-{n}"} for n in range(first, first + BATCH)]
        answer = await client.put_records(  # type: ignore[attr-defined]  # made at run time
            StreamName=STREAM, Records=records
        )
        numbers += [each["SequenceNumber"] for each in answer["Records"]]
    return numbers


def our_put(url: str, count: int) -> Sample:
    """`publish` without a batch, one after the other."""

    async def main() -> Sample:
        broker = KinesisBroker(endpoint_url=url, region=REGION, test_credentials=True)
        await broker.connect()
        publisher = KinesisPublisher(broker.connection)
        for _ in range(50):
            await publisher.publish(_DATA, STREAM)
        watch = Stopwatch()
        watch.start()
        results = [
            await publisher.publish(_DATA, STREAM, partition_key=f"key-{n}") for n in range(count)
        ]
        sample = watch.stop(count)
        await broker.close()
        _check([each.sequence_number for each in results], count)
        return sample

    return asyncio.run(main())


def our_batches(url: str, count: int, *, keys: bool) -> Sample:
    """`publish_nowait` with `batch=500`; every result is awaited.

    Args:
        url: The server's.
        count: Records.
        keys: Give each its own partition key; else the publisher makes them.
    """

    async def main() -> Sample:
        broker = KinesisBroker(endpoint_url=url, region=REGION, test_credentials=True)
        await broker.connect()
        publisher = KinesisPublisher(broker.connection, KinesisPublish(batch=BATCH))
        await _publish_all(publisher, _WARMUP, keys=keys)
        before = _calls(url)["PutRecords"]
        watch = Stopwatch()
        watch.start()
        results = await _publish_all(publisher, count, keys=keys)
        sample = watch.stop(count)
        requests = _calls(url)["PutRecords"] - before
        await broker.close()
        _check([each.sequence_number for each in results], count)
        if requests != count // BATCH:
            raise WrongResultError(f"{requests} requests for {count} records")
        return sample

    return asyncio.run(main())


def our_aggregates(url: str, count: int) -> Sample:
    """`publish_nowait` with `aggregate=True`, a key for each; every result is awaited."""

    async def main() -> Sample:
        broker = KinesisBroker(endpoint_url=url, region=REGION, test_credentials=True)
        await broker.connect()
        publisher = KinesisPublisher(broker.connection, KinesisPublish(aggregate=True))
        await _publish_all(publisher, _WARMUP, keys=True)
        before = _calls(url)["PutRecords"]
        watch = Stopwatch()
        watch.start()
        results = await _publish_all(publisher, count, keys=True)
        sample = watch.stop(count)
        requests = _calls(url)["PutRecords"] - before
        await broker.close()
        places = {(each.sequence_number, each.sub_sequence_number) for each in results}
        if len(places) != count:
            raise WrongResultError(f"{len(places)} places for {count} records")
        # Some 1.1 MB at once: one aggregate that is full, and the rest.
        if requests != 2 * -(-count // _AT_ONCE):
            raise WrongResultError(f"{requests} requests for {count} records")
        return sample

    return asyncio.run(main())


async def _publish_all(publisher: KinesisPublisher, count: int, *, keys: bool) -> list[PutResult]:
    results: list[PutResult] = []
    for first in range(0, count, _AT_ONCE):
        many = range(first, min(first + _AT_ONCE, count))
        if keys:
            futures = [
                publisher.publish_nowait(_DATA, STREAM, partition_key=f"key-{n}") for n in many
            ]
        else:
            futures = [publisher.publish_nowait(_DATA, STREAM) for _ in many]
        results += [await future for future in futures]
    return results


def run_publishing_section(context: Context) -> None:
    """CPU a published record: aiobotocore's calls, this publisher, async-kinesis' producer."""
    singles = 20 if context.size.quick else 500
    count = BATCH * (4 if context.size.quick else 100)
    put, puts = "PutRecord, aiobotocore", "PutRecords(500), aiobotocore"
    ours, keyed, peer = "batch=500", "batch=500, a key for each", "async-kinesis, Producer"
    packed = "aggregate=True, a key for each"
    compared = has_async_kinesis()
    # One shard, which is where the server says that every record went.
    with serving(Spec(pages=0, shards=1)) as server:
        url = server.url
        contenders: dict[str, Callable[[], Sample]] = {
            put: lambda: raw_put(url, singles),
            "publish": lambda: our_put(url, singles),
            puts: lambda: raw_put_records(url, count),
            keyed: lambda: our_batches(url, count, keys=True),
            ours: lambda: our_batches(url, count, keys=False),
            packed: lambda: our_aggregates(url, count),
        }
        if compared:
            contenders[peer] = lambda: run_producer(server, count // 10)
        kpl = {f"aiokpl, {how}": how != "batches" for how in ("batches", "aggregates")}
        if has_aiokpl():
            for name, aggregate in kpl.items():
                contenders[name] = lambda aggregate=aggregate: run_kpl(  # type: ignore[misc]
                    url, count // 10, _DATA, _calls, aggregate=aggregate
                )
        series = interleave(contenders, context.size.rounds, context.progress)
    table = Table(
        "A published record of 512 B, CPU µs",
        ["", "median", "range", "of PutRecord", "of PutRecords(500)"],
    )
    for name, one in series.items():
        low, high = one.spread
        cells = [
            "1" if one is series[base] else str(ratio(series[base], one)) for base in (put, puts)
        ]
        table.rows.append([name, f"{one.median:.2f}", f"{low:.2f} to {high:.2f}", *cells])
    checks = [(puts, BATCH_RATIO)]
    if compared:
        checks.append((peer, PEER_RATIO))
    else:
        table.rows.append([peer, "not installed", "", "", ""])
        context.report.absent.append("publishing with async-kinesis: pip install async-kinesis")
    if not has_aiokpl():
        table.rows += [[name, "not installed", "", "", ""] for name in kpl]
        context.report.absent.append("publishing with aiokpl: pip install aiokpl")
    for base, bound in checks:
        for name in (ours, keyed):
            what, found = f"{base} ÷ {name}, CPU a record", ratio(series[base], series[name]).median
            context.report.checks.append(Check(what, found, bound, "x", at_least=True))
    context.report.tables.append(table)
    context.record("publishing", series)
