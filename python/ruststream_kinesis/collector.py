"""Batched publishing: records of one stream collected into PutRecords requests.

Invariants:

* Every record that is taken in is decided: put, refused, given up at its deadline, or named as not
  sent when its collector ends. Nothing that was put is sent again.
* A collector belongs to one event loop, and so do the futures of its records.
* Its tasks live while there are records to send, owned by a supervisor; one that dies fails the
  records, with its error.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ruststream_kinesis._core import Maker, entries_of, settle
from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.buffer import Buffer, Pending
from ruststream_kinesis.counters import PublishCounters
from ruststream_kinesis.errors import (
    BufferFull,
    InvalidRecord,
    KinesisError,
    NotConnected,
    PublishError,
)
from ruststream_kinesis.limits import (
    DEFAULT_MAX_RECORD_BYTES,
    check_record_size,
)
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.transport import (
    Failure,
    Link,
    Parts,
    PutEntry,
    PutResult,
    judge,
    record_limit,
)
from ruststream_kinesis.wording import fields

__all__ = ["SWEEP_INTERVAL", "Batching", "Collector", "Owner"]

logger = logging.getLogger("ruststream_kinesis")

# Requests of one stream that are on their way together. Order is kept by key, whatever their number;
# with four of 500 records an answer may take 0.1 s before the 20 MiB/s of twenty shards are missed.
_IN_FLIGHT = 4
# The first wait after a failure, and the longest.
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
# How often, while requests fail, it looks for records whose time is over: each look is at all of them.
SWEEP_INTERVAL = 1.0
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Batching:
    """How a collector collects."""

    batch: int
    """Records a request."""
    linger: float
    """Seconds that the first record of a request waits for others."""
    max_records: int
    """Records that may wait or be on their way."""
    max_bytes: int
    """Their data and partition keys together."""
    aggregate: bool = False
    """Pack the records of a shard into one."""


class Owner(Protocol):
    """Who has a collector."""

    async def pause(self, seconds: float, changed: asyncio.Event) -> None:
        """Waits until `changed`, at most `seconds` of the service's time."""
        ...

    def begins(self, collector: Collector) -> None:
        """It has something to send: it must not be forgotten."""
        ...

    def ends(self, collector: Collector) -> None:
        """It has nothing left."""
        ...


