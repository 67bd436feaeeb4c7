"""`Lanes`: the buffer of aggregated publishing, and which records may share an aggregate.

As `Buffer`, with shards in place of keys. Invariants:

* An aggregate holds records of one shard only, by the map that is known.
* Of a shard, at most one aggregate is in a request or waits to be sent again; what came for it
  meanwhile waits behind it, in order. So records of a key never change places: those of an aggregate
  are put together or not at all. A shard takes 1 MiB a second, so one aggregate under way is enough.
* Another map is taken on while nothing is under way: of a key whose shard has changed, the earlier
  records are decided, or back in front, before a later one goes to the new shard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ruststream_kinesis._core import HashRanges, aggregate_fitting
from ruststream_kinesis.buffer import Buffer, Pending
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES, LAST_HASH_KEY, MAX_PUT_RECORDS_BYTES
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo

__all__ = ["MAX_AGGREGATE_BYTES", "Group", "Lanes", "ShardMap"]

# An aggregate with its key, where the stream would take more, too: a shard takes as much in a second,
# and a record of it that is read again brings all the others.
MAX_AGGREGATE_BYTES = DEFAULT_MAX_RECORD_BYTES
# What the format adds to a record's data and key at most: tags and lengths, and its explicit hash key.
_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Which open shard takes which hash keys."""

    shards: tuple[str, ...]
    """Their ids; a place is an index of it."""
    bounds: tuple[tuple[str, str], ...]
    """First and last hash key of each."""
    ranges: HashRanges = field(compare=False)

    @classmethod
    def of(cls, listed: Iterable[ShardInfo], stream: str) -> ShardMap:
        """The map of a listing.

        Raises:
            RequestError: A range in it is none.
        """
        open_shards = [shard for shard in listed if not shard.ended]
        if len(open_shards) == 1 and open_shards[0].hash_keys is None:
            found = [(open_shards[0].shard_id, ("0", LAST_HASH_KEY))]
        else:
            found = [
                (each.shard_id, each.hash_keys)
                for each in open_shards
                if each.hash_keys is not None
            ]
        found.sort()
        bounds = tuple(keys for _, keys in found)
        try:
            ranges = HashRanges(list(bounds))
        except ValueError as error:
            raise RequestError(
                f"cannot list shards: {error}", code="MalformedAnswer", stream=stream
            ) from error
        return cls(tuple(name for name, _ in found), bounds, ranges)


class Group(NamedTuple):
    """What goes as one entry of a request: a record, or an aggregate of some."""

    place: int | None
    """Of its shard in the map; `None` for what is in no shard's range, and goes alone."""
    records: list[Pending]


