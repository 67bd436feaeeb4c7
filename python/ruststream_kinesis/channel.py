"""The one channel of a subscription: readers in, worker lanes out, 64 deliveries in between.

Invariant: no more than `capacity` deliveries wait here at any time, those in worker lanes included,
so handlers set the pace of reading. Deliveries travel as runs, slices of a page: one queue
operation for up to 64 of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ruststream_kinesis._core import Page

__all__ = ["CAPACITY", "Channel", "DeliveryShard", "Run"]

# Enough to hide a loop turn between reader and handlers; small, since all of it is read again after
# a crash.
CAPACITY = 64


class DeliveryShard(Protocol):
    """What the way from channel to handler must know of the shard a delivery came from."""

    stream: str
    shard_id: str
    generation: int
    """Raised by a rewind and by a lost lease: deliveries with an older stamp are void."""
    ceiling: float
    """Deliveries at a later place are not started any more; infinite until the stop."""
    started: int
    """Place of the newest delivery whose handler was started; -1 before the first."""

    def ack(self, place: int) -> None:
        """Settles the delivery at `place`; once more, or late, changes nothing."""
        ...

    def hold(self, place: int) -> None:
        """Keeps the delivery open: it holds the checkpoint until the shard is taken anew."""
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
        indices = self.indices
        if isinstance(indices, range):
            return self.page.payloads(indices.start, indices.stop)
        return self.page.payloads_at(list(indices))


class Channel:
    """Bounded hand-over between the readers of a subscription and its workers.

    It belongs to one event loop. With several lanes a partition key always goes to the same one.

    Args:
        lanes: Number of worker partitions.
        capacity: Deliveries that may wait.
    """

    def __init__(self, lanes: int = 1, capacity: int = CAPACITY) -> None:
        self._lanes: list[deque[Run]] = [deque() for _ in range(lanes)]
        self._takers: list[asyncio.Future[None] | None] = [None] * lanes
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._capacity = capacity
        # A reader is woken for half a channel, not for every slot: 32 records a wake-up.
        self._enough = max(1, capacity // 2)
        self._free = capacity
        self._closed = False

    @property
    def queued(self) -> int:
        """Deliveries that wait here now."""
        return self._capacity - self._free

    async def room(self, shard: DeliveryShard, generation: int) -> int:
        """Waits for free slots, first come first served.

        Returns:
            How many deliveries may be put at once; 0 when `generation` is void meanwhile.
        """
        loop = asyncio.get_running_loop()
        first = True
        while shard.generation == generation:
            if self._free and (not first or not self._waiting) and self._worth_it():
                return self._free
            turn = loop.create_future()
            # Whoever was woken and found the slots gone keeps its place at the head.
            (self._waiting.append if first else self._waiting.appendleft)(turn)
            first = False
            try:
                await turn
            except asyncio.CancelledError:
                self._forget(turn)
                raise
        # This turn was not used: the next reader may have it.
        self._wake_reader()
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
                    self._queue(lane, run)  # as it is, still a range: read in one call
                elif chosen:
                    self._queue(lane, Run(run.shard, run.generation, run.page, run.base, chosen))
        if self._free:
            self._wake_reader()

    async def take(self, lane: int) -> Run | None:
        """The next run of a lane; `None` when the channel is closed and the lane is empty.

        Its deliveries keep their slots until `release` says that they were started.
        """
        queue = self._lanes[lane]
        while not queue:
            if self._closed:
                return None
            taker = self._takers[lane] = asyncio.get_running_loop().create_future()
            # An idle lane is a reason to read even when other lanes keep most slots occupied.
            self._wake_reader()
            await taker
        return queue.popleft()

    def release(self, count: int = 1) -> None:
        """Frees the slots of deliveries that were started, or dropped for their stamp."""
        self._free += count
        if self._waiting and self._free >= self._enough:
            self._wake_reader()

    def discard(self, shard: DeliveryShard) -> None:
        """Drops what is queued of a shard whose generation was raised, and wakes its reader."""
        for queue in self._lanes:
            kept = [run for run in queue if run.shard is not shard or _valid(run)]
            self._free += sum(map(len, queue)) - sum(map(len, kept))
            queue.clear()
            queue.extend(kept)
        while self._waiting:
            self._wake(self._waiting.popleft())

    def close(self) -> None:
        """No more runs will come: takers drain their lanes and then get `None`."""
        self._closed = True
        for taker in self._takers:
            if taker is not None:
                self._wake(taker)

    def _worth_it(self) -> bool:
        return self._free >= self._enough or any(
            taker is not None and not taker.done() for taker in self._takers
        )

    def _queue(self, lane: int, run: Run) -> None:
        self._lanes[lane].append(run)
        taker, self._takers[lane] = self._takers[lane], None
        if taker is not None:
            self._wake(taker)

    def _wake_reader(self) -> None:
        while self._waiting and self._free and self._worth_it():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _forget(self, turn: asyncio.Future[None]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            # Cancelled after it was woken: pass the turn on, or nobody would have it.
            self._wake_reader()

    @staticmethod
    def _wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)


def _valid(run: Run) -> bool:
    return run.shard.generation == run.generation
