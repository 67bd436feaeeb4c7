"""Runs handlers: a run of deliveries in, one outcome for each out.

Invariants:

* A delivery whose stamp is void, or whose place is above the shard's ceiling, never reaches a
  handler; the stamp is looked at right before the handler is called.
* Nothing is settled before what it caused (a reply) is durably in its stream.
* Cancellation is not an outcome: a handler that is cut off leaves its record open.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ruststream_kinesis.channel import Channel, DeliveryShard, Run
from ruststream_kinesis.errors import HandlerFailed
from ruststream_kinesis.handlers import Handler
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.outcomes import ACK, DROP, RETRY, Outcome
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.threads import HandlerThreads

__all__ = ["Counters", "Dispatcher", "OnError", "Policies"]

logger = logging.getLogger("ruststream_kinesis")

OnError = Literal["retry", "drop", "stop"] | Callable[[BaseException, KinesisMessage[Any]], Outcome]
"""What a handler that raises means."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What a subscription declares about its outcomes."""

    on_error: OnError = "retry"
    on_decode_error: OnError = "drop"
    reply: KinesisPublish | None = None


@dataclass(slots=True)
class Counters:
    """What became of the deliveries of a subscription."""

    handled: int = 0
    """Handlers that returned."""
    failed: int = 0
    """Handlers that raised."""
    undecodable: int = 0
    """Payloads that were not of the handler's type."""
    dropped: int = 0
    """Settled without being done: by `drop()`, `on_error` or `on_decode_error`."""
    held: int = 0
    """Left open: by `retry()` without a cap, or by a reply that could not be published."""
    replies: int = 0
    """Replies that are durably in their stream."""


class _Worker:
    """What a worker is at: the newest delivery it started."""

    __slots__ = ("place", "shard")

    def __init__(self) -> None:
        self.shard: DeliveryShard | None = None
        self.place = -1

    def note(self) -> None:
        shard = self.shard
        if shard is not None and self.place > shard.started:
            shard.started = self.place


