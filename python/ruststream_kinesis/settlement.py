"""From what a handler said to what becomes of the record.

Invariants:

* Nothing is settled before what it caused (a reply, a copy, a dead letter) is durably in its stream.
* A delivery of a shard that was lost or rewound meanwhile causes nothing and settles nothing.
* Every delivery that a handler was given ends here exactly once: settled, held, or waiting as a
  copy; or it is left open because the service stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ruststream_kinesis._core import Pending
from ruststream_kinesis.attempts import NOT_BEFORE_HEADER, Action, Copy
from ruststream_kinesis.channel import Run
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.counters import Counters
from ruststream_kinesis.errors import HandlerError, HandlerFailed
from ruststream_kinesis.message import KinesisMessage, attempt_of
from ruststream_kinesis.outcomes import (
    ACK,
    DROP,
    RETRY,
    Outcome,
    ack,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.wording import fields, shown

__all__ = ["Counters", "OnError", "Policies", "Settlement", "not_called"]

logger = logging.getLogger("ruststream_kinesis")

# Replies that wait for their requests, beyond which workers wait for them: two whole requests.
_OPEN_REPLIES = 1_000
# Enough until the year 2286; more digits are not a time of ours.
_MILLISECOND_DIGITS = 13

OnError = Literal["retry", "drop", "stop"] | Callable[[BaseException, KinesisMessage[Any]], Outcome]
"""What a handler that raises means."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What a subscription declares about its outcomes."""

    on_error: OnError = "retry"
    on_decode_error: OnError = "drop"
    reply: KinesisPublish | None = None


