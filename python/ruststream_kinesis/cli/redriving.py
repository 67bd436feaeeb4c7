"""`ruststream-kinesis dead-letters redrive`: dead letters go back to the stream that they came from.

Invariants:

* A record goes back with its partition key and payload byte for byte, and with the headers of whoever
  published it; what this package added to a copy or a dead letter is taken out.
* Records of a key keep their order: shards are read parents first, a key has one record on its way,
  and the first record that is not taken ends the run.
* Nothing is taken out of the dead letter stream, where records age out: a position for each shard
  says how far a run came, and the next one begins behind it. Never behind a record that was not
  decided, so it may put some again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ruststream_kinesis._core import Page, rewrite_envelope
from ruststream_kinesis.attempts import ORIGIN_STREAM_HEADER
from ruststream_kinesis.cli.shard_pages import generations, pages_to_tip
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import ConfigurationError, KinesisError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.records import outgoing
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Transport, patiently

__all__ = ["Order", "Redriven", "original", "redrive"]

_OURS: Final = "x-ruststream-"
_MAGIC = b"RSK1"
# Records that are decided together: a few requests.
_CHUNK = 500
# Seconds that a record which is refused for a passing reason is tried.
_DEADLINE = 30.0
# A listing tells the service's time in whole seconds.
_ROUNDED = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be redriven."""

    source: StreamRef
    target: StreamRef
    start: KinesisPosition = field(default_factory=KinesisPosition.horizon)
    """Where shards begin that `behind` does not name: the horizon, or a time."""
    behind: Mapping[str, str] = field(default_factory=dict)
    """By shard, the sequence number of the last record that an earlier run decided."""
    all_origins: bool = False
    """Also what came from another stream than the target, or says nothing of where from."""
    dry_run: bool = False
    limit: int | None = None
    """Put so many at most."""

    def __post_init__(self) -> None:
        if self.source.name == self.target.name:
            raise ConfigurationError(
                f"{self.source.name} would be redriven into itself: --to names the stream that its "
                "records came from"
            )
        if self.start.kind not in ("horizon", "timestamp"):
            raise ConfigurationError(
                "a redrive begins at the horizon, at a time, or behind a record"
            )


class Redriven(msgspec.Struct):
    """What became of the dead letters."""

    source: str
    target: str
    dry_run: bool = False
    read: int = 0
    redriven: int = 0
    """In a dry run: would be."""
    skipped: int = 0
    """They came from another stream."""
    failed: int = 0
    again: int = 0
    """Of those redriven, so many stand behind a position, and the next run puts them again."""
    positions: dict[str, str] = {}
    """By shard, the last record that is decided, with all before it."""
    stopped: str | None = None
    """Why it did not come to the end."""


def original(page: Page, index: int) -> bytes:
    """The record that a dead letter was, as it stood in its stream."""
    block, payload = page.header_block(index), page.payload(index)
    if block is None:
        return page.data(index)
    headers = page.headers(index)
    ours: dict[str, str | None] = {name: None for name in headers if name.startswith(_OURS)}
    if len(ours) == len(headers) and ours and not payload.startswith(_MAGIC):
        # It came without an envelope, and got one for our headers alone.
        return payload
    return rewrite_envelope(block, ours, payload)


async def redrive(
    order: Order,
    transport: Transport,
    clock: Clock,
    publisher: KinesisPublisher,
    told: Redriven,
    *,
    stop: asyncio.Event,
    advance: Callable[[int], None],
) -> None:
    """Puts dead letters back, until the tip of their stream at the start.

    Args:
        order: Which, and where to.
        transport: Reads them.
        clock: Time between two reads, and until a record is given up.
        publisher: Puts them.
        told: Where it is counted; right at any moment, also where this is cancelled.
        stop: Once it is set, what is on its way is waited for, and nothing else.
        advance: Told how many more were read.

    Raises:
        KinesisError: The dead letter stream cannot be read, or a position is none of its.
    """
    listing = await patiently(lambda: transport.list_shards(order.source), clock)
    listed = {shard.shard_id for shard in listing.shards}
    for shard_id in order.behind:
        if shard_id not in listed:
            raise ConfigurationError(
                f"stream {order.source.name} has no shard {shard_id} (any more)",
                stream=order.source.name,
                shard_id=shard_id,
            )
    told.positions.update(order.behind)
    # Whatever fails once more comes back to the stream that is read here: it is left to another run.
    until = listing.service_time + _ROUNDED
    for shard in itertools.chain(*generations(listing.shards)):
        work = _Shard(order, clock, publisher, told, stop, advance, shard.shard_id)
        behind = order.behind.get(shard.shard_id)
        position = (
            order.start if behind is None else KinesisPosition.sequence(shard.shard_id, behind)
        )
        async for page in pages_to_tip(
            transport,
            clock,
            order.source,
            shard.shard_id,
            position,
            after=behind is not None,
            until=until,
        ):
            end = len(page)
            while end and (page.arrival(end - 1) or 0.0) > until:
                end -= 1
            for start in range(0, end, _CHUNK):
                await work.decide(page, range(start, min(start + _CHUNK, end)))
                if told.stopped is not None:
                    return
            if stop.is_set():
                told.stopped = "interrupted"
                return


