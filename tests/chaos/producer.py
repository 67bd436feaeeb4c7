"""The producer: `python -m tests.chaos.producer`, configured by the environment.

It puts numbered records through a plain client, never through our own code. A key has one record on
its way at most, and its next number is put only when the last one was answered for.
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
from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.book import Numbered, Pen, Put
from tests.support import aws

if TYPE_CHECKING:
    from types_aiobotocore_kinesis.type_defs import PutRecordsRequestEntryTypeDef

KEYS = 40
# A round puts records of some keys in one call: about a hundred records a second.
ROUND, LEAST, MOST = 0.25, 10, 40


async def produce(url: str, stream: str, pen: Pen, rng: random.Random) -> None:
    """Put records until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    following = {f"key-{number:02}": 0 for number in range(KEYS)}
    async with aws.connect(url) as client:
        while not stopping.is_set():
            keys = rng.sample(sorted(following), rng.randint(LEAST, MOST))
            records: list[PutRecordsRequestEntryTypeDef] = [
                {"Data": msgspec.json.encode(Numbered(key, following[key])), "PartitionKey": key}
                for key in keys
            ]
            try:
                answer = await client.client.put_records(StreamName=stream, Records=records)
            except (BotoCoreError, ClientError) as error:
                # Nobody harms this server, so that an answer that is missing is worth a look.
                print(f"a put failed: {error!r}", flush=True)  # noqa: T201 - read by people
                continue
            now = time.monotonic()
            for key, result in zip(keys, answer["Records"], strict=True):
                if "SequenceNumber" in result:
                    n, following[key] = following[key], following[key] + 1
                    pen.write(Put(key, n, result["ShardId"], result["SequenceNumber"], now))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), ROUND)


def main() -> None:
    """Run until SIGTERM."""
    env = os.environ
    rng = random.Random(int(env["CHAOS_SEED"]))
    pen = Pen(Path(env["CHAOS_BOOK"]))
    asyncio.run(produce(env["CHAOS_KINESIS"], env["CHAOS_STREAM"], pen, rng))


if __name__ == "__main__":
    main()
