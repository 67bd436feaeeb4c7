"""Runs handlers: runs of deliveries in, calls out.

Invariants:

* A delivery whose stamp is void, or whose place is above the shard's ceiling, never reaches a
  handler; the stamp is looked at right before the handler is called.
* Cancellation is not an outcome: a handler that is cut off leaves its record open.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

from ruststream_kinesis.channel import Channel, DeliveryShard, Run
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.handlers import Handler, Tools
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.settlement import Settlement
from ruststream_kinesis.threads import HandlerThreads

__all__ = ["Caller", "Dispatcher", "cancelled_by_us"]


class _Worker:
    """What a worker is at: the newest delivery it started."""

    __slots__ = ("place", "run")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.place = -1

    def note(self) -> None:
        if self.run is not None and self.place > self.run.shard.started:
            self.run.shard.started = self.place

    def __str__(self) -> str:
        run = self.run
        if run is None or self.place < 0:
            return "no record"
        number = run.page.sequence_number(self.place - run.base)
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
        self._clock = clock
        self._workers: list[_Worker] = []
        channel.note_started = self._note

    async def work(self, lane: int) -> None:
        """One worker: takes runs from its lane until the channel is closed and the lane empty."""
        worker = _Worker()
        self._workers.append(worker)
        while (run := await self._channel.take(lane)) is not None:
            await self._run(worker, run)

    @property
    def running(self) -> list[str]:
        """The records whose handlers run now, for messages."""
        return [str(worker) for worker in self._workers if worker.run is not None]

    def close(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts nothing that is newer than what was started, and ends the workers after it."""
        self._channel.limit(shards)
        self._channel.close()

    def _note(self) -> None:
        for worker in self._workers:
            worker.note()

    async def _run(self, worker: _Worker, run: Run) -> None:  # noqa: C901, PLR0912 - inlined: each call costs
        """The hot path: what stands in this loop is paid for every record."""
        shard, generation, base = run.shard, run.generation, run.base
        handler, release, settlement = self._handler, self._channel.release, self._settlement
        call, decode, counters = handler.call, handler.decode, settlement.counters
        direct = handler.is_async and handler.sources is None
        early = settlement.put_off(run)
        fence, now = shard.fence, self._clock.monotonic
        handled = 0
        worker.run, worker.place = run, -1
        try:
            for index, payload in zip(run.indices, run.payloads(), strict=True):
                release()
                place = base + index
                if shard.generation != generation or place > shard.ceiling:
                    continue
                # By the clock, not by what we were told: after a pause nobody has told us yet.
                if fence is not None and now() >= fence.until and fence.expire(now()):
                    continue
                worker.place = place
                if early and index in early:
                    await settlement.wait_out(early[index])
                    continue
                try:
                    value = decode(payload)
                except Exception as error:  # noqa: BLE001 - whatever a codec raises means this
                    await settlement.undecodable(error, run, index, handler.payload_type, payload)
                    continue
                message = None
                try:
                    if direct:
                        result = await call(value)
                    else:
                        if handler.wants_message:
                            message = KinesisMessage(run, index, value, settlement.decide)
                        result = await self._caller.call(value, message)
                except (asyncio.CancelledError, Exception) as error:
                    if cancelled_by_us(error):
                        raise
                    message = message or KinesisMessage(run, index, value, settlement.decide)
                    await settlement.failed(error, run, index, message)
                else:
                    handled += 1
                    if result is None and message is None:
                        shard.ack(place)
                    else:
                        await settlement.returned(result, run, index, message)
        finally:
            counters.handled += handled
            worker.note()
            worker.run = None


def cancelled_by_us(error: BaseException) -> bool:
    """Whether a handler ends because its worker is cancelled.

    A cancellation that somebody else caused, and that came up through the handler, is its own
    error.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
