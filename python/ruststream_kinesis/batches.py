"""Runs batch handlers: runs of deliveries in, one call for many out.

A batch closes at n deliveries or when its window is over, whichever is first; it may mix shards.
Every element is settled on its own, against its own shard; what that publishes goes out many at a
time, in order for each key (`chains.py`). The invariants of `dispatch.py` hold for each: what is
void, or above its shard's ceiling, never reaches the handler.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ruststream_kinesis._core import Batcher
from ruststream_kinesis.chains import Chains
from ruststream_kinesis.channel import Channel, DeliveryShard, Run
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.codec import Decoder
from ruststream_kinesis.dispatch import Caller, cancelled_by_us
from ruststream_kinesis.errors import HandlerError
from ruststream_kinesis.handlers import Handler
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.outcomes import ACK, Outcome
from ruststream_kinesis.settlement import Settlement, not_called

__all__ = ["BatchDispatcher"]

logger = logging.getLogger("ruststream_kinesis")

_Slice = tuple[Run, int, int]
"""A run and which of its deliveries, by their position in the run."""


class _Part:
    """The deliveries of a batch that come from one run: they share shard, stamp and page."""

    __slots__ = ("indices", "run", "values")

    def __init__(self, run: Run, indices: Sequence[int], values: list[Any]) -> None:
        self.run = run
        self.indices = indices
        self.values = values

    def is_valid(self) -> bool:
        """Whether the shard was neither lost nor rewound since its read."""
        return self.run.shard.generation == self.run.generation

    def trim(self, now: float) -> bool:
        """Leaves out what may not start any more; whether anything is left."""
        fence = self.run.shard.fence
        # The heartbeat may have ended it already, and the shard not have heard yet.
        over = fence is not None and now >= fence.until and fence.expire(now)
        if over or not self.is_valid():
            return False
        run, ceiling = self.run, self.run.shard.ceiling
        if run.base + self.indices[-1] > ceiling:
            count = sum(run.base + index <= ceiling for index in self.indices)
            self.indices, self.values = self.indices[:count], self.values[:count]
        return bool(self.indices)

    def ack(self) -> None:
        """Settles all of them, in one call."""
        run, indices = self.run, self.indices
        if not self.is_valid():
            return
        if isinstance(indices, range):
            run.shard.ack_range(run.base + indices.start, run.base + indices.stop)
        else:
            run.shard.ack_all([run.base + index for index in indices])


class BatchDispatcher:
    """The workers of one subscription whose handler takes lists.

    Args:
        handler: What to call.
        size: Deliveries a batch.
        window: Seconds that a batch may wait for more, after its first delivery.
        channel: Where runs come from.
        caller: Calls the handler.
        settlement: Takes what comes of each delivery.
        clock: Time.
    """

    def __init__(
        self,
        handler: Handler,
        size: int,
        window: float,
        channel: Channel,
        caller: Caller,
        settlement: Settlement,
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._size = size
        self._window = window
        self._channel = channel
        self._caller = caller
        self._settlement = settlement
        self._clock = clock
        self._running: list[list[_Part]] = []
        self._forming: dict[int, set[DeliveryShard]] = {}
        """Shards that the forming batch of each lane has something of."""
        self._hurried: set[int] = set()
        """Lanes whose forming batch is closed before its window is over."""
        channel.at_work = self._at_work
        channel.hurry = self._hurry

    async def work(self, lane: int) -> None:
        """One worker: forms batches of its lane until the channel is closed and the lane empty."""
        batcher: Batcher[Run] = Batcher(self._size, self._window)
        alarm: asyncio.Task[None] | None = None
        forming = self._forming[lane] = set()
        try:
            while True:
                run = await self._channel.take(lane)
                if run is not None:
                    # Out of the channel and into the batch: the handler's pace still bounds both.
                    self._channel.release(len(run))
                    full = batcher.push(run, len(run), self._clock.monotonic())
                    if full:
                        forming.clear()
                    forming.add(run.shard)
                    for batch in full:
                        await self._handle(batch)
                elif self._channel.closed:
                    await self._handle(batcher.flush())
                    # Settled, or left open, is all that it was given.
                    await self._settlement.replied()
                    return
                elif lane in self._hurried:
                    self._hurried.discard(lane)
                    forming.clear()
                    await self._handle(batcher.flush())
                if (due := batcher.due(self._clock.monotonic())) is not None:
                    forming.clear()
                    await self._handle(due)
                if batcher.deadline is not None and (alarm is None or alarm.done()):
                    # One a batch, not one a run: the lane is roused when the window is over.
                    alarm = asyncio.ensure_future(self._rouse(lane, batcher.deadline))
        finally:
            if alarm is not None:
                alarm.cancel()

    def _at_work(self, shard: DeliveryShard) -> bool:
        return any(part.run.shard is shard for parts in self._running for part in parts)

    def _hurry(self, shard: DeliveryShard) -> None:
        for lane, shards in self._forming.items():
            if shard in shards:
                self._hurried.add(lane)
                self._channel.rouse(lane)

    async def _rouse(self, lane: int, deadline: float) -> None:
        await self._clock.sleep(deadline - self._clock.monotonic())
        self._channel.rouse(lane)

    @property
    def running(self) -> list[str]:
        """The batches whose handlers run now, for messages."""
        return [
            f"a batch of {sum(len(part.values) for part in parts)}, from record "
            f"{parts[0].run.page.sequence_number(parts[0].indices[0])} of shard "
            f"{parts[0].run.shard.shard_id}, stream {parts[0].run.shard.stream}"
            for parts in self._running
        ]

    def close(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts nothing that is newer than what was started, and ends the workers after it."""
        self._channel.limit(shards)
        self._channel.close()

    async def _handle(self, batch: list[_Slice]) -> None:
        parts = [part for each in batch if (part := await self._open(*each)) is not None]
        # Opening may have waited for a dead letter, or asked for a stop: what may start is looked at
        # right before the call.
        now = self._clock.monotonic()
        parts = [part for part in parts if part.trim(now)]
        if not parts:
            return
        values = parts[0].values if len(parts) == 1 else [v for part in parts for v in part.values]
        messages = self._messages(parts) if self._handler.wants_message else []
        self._running.append(parts)
        try:
            result = await self._caller.call(values, messages)
            if isinstance(result, tuple):
                result = list(result)
            self._check(result, len(values))
        except (asyncio.CancelledError, Exception) as error:
            if cancelled_by_us(error):
                raise
            await self._failed(error, parts, messages)
            return
        finally:
            self._running.remove(parts)
        self._settlement.counters.handled += len(values)
        if result is not None and not isinstance(result, list | Outcome):
            # One reply for the whole batch: none of it is settled before the reply is there, and it
            # is wanted while any of its shards is ours.
            first = parts[0]
            if not await self._settlement.reply(
                result, first.run, first.indices[0], lambda: any(part.is_valid() for part in parts)
            ):
                self._leave_open(parts, messages)
                return
            result = ACK
        if result in (None, ACK) and not messages:
            for part in parts:
                part.ack()
        else:
            await self._settle(result, parts, messages)

    async def _open(self, run: Run, start: int, stop: int) -> _Part | None:
        """The startable deliveries of a slice, decoded; those that do not decode settle alone."""
        shard, decode = run.shard, self._handler.decode
        if shard.generation != run.generation:
            return None
        indices = run.indices[start:stop]
        if run.base + indices[-1] > shard.ceiling:
            indices = [index for index in indices if run.base + index <= shard.ceiling]
        if indices:
            # From here on something may come of each, so that all of it counts as started.
            shard.started = max(shard.started, run.base + indices[-1])
        early = self._settlement.put_off(run)
        if early:
            for index in (index for index in indices if index in early):
                await self._settlement.wait_out(early[index])
            indices = [index for index in indices if index not in early]
        if not indices:
            return None
        payloads = run.payloads_of(indices)
        try:
            return _Part(run, indices, _decoded(decode, payloads))
        except Exception:  # noqa: BLE001 - one of them at least: found out below, one by one
            return await self._open_one_by_one(run, indices, payloads)

    async def _open_one_by_one(
        self, run: Run, indices: Sequence[int], payloads: list[bytes]
    ) -> _Part | None:
        kept: list[int] = []
        values: list[Any] = []
        chains = Chains()
        for index, payload in zip(indices, payloads, strict=True):
            try:
                value = self._handler.decode(payload)
            except Exception as error:  # noqa: BLE001 - whatever a codec raises means this
                kind = self._handler.payload_type
                settle = partial(self._settlement.undecodable, error, run, index, kind, payload)
                chains.add(run.page.partition_key(index), settle)
                continue
            kept.append(index)
            values.append(value)
        await chains.run()
        return _Part(run, kept, values) if kept else None

    def _messages(self, parts: list[_Part]) -> list[KinesisMessage[Any]]:
        decide = self._settlement.decide
        return [
            KinesisMessage(part.run, index, value, decide)
            for part in parts
            for index, value in zip(part.indices, part.values, strict=True)
        ]

    def _check(self, result: Any, count: int) -> None:
        """An error of the handler, like one it raised: nothing of it can be believed."""
        if (error := not_called(result, self._handler.name)) is not None:
            raise error
        unordered = isinstance(result, set | frozenset) and any(
            isinstance(each, Outcome) for each in result
        )
        if unordered or isinstance(result, Iterator):
            raise HandlerError(
                f"handler {self._handler.name} returned a {type(result).__name__}: return one "
                "outcome, or a list with one for each element"
            )
        if isinstance(result, list) and len(result) > count:
            raise HandlerError(
                f"handler {self._handler.name} returned {len(result)} outcomes for a batch of "
                f"{count}: at most one for each element"
            )

    async def _settle(
        self,
        result: Outcome | list[Any] | None,
        parts: list[_Part],
        messages: list[KinesisMessage[Any]],
    ) -> None:
        """Settles element by element; those that a list does not reach stay open."""
        places = [(part.run, index) for part in parts for index in part.indices]
        outcomes = result if isinstance(result, list) else [result] * len(places)
        if len(outcomes) < len(places):
            logger.warning(
                "handler %s said of %d of %d records what became of them: the rest stays open",
                self._handler.name,
                len(outcomes),
                len(places),
            )
        chains = Chains()
        for at, (run, index) in enumerate(places):
            message = messages[at] if messages else None
            if at < len(outcomes):
                said = outcomes[at]
                if _publishes(said):
                    settle = partial(self._settlement.returned, said, run, index, message)
                    chains.add(run.page.partition_key(index), settle)
                else:
                    await self._settlement.returned(said, run, index, message)
            elif message is None or message.outcome is None:
                self._settlement.leave_open(run, index)
        await chains.run()

    def _leave_open(self, parts: list[_Part], messages: list[KinesisMessage[Any]]) -> None:
        """Nothing more is said of them; what the handler settled by itself stays settled."""
        places = [(part.run, index) for part in parts for index in part.indices]
        for at, (run, index) in enumerate(places):
            if not messages or messages[at].outcome is None:
                self._settlement.leave_open(run, index)

    async def _failed(
        self, error: BaseException, parts: list[_Part], messages: list[KinesisMessage[Any]]
    ) -> None:
        """The handler raised: what `on_error` says, for each element; the log names the first."""
        chains, settlement = Chains(), self._settlement
        for at, message in enumerate(messages or self._messages(parts)):
            run, index = message.run, message.index
            outcome = settlement.judged(error, run, index, message, quiet=at > 0)
            if outcome is not None:
                settle = partial(settlement.decide, outcome, run, index, error)
                chains.add(run.page.partition_key(index), settle)
        await chains.run()


def _publishes(said: Any) -> bool:
    """Whether what a handler said of a record may put something into a stream."""
    return said is not None and not (isinstance(said, Outcome) and said.kind in ("ack", "drop"))


def _decoded(decode: Decoder, payloads: list[bytes]) -> list[Any]:
    """All values, made without the cyclic collector looking in.

    Fresh values are no garbage yet, but every few hundred of them would set off a collection that
    walks them all: a third of what decoding costs. Nothing is awaited in between, so it is off for
    about a millisecond.
    """
    if not gc.isenabled():  # the application's own choice: it stays
        return list(map(decode, payloads))
    gc.disable()
    try:
        return list(map(decode, payloads))
    finally:
        gc.enable()