class _Shard:
    """One shard of the dead letter stream."""

    def __init__(
        self,
        order: Order,
        clock: Clock,
        publisher: KinesisPublisher,
        told: Redriven,
        stop: asyncio.Event,
        advance: Callable[[int], None],
        shard_id: str,
    ) -> None:
        self._order = order
        self._clock = clock
        self._publisher = publisher
        self._told = told
        self._stop = stop
        self._advance = advance
        self._shard_id = shard_id

    async def decide(self, page: Page, indices: range) -> None:
        """Redrives some records that stand next to each other, and moves the position."""
        told, order = self._told, self._order
        chains: defaultdict[str, list[int]] = defaultdict(list)
        decided: set[int] = set()
        read = 0
        wanted = 0
        for index in indices:
            if order.limit is not None and told.redriven + wanted >= order.limit:
                told.stopped = f"--limit {order.limit} is reached"
                break
            read += 1
            if self._is_wanted(page, index):
                wanted += 1
                # One without a key has no order to keep.
                chains[page.partition_key(index) or f"\n{index}"].append(index)
            else:
                told.skipped += 1
                decided.add(index)
        told.read += read
        redriven = await self._redrive(page, list(chains.values()))
        decided |= redriven
        told.redriven += len(redriven)
        self._move(page, indices, decided, redriven)
        self._advance(read)

    def _is_wanted(self, page: Page, index: int) -> bool:
        if self._order.all_origins:
            return True
        return page.headers(index).get(ORIGIN_STREAM_HEADER) == self._order.target.name

    async def _redrive(self, page: Page, chains: list[list[int]]) -> set[int]:
        """Puts the records of each key one after the other; returns those that were taken."""
        if self._order.dry_run:
            return {index for chain in chains for index in chain}
        taken: set[int] = set()

        async def put(chain: list[int]) -> None:
            for index in chain:
                if self._told.failed or self._stop.is_set():
                    return
                failure = await self._try(page, index)
                if failure is None:
                    taken.add(index)
                    continue
                self._told.failed += 1
                number = page.sequence_number(index)
                self._told.stopped = self._told.stopped or (
                    f"record {number} of shard {self._shard_id} was not put: {failure}"
                )
                return

        await asyncio.gather(*map(put, chains))
        if self._stop.is_set() and self._told.stopped is None:
            self._told.stopped = "interrupted"
        return taken

    async def _try(self, page: Page, index: int) -> str | None:
        """Puts one record; what is wrong, where it was not taken."""
        late = self._clock.monotonic() + _DEADLINE
        try:
            record = outgoing(
                self._order.target, original(page, index), page.partition_key(index) or None
            )
            result = await self._publisher.put_while(record, lambda: self._clock.monotonic() < late)
        except KinesisError as error:
            return str(error)
        return f"not taken within {_DEADLINE:g} s" if result is None else None

    def _move(self, page: Page, indices: range, decided: set[int], redriven: set[int]) -> None:
        """Moves the position behind the unbroken run of decided records.

        Records of an aggregate have one number: it counts when all of them are decided, and those
        behind it in its page too.
        """
        told = self._told
        open_from = next((index for index in indices if index not in decided), indices.stop)
        last = open_from - 1
        if open_from < len(page):
            number = page.sequence_number(open_from)
            while last >= indices.start and page.sequence_number(last) == number:
                last -= 1
        if open_from < indices.stop:
            told.again += sum(index > last for index in redriven)
        if last >= indices.start:
            told.positions[self._shard_id] = page.sequence_number(last)
