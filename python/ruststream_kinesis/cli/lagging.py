"""How far a service is in each shard of a stream, measured from outside.

A read at the checkpoint says how far it is behind the tip; where nothing is settled yet, one at the
instant from which the application reads what has no checkpoint. It is one of the five reads a second that a
shard allows, and the service has the others: a shard is read once each time that somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ruststream_kinesis._core import Page
from ruststream_kinesis.cli.asking import together
from ruststream_kinesis.cli.lease_view import LeaseLine
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.leases.base import SHARD_END
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, Transport, patiently
from ruststream_kinesis.wording import short

__all__ = ["Progress", "ShardLag", "checkpoint_cell", "lags"]

Progress = Literal["reading", "finished", "not-started", "unreadable"]
"""What a service has made of a shard. `reading` is also one that waits for its next owner, `unreadable`: its row, or the position in it, cannot be used."""

# So many shards are asked at once.
_AT_ONCE = 16
# The checkpoint is older than what is kept, or of another stream; the shard has aged out.
_POSITION = frozenset({"InvalidArgumentException", "ResourceNotFoundException"})


@dataclass(frozen=True, slots=True)
class ShardLag:
    """One shard of a stream, and how far a service is in it."""

    shard: ShardInfo
    lease: LeaseLine | None
    progress: Progress
    lag_ms: int | None
    """Milliseconds from where it reads next to the tip; `None` where there is no such place, or the
    service did not say."""
    problem: str | None = None


def checkpoint_cell(lease: LeaseLine | None) -> str:
    """The checkpoint in a table, or where the shard was moved since."""
    if lease is None:
        return "not started"
    if lease.state is None:
        return "unreadable"
    if (moved := lease.state.resume_from) is not None:
        to = short(moved.sequence_number) if moved.kind == "sequence" else str(moved)
        return f"moved to {to}"
    if lease.state.checkpoint == SHARD_END:
        return "finished"
    return short(lease.state.checkpoint) or "-"


async def lags(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    shards: Iterable[ShardInfo],
    leases: Mapping[str, LeaseLine],
    opened: float | None,
) -> list[ShardLag]:
    """Measures every shard once, in the order given; one that cannot be read says why.

    Args:
        transport: Makes the calls.
        clock: Pauses where a call is made again.
        stream: Which stream.
        shards: Which shards.
        leases: Whose rows, by shard.
        opened: When the application first opened the stream, where that is known.

    Raises:
        KinesisError: One cannot be read for a reason that is not its position's.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def measured(shard: ShardInfo) -> ShardLag:
        async with turn:
            lease = leases.get(shard.shard_id)
            return await _measured(transport, clock, stream, shard, lease, opened)

    async with together() as tasks:
        made = [tasks.create_task(measured(shard)) for shard in shards]
    return [each.result() for each in made]


def _place(
    shard: ShardInfo, lease: LeaseLine | None, opened: float | None
) -> tuple[Progress, KinesisPosition | None, bool]:
    """What was made of a shard, where it is read next, if that is known, and whether behind it."""
    if lease is not None and lease.state is None:
        return "unreadable", None, False
    state = None if lease is None else lease.state
    if state is not None:
        if state.finished:
            return "finished", None, False
        if state.resume_from is not None:
            return "reading", state.resume_from, False
        if state.checkpoint is not None:
            return "reading", KinesisPosition.sequence(shard.shard_id, state.checkpoint), True
    progress: Progress = "reading" if lease is not None and lease.alive else "not-started"
    return progress, None if opened is None else KinesisPosition.timestamp(opened), False


async def _measured(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    shard: ShardInfo,
    lease: LeaseLine | None,
    opened: float | None,
) -> ShardLag:
    progress, position, after = _place(shard, lease, opened)
    if position is None:
        problem = None if lease is None else lease.problem
        return ShardLag(shard, lease, progress, 0 if progress == "finished" else None, problem)

    async def read() -> int | None:
        iterator = await transport.get_shard_iterator(stream, shard.shard_id, position, after=after)
        page = Page.parse(await transport.get_records(stream, shard.shard_id, iterator, 1))
        behind = page.millis_behind_latest
        if behind == 0 and len(page) and (arrival := page.arrival(0)) is not None:
            # The service speaks of what is behind the page: of the last record, which is not settled
            # either, only its age says how late it is.
            return max(1, round(1_000 * (clock.time() - arrival)))
        return behind

    try:
        return ShardLag(shard, lease, progress, await patiently(read, clock))
    except RequestError as error:
        # A position that the shard does not know any more is this shard's affair; what nobody may
        # read, or where nobody answers, is everybody's.
        if error.status is None or error.shard_id is None or error.code not in _POSITION:
            raise
        return ShardLag(shard, lease, "unreadable", None, str(error))