class Settlement:
    """Makes the outcomes of one subscription come true.

    Args:
        name: The handler's, for logs.
        policies: What errors and replies mean.
        copies: Publishes and keeps copies.
        publisher: Publishes replies.
        clock: Wall clock for delays.
        stop: Asks the service to stop, with the reason.
    """

    def __init__(
        self,
        name: str,
        policies: Policies,
        copies: Copies,
        publisher: KinesisPublisher,
        clock: Clock,
        stop: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._policies = policies
        self._copies = copies
        self._publisher = publisher
        self._clock = clock
        self._stop = stop
        self._warned_of_value = False
        self._open_replies = 0
        """Replies on their way that no worker waits for."""
        self._fewer = asyncio.Event()
        self.counters = copies.counters

    async def returned(
        self, result: Any, run: Run, index: int, message: KinesisMessage[Any] | None
    ) -> None:
        """What a handler returned, once it returned something or may have settled by itself."""
        said = None if message is None else message.outcome
        if result is None:
            result = ACK
        elif (error := not_called(result, self._name)) is not None:
            message = message or KinesisMessage[Any](
                run, index, run.page.payload(index), self.decide
            )
            await self.failed(error, run, index, message)
            return
        elif not isinstance(result, Outcome) and said in (None, ACK):
            # A reply of a record that the handler acked by itself is published all the same.
            if self._publisher.batching is not None and self._replies_to is not None:
                await self._reply_with_others(result, run, index, settle=said is None)
                return
            if not await self.reply(result, run, index):
                self.leave_open(run, index)
                return
            result = ACK
        if said is None:
            await self.decide(result, run, index)

    async def decide(
        self, outcome: Outcome, run: Run, index: int, error: BaseException | None = None
    ) -> bool:
        """Settles one delivery, against its own shard.

        Args:
            outcome: What was said.
            run: The run the delivery stands in.
            index: Which record of the page.
            error: What the handler raised, for the dead letter.

        Returns:
            Whether the record stays open because no further attempt is declared.
        """
        shard, place = run.shard, run.base + index
        if shard.generation != run.generation:
            return False
        if outcome.kind == "ack":
            shard.ack(place)
        elif outcome.kind == "drop":
            logger.warning(
                "dropped record %s of shard %s, stream %s",
                *_where(run, index),
                extra=place_of(run, index),
            )
            self._drop(run, index)
        else:
            return await self._again(outcome, run, index, error)
        return False

    def _drop(self, run: Run, index: int) -> None:
        if run.shard.generation == run.generation:
            self.counters.dropped += 1
            run.shard.ack(run.base + index)

    async def _again(
        self, outcome: Outcome, run: Run, index: int, error: BaseException | None
    ) -> bool:
        """`retry()` and `retry_after()`."""
        attempt = attempt_of(run.page, index)
        action = self._copies.policy.action(outcome, attempt)
        if action is Action.HOLD:
            self.counters.held += 1
            run.shard.hold(run.base + index)
            return True
        if action is Action.COPY:
            self.counters.retried += 1
            due = self._clock.time() + outcome.delay if outcome.delay else 0.0
            await self._copies.later(Copy(run, index, attempt, due), outcome.delay)
        elif action is Action.DEAD_LETTER:
            await self._copies.dead_letter(Copy(run, index, attempt), error)
        else:
            self.counters.dropped += 1
            logger.warning(
                "gave up record %s of shard %s, stream %s, after %d attempt(s): no dead letter "
                "stream is declared",
                *_where(run, index),
                attempt,
                extra=place_of(run, index),
            )
            run.shard.ack(run.base + index)
        return False

    async def reply(
        self, value: Any, run: Run, index: int, wanted: Callable[[], bool] | None = None
    ) -> bool:
        """Publishes a reply; whether what it answers may be settled now.

        Args:
            value: What the handler returned.
            run: The run of the delivery it answers, or of the first of them.
            index: Which record of the page.
            wanted: Whether to go on trying; by default, while the delivery's shard is held.
        """
        policy, shard = self._policies.reply, run.shard
        if policy is None or policy.to is None:
            if not self._warned_of_value:
                self._warned_of_value = True
                logger.warning(
                    "handler %s returned a %s, which is no outcome, and declares no publish=: the "
                    "value goes nowhere (said once)",
                    self._name,
                    type(value).__name__,
                )
            return True
        try:
            # Not for a shard that is somebody else's now: so is the reply.
            sent = await self._publisher.publish_while(
                value, policy.to, wanted or (lambda: shard.generation == run.generation)
            )
        except Exception as error:  # noqa: BLE001 - a codec's or key function's errors are its own
            self._log_unreplied(error, run, index)
            return False
        if sent is not None:
            self.counters.replies += 1
        return True

    @staticmethod
    def _log_unreplied(error: BaseException, run: Run, index: int) -> None:
        logger.error(
            "the reply to record %s of shard %s, stream %s, was not published; the record "
            "stays open: %s",
            *_where(run, index),
            shown(error),
            extra=place_of(run, index),
        )

    async def _reply_with_others(self, value: Any, run: Run, index: int, *, settle: bool) -> None:
        """Gives a reply to the collector; the record is settled when it is in its stream.

        The worker goes on to the next record meanwhile: one that waited for each reply would fill
        no request.
        """
        shard, to = run.shard, self._replies_to
        assert to is not None
        try:
            sent = self._publisher.collect_while(
                value, to, lambda: shard.generation == run.generation
            )
        except Exception as error:  # noqa: BLE001 - a codec's or key function's errors are its own
            self._unreplied(error, run, index)
            return
        self._open_replies += 1
        sent.add_done_callback(partial(self._replied, run, index, settle))
        while self._open_replies >= _OPEN_REPLIES:
            self._fewer.clear()
            await self._fewer.wait()

    def _replied(self, run: Run, index: int, settle: bool, sent: Pending) -> None:
        self._open_replies -= 1
        self._fewer.set()
        if sent.cancelled():
            return
        if (error := sent.exception()) is not None:
            self._unreplied(error, run, index)
        elif sent.result() is not None:
            self.counters.replies += 1
            if settle and run.shard.generation == run.generation:
                run.shard.ack(run.base + index)

    def _unreplied(self, error: BaseException, run: Run, index: int) -> None:
        self._log_unreplied(error, run, index)
        self.leave_open(run, index)

    async def replied(self) -> None:
        """Waits until no reply is on its way: nothing more is settled by one."""
        while self._open_replies:
            self._fewer.clear()
            await self._fewer.wait()

    @property
    def _replies_to(self) -> str | None:
        reply = self._policies.reply
        return None if reply is None else reply.to

    def leave_open(self, run: Run, index: int) -> None:
        """Nothing was said of it: it holds the checkpoint."""
        if run.shard.generation == run.generation:
            self.counters.held += 1
            run.shard.hold(run.base + index)

    async def failed(
        self,
        error: BaseException,
        run: Run,
        index: int,
        message: KinesisMessage[Any],
        *,
        quiet: bool = False,
    ) -> None:
        """The handler raised; `quiet` where the log has its traceback already."""
        outcome = self.judged(error, run, index, message, quiet=quiet)
        if outcome is not None:
            await self.decide(outcome, run, index, error)

    def judged(
        self,
        error: BaseException,
        run: Run,
        index: int,
        message: KinesisMessage[Any],
        *,
        quiet: bool = False,
    ) -> Outcome | None:
        """Counts and logs what a handler raised.

        Returns:
            What `on_error` makes of it; `None` where nothing is to be settled any more: the handler
            did so by itself, or the service stops.
        """
        self.counters.failed += 1
        if not quiet:
            logger.error(
                "handler %s failed at record %s of shard %s, stream %s: %s",
                self._name,
                *_where(run, index),
                shown(error),
                exc_info=error,
                extra=place_of(run, index),
            )
        if message.outcome is not None:
            return None
        return self._apply(self._policies.on_error, error, run, index, message)

    async def undecodable(
        self, error: Exception, run: Run, index: int, kind: Any, payload: bytes
    ) -> None:
        """The payload is not of the handler's type: no attempt can help."""
        self.counters.undecodable += 1
        policy = self._policies.on_decode_error
        dropped = policy == "drop" and self._copies.policy.dead_letter is None
        logger.error(
            "record %s of shard %s, stream %s, does not decode as %r (%d bytes)%s: %s",
            *_where(run, index),
            kind,
            len(payload),
            " and is dropped" if dropped else "",
            shown(error),
            extra=place_of(run, index),
        )
        if dropped:
            # The line above says all that there is to say.
            self._drop(run, index)
            return
        if self._copies.policy.dead_letter is not None and policy in ("drop", "retry"):
            attempt = attempt_of(run.page, index)
            await self._copies.dead_letter(Copy(run, index, attempt), error)
            return
        message = KinesisMessage[Any](run, index, payload, self.decide)
        outcome = self._apply(policy, error, run, index, message)
        if outcome is not None:
            await self.decide(outcome, run, index, error)

    def _apply(
        self,
        policy: OnError,
        error: BaseException,
        run: Run,
        index: int,
        message: KinesisMessage[Any],
    ) -> Outcome | None:
        """What a policy makes of an error; `None` where it stops the service."""
        if policy == "stop":
            # Nothing later starts in this shard: what ran is what the checkpoint can cover.
            run.shard.ceiling = min(run.shard.ceiling, run.base + index)
            reason = HandlerFailed(
                f"stopping, as declared for errors: {shown(error)}", **place_of(run, index)
            )
            reason.__cause__ = error
            self._stop(reason)
            return None
        return self._outcome(policy, error, message)

    @staticmethod
    def _outcome(policy: OnError, error: BaseException, message: KinesisMessage[Any]) -> Outcome:
        if not callable(policy):
            return DROP if policy == "drop" else RETRY
        outcome: Any = None
        try:
            outcome = policy(error, message)
        except Exception:
            logger.exception(
                "the error policy itself failed; it counts as retry()", extra=_place(message)
            )
        if isinstance(outcome, Outcome):
            return outcome
        logger.error(
            "the error policy returned %r, no outcome; it counts as retry()",
            outcome,
            extra=_place(message),
        )
        return RETRY

    def put_off(self, run: Run) -> dict[int, Copy]:
        """The deliveries of a run that were published before they were due, and are not due yet.

        They wait out the rest here, as copies that spend no attempt.
        """
        marked = run.page.find_header(NOT_BEFORE_HEADER, run.indices[0], run.indices[-1] + 1)
        if not marked:
            return {}
        now, early = self._clock.time(), {}
        for index, text in marked:
            due = _milliseconds(text) / 1000
            if due > now:
                early[index] = Copy(run, index, attempt_of(run.page, index) - 1, due)
        return early

    async def wait_out(self, copy: Copy) -> None:
        """Keeps a delivery that came early until it is due."""
        await self._copies.wait_out(copy)


def not_called(result: Any, handler: str) -> HandlerError | None:
    """The error of a handler that says `return retry` where `return retry()` was meant."""
    for function in (ack, drop, retry, retry_after):
        if result is function:
            name = function.__name__
            return HandlerError(
                f"handler {handler} returned the function {name}: call it, {name}()"
            )
    return None


def _milliseconds(text: str) -> int:
    """A time that a copy carries; what is no such number is long past."""
    well_formed = text.isascii() and text.isdigit() and len(text) <= _MILLISECOND_DIGITS
    return int(text) if well_formed else 0


def _where(run: Run, index: int) -> tuple[str, str, str]:
    """Sequence number, shard and stream, in the order of our log messages."""
    return run.page.sequence_number(index), run.shard.shard_id, run.shard.stream


def place_of(run: Run, index: int) -> dict[str, str]:
    """Where a delivery stands, as our errors and log records take it."""
    return fields(run.shard.stream, run.shard.shard_id, run.page.sequence_number(index))


def _place(message: KinesisMessage[Any]) -> dict[str, str]:
    return fields(message.stream, message.shard_id, message.sequence_number)
