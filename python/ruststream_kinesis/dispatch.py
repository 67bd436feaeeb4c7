"""Runs handlers: runs of deliveries in, calls out.

Invariants:

* An ack is told to its shard after its handler returned, at the latest when the loop has gone round
  once more: a handler that waits keeps back no ack of others. Who ends a holding asks for them first.
* A delivery whose stamp is void, whose place is above the shard's ceiling, or whose shard may be
  another's by now, never reaches a handler; all of that is looked at right before it is called.
* Cancellation is not an outcome: a handler that is cut off leaves its record open.
"""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from ruststream_kinesis.channel import Channel, DeliveryShard, Run
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.counters import Counters
from ruststream_kinesis.handlers import Handler, Tools
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.settlement import Settlement
from ruststream_kinesis.threads import HandlerThreads

__all__ = ["Caller", "Dispatcher", "cancelled_by_us"]


# Below this, telling of the deliveries of a run together costs more than one by one.
_STRETCH = 4


class _Worker:
    """What a worker is at: a run, the delivery of it that was started last, and what was told.

    A handler that said nothing has acked. The acks of a stretch of records are told to their shard
    together, and so are the slots that they leave free: at the end of the run, or as soon as the
    loop goes round, since then a handler waits. From there on, to the end of the run, each is told
    by itself: nobody's checkpoint waits for a handler of somebody else.

    Args:
        channel: Gets the slots back.
        counters: The subscription's.
    """

    __slots__ = (
        "_channel",
        "_counters",
        "_freed",
        "_places",
        "_told",
        "cut",
        "place",
        "prompt",
        "run",
    )

    def __init__(self, channel: Channel, counters: Counters) -> None:
        self._channel = channel
        self._counters = counters
        self.run: Run | None = None
        self.place = -1
        """Place of the delivery that was started last; -1 before the first of the run."""
        self.prompt = False
        """Nothing is put off in this run: it is short, or a handler has waited."""
        self.cut = False
        """What is behind the delivery that was started last is not this worker's any more."""
        self._places: Sequence[int] = ()
        self._freed = 0
        """Deliveries of the run whose slots the channel has back."""
        self._told = 0
        """Deliveries of the run that are acked already, or that somebody else tells of."""

    def begin(self, run: Run) -> Sequence[int]:
        """Takes up a run.

        Returns:
            The places of its deliveries.
        """
        base, indices = run.base, run.indices
        places: Sequence[int]
        if isinstance(indices, range):
            places = range(base + indices.start, base + indices.stop)
        else:
            places = [base + index for index in indices]
        self.run, self.place, self._places = run, -1, places
        self.prompt = len(places) < _STRETCH
        self._freed = self._told = 0
        self.cut = False
        return places

    def tell(self, *, finished: bool = False) -> None:
        """Tells what was put off until now.

        Args:
            finished: The delivery that was started last is done, too.
        """
        run = self.run
        if run is None or self.prompt:
            return
        places = self._places
        started = len(places)
        if self.place != places[-1]:
            started = bisect_right(places, self.place)
        if count := started - self._freed:
            self._freed = started
            self._channel.release(count)
        told, done = self._told, started if finished else started - 1
        if told < done:
            self._told = done
            self._counters.handled += done - told
            # What became void meanwhile has no place in the watermark any more.
            if run.shard.generation == run.generation:
                acked = places if done - told == len(places) else places[told:done]
                if isinstance(acked, range):
                    run.shard.ack_range(acked.start, acked.stop)
                else:
                    run.shard.ack_all(acked)

    def stop_short(self) -> None:
        """What is behind the delivery that was started last is not this worker's any more."""
        self._places = self._places[: bisect_right(self._places, self.place)]
        self.cut = True

    def set_apart(self) -> None:
        """The delivery that was started last is no silent ack: somebody else tells of it."""
        if not self.prompt:
            self.tell()
            self._told = self._freed

    def end(self) -> None:
        """Nothing more of the run is started; the delivery started last may be cut off."""
        if not self.prompt:
            self.tell()
        places = self._places
        if self.place != places[-1]:
            self._channel.release(len(places) - bisect_right(places, self.place))
        run, self.run = self.run, None
        if run is not None and self.place > run.shard.started:
            run.shard.started = self.place

    def note(self) -> None:
        """The shard learns which delivery was started last."""
        if self.run is not None and self.place > self.run.shard.started:
            self.run.shard.started = self.place

    def __str__(self) -> str:
        run = self.run
        if run is None:
            return "no record"
        index = self.place - run.base
        # None was started yet; or another thread asks, for metrics, between two runs.
        if not 0 <= index < len(run.page):
            return "no record"
        number = run.page.sequence_number(index)
        return f"record {number} of shard {run.shard.shard_id}, stream {run.shard.stream}"


class Caller:
    """Calls a handler, `async def` or plain, with what its parameters ask for."""

    def __init__(self, handler: Handler, tools: Tools, threads: HandlerThreads) -> None:
        self._handler = handler
        self._tools = tools
        self._threads = threads

    async def call(self, value: Any, message: Any) -> Any:
        """The handler's result. `message` is what its sources read: one message, or a list."""
        handler = self._handler
        arguments = handler.arguments(value, message, self._tools)
        if handler.is_async:
            return await handler.call(*arguments)
        result = await self._threads.call(lambda: handler.call(*arguments))
        # A decorator that is no `async def` around a handler that is one: it runs here, as asked.
        return await result if inspect.isawaitable(result) else result


