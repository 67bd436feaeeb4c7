"""A stream that is split and merged while it is read.

Order of a key: a record stands in the one shard that was open for its key when it was put, and a
child takes records only after its parents have closed.
"""

from __future__ import annotations

import base64
import random
import zlib
from bisect import bisect_left
from dataclasses import dataclass, field

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.attempts import NOT_BEFORE_HEADER
from ruststream_kinesis.errors import RequestError
from ruststream_kinesis.message import RETRY_COUNT_HEADER
from ruststream_kinesis.transport import ShardInfo, ShardListing
from tests.sim.loop import Scheduler
from tests.sim.network import Link

__all__ = ["STREAM", "Kinesis", "Record", "Shard"]

STREAM = "orders"
# Enough to split a shard four times.
_KEYS = 1 << 16
_ITERATOR_LIFE = 300.0
_EPOCH = 1_700_000_000.0


@dataclass(slots=True, eq=False)
class Record:
    """One record in the stream."""

    number: int
    """Sequence number; 1, 2, 3, …, so that text order is wrong at every new digit."""
    shard: Shard
    key: str
    value: int
    """What the handler sees; a copy has its original's."""
    turn: int
    """The how manyeth of its key it is; -1 for a copy, which has no place among them."""
    arrival: float
    json: bytes
    index: int
    """Its place in the shard."""
    attempt: int = 1
    """The how manyeth delivery it is."""
    early: bool = False
    """A copy that was put before its time: it may be put off without a handler."""


@dataclass(slots=True, eq=False)
class Shard:
    """One shard of the stream."""

    shard_id: str
    parents: tuple[Shard, ...]
    low: int
    high: int
    listed_from: float
    records: list[Record] = field(default_factory=list)
    children: list[Shard] = field(default_factory=list)
    lines: dict[str, list[Record]] = field(default_factory=dict)
    """The same, by key."""
    closed_at: float | None = None


