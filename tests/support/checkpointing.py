"""The stream whose checkpoints are tested, its shards, and time that passes beside a wait."""

from __future__ import annotations

from ruststream_kinesis.testing import ManualClock

STREAM = "orders"
FIRST, SECOND, THIRD = (f"shardId-{n:012}" for n in range(3))


async def keep_moving(clock: ManualClock) -> None:
    """Let time pass while something else is awaited."""
    while True:
        await clock.advance(0.1)
