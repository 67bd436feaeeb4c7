"""`ruststream-kinesis dead-letters redrive`: the options, the bar, and the report."""

from __future__ import annotations

import asyncio
import shlex
import sys

import msgspec

from ruststream_kinesis.cli.logs import say
from ruststream_kinesis.cli.meter import meter
from ruststream_kinesis.cli.positions import parse_position
from ruststream_kinesis.cli.put import INTERRUPTED
from ruststream_kinesis.cli.redriving import Order, Redriven, redrive
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.signals import listening
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import patiently, record_limit

__all__ = ["order_of", "redrive_stream"]

# The records of a key wait for one another: what is to be put together is there at once.
_LINGER = 0.005
# Records a request: see `put.py`.
_BATCH = 100


def order_of(
    source: str,
    target: str,
    begin: list[str],
    now: float,
    *,
    all_origins: bool,
    dry_run: bool,
    limit: int | None,
) -> Order:
    """What the options ask for.

    Args:
        source: The dead letter stream.
        target: Where its records go.
        begin: `SHARD:SEQ` once a shard, and one `horizon` or time for all others.
        now: Seconds since the epoch.
        all_origins: As in `Order`, like the next two.
        dry_run: See above.
        limit: See above.

    Raises:
        ConfigurationError: They contradict each other.
    """
    positions = [parse_position(text, now) for text in begin]
    behind = {p.shard_id: p.sequence_number for p in positions if p.shard_id is not None}
    others = [position for position in positions if position.shard_id is None]
    if len(others) > 1 or len(behind) + len(others) < len(positions):
        raise ConfigurationError("--from: one SHARD:SEQ a shard, and one time for all others")
    return Order(
        StreamRef.parse(source),
        StreamRef.parse(target),
        others[0] if others else KinesisPosition.horizon(),
        {shard_id: number or "" for shard_id, number in behind.items()},
        all_origins,
        dry_run,
        limit,
    )


async def redrive_stream(connection: Connection, order: Order, *, as_json: bool) -> int:
    """Redrives, reports, and returns the exit code.

    Raises:
        KinesisError: A stream is not there, or cannot be read.
    """
    # Whatever is missing is said before the first record.
    await patiently(lambda: record_limit(connection, order.target), connection.clock)
    told = Redriven(order.source.name, order.target.name, order.dry_run)
    publisher = KinesisPublisher(connection, KinesisPublish(batch=_BATCH, linger=_LINGER))
    stop = asyncio.Event()
    work: asyncio.Task[None] | None = None

    def asked() -> None:
        # The second time what is on its way is not waited for: it may be in the stream or not.
        if stop.is_set() and work is not None:
            work.cancel()
        stop.set()

    try:
        with listening(asked), meter(f"redriving {order.source.name}") as shown:
            work = asyncio.ensure_future(
                redrive(
                    order,
                    connection.transport,
                    connection.clock,
                    publisher,
                    told,
                    stop=stop,
                    advance=shown.records,
                )
            )
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()
    finally:
        # Where it failed before the first record, the failure says all.
        if told.read or not _failed(work):
            _report(order, told, as_json=as_json)
    if stop.is_set():
        return INTERRUPTED
    return 1 if told.failed else 0


def _failed(work: asyncio.Task[None] | None) -> bool:
    return (
        work is not None and work.done() and not work.cancelled() and work.exception() is not None
    )


def _report(order: Order, told: Redriven, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    verb = "would be redriven" if told.dry_run else "redriven"
    parts = [f"{told.read:,} read", f"{told.redriven:,} {verb}", f"{told.skipped:,} skipped"]
    parts.append(f"{told.failed:,} failed")
    sys.stdout.write(f"{told.source} -> {told.target}: {', '.join(parts)}\n")
    if told.skipped:
        sys.stdout.write(
            f"Skipped ones did not come from {told.target}, or do not say so (--all takes them).\n"
        )
    if told.stopped is not None:
        say(f"stopped: {told.stopped}")
    if told.dry_run or not told.redriven:
        return
    if told.again:
        sys.stdout.write(
            f"The next run puts {told.again:,} of them again: they stand behind others.\n"
        )
    # The order's own streams: an ARN stays one.
    words = ["ruststream-kinesis", "dead-letters", "redrive", str(order.source)]
    words += ["--to", str(order.target)]
    if order.all_origins:
        words.append("--all")
    for shard_id, number in told.positions.items():
        words += ["--from", f"{shard_id}:{number}"]
    sys.stdout.write(
        "The dead letters are still in their stream: the same command once more puts all of them "
        f"again.\nTo go on behind them:\n  {shlex.join(words)}\n"
    )
