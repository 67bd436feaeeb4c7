"""`Buffer`: records on their way into one stream, and which of them may share the next request.

Only order and room are decided here; `collector.py` sends. Invariants:

* Of one partition key, at most one record is in a request or waits to be sent again; the next one
  becomes ready when it is decided. The service takes the entries of a request one by one and may
  refuse any of them, so that two of one key in a request, or in two requests, may change places.
* A record is in the buffer from `admit` until it is decided, and counts against its room until then.
* Records outside, whose publishers wait for room, come in by the order in which they came.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator

from ruststream_kinesis.limits import MAX_PUT_RECORDS_BYTES
from ruststream_kinesis.transport import PutEntry, PutResult

__all__ = ["Buffer", "Pending"]


class Pending(asyncio.Future[PutResult | None]):
    """One record on its way, and the future that its publisher has.

    It is both because it is made for every record. `None` as its result: it was not wanted any more.
    """

    __slots__ = ("attempts", "deadline", "entry", "error", "key", "size", "wanted")

    entry: PutEntry
    """A plain tuple, which the collector of garbage forgets about at its first look."""
    size: int
    """Bytes of data and partition key."""
    key: str | None
    """What it keeps its order by; `None` where no other record has its partition key."""
    deadline: float
    """On the monotonic clock, when it is not tried again any more; infinite for what is part of a settlement."""
    wanted: Callable[[], bool] | None
    """Asked before every attempt whether to go on."""
    attempts: int
    """That failed; not there before the first has."""
    error: Exception
    """Of the last attempt; not there before the first has failed."""


class Buffer:
    """The records of one stream that are not decided yet.

    Args:
        batch: Records a request.
        max_records: How many it holds.
        max_bytes: How many bytes of data and keys they may have; one record always fits.
    """

    def __init__(self, batch: int, max_records: int, max_bytes: int) -> None:
        self._batch = batch
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._ready: deque[Pending] = deque()
        self._ready_bytes = 0
        self._keys: dict[str, deque[Pending] | None] = {}
        """Keys with a record that is ready, in a request or resting, and what waits behind it."""
        self._outside: deque[Pending] = deque()
        self._held: dict[int, list[Pending]] = {}
        """What is neither ready nor behind a key: in requests, or resting until tried again."""
        self._numbers = itertools.count()
        self._conditional = 0
        """Records among those in it whose publisher says whether they are wanted."""
        self.waited = False
        """Some that are ready have waited already: behind their key, or to be sent again."""
        self.records = 0
        """Records in it."""
        self.bytes = 0

    def __len__(self) -> int:
        """Records in it, and those that wait for room."""
        return self.records + len(self._outside)

    def __iter__(self) -> Iterator[Pending]:
        """All that are not decided; first those that were tried."""
        for group in self._held.values():
            yield from group
        yield from self._ready
        for behind in self._keys.values():
            yield from behind or ()
        yield from self._outside

    @property
    def closes(self) -> bool:
        """Whether the next request is as full as it can be."""
        return len(self._ready) >= self._batch or self._ready_bytes >= MAX_PUT_RECORDS_BYTES

    @property
    def ready(self) -> int:
        """Records that may be sent."""
        return len(self._ready)

    def offer(self, record: Pending) -> bool | None:
        """Takes a record in, unless there is no room or others wait for it already.

        Returns:
            `None` where it was not taken, else whether it is the first that is ready, or makes the
            next request as full as it can be.
        """
        records, size = self.records, record.size
        if (
            records >= self._max_records
            or (self.bytes + size > self._max_bytes and records)
            or self._outside
        ):
            return None
        self.records = records + 1
        self.bytes += size
        if record.wanted is not None:
            self._conditional += 1
        key = record.key
        if key is not None:
            keys = self._keys
            if key in keys:
                behind = keys[key]
                if behind is None:
                    behind = keys[key] = deque()
                behind.append(record)
                return False
            keys[key] = None
        ready = self._ready
        ready.append(record)
        self._ready_bytes += size
        count = len(ready)
        return count in (1, self._batch) or self._ready_bytes >= MAX_PUT_RECORDS_BYTES

    def wait_outside(self, record: Pending) -> None:
        """Keeps a record until there is room; its publisher waits."""
        self._outside.append(record)

    def take(self) -> tuple[int, list[Pending]]:
        """The next request: what is ready, in order, as much as fits.

        What is not wanted any more, or was cancelled, is decided instead.

        Returns:
            A number for `put_back` and `rest`, and the records; there may be none.
        """
        ready = self._ready
        count = min(len(ready), self._batch)
        if self._ready_bytes > MAX_PUT_RECORDS_BYTES:
            count = self._fitting(count)
        taken = [ready.popleft() for _ in range(count)]
        self._ready_bytes -= sum([each.size for each in taken])
        batch = [each for each in taken if not each.done()]
        if self._conditional:
            batch = [each for each in batch if each.wanted is None or each.wanted()]
        self.waited = False
        number = next(self._numbers)
        if batch:
            self._held[number] = batch
        if len(batch) < count:
            kept = set(map(id, batch))
            gone = [each for each in taken if id(each) not in kept]
            for record in gone:
                if not record.done():
                    record.set_result(None)
            self._leave(gone)
        return number, batch

    def _fitting(self, most: int) -> int:
        """How many of those that are ready one request carries; one at least."""
        total = 0
        for count, record in enumerate(itertools.islice(self._ready, most)):
            total += record.size
            if total > MAX_PUT_RECORDS_BYTES:
                return max(count, 1)
        return most

    def rest(self, number: int, left: list[Pending]) -> None:
        """Of a request, these were refused and will be sent again; the others are decided."""
        batch = self._held.pop(number, None)
        if batch is None:
            return  # everything was given up meanwhile
        if left:
            self._held[number] = left
        if len(left) < len(batch):
            refused = set(map(id, left))
            self._leave([each for each in batch if id(each) not in refused] if left else batch)

    def put_back(self, number: int) -> None:
        """Those of a request that rest are ready again, in front of all others."""
        back = self._held.pop(number, [])
        self._ready.extendleft(reversed(back))
        self._ready_bytes += sum(each.size for each in back)
        self.waited = True

    def sweep(self, expired: Callable[[Pending], bool]) -> None:
        """Lets go of those that wait, untried, and have expired or were cancelled meanwhile."""

        def gone(record: Pending) -> bool:
            return record.done() or expired(record)

        left: list[Pending] = []
        for key, behind in self._keys.items():
            if behind and (late := [each for each in behind if gone(each)]):
                left += late
                self._keys[key] = deque(each for each in behind if not each.done())
        self._free(left)
        late = [each for each in self._ready if gone(each)]
        if late:
            self._ready = deque(each for each in self._ready if not each.done())
            self._ready_bytes = sum(each.size for each in self._ready)
        if [each for each in self._outside if gone(each)]:
            self._outside = deque(each for each in self._outside if not each.done())
        self._leave(late)

    def clear(self) -> list[tuple[Pending, bool]]:
        """Forgets everything.

        Returns:
            What was not decided, and of each, whether it was tried or is on its way.
        """
        tried = sum(map(len, self._held.values()))
        left = [(each, at < tried) for at, each in enumerate(self) if not each.done()]
        self._ready.clear()
        self._keys.clear()
        self._outside.clear()
        self._held.clear()
        self.records = self.bytes = self._ready_bytes = self._conditional = 0
        return left

    def _free(self, records: list[Pending]) -> None:
        self.records -= len(records)
        self.bytes -= sum([each.size for each in records])
        if self._conditional:
            self._conditional -= sum([each.wanted is not None for each in records])

    def _leave(self, records: list[Pending]) -> None:
        """These are decided: their room is free, and what waits behind their keys is ready."""
        self._free(records)
        if keys := self._keys:
            for record in records:
                key = record.key
                if key is None:
                    continue
                behind = keys[key]
                if behind:
                    following = behind.popleft()
                    self._ready.append(following)
                    self._ready_bytes += following.size
                    self.waited = True
                else:
                    del keys[key]
        if self._outside:
            outside, self._outside = self._outside, deque()
            while outside and (outside[0].done() or self.offer(outside[0]) is not None):
                outside.popleft()
            self._outside = outside
