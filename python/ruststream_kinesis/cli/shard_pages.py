"""A stream that is read from outside: its shards, parents first, page by page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

from ruststream_kinesis._core import Page
from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, ShardInfo, Transport, judge, patiently

__all__ = ["generations", "pages", "pages_to_tip"]

logger = logging.getLogger("ruststream_kinesis")

# A shard allows five reads a second, to all that read it.
_PACE = 0.25
# There is nothing to get behind the tip: a shard that is caught up is asked less often.
_POLL = 1.0
# An iterator at the tip that is lost is made anew at this much before the time of the first one.
_MARGIN = 1.0
_RECORDS = 1_000
# Passing failures in a row after which reading is given up: about a minute.
_TRIES = 10


def generations(shards: Iterable[ShardInfo]) -> list[list[ShardInfo]]:
    """Shards in groups, so that every parent that is listed is in an earlier one than its children."""
    left = {shard.shard_id: shard for shard in shards}
    ordered: list[list[ShardInfo]] = []
    while left:
        ready = [s for s in left.values() if not any(parent in left for parent in s.parents)]
        # A ring of parents is no stream's; what is left of one is taken as it comes.
        ordered.append(ready or list(left.values()))
        for shard in ordered[-1]:
            del left[shard.shard_id]
    return ordered


async def pages_to_tip(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    shard_id: str,
    position: KinesisPosition,
    *,
    after: bool,
    until: float,
) -> AsyncIterator[Page]:
    """The pages of a shard, up to its end, its tip, or what arrived after `until`.

    Args:
        transport: Makes the calls.
        clock: Time between two of them.
        stream: Which stream.
        shard_id: Which shard.
        position: Where to begin.
        after: Behind the record that a `sequence` position names.
        until: Seconds since the epoch. Pages may hold a few later records, too.

    Raises:
        KinesisError: The shard cannot be read (any more).
    """
    source = pages(transport, clock, stream, shard_id, position, after=after)
    async with aclosing(source):
        async for page in source:
            yield page
            if not page.millis_behind_latest:
                return
            last = page.arrival(len(page) - 1) if len(page) else None
            if last is not None and last > until:
                return


async def pages(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    shard_id: str,
    position: KinesisPosition,
    *,
    after: bool,
) -> AsyncGenerator[Page, None]:
    """The pages of a shard up to its end: of an open one for ever, empty ones included.

    What passes is tried again, with a warning; a minute of it in a row is an error.

    Args:
        transport: Makes the calls.
        clock: Time between two of them.
        stream: Which stream.
        shard_id: Which shard.
        position: Where to begin.
        after: Behind the record that a `sequence` position names.

    Raises:
        KinesisError: The shard cannot be read (any more).
    """

    async def opened() -> str:
        return await patiently(
            lambda: transport.get_shard_iterator(stream, shard_id, position, after=after), clock
        )

    began = clock.time()
    iterator = await opened()
    if position.kind == "latest":
        # The tip is another place whenever it is asked for.
        position = KinesisPosition.timestamp(max(0.0, began - _MARGIN))
    backoff = Backoff(first=0.5, cap=10.0)
    while True:
        try:
            body = await transport.get_records(stream, shard_id, iterator, _RECORDS)
            # In a thread: a page may have 10 MiB.
            page = await asyncio.to_thread(Page.parse, body)
        except KinesisError as error:
            failure = judge(error)
            if failure is Failure.TERMINAL or backoff.failures >= _TRIES:
                raise
            logger.warning("trying again: %s", error)
            await clock.sleep(backoff.next())
            if failure is Failure.ITERATOR:
                iterator = await opened()
            continue
        backoff.reset()
        yield page
        if page.last_sequence_number is not None:
            position = KinesisPosition.sequence(shard_id, page.last_sequence_number)
            after = True
        following = page.next_shard_iterator
        if following is None:
            return
        iterator = following
        await clock.sleep(_PACE if page.millis_behind_latest else _POLL)
