"""The one channel of a subscription: readers in, worker lanes out, 64 deliveries in between.

Invariant: no more than `capacity` deliveries wait here at any time, those in worker lanes included,
so handlers set the pace of reading. Deliveries travel as runs, slices of a page: one queue
operation for up to 64 of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ruststream_kinesis._core import Page

__all__ = ["CAPACITY", "Channel", "DeliveryShard", "Fence", "Run"]

# Enough to hide a loop turn between reader and handlers; small, since all of it is read again after
# a crash.
CAPACITY = 64


class Fence(Protocol):
    """How long a shard is ours."""

    until: float
    """Monotonic time from which on nothing of it may be started."""

    def expire(self, now: float) -> bool:
        """Makes the shard lost if that time has come; whether it has."""
        ...


class DeliveryShard(Protocol):
    """What the way from channel to handler must know of the shard a delivery came from."""

    stream: str
    shard_id: str
    generation: int
    """Raised by a rewind and by a lost lease: deliveries with an older stamp are void."""
    lost: bool
    """Another owner holds it now, or this one let go of it."""
    fence: Fence | None
    """`None` where nobody else can take the shard."""
    ceiling: float
    """Deliveries at a later place are not started any more; infinite until the shard is let go."""
    started: int
    """Place of the newest delivery whose handler was started; -1 before the first."""

    def ack(self, place: int) -> None:
        """Settles the delivery at `place`; once more, or late, changes nothing."""
        ...

    unread: bool
    """Its reader came to its end, and is not started again yet: the shard waits for what is open."""

    def ack_range(self, start: int, stop: int) -> None:
        """Settles the deliveries at `start` up to, not including, `stop`."""
        ...

    def hold(self, place: int) -> None:
        """Keeps the delivery open: it holds the checkpoint until the shard is taken anew."""
        ...

    def defer(self, place: int) -> None:
        """Notes that the delivery stays open while a copy of it waits for its time."""
        ...


class Run:
    """Some deliveries of one page, in order, with the generation they were read under."""

    __slots__ = ("base", "generation", "indices", "page", "shard")

    def __init__(
        self,
        shard: DeliveryShard,
        generation: int,
        page: Page,
        base: int,
        indices: Sequence[int],
    ) -> None:
        self.shard = shard
        self.generation = generation
        self.page = page
        self.base = base
        """Place of the page's first record in the shard's watermark."""
        self.indices = indices
        """Which records of the page."""

    def __len__(self) -> int:
        return len(self.indices)

    def payloads(self) -> list[bytes]:
        """The payloads of the run, in one call to the core."""
        return self.payloads_of(self.indices)

    def payloads_of(self, indices: Sequence[int]) -> list[bytes]:
        """The payloads of some records of the page, in one call to the core."""
        if isinstance(indices, range):
            return self.page.payloads(indices.start, indices.stop)
        return self.page.payloads_at(list(indices))


class _Turn:
    """A reader's place among those that wait for slots."""

    __slots__ = ("shard", "woken")

    def __init__(self, shard: DeliveryShard) -> None:
        self.shard = shard
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Channel:
    """Bounded hand-over between the readers of a subscription and its workers.

    It belongs to one event loop. With several lanes a partition key always goes to the same one.

    Readers are served in the order in which they asked, and only the first of them is ever woken:
    it keeps its place at the head until it has its slots, is void, or is cancelled. So nobody is
    overtaken, and a wake-up cannot get lost with somebody who does not use it: whoever leaves the
    head looks after the next one.

    Args:
        lanes: Number of worker partitions.
        capacity: Deliveries that may wait.
    """

    def __init__(self, lanes: int = 1, capacity: int = CAPACITY) -> None:
        self._lanes: list[deque[Run]] = [deque() for _ in range(lanes)]
        self._takers: list[asyncio.Future[None] | None] = [None] * lanes
        self._idle = 0
        """Lanes whose worker waits, with nothing queued for it."""
        self._waiting: deque[_Turn] = deque()
        self._capacity = capacity
        # A reader is woken for half a channel, not for every slot: 32 records a wake-up.
        self._enough = max(1, capacity // 2)
        self._free = capacity
        self._closed = False
        self._roused = [False] * lanes
        self.note_started: Callable[[], None] = lambda: None
        """Makes the workers note, at their shards, what they have started."""

    @property
    def closed(self) -> bool:
        """Whether no more runs will come."""
        return self._closed

    def rouse(self, lane: int) -> None:
        """Ends the waiting of a lane's worker, now or the next time it would wait."""
        self._roused[lane] = True
        self._rouse(lane)

    @property
    def queued(self) -> int:
        """Deliveries that wait here now."""
        return self._capacity - self._free

    async def room(self, shard: DeliveryShard, generation: int) -> int:
        """Waits for free slots, first come first served.

        Returns:
            How many deliveries may be put at once, before anything else is awaited; 0 when
            `generation` is void meanwhile.
        """
        if shard.generation != generation:
            return 0
        if not self._waiting and self._worth_it():
            return self._free
        turn = _Turn(shard)
        self._waiting.append(turn)
        try:
            while shard.generation == generation:
                if self._waiting[0] is turn and self._worth_it():
                    # The next reader is woken by `put`, for what is left then.
                    self._waiting.popleft()
                    return self._free
                if turn.woken.done():
                    turn.woken = asyncio.get_running_loop().create_future()
                await turn.woken
        except BaseException:
            # Cancelled while waiting: the next in the queue must not wait for us.
            self._leave(turn)
            raise
        self._leave(turn)
        return 0

    def put(self, run: Run) -> None:
        """Queues a run of at most the length that `room` returned."""
        self._free -= len(run)
        lanes = self._lanes
        if len(lanes) == 1:
            self._queue(0, run)
        else:
            indices = run.indices
            split = run.page.partitions(indices[0], indices[-1] + 1, len(lanes))
            for lane, chosen in enumerate(split):
                if len(chosen) == len(indices):
                    # As it is: still a range, and still the object that was put.
                    self._queue(lane, run)
                elif chosen:
                    self._queue(lane, Run(run.shard, run.generation, run.page, run.base, chosen))
        self._wake_head()

    async def take(self, lane: int) -> Run | None:
        """The next run of a lane; `None` when it is empty, and roused or the channel closed.

        Its deliveries keep their slots until `release` says that they were started.
        """
        queue = self._lanes[lane]
        while not queue:
            if self._closed or self._roused[lane]:
                self._roused[lane] = False
                return None
            taker = self._takers[lane] = asyncio.get_running_loop().create_future()
            self._idle += 1
            # An idle lane is a reason to read even when other lanes keep most slots occupied.
            self._wake_head()
            try:
                await taker
            finally:
                if self._takers[lane] is taker:
                    self._rouse(lane)
        return queue.popleft()

    def release(self, count: int = 1) -> None:
        """Frees the slots of deliveries that were started, or dropped for their stamp."""
        self._free += count
        # Spelled out: this is called for every record, usually with a reader that waits for more.
        if self._waiting and (self._free >= self._enough or self._idle):
            self._wake_head()

    def discard(self, shard: DeliveryShard) -> None:
        """Drops what is queued of a shard whose generation was raised, and wakes its reader."""
        for queue in self._lanes:
            kept = [run for run in queue if run.shard is not shard or _valid(run)]
            self._free += sum(map(len, queue)) - sum(map(len, kept))
            queue.clear()
            queue.extend(kept)
        for turn in self._waiting:
            if turn.shard is shard:
                _wake(turn.woken)
        self._wake_head()

    def limit(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts no delivery that is newer, in its shard, than the newest one already started.

        Older ones still run, so that the checkpoint covers everything that ran: a clean stop or
        hand-over repeats nothing. What is left is the next owner's.
        """
        self.note_started()
        for shard in shards:
            shard.ceiling = min(shard.ceiling, shard.started)

    def close(self) -> None:
        """No more runs will come: takers drain their lanes and then get `None`."""
        self._closed = True
        for lane in range(len(self._lanes)):
            self._rouse(lane)

    def _worth_it(self) -> bool:
        return self._free >= self._enough or (self._free > 0 and self._idle > 0)

    def _queue(self, lane: int, run: Run) -> None:
        self._lanes[lane].append(run)
        self._rouse(lane)

    def _rouse(self, lane: int) -> None:
        """The worker of a lane, if it waits, is not idle any more."""
        taker, self._takers[lane] = self._takers[lane], None
        if taker is not None:
            self._idle -= 1
            _wake(taker)

    def _wake_head(self) -> None:
        if self._waiting and self._worth_it():
            _wake(self._waiting[0].woken)

    def _leave(self, turn: _Turn) -> None:
        self._waiting.remove(turn)
        self._wake_head()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _valid(run: Run) -> bool:
    return run.shard.generation == run.generation