class Lanes(Buffer):
    """The records of one stream that are not decided yet, by their shards.

    Args:
        loop: As of `Buffer`.
        stream: As of `Buffer`.
        wake: As of `Buffer`.
        batch: Aggregates a request.
        max_records: How many records it holds.
        max_bytes: How many bytes of data and keys they may have; one record always fits.
    """

    _by_key = False  # by shards, when they are sorted

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: StreamRef,
        wake: Callable[[], None],
        batch: int,
        max_records: int,
        max_bytes: int,
    ) -> None:
        super().__init__(loop, stream, wake, batch, max_records, max_bytes)
        self.map: ShardMap | None = None
        """Nothing is taken before there is one."""
        self._coming: ShardMap | None = None
        """The next one, while something is under way."""
        # What does not wait for others: as much as one aggregate for each shard takes.
        self.full_bytes = MAX_AGGREGATE_BYTES
        self._lanes: dict[int | None, deque[Pending]] = {}
        """What waits, by the place of its shard; what is `_ready` has no place yet."""
        self._busy: set[int | None] = set()
        """Places with an aggregate that is in a request, or rests."""
        self._groups: dict[int, list[Group]] = {}
        """Of each request that is held."""
        self.doubted: set[int | None] = set()
        """Places whose shard may be no more; nothing is taken for them. Who adds one ends it, too."""

    def __iter__(self) -> Iterator[Pending]:
        """All that are not decided; first those that were tried."""
        yield from super().__iter__()
        for queue in self._lanes.values():
            yield from queue

    @property
    def closes(self) -> bool:
        """Whether the next request is as full as it can be."""
        return self.ready_bytes >= self.full_bytes

    @property
    def ready(self) -> int:
        """Records that may be sent, as far as is known before they are sorted."""
        if self.map is None or self._coming is not None:
            return 0
        return self.ready_records + sum([len(self._lanes[place]) for place in self._free_lanes()])

    def move(self, found: ShardMap) -> bool:
        """Takes on a map, now or when nothing is under way any more.

        Returns:
            Whether it is another one.
        """
        if found == (self._coming or self.map):
            return False
        self._coming = found
        self._take_on()
        return True

    def groups(self, number: int) -> list[Group]:
        """What the records of a request go as."""
        return self._groups.get(number, [])

    def take(self) -> tuple[int, list[Pending]]:
        """The next request: of each shard that is free, what one aggregate holds."""
        self._sort()
        self.waited = False
        number = next(self._numbers)
        groups: list[Group] = []
        gone: list[Pending] = []
        total = 0
        for place in self._free_lanes():
            queue = self._lanes[place]
            records = self._next(queue, gone, alone=place is None)
            size = _most_bytes(records)
            if len(groups) == self._batch or (groups and total + size > MAX_PUT_RECORDS_BYTES):
                queue.extendleft(reversed(records))
                self.waited = True
                break
            if not queue:
                del self._lanes[place]
            if records:
                groups.append(Group(place, records))
                total += size
        batch = [record for group in groups for record in group.records]
        if batch:
            self._held[number] = batch
            self._groups[number] = groups
            self._busy.update([group.place for group in groups])
        self.leave(gone)
        return number, batch

    def rest(self, number: int, left: list[Pending]) -> None:
        """Of a request, these were refused and will be sent again; the others are decided."""
        groups = self._groups.pop(number, [])
        super().rest(number, left)
        if left:
            refused = set(map(id, left))
            resting = [
                Group(place, [each for each in records if id(each) in refused])
                for place, records in groups
            ]
            self._groups[number] = [group for group in resting if group.records]
            groups = [group for group in resting if not group.records]
        self._free_places(groups)

    def put_back(self, number: int) -> None:
        """Those of a request that rest are ready again, in front of their shards' others."""
        if self._held.pop(number, None) is None:
            return
        groups = self._groups.pop(number)
        for place, records in groups:
            self._lanes.setdefault(place, deque()).extendleft(reversed(records))
        self._free_places(groups)

    def sweep(self, expired: Callable[[Pending], bool]) -> None:
        """Lets go of those that wait, untried, and have expired or were cancelled meanwhile."""
        late: list[Pending] = []
        for place, queue in list(self._lanes.items()):
            if found := [each for each in queue if each.done() or expired(each)]:
                late += found
                self._lanes[place] = deque(each for each in queue if not each.done())
        super().sweep(expired)
        self.leave(late)

    def clear(self) -> list[tuple[Pending, bool]]:
        """Forgets everything but the map."""
        left = super().clear()
        self._lanes.clear()
        self._busy.clear()
        self._groups.clear()
        self._take_on()
        return left

    def _next(self, queue: deque[Pending], gone: list[Pending], *, alone: bool) -> list[Pending]:
        """What one aggregate takes from a queue; what is not wanted any more is decided instead."""
        records: list[Pending] = []
        size = 0
        while queue:
            record = queue[0]
            size += record.size
            if records and (alone or size > MAX_AGGREGATE_BYTES):
                break
            queue.popleft()
            if record.done():
                gone.append(record)
            elif record.wanted is not None and not record.wanted():
                record.set_result(None)
                gone.append(record)
            else:
                records.append(record)
        if len(records) > 1:
            entries = [each.entry for each in records]
            fitting = aggregate_fitting(entries, MAX_AGGREGATE_BYTES)
            queue.extendleft(reversed(records[fitting:]))
            del records[fitting:]
        return records

    def _free_lanes(self) -> list[int | None]:
        """Places with something that waits for nothing but its turn."""
        closed = self._busy | self.doubted if self.doubted else self._busy
        return [place for place in self._lanes if place not in closed]

    def _sort(self) -> None:
        """Finds the shards of what has come, in one call."""
        assert self.map is not None
        records = self.take_all()
        entries = [record.entry for record in records]
        lanes = self._lanes
        for record, place in zip(records, self.map.ranges.places(entries), strict=True):
            queue = lanes.get(place)
            if queue is None:
                queue = lanes[place] = deque()
            queue.append(record)

    def _free_places(self, groups: list[Group]) -> None:
        places = {group.place for group in groups}
        self._busy -= places
        if any(self._lanes.get(place) for place in places):
            self.waited = True
        self._take_on()

    def _take_on(self) -> None:
        """Takes on the map that has come, unless something is under way by the old one."""
        if self._coming is None or self._held:
            return
        waiting = [record for queue in self._lanes.values() for record in queue]
        self._lanes.clear()
        # In front of what has no place yet; of each key, in the order in which they came.
        self.give_back(waiting)
        self.map, self._coming = self._coming, None
        shards = max(1, len(self.map.shards))
        self.full_bytes = min(MAX_PUT_RECORDS_BYTES, MAX_AGGREGATE_BYTES * shards)


def _most_bytes(records: list[Pending]) -> int:
    """What the entry of some records may have, data and key."""
    size = sum([each.size for each in records])
    if len(records) < 2:  # noqa: PLR2004 - one goes as it is
        return size
    return min(MAX_AGGREGATE_BYTES, size + _OVERHEAD * (len(records) + 1))