class Dispatcher:
    """The workers of one subscription that handle a record at a time.

    Args:
        handler: What to call.
        channel: Where runs come from.
        caller: Calls it.
        settlement: Takes what comes of it.
        clock: Tells when a lease has run out.
    """

    def __init__(
        self,
        handler: Handler,
        channel: Channel,
        caller: Caller,
        settlement: Settlement,
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._channel = channel
        self._caller = caller
        self._settlement = settlement
        self._now = clock.monotonic
        self._workers: list[_Worker] = []
        self._watching = False
        channel.catch_up = self._catch_up
        channel.at_work = self._at_work
        if handler.is_async:
            # A plain one waits for its thread, always.
            channel.deal_late()

    async def work(self, lane: int) -> None:
        """One worker: takes runs from its lane until the channel is closed and the lane empty."""
        worker = _Worker(self._channel, self._settlement.counters)
        self._workers.append(worker)
        while (run := await self._channel.take(lane)) is not None:
            await self._run(worker, run)
        # A worker that is done has settled, or left open, all that it was given.
        await self._settlement.replied()

    @property
    def running(self) -> list[str]:
        """The records whose handlers run now, for messages."""
        return [str(worker) for worker in self._workers if worker.run is not None]

    def close(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts nothing that is newer than what was started, and ends the workers after it."""
        self._channel.limit(shards)
        self._channel.close()

    async def _run(self, worker: _Worker, run: Run) -> None:  # noqa: C901, PLR0912, PLR0915 - inlined: each call costs
        """The hot path: what stands in this loop is paid for every record."""
        shard, generation, base = run.shard, run.generation, run.base
        handler, settlement = self._handler, self._settlement
        call, decode, counters = handler.call, handler.decode, settlement.counters
        release, now, fence = self._channel.release, self._now, shard.fence
        direct = handler.is_async and handler.sources is None
        early = settlement.put_off(run)
        places = worker.begin(run)
        if not self._watching and (not worker.prompt or self._channel.asks):
            self._watch()
        try:
            for place, payload in zip(places, run.payloads(), strict=True):
                if worker.cut:
                    break
                if fence is not None and now() >= fence.until:
                    worker.tell(finished=True)
                    if fence.expire(now()):
                        # The heartbeat may have ended it already, and the shard not have heard yet.
                        break
                if shard.generation != generation or place > shard.ceiling:
                    # Nor may any that follows it: what is void stays void, and a ceiling never rises.
                    break
                worker.place = place
                if worker.prompt:
                    release()
                if early and place - base in early:
                    worker.set_apart()
                    await settlement.wait_out(early[place - base])
                    continue
                try:
                    value = decode(payload)
                except Exception as error:  # noqa: BLE001 - whatever a codec raises means this
                    await self._undecodable(error, worker, run, place, payload)
                    continue
                message = None
                try:
                    if direct:
                        result = await call(value)
                    else:
                        if handler.wants_message:
                            message = KinesisMessage(run, place - base, value, settlement.decide)
                        result = await self._caller.call(value, message)
                except (asyncio.CancelledError, Exception) as error:
                    if cancelled_by_us(error):
                        raise
                    await self._failed(error, worker, run, place, value, message)
                else:
                    if result is not None or message is not None:
                        worker.set_apart()
                        counters.handled += 1
                        await settlement.returned(result, run, place - base, message)
                    elif worker.prompt:
                        counters.handled += 1
                        shard.ack(place)
            if not worker.prompt:
                worker.tell(finished=True)
        finally:
            worker.end()

    async def _undecodable(
        self, error: Exception, worker: _Worker, run: Run, place: int, payload: bytes
    ) -> None:
        worker.set_apart()
        kind = self._handler.payload_type
        await self._settlement.undecodable(error, run, place - run.base, kind, payload)

    async def _failed(
        self,
        error: BaseException,
        worker: _Worker,
        run: Run,
        place: int,
        value: Any,
        message: KinesisMessage[Any] | None,
    ) -> None:
        worker.set_apart()
        index, settlement = place - run.base, self._settlement
        message = message or KinesisMessage(run, index, value, settlement.decide)
        await settlement.failed(error, run, index, message)

    def _watch(self) -> None:
        # Once for all workers and runs of a turn: while anything is put off, it is due.
        self._watching = True
        asyncio.get_running_loop().call_soon(self._somebody_waits)

    def _somebody_waits(self) -> None:
        """The loop goes round: a worker that is in a run stands in a handler that waits."""
        self._watching = False
        waits = None
        for worker in self._workers:
            if worker.run is not None:
                worker.tell()
                worker.prompt = True
                waits = worker
        # What is not dealt yet is one worker's, so that no other can wait then.
        if waits is not None and waits.run is not None:
            run = waits.run
            if self._channel.deal(run, waits.place - run.base):
                waits.stop_short()

    def _at_work(self, shard: DeliveryShard) -> bool:
        return any(each.run is not None and each.run.shard is shard for each in self._workers)

    def _catch_up(self) -> None:
        for worker in self._workers:
            worker.tell()
            worker.note()


def cancelled_by_us(error: BaseException) -> bool:
    """Whether a handler ends because its worker is cancelled.

    A cancellation that somebody else caused, and that came up through the handler, is its own
    error.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