class Dispatcher:
    """The workers of one subscription.

    Args:
        handler: What to call.
        policies: What errors and replies mean.
        channel: Where runs come from.
        publisher: Publishes replies.
        stop: Asks the service to stop, with the reason.
        threads: Run a plain `def` handler; as many as there are lanes.
    """

    def __init__(
        self,
        handler: Handler,
        policies: Policies,
        channel: Channel,
        publisher: KinesisPublisher,
        stop: Callable[[BaseException], None],
        threads: HandlerThreads,
    ) -> None:
        self._handler = handler
        self._policies = policies
        self._channel = channel
        self._publisher = publisher
        self._stop = stop
        self._threads = threads
        self._warned_of_value = False
        self._workers: list[_Worker] = []
        self.counters = Counters()

    async def work(self, lane: int) -> None:
        """One worker: takes runs from its lane until the channel is closed and the lane empty."""
        worker = _Worker()
        self._workers.append(worker)
        while (run := await self._channel.take(lane)) is not None:
            await self._run(worker, run)

    def close(self, shards: Iterable[DeliveryShard]) -> None:
        """Starts no delivery that is newer, in its shard, than the newest one already started.

        Older ones still run, so that the checkpoint covers everything that ran: a clean stop
        repeats nothing. What is left in the channel is the next owner's.
        """
        for worker in self._workers:
            worker.note()
        for shard in shards:
            shard.ceiling = min(shard.ceiling, shard.started)
        self._channel.close()

    async def _run(self, worker: _Worker, run: Run) -> None:  # noqa: C901, PLR0912 - inlined: each call costs
        """The hot path: what stands in this loop is paid for every record."""
        shard, generation, page, base = run.shard, run.generation, run.page, run.base
        handler, release = self._handler, self._channel.release
        call, decode = handler.call, handler.decode
        direct = handler.is_async and handler.sources is None
        handled = 0
        worker.note()
        worker.shard, worker.place = shard, -1
        try:
            for index, payload in zip(run.indices, run.payloads(), strict=True):
                release()
                place = base + index
                if shard.generation != generation or place > shard.ceiling:
                    continue
                worker.place = place
                try:
                    value = decode(payload)
                except Exception as error:  # noqa: BLE001 - whatever a codec raises means this
                    self._undecodable(error, run, index, payload)
                    continue
                message = None
                try:
                    if direct:
                        result = await call(value)
                    else:
                        if handler.wants_message:
                            message = KinesisMessage(shard, page, index, place, value)
                        result = await self._call(value, message)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Somebody else's cancellation came up through the handler: its own error.
                    self._failed(error, run, index, message, value)
                except Exception as error:  # noqa: BLE001 - on_error decides what it means
                    self._failed(error, run, index, message, value)
                else:
                    handled += 1
                    if result is None and message is None:
                        shard.ack(place)
                    else:
                        await self._settle(result, run, index, message)
        finally:
            self.counters.handled += handled
            worker.note()

    async def _call(self, value: Any, message: KinesisMessage[Any] | None) -> Any:
        handler = self._handler
        arguments = handler.arguments(value, message, self._publisher)
        if handler.is_async:
            return await handler.call(*arguments)
        result = await self._threads.call(lambda: handler.call(*arguments))
        # A decorator that is no `async def` around a handler that is one: it runs here, as asked.
        return await result if inspect.isawaitable(result) else result

    async def _settle(
        self, result: Any, run: Run, index: int, message: KinesisMessage[Any] | None
    ) -> None:
        """What a handler returned, once it returned something or may have settled by itself."""
        said = None if message is None else message.outcome
        if result is None:
            result = ACK
        elif not isinstance(result, Outcome) and said in (None, ACK):
            # A reply of a record that the handler acked by itself is published all the same.
            result = await self._reply(result, run, index)
        if said is None:
            self._decide(result, run, index)
        else:
            self._count(said)

    def _decide(self, outcome: Outcome, run: Run, index: int) -> None:
        """Settles one delivery, against its own shard."""
        shard, place = run.shard, run.base + index
        if shard.generation != run.generation:
            return
        self._count(outcome)
        if outcome is ACK:
            shard.ack(place)
        elif outcome.kind == "drop":
            logger.warning(
                "dropped record %s of shard %s, stream %s",
                run.page.sequence_number(index),
                shard.shard_id,
                shard.stream,
                extra=_place(run, index),
            )
            shard.ack(place)
        elif outcome.kind == "ack":
            shard.ack(place)
        else:
            shard.hold(place)

    def _count(self, outcome: Outcome) -> None:
        if outcome.kind == "drop":
            self.counters.dropped += 1
        elif outcome.kind != "ack":
            self.counters.held += 1

    async def _reply(self, value: Any, run: Run, index: int) -> Outcome:
        """Publishes a reply; its record is settled only when the reply is in its stream."""
        policy, shard = self._policies.reply, run.shard
        if policy is None or policy.to is None:
            if not self._warned_of_value:
                self._warned_of_value = True
                logger.warning(
                    "handler %s returned a %s, which is no outcome, and declares no publish=: the "
                    "value goes nowhere (said once)",
                    self._handler.name,
                    type(value).__name__,
                )
            return ACK
        if shard.generation != run.generation:
            return ACK  # the shard is somebody else's now, and so is the reply
        try:
            await self._publisher.publish(value, policy.to)
        except Exception as error:  # noqa: BLE001 - a codec's or key function's errors are its own
            logger.error(
                "the reply to record %s of shard %s, stream %s, was not published; the record "
                "stays open: %r",
                run.page.sequence_number(index),
                shard.shard_id,
                shard.stream,
                error,
                extra=_place(run, index),
            )
            return RETRY
        self.counters.replies += 1
        return ACK

    def _failed(
        self,
        error: BaseException,
        run: Run,
        index: int,
        message: KinesisMessage[Any] | None,
        value: Any,
    ) -> None:
        self.counters.failed += 1
        logger.error(
            "handler %s failed at record %s of shard %s, stream %s: %r",
            self._handler.name,
            run.page.sequence_number(index),
            run.shard.shard_id,
            run.shard.stream,
            error,
            exc_info=error,
            extra=_place(run, index),
        )
        if message is None:
            message = KinesisMessage(run.shard, run.page, index, run.base + index, value)
        elif message.outcome is not None:
            self._count(message.outcome)
            return
        self._apply(self._policies.on_error, error, run, index, message)

    def _undecodable(self, error: Exception, run: Run, index: int, payload: bytes) -> None:
        self.counters.undecodable += 1
        logger.error(
            "record %s of shard %s, stream %s, does not decode as %r (%d bytes): %s",
            run.page.sequence_number(index),
            run.shard.shard_id,
            run.shard.stream,
            self._handler.payload_type,
            len(payload),
            error,
            extra=_place(run, index),
        )
        message = KinesisMessage[Any](run.shard, run.page, index, run.base + index, payload)
        self._apply(self._policies.on_decode_error, error, run, index, message)

    def _apply(
        self,
        policy: OnError,
        error: BaseException,
        run: Run,
        index: int,
        message: KinesisMessage[Any],
    ) -> None:
        if policy == "stop":
            # Nothing later starts in this shard: what ran is what the checkpoint can cover.
            run.shard.ceiling = min(run.shard.ceiling, run.base + index)
            reason = HandlerFailed(
                f"stopping, as declared for errors: {error!r}", **_place(run, index)
            )
            reason.__cause__ = error
            self._stop(reason)
            return
        self._decide(self._outcome(policy, error, message), run, index)

    @staticmethod
    def _outcome(policy: OnError, error: BaseException, message: KinesisMessage[Any]) -> Outcome:
        if not callable(policy):
            return DROP if policy == "drop" else RETRY
        outcome: Any = None
        try:
            outcome = policy(error, message)
        except Exception:
            logger.exception("the error policy itself failed; the record stays open")
        if isinstance(outcome, Outcome):
            return outcome
        logger.error("the error policy returned %r, no outcome; the record stays open", outcome)
        return RETRY


def _place(run: Run, index: int) -> dict[str, str]:
    """Where a delivery stands, as our errors take it."""
    return {
        "stream": run.shard.stream,
        "shard_id": run.shard.shard_id,
        "sequence_number": run.page.sequence_number(index),
    }