class Collector:
    """The records of one stream on their way, on one event loop.

    Args:
        owner: Who has it; knows how to wait.
        link: The service's connection.
        stream: Where records go.
        batching: How they are collected.
        loop: The running loop.
    """

    _kind: type[Buffer] = Buffer

    def __init__(
        self,
        owner: Owner,
        link: Link,
        stream: StreamRef,
        batching: Batching,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.stream = stream
        self.loop = loop
        self.counters = PublishCounters()
        """What becomes of its records; who has several collectors of a stream gives them one."""
        self._owner = owner
        self._link = link
        self._batching = batching
        self._supervisor = Supervisor(self._died)
        self._changed = asyncio.Event()
        self._buffer = self._kind(
            loop,
            stream,
            self._changed.set,
            batching.batch,
            batching.max_records,
            batching.max_bytes,
        )
        self._pump: asyncio.Task[None] | None = None
        self._on_their_way = 0
        """Requests."""
        self._resting: list[tuple[float, int]] = []
        """When refused records are sent again, and the number of their request."""
        self._paused_until = -math.inf
        """After a request that failed as a whole: so will others."""
        self._troubled = False
        """Something failed, and not everything that did was put since."""
        self._swept = -math.inf
        self._due = _NEVER
        """When the first of those that are ready has waited long enough for others."""
        self._hurried = False
        """Nobody waits for further records."""
        self._log = MinuteLog(link.clock)

    def __len__(self) -> int:
        """Records that are not decided."""
        return len(self._buffer)

    def submit(
        self,
        entry: PutEntry,
        size: int,
        key: str | None,
        deadline: float | None,
        wanted: Callable[[], bool] | None = None,
        patient: bool = True,
    ) -> Pending:
        """Takes a record in, on the collector's loop.

        Args:
            entry: The record.
            size: Bytes of its data and partition key.
            key: Its partition key, where it keeps its place among the records of that key.
            deadline: Seconds after which it is not tried again; `None`: while it is wanted.
            wanted: Asked before every attempt; where it says no, the result is `None`.
            patient: Wait for room where there is none.

        Raises:
            BufferFull: There is no room, and nobody is to wait for it.
        """
        buffer = self._buffer
        now = buffer.turn()
        if now is None:
            # Once a turn of the loop: nothing is sent within one.
            now = self._link.clock.monotonic()
            buffer.begin_turn(now)
            self.loop.call_soon(buffer.end_turn)
        until = _NEVER if deadline is None else now + deadline
        record = Pending(self.loop, entry, size, key, until, wanted)
        wakes = buffer.offer(record)
        if wakes is None:
            if not patient:
                raise BufferFull(
                    f"{buffer.records} records ({buffer.bytes} bytes) wait to be published: await "
                    "publish(), which waits for room, or some of the futures",
                    stream=self.stream.name,
                )
            buffer.wait_outside(record)
        if self._pump is None:
            self._due = now + self._batching.linger
            self._owner.begins(self)
            self._pump = self._supervisor.spawn(f"publish[{self.stream.name}]", self._run())
        elif wakes:
            self._changed.set()
        return record

    def way(self, maker: Maker, deadline: float) -> Callable[..., Pending | Parts]:
        """What makes a record and, in a turn of the loop in which another came already, submits it.

        It takes what the maker does. A record that it does not take in comes back as its parts, for
        `submit`.
        """
        return self._buffer.way(maker, deadline).publish

    def shut(self) -> None:
        """From now on every record has to pass `submit`, and who asks whether the service runs."""
        self._buffer.end_turn()

    def hurry(self) -> None:
        """Sends what there is, and what comes until all is decided, without waiting for more."""
        if len(self._buffer):
            self._hurried = True
            self._changed.set()

    async def drained(self) -> None:
        """Waits, hurried, until nothing is left."""
        self.hurry()
        pump = self._pump
        if pump is not None:
            await asyncio.wait({pump})

    async def _run(self) -> None:
        """Sends requests until there is nothing left that is not decided."""
        buffer = self._buffer
        try:
            while len(buffer):
                self._changed.clear()
                rest = self._rest()
                if rest is None:
                    await self._changed.wait()
                elif rest > 0:
                    await self._owner.pause(rest, self._changed)
                else:
                    number, batch = buffer.take()
                    self._due = _NEVER
                    if batch:
                        self._on_their_way += 1
                        self._supervisor.spawn(
                            f"put[{self.stream.name}]", self._request(number, batch)
                        )
        finally:
            self._pump = None
            # The next record starts another, which only `submit` does.
            self._buffer.end_turn()
            self._due = _NEVER
            self._hurried = self._troubled = False
            self._ends()

    def _ends(self) -> None:
        self._owner.ends(self)

    def _rest(self) -> float | None:
        """Seconds until a request may go; `None`: not before something else has happened."""
        buffer, now = self._buffer, self._link.clock.monotonic()
        if self._troubled and now - self._swept >= SWEEP_INTERVAL:
            self._sweep(now)
        if self._on_their_way >= _IN_FLIGHT:
            return None
        if (paused := self._paused_until - now) > 0:
            return min(paused, SWEEP_INTERVAL)
        resting = self._resting
        while resting and resting[0][0] <= now:
            buffer.put_back(heapq.heappop(resting)[1])
        rests = []
        if buffer.ready:
            if self._hurried or buffer.waited or buffer.closes:
                return 0.0
            if self._due == _NEVER:
                self._due = now + self._batching.linger
            rests.append(self._due - now)
        if resting:
            rests.append(resting[0][0] - now)
        return max(min(rests), 0.0) if rests else None

    async def _request(self, number: int, batch: list[Pending]) -> None:
        try:
            results, whole = await self._attempt(number, batch)
        finally:
            self._on_their_way -= 1
            self._changed.set()
        refused = settle(batch, results, PutResult)
        self.counters.records += len(batch) - len(refused)
        self.counters.errors += len(refused)
        left = [record for record, refusal in refused if self._was_refused(record, refusal)]
        if left:
            self._try_again(number, left, whole=whole)
        elif self._troubled:
            self._troubled = bool(self._resting)
        self._buffer.rest(number, left)

    async def _attempt(
        self,
        number: int,  # noqa: ARG002 - by which `Lanes` knows what goes together
        batch: list[Pending],
    ) -> tuple[Sequence[PutResult | KinesisError], bool]:
        """One attempt at a request.

        Returns:
            A result for each record, and whether the request failed as a whole.
        """
        found: dict[int, KinesisError] = {}
        entries, largest = entries_of(batch)
        if largest > DEFAULT_MAX_RECORD_BYTES and (found := await self._too_large(batch)):
            entries = [record.entry for record in batch if id(record) not in found]
        results: Sequence[PutResult | KinesisError] = ()
        whole = False
        if entries:
            try:
                results = await self._link.transport.put_records(self.stream, entries)
            except KinesisError as error:
                results, whole = [error] * len(entries), True
        if found:
            rest = iter(results)
            results = [found[id(r)] if id(r) in found else next(rest) for r in batch]
        return results, whole

    async def _too_large(self, batch: list[Pending]) -> dict[int, KinesisError]:
        """Those records that the stream does not take, or whose limit cannot be asked for now."""
        found: dict[int, KinesisError] = {}
        for record in batch:
            if record.size > DEFAULT_MAX_RECORD_BYTES:
                data_bytes = len(record.entry[0])
                try:
                    limit = await record_limit(self._link, self.stream)
                    key_bytes = record.size - data_bytes
                    check_record_size(data_bytes, key_bytes, limit, self.stream.name)
                except KinesisError as error:
                    found[id(record)] = error
        return found

    def _was_refused(self, record: Pending, error: KinesisError) -> bool:
        """Notes a failed attempt; whether another may help."""
        record.failed(error)
        if record.done():
            return False
        if isinstance(error, InvalidRecord | NotConnected):
            record.set_exception(error)
        elif judge(error) is not Failure.PASSING:
            record.set_exception(self._given_up(record))
        else:
            return True
        return False

    def _try_again(self, number: int, left: list[Pending], *, whole: bool) -> None:
        """Lets refused records rest for a while; those whose time is over by then are given up."""
        backoff = Backoff(first=_FIRST_DELAY, cap=_LONGEST_DELAY)
        backoff.failures = max(record.attempts for record in left) - 1
        now = self._link.clock.monotonic()
        due = now + backoff.next()
        self._troubled = True
        error = left[0].error
        for record in [each for each in left if each.deadline < due]:
            record.set_exception(self._given_up(record))
            left.remove(record)
            # So may be the time of those behind it.
            self._swept = -math.inf
        if whole:
            self._paused_until = max(self._paused_until, due)
        if left:
            heapq.heappush(self._resting, (due, number))
            if any(record.deadline == _NEVER for record in left) and (count := self._log.due()):
                # Who gave a deadline is told by it; the others have only the log.
                logger.warning(
                    "publishing to stream %s failed (%d time(s)), trying again: %s",
                    self.stream.name,
                    count,
                    error,
                    extra=fields(self.stream.name),
                )

    def _sweep(self, now: float) -> None:
        self._swept = now

        def expired(record: Pending) -> bool:
            if record.deadline >= now:
                return False
            record.set_exception(self._given_up(record))
            return True

        self._buffer.sweep(expired)

    def _given_up(self, record: Pending) -> PublishError:
        size, error = len(record.entry[0]), record.error
        said = "its turn did not come in time" if error is None else _said(error)
        failure = PublishError(
            f"a record of {size} bytes was not published ({record.attempts} attempt(s)): {said}",
            stream=self.stream.name,
        )
        failure.__cause__ = error
        return failure

    def _died(self, error: BaseException) -> None:
        """A task of ours ended as it should not: nobody would send what is left."""
        self._fail(
            f"its sender failed: {error!r}",
            lambda said: PublishError(said, stream=self.stream.name),
        )

    def abandon(self, why: str) -> None:
        """Ends without sending what is left; its publishers are told, and its tasks cancelled."""
        self._fail(why, lambda said: NotConnected(said, stream=self.stream.name))
        self._supervisor.dismiss()

    def _fail(self, why: str, failure: Callable[[str], KinesisError]) -> None:
        left = self._buffer.clear()
        self._resting.clear()
        for record, tried in left:
            sent = "may not have been put" if tried else "was not sent"
            error = failure(f"a record of {len(record.entry[0])} bytes {sent}: {why}")
            error.__cause__ = record.error
            record.set_exception(error)
        self._changed.set()

    def unsent(self) -> list[str]:
        """The partition keys of what is not decided."""
        return [record.entry[1] for record in list(self._buffer) if not record.done()]


def _said(error: Exception) -> str:
    return error.message if isinstance(error, KinesisError) else repr(error)