class Kinesis:
    """One stream.

    Args:
        scheduler: Time.
        rng: Sizes of pages, and what is refused.
        shards: How many it has at first.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, shards: int) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.link = Link(scheduler, rng, lambda _: self.refused(), patience=20.0)
        self.shards: dict[str, Shard] = {}
        self.records: dict[int, Record] = {}
        self.values: list[Record] = []
        """The original of each value."""
        self.of_value: list[list[Record]] = []
        """Original and copies of each value."""
        self.turns: dict[str, int] = {}
        self.most = 10
        """Records in a page."""
        self.expiring = 0.0
        """Probability that an iterator is refused as expired."""
        for number in range(shards):
            self._add((), number * _KEYS // shards, (number + 1) * _KEYS // shards, 0.0)

    def refused(self) -> RequestError:
        """Return one of the errors that pass."""
        code, status = self.rng.choice(
            [
                ("ProvisionedThroughputExceededException", 400),
                ("LimitExceededException", 400),
                ("InternalFailure", 500),
                ("ConnectionError", None),
            ]
        )
        return RequestError("made by the simulation", code=code, status=status, stream=STREAM)

    @property
    def time(self) -> float:
        """The service's own wall clock, which is right."""
        return _EPOCH + self.scheduler.now

    @property
    def open(self) -> list[Shard]:
        """Shards that take records."""
        return [shard for shard in self.shards.values() if shard.closed_at is None]

    def _add(self, parents: tuple[Shard, ...], low: int, high: int, listed_from: float) -> Shard:
        shard_id = f"shardId-{len(self.shards):012}"
        # No shard is listed before its parents.
        listed_from = max([listed_from, *(parent.listed_from for parent in parents)])
        shard = self.shards[shard_id] = Shard(shard_id, parents, low, high, listed_from)
        for parent in parents:
            parent.children.append(shard)
        return shard

    def put(self, key: str, value: int | None = None, data: bytes | None = None) -> Record:
        """Put a new value, or a copy of one that is there."""
        place = zlib.crc32(key.encode()) % _KEYS
        shard = next(each for each in self.open if each.low <= place < each.high)
        turn = -1
        if value is None:
            value, turn = len(self.values), self.turns.get(key, 0)
            self.turns[key] = turn + 1
        number, arrival = len(self.records) + 1, self.time
        blob = base64.b64encode(data or str(value).encode()).decode()
        text = (
            f'{{"SequenceNumber":"{number}","Data":"{blob}","PartitionKey":"{key}",'
            f'"ApproximateArrivalTimestamp":{arrival:.3f}}}'
        )
        headers = decode_envelope(data)[0] if data else {}
        record = Record(
            number,
            shard,
            key,
            value,
            turn,
            arrival,
            text.encode(),
            len(shard.records),
            1 + int(headers.get(RETRY_COUNT_HEADER, "0")),
            NOT_BEFORE_HEADER in headers,
        )
        shard.records.append(record)
        shard.lines.setdefault(key, []).append(record)
        self.records[number] = record
        if turn >= 0:
            self.values.append(record)
            self.of_value.append([])
        self.of_value[value].append(record)
        return record

    def split(self, shard: Shard, late: float) -> None:
        """Close a shard and open two in its place; they are listed `late` seconds from now."""
        middle, now = (shard.low + shard.high) // 2, self.scheduler.now
        if middle > shard.low:
            shard.closed_at = now
            self._add((shard,), shard.low, middle, now + late)
            self._add((shard,), middle, shard.high, now + late)

    def merge(self, late: float) -> None:
        """Close two neighbours, if there are two, and open one in their place."""
        together = sorted(self.open, key=lambda each: each.low)
        if len(together) > 1:
            at, now = self.rng.randrange(len(together) - 1), self.scheduler.now
            left, right = together[at : at + 2]
            left.closed_at = right.closed_at = now
            self._add((left, right), left.low, right.high, now + late)

    # -- the calls -------------------------------------------------------------------------------

    def list_shards(self) -> ShardListing:
        """List what is known by now."""
        listed = tuple(
            ShardInfo(shard.shard_id, tuple(parent.shard_id for parent in shard.parents))
            for shard in self.shards.values()
            if shard.listed_from <= self.scheduler.now
        )
        return ShardListing(listed, float(int(self.time)))

    def index(self, shard_id: str, position: KinesisPosition, *, after: bool = False) -> int:
        """Return where a position is in a shard: the index of the first record from there on."""
        records = self.shards[shard_id].records
        match position.kind:
            case "latest":
                return len(records)
            case "sequence":
                number = int(position.sequence_number or "") + after
                return bisect_left(records, number, key=lambda each: each.number)
            case "timestamp":
                when = position.when or 0.0
                return bisect_left(records, when, key=lambda each: each.arrival)
            case _:
                return 0

    def iterator(self, shard_id: str, position: KinesisPosition, after: bool) -> str:
        """Return an iterator: shard, index, and when it was made."""
        index = self.index(shard_id, position, after=after)
        return f"{shard_id}:{index}:{self.scheduler.now:.0f}"

    def page(self, iterator: str, limit: int) -> bytes:
        """Return the body of a GetRecords answer."""
        shard_id, start, made = iterator.split(":")
        if self.scheduler.now - int(made) > _ITERATOR_LIFE or (
            self.expiring and self.rng.random() < self.expiring
        ):
            raise RequestError(
                "made by the simulation", code="ExpiredIteratorException", status=400, stream=STREAM
            )
        shard, first = self.shards[shard_id], int(start)
        # An empty page with lag is normal.
        most = min(limit, self.most) if self.rng.random() < 0.95 else 0
        found = shard.records[first : first + most]
        stop = first + len(found)
        rest = len(shard.records) - stop
        over = shard.closed_at is not None and not rest
        following = "null" if over else f'"{shard_id}:{stop}:{self.scheduler.now:.0f}"'
        return (
            b'{"Records":['
            + b",".join([each.json for each in found])
            + f'],"NextShardIterator":{following},"MillisBehindLatest":{rest * 10}}}'.encode()
        )
