"""Aggregated publishing: a collector that packs records of a shard into one.

Each record keeps its own future, deadline and result; sent, refused and sent again is the aggregate.
An attempt is packed anew from the records that are still wanted. `lanes.py` says which share one;
here is what that needs: the map of the stream's shards.

Invariants:

* Nothing is sent before there is a map. Where it cannot be had at all, the records are refused with
  the reason; where it cannot be had for now, they wait until their deadlines.
* A map is looked at anew after some minutes, and when a record went to another shard than the map
  says: then the stream was resharded. What went there by the old map is in the stream, and is read;
  nothing more goes to that shard by the old map before it was looked at.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

from ruststream_kinesis._core import encode_aggregate
from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.collector import SWEEP_INTERVAL, Collector
from ruststream_kinesis.errors import KinesisError, NotConnected
from ruststream_kinesis.lanes import Group, Lanes, ShardMap
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.transport import Failure, PutEntry, PutResult, judge
from ruststream_kinesis.wording import fields

__all__ = ["AggregatingCollector"]

logger = logging.getLogger("ruststream_kinesis")

# A split or a merge shows in the answers; this is for a shard to which nothing goes.
_LOOK_INTERVAL = 300.0
# After an answer that did not fit the map it is looked at anew at once. Where that brought nothing new,
# the next time is as much later, and twice as much each time: every reader lists the shards, too.
_DOUBT_PAUSE = 1.0
_LONGEST_DOUBT_PAUSE = 60.0
# Packed in a thread beyond that: the sum over 1 MiB takes some 2 ms.
_LARGE_BYTES = 256 * 1024


class AggregatingCollector(Collector):
    """The records of one stream on their way in aggregates, on one event loop."""

    _buffer: Lanes
    _kind = Lanes

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._looking: asyncio.Task[None] | None = None
        self._look_at = -math.inf
        """When the shards are listed next."""
        self._looked = -math.inf
        self._doubted = False
        """An answer did not fit the map, and it was not looked at anew since."""
        self._doubt_pause = 0.0
        self._backoff = Backoff(first=0.1, cap=5.0)

    def pack(self, entries: list[PutEntry]) -> PutEntry:
        """One entry of some; it goes where the first of them would go by itself."""
        if len(entries) == 1:
            return entries[0]
        _, key, explicit_hash_key = entries[0]
        return PutEntry(encode_aggregate(entries), key, explicit_hash_key)

    def _rest(self) -> float | None:
        now = self._link.clock.monotonic()
        if self._looking is None and now >= self._look_at:
            self._looking = self._supervisor.spawn(f"shards[{self.stream.name}]", self._look())
        waits = self._buffer.map is None or self._buffer.doubted
        if waits:
            # The time of those that wait may be over before there is a map.
            self._troubled = True
        rest = super()._rest()
        if not waits:
            return rest
        soon = SWEEP_INTERVAL if self._looking else min(SWEEP_INTERVAL, self._look_at - now)
        return soon if rest is None else min(rest, soon)

    async def _look(self) -> None:
        """Lists the shards once."""
        clock = self._link.clock
        self._looked = clock.monotonic()
        doubted, self._doubted = self._doubted, False
        try:
            listing = await self._link.transport.list_shards(self.stream)
            found = ShardMap.of(listing.shards, self.stream.name)
        except KinesisError as error:
            self._look_at = clock.monotonic() + self._backoff.next()
            self._not_found(error)
        else:
            self._backoff.reset()
            self._look_at = clock.monotonic() + _LOOK_INTERVAL
            if self._buffer.move(found):
                self._doubt_pause = 0.0
            elif doubted:
                longer = max(2 * self._doubt_pause, _DOUBT_PAUSE)
                self._doubt_pause = min(longer, _LONGEST_DOUBT_PAUSE)
            if self._doubted:  # meanwhile, by what this listing may not have seen
                self._look_at = self._looked + self._doubt_pause
        finally:
            self._looking = None
            if self._buffer.doubted:
                self._buffer.doubted.clear()
                self._buffer.waited = True
            self._changed.set()
            self._ends()

    def _not_found(self, error: KinesisError) -> None:
        """The shards could not be listed."""
        passing = judge(error) is Failure.PASSING
        if (self._buffer.map is not None or passing) and (count := self._log.due()):
            logger.warning(
                "cannot list the shards of stream %s (%d time(s)), trying again: %s",
                self.stream.name,
                count,
                error,
                extra=fields(self.stream.name),
            )
        if self._buffer.map is not None:
            return
        for record in list(self._buffer):
            if not record.done():
                record.failed(error, attempt=False)
                if isinstance(error, NotConnected):
                    record.set_exception(error)
                elif not passing:
                    record.set_exception(self._given_up(record))
        self._sweep(self._link.clock.monotonic())

    def _doubt(self, place: int | None) -> None:
        """An answer does not fit the map."""
        self._doubted = True
        self._look_at = min(self._look_at, self._looked + self._doubt_pause)
        if place is not None and self._look_at <= self._link.clock.monotonic():
            self._buffer.doubted.add(place)

    def _ends(self) -> None:
        # While it looks, a stop has to find it.
        if self._pump is None and self._looking is None:
            super()._ends()

    async def _attempt(
        self, number: int, batch: list[Any]
    ) -> tuple[Sequence[PutResult | KinesisError], bool]:
        groups = self._buffer.groups(number)
        shard_map = self._buffer.map
        assert shard_map is not None
        found: dict[int, KinesisError] = {}
        if any(record.size > DEFAULT_MAX_RECORD_BYTES for record in batch):
            # Those are alone in their groups: they fit into no aggregate.
            found = await self._too_large(batch)
        sent = [group for group in groups if id(group.records[0]) not in found]
        results: Sequence[PutResult | KinesisError] = ()
        whole = False
        if sent:
            entries = await self._packed(sent)
            try:
                results = await self._link.transport.put_records(self.stream, entries)
            except KinesisError as error:
                results, whole = [error] * len(sent), True
        every: list[PutResult | KinesisError] = []
        rest = iter(results)
        for place, records in groups:
            failed = found.get(id(records[0]))
            result = next(rest) if failed is None else failed
            every += _shared(result, len(records))
            expected = None if place is None else shard_map.shards[place]
            if isinstance(result, PutResult) and result.shard_id != expected:
                self._doubt(place)
        return every, whole

    async def _packed(self, groups: list[Group]) -> list[PutEntry]:
        given = [[record.entry for record in group.records] for group in groups]
        size = sum(
            [record.size for each in groups if len(each.records) > 1 for record in each.records]
        )
        if size > _LARGE_BYTES:
            return await asyncio.to_thread(lambda: [self.pack(entries) for entries in given])
        return [self.pack(entries) for entries in given]


def _shared(result: PutResult | KinesisError, count: int) -> list[PutResult | KinesisError]:
    """The results of the records of an aggregate, which are put together or not at all."""
    if count == 1 or not isinstance(result, PutResult):
        return [result] * count
    shard_id, sequence_number = result.shard_id, result.sequence_number
    return [PutResult(shard_id, sequence_number, at) for at in range(count)]
