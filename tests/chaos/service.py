"""A service under chaos: `python -m tests.chaos.service`, configured by the environment.

It is what a user would write, and writes down what it does. The lease store is the real one, with a
note whenever a lease comes or goes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Literal

from ruststream_kinesis import (
    DynamoLeaseStore,
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisStream,
    LeaseKey,
    LeaseState,
    RustStream,
)
from tests.chaos.book import Acquired, Handled, Numbered, Pen, Released, Started
from tests.support.servers import REGION

WORKERS = 4
POLL = 0.5
# Some records take as long as a call to a slow neighbour: others overtake them, and are settled while
# the checkpoint waits. At any moment a few records are at work, so that a fault hits some.
QUICK, SLOW, SLOW_SHARE = 0.05, 1.0, 0.02
BLOCK = float(os.environ.get("CHAOS_BLOCK", "20"))
"""Seconds that a `block` holds the event loop for: others would have its shards after 16 s at most."""


class NotingStore(DynamoLeaseStore):
    """The store, with a line in the book for every lease that comes or goes."""

    pen: Pen

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """As the store's; noted once it is known here."""
        lease = await super().acquire(key, owner_id, duration=duration, member=member)
        if lease is not None:
            self.pen.write(Acquired(key.shard_id, time.monotonic()))
        return lease

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """As the store's; noted before it is asked for."""
        self.pen.write(Released(held.key.shard_id, time.monotonic(), successor is not None))
        await super().release(
            held,
            checkpoint=checkpoint,
            number=number,
            resume_from=resume_from,
            successor=successor,
        )


def application(
    *, stream: str, kinesis: str, dynamodb: str, table: str, owner_id: str, pen: Pen
) -> RustStream:
    """The service: handles a record, writes that down, and acks."""
    # The live suite as a whole runs by either way.
    way: Literal["thin", "botocore"] = (
        "botocore" if os.environ.get("LIVE_TRANSPORT") == "botocore" else "thin"
    )
    store = NotingStore(
        table,
        create=True,
        region=REGION,
        endpoint_url=dynamodb,
        test_credentials=True,
        transport=way,
    )
    store.pen = pen
    broker = KinesisBroker(
        region=REGION,
        endpoint_url=kinesis,
        test_credentials=True,
        lease_store=store,
        owner_id=owner_id,
        transport=way,
    )
    app = RustStream(broker, title="chaos", version="0", shutdown_timeout=20.0)
    pid = os.getpid()
    blocks: list[float] = []

    def block(_number: int, _frame: FrameType | None) -> None:
        blocks.append(BLOCK)

    signal.signal(signal.SIGUSR1, block)

    @app.subscriber(KinesisStream(stream, poll_interval=POLL), workers=WORKERS)
    async def handle(message: KinesisMessage[Numbered]) -> None:
        begin = time.monotonic()
        slow = random.random() < SLOW_SHARE
        await asyncio.sleep(random.uniform(0, SLOW if slow else QUICK))
        if blocks:
            # On purpose: a handler of the careless kind, which stops the whole event loop.
            time.sleep(blocks.pop())  # noqa: ASYNC251
        pen.write(
            Handled(
                message.payload.key,
                message.payload.n,
                message.shard_id,
                message.sequence_number,
                message.attempt,
                begin,
                time.monotonic(),
                time.time(),
                pid,
            )
        )

    return app


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    )
    env = os.environ
    pen = Pen(Path(env["CHAOS_BOOK"]))
    app = application(
        stream=env["CHAOS_STREAM"],
        kinesis=env["CHAOS_KINESIS"],
        dynamodb=env["CHAOS_DYNAMODB"],
        table=env["CHAOS_TABLE"],
        owner_id=env["CHAOS_OWNER"],
        pen=pen,
    )
    asyncio.run(app.run(started=lambda: pen.write(Started(time.monotonic()))))


if __name__ == "__main__":
    main()
