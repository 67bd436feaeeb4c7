"""The producer: `python -m tests.chaos.producer`, configured by the environment.

It puts numbered records through a plain client, never through our own code; some of them are
aggregates of the next few numbers of their key, packed by somebody else's library too. A key has one
record on its way at most, and its next number is put only when the last one was answered for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aws_kinesis_agg.aggregator import RecordAggregator
from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.book import Numbered, Pen, Put
from tests.support import aws

if TYPE_CHECKING:
    from types_aiobotocore_kinesis.type_defs import PutRecordsRequestEntryTypeDef

KEYS = 40
# A round puts records of some keys in one call: about a hundred records a second.
ROUND, LEAST, MOST = 0.25, 6, 24
# So many of a round are aggregates, of so many records at most.
PACKED, IN_ONE = 0.2, 6


async def produce(url: str, stream: str, pen: Pen, rng: random.Random) -> None:
    """Put records until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    following = {f"key-{number:02}": 0 for number in range(KEYS)}
    async with aws.connect(url) as client:
        while not stopping.is_set():
            keys = rng.sample(sorted(following), rng.randint(LEAST, MOST))
            counts = [
                rng.randint(2, IN_ONE) if rng.random() < PACKED else 1 for _ in range(len(keys))
            ]
            records: list[PutRecordsRequestEntryTypeDef] = [
                {"Data": _data(key, following[key], count), "PartitionKey": key}
                for key, count in zip(keys, counts, strict=True)
            ]
            try:
                answer = await client.client.put_records(StreamName=stream, Records=records)
            except (BotoCoreError, ClientError) as error:
                # Nobody harms this server, so that an answer that is missing is worth a look.
                print(f"a put failed: {error!r}", flush=True)  # noqa: T201 - read by people
                continue
            now = time.monotonic()
            for key, count, result in zip(keys, counts, answer["Records"], strict=True):
                if "SequenceNumber" in result:
                    first, following[key] = following[key], following[key] + count
                    for n in range(first, first + count):
                        pen.write(Put(key, n, result["ShardId"], result["SequenceNumber"], now))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), ROUND)


def _data(key: str, first: int, count: int) -> bytes:
    """So many records of a key from a number on: one as it is, more of them as an aggregate."""
    payloads = [msgspec.json.encode(Numbered(key, n)) for n in range(first, first + count)]
    if count == 1:
        return payloads[0]
    packed = RecordAggregator()
    for payload in payloads:
        packed.add_user_record(key, payload)
    _, _, data = packed.clear_and_get().get_contents()
    return bytes(data)


def main() -> None:
    """Run until SIGTERM."""
    env = os.environ
    rng = random.Random(int(env["CHAOS_SEED"]))
    pen = Pen(Path(env["CHAOS_BOOK"]))
    asyncio.run(produce(env["CHAOS_KINESIS"], env["CHAOS_STREAM"], pen, rng))


if __name__ == "__main__":
    main()
