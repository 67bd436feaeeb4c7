"""`ruststream-kinesis streams`: the streams of an account and region."""

from __future__ import annotations

import asyncio

from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.cli.asking import asked, together
from ruststream_kinesis.cli.tables import print_json, print_table
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import StreamNotFound
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import StreamInfo, patiently

__all__ = ["list_streams"]

# DescribeStreamSummary allows twenty a second and account, for everybody together.
_AT_ONCE = 5


async def list_streams(transport: AwsTransport, clock: Clock, *, as_json: bool) -> int:
    """Prints them; returns the exit code.

    Raises:
        KinesisError: They cannot be listed, or one of them not be looked at.
    """
    names = await asked(transport.list_streams, clock)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str) -> StreamInfo | None:
        async with turn:
            try:
                return await patiently(lambda: transport.describe_stream(StreamRef(name)), clock)
            except StreamNotFound:
                return None  # deleted meanwhile

    async with together() as tasks:
        looks = [tasks.create_task(look(name)) for name in names]
    found = [info for each in looks if (info := each.result()) is not None]
    if as_json:
        print_json({"streams": [_as_json(info) for info in found]})
        return 0
    print_table(
        ("stream", "status", "mode", "open shards", "retention"),
        [
            (
                info.name,
                info.status,
                _mode(info.mode),
                "?" if info.open_shards is None else str(info.open_shards),
                "?" if info.retention_hours is None else f"{info.retention_hours} h",
            )
            for info in found
        ],
        right=("open shards", "retention"),
    )
    return 0


def _mode(mode: str | None) -> str:
    return "?" if mode is None else mode.lower().replace("_", "-")


def _as_json(info: StreamInfo) -> dict[str, object]:
    return {
        "stream": info.name,
        "status": info.status,
        "mode": info.mode,
        "open_shards": info.open_shards,
        "retention_hours": info.retention_hours,
        "created": info.created,
        "max_record_bytes": info.max_record_bytes,
    }
