"""The one channel of a subscription: readers in, worker lanes out, 64 deliveries in between.

Invariant: no more than `capacity` deliveries wait here at any time, those in worker lanes included,
so handlers set the pace of reading. Deliveries travel as runs, slices of a page: one queue
operation for up to 64 of them.

Lanes are there so that a handler that waits holds up the keys of its own partition only. While none
waits, dealing slices to them is work for nothing: where the workers ask for it (`deal_late`), one of
them gets everything as it is, in order, and no other has anything. As soon as a handler waits, what
is behind it is dealt.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ruststream_kinesis._core import Page

__all__ = ["CAPACITY", "Channel", "DeliveryShard", "Fence", "Run"]

# Enough to hide a loop turn between reader and handlers; small, since all of it is read again after
# a crash.
CAPACITY = 64
# Seconds that a worker may go from run to run before everybody else on the loop has a turn: short
# beside anything that others wait for, long beside what the turn costs.
_TURN = 0.001
# Deliveries in a row that no handler waited for, after which they are not dealt any more: eight full
# channels, so that a handler that waits at times costs a try in vain, which is a loop turn, that
# rarely. One that waits always is asked for it in the second half, and never tried.
_CALM = 8 * CAPACITY


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

    def last_of_record(self, place: int) -> int:
        """The last place of the record of the log that a delivery is out of."""
        ...

    def ack_range(self, start: int, stop: int) -> None:
        """Settles the deliveries at `start` up to, not including, `stop`."""
        ...

    def ack_all(self, places: Sequence[int]) -> None:
        """Settles the deliveries at `places`."""
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
    """A page on its way in, and how much of it is in already."""

    __slots__ = ("done", "is_rest", "run", "start")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.start = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """All of it is in, or it is void."""
        self.is_rest = False
        """Nobody reads on; what is left here belongs to an aggregate that is in already in part."""

    def leave_rest(self) -> bool:
        """Its reader ends: all but the rest of the aggregate that was cut through is left out.

        Returns:
            Whether there is such a rest.
        """
        run, start = self.run, self.start
        if self.is_rest or not start:
            return self.is_rest
        stop = bisect_right(run.indices, run.page.last_of_record(run.indices[start - 1]))
        if stop == start:
            return False
        self.run = Run(run.shard, run.generation, run.page, run.base, run.indices[start:stop])
        self.start, self.is_rest = 0, True
        self.done = asyncio.get_running_loop().create_future()
        return True


class Channel:
    """Bounded hand-over between the readers of a subscription and its workers.

    It belongs to one event loop. A lane is what waits for one worker. What is dealt is split by the
    partition of its key, and all that is queued or running of one partition is in one lane: a key is
    never handled twice at once, and keeps its order.

    Readers hand over whole pages; what has no slot yet waits with its reader's turn. The channel
    cuts slices from the turns by itself, as workers free slots: no reader has to be woken for them.
    After each slice the next reader has its turn, so that a long page starves no other shard.

    Args:
        lanes: Number of worker partitions.
        capacity: Deliveries that may wait.
    """

    def __init__(self, lanes: int = 1, capacity: int = CAPACITY) -> None:
        self._lanes: list[deque[Run]] = [deque() for _ in range(lanes)]
        self._takers: list[asyncio.Future[None] | None] = [None] * lanes
        self._lane_of = list(range(lanes))
        """The lane of each partition; changed only when no other lane has anything than the first."""
        self._undealt = lanes == 1
        """All goes to lane 0 as it is: no other has anything, queued or running."""
        self._to_deal = math.inf
        """So many more deliveries are dealt if no handler waits meanwhile; infinite: all are."""
        self.asks = False
        """Whether it matters if a handler waits: then `deal` must be called."""
        self._idle = 0
        """Lanes whose worker waits, with nothing queued for it; those that wait because nothing is
        dealt are left out."""
        self._waiting: deque[_Turn] = deque()
        self._capacity = capacity
        # A slice is cut for half a channel, not for every slot: 32 records a queue operation.
        self._enough = max(1, capacity // 2)
        self._free = capacity
        self._closed = False
        self._roused = [False] * lanes
        # Several lanes that come to their end in one turn of the loop are served together: a slice
        # for each would be a few records long.
        self._refill = self._pump if self._undealt else self._pump_soon
        self._pumping = False
        self._turn_ends = 0.0
        """When a worker that gets everything lets others have their turn."""
        self.catch_up: Callable[[], None] = _nothing
        """Tells the shards what their workers put off telling: what was acked, and what was started.
        Set by who runs the workers."""
        self.at_work: Callable[[DeliveryShard], bool] = _idle
        """Whether a handler of a shard runs, that of a void delivery too. Set like that."""
        self.hurry: Callable[[DeliveryShard], None] = _no_hurry
        """Waits no longer for more to come, where a shard has something in what waits. Set like that."""

    @property
    def closed(self) -> bool:
        """Whether no more runs will come."""
        return self._closed and not self._waiting

    def deal_late(self) -> None:
        """Deals slices to the lanes only while handlers wait. Who asks for it tells, by `deal`."""
        if len(self._lanes) > 1:
            self._deal_no_more()

    def deal(self, run: Run, index: int) -> bool:
        """A handler waits, at record `index` of a run.

        Returns:
            Whether what is behind that record was dealt to the lanes, the rest of its run included:
            that is not its worker's own any more.
        """
        if not self._undealt:
            if self.asks:
                self._to_deal, self.asks = _CALM, False
            return False
        lanes = len(self._lanes)
        if lanes == 1 or self.closed:
            # Workers without anything have ended by then: the rest is for the one that is left.
            return False
        self._undealt, self._refill = False, self._pump_soon
        self._to_deal, self.asks = _CALM, False
        self._idle += lanes - 1
        # The partition that is being handled stays with its worker: nobody else may start any of it.
        split = run.page.partitions(index, index + 1, lanes)
        partition = next(n for n, chosen in enumerate(split) if chosen)
        self._lane_of = list(range(lanes))
        self._lane_of[partition], self._lane_of[0] = 0, partition
        queued = list(self._lanes[0])
        self._lanes[0].clear()
        if rest := run.indices[run.indices.index(index) + 1 :]:
            self._deal(Run(run.shard, run.generation, run.page, run.base, rest))
        for each in queued:
            self._deal(each)
        # A lane that got nothing is a reason to read.
        if self._waiting:
            self._refill()
        return True

    def rouse(self, lane: int) -> None:
        """Ends the waiting of a lane's worker, now or the next time it would wait."""
        self._roused[lane] = True
        self._rouse(lane)

    @property
    def queued(self) -> int:
        """Deliveries that wait here now."""
        return self._capacity - self._free

    async def feed(self, run: Run) -> bool:
        """Hands a page over, slice by slice as slots become free, in turn with other readers.

        Cancelled, it leaves out what is not in yet, but for the rest of an aggregate that is in in
        part: who lets go of the shard may have to handle that. Nothing of it comes into a closed
        channel.

        Returns:
            Whether all of it is in and its stamp still counts.
        """
        shard, generation = run.shard, run.generation
        if shard.generation != generation:
            return False
        if not len(run):
            return True
        turn = _Turn(run)
        if not self._closed:
            self._waiting.append(turn)
            self._pump()
        if not turn.done.done():
            try:
                await turn.done
            finally:
                # Cancelled while it waited: in any other case it has left already.
                if turn in self._waiting and not turn.leave_rest():
                    self._waiting.remove(turn)
        return shard.generation == generation

    def put(self, run: Run) -> None:
        """Queues a run that there are free slots for."""
        self._free -= len(run)
        if not self._undealt and self._to_deal <= 0 and self._idle == len(self._lanes):
            # Every worker waits, so that nothing is queued for any of them, and nothing runs.
            self._deal_no_more()
        if self._undealt:
            self._queue(0, run)
        else:
            self._to_deal -= len(run)
            self.asks = self._to_deal < _CALM // 2
            self._deal(run)

    async def take(self, lane: int) -> Run | None:
        """The next run of a lane; `None` when it is empty, and roused or the channel closed.

        Its deliveries keep their slots until `release` says that they were started.
        """
        queue, loop = self._lanes[lane], asyncio.get_running_loop()
        if self._undealt and loop.time() >= self._turn_ends:
            # Handlers that never wait would keep the loop for as long as readers have something.
            # Those of several lanes cannot: new slices come to them in another turn of the loop.
            await asyncio.sleep(0)
            self._turn_ends = loop.time() + _TURN
        while not queue:
            if self.closed or self._roused[lane]:
                self._roused[lane] = False
                return None
            if self._waiting and self._free and self._undealt:
                # No lane has anything left: whatever there is room for comes at once.
                self._cut()
                continue
            taker = self._takers[lane] = loop.create_future()
            self._idle += 1
            # An idle lane is a reason to read even when other lanes keep most slots occupied.
            if self._waiting:
                self._refill()
            try:
                await taker
            finally:
                if self._takers[lane] is taker:
                    self._rouse(lane)
                self._turn_ends = loop.time() + _TURN
        return queue.popleft()

    def release(self, count: int = 1) -> None:
        """Frees the slots of deliveries that were started, or dropped for their stamp."""
        self._free += count
        # Spelled out: this is called for every record, usually with a reader that waits for more.
        due = self._waiting and (self._free >= self._enough or self._idle > 0)
        if due and not self._pumping:
            self._refill()

    def discard(self, shard: DeliveryShard) -> None:
        """Drops what is queued of a shard whose generation was raised, and wakes its reader."""
        for queue in self._lanes:
            kept = [run for run in queue if run.shard is not shard or _valid(run)]
            self._free += sum(map(len, queue)) - sum(map(len, kept))
            queue.clear()
            queue.extend(kept)
        for turn in [turn for turn in self._waiting if turn.run.shard is shard]:
            if not _valid(turn.run):
                self._waiting.remove(turn)
                _wake(turn.done)
        self._end_if_done()
        self._pump()

    def limit(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts no delivery that is newer, in its shard, than the newest one already started.

        Older ones still run, and the rest of its aggregate, so that the checkpoint covers everything
        that ran: a clean stop or hand-over repeats nothing. What is left is the next owner's.
        """
        self.catch_up()
        for shard in shards:
            last = shard.started if shard.started < 0 else shard.last_of_record(shard.started)
            shard.ceiling = min(shard.ceiling, last)

    def halt(self, shard: DeliveryShard) -> None:
        """Starts no delivery of a shard any more that is newer than what was started.

        For one that is read again by whoever has it next: the rest of an aggregate is left out, too.
        """
        self.catch_up()
        shard.ceiling = min(shard.ceiling, shard.started)

    def close(self) -> None:
        """No page is let in any more: takers drain their lanes, and then get `None`.

        What is left of an aggregate that is in in part still comes in.
        """
        self._closed = True
        self._waiting = deque(turn for turn in self._waiting if turn.is_rest)
        self._end_if_done()

    def _end_if_done(self) -> None:
        """Called when a turn has gone: workers that wait for the rest of an aggregate may end now."""
        if self.closed:
            for lane in range(len(self._lanes)):
                self._rouse(lane)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Cuts slices while it is worth it."""
        self._pumping = False
        while self._waiting and self._worth_it():
            self._cut()

    def _worth_it(self) -> bool:
        return self._free >= self._enough or (self._free > 0 and self._idle > 0)

    def _cut(self) -> None:
        """The next slice of the page that is first in turn, as long as there are slots."""
        turn = self._waiting.popleft()
        if not _valid(turn.run) or (turn.done.done() and not turn.leave_rest()):
            # What it read is void, or its reader is being cancelled: none of it comes in any more.
            _wake(turn.done)
            self._end_if_done()
            return
        run, start = turn.run, turn.start
        stop = turn.start = min(start + self._free, len(run))
        if stop < len(run):
            self._waiting.append(turn)
        else:
            _wake(turn.done)
        indices = run.indices[start:stop]
        self.put(
            run
            if len(indices) == len(run)
            else Run(run.shard, run.generation, run.page, run.base, indices)
        )
        self._end_if_done()

    def _deal_no_more(self) -> None:
        """From here on everything goes to lane 0; called while nothing is queued or runs."""
        self._undealt, self._refill, self.asks = True, self._pump, True
        self._idle -= len(self._lanes) - 1

    def _deal(self, run: Run) -> None:
        indices = run.indices
        split = run.page.partitions(indices[0], indices[-1] + 1, len(self._lanes))
        for lane, chosen in zip(self._lane_of, split, strict=True):
            if len(chosen) == len(indices):
                # As it is: still a range, and still the object that was put.
                self._queue(lane, run)
            elif chosen:
                self._queue(lane, Run(run.shard, run.generation, run.page, run.base, chosen))

    def _queue(self, lane: int, run: Run) -> None:
        self._lanes[lane].append(run)
        self._rouse(lane)

    def _rouse(self, lane: int) -> None:
        """The worker of a lane, if it waits, is not idle any more."""
        taker, self._takers[lane] = self._takers[lane], None
        if taker is not None:
            self._idle -= 1
            _wake(taker)


def _nothing() -> None:
    """Nobody puts anything off."""


def _idle(_: DeliveryShard) -> bool:
    """Nobody works."""
    return False


def _no_hurry(_: DeliveryShard) -> None:
    """Nobody waits for more."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _valid(run: Run) -> bool:
    return run.shard.generation == run.generation
