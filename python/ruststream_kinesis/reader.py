"""Reads one shard: iterator, pages, pace, errors.

Invariant: the reader's position is the last record that took its place in the watermark. An
iterator is only ever built from it (or from where the shard opened, or was rewound to), so no error,
expiry or restart of the reader skips a record or reads one twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ruststream_kinesis._core import Page
from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.channel import Channel, Run
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import KinesisError, PageError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.shard import MAX_HELD, HeldShard
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.transport import Failure, Transport, judge
from ruststream_kinesis.wording import fields

__all__ = ["READ_LIMIT", "Reader"]

logger = logging.getLogger("ruststream_kinesis")

# Records asked for in one call: the cost of a call is spread over them, and a page stays small.
READ_LIMIT = 1_000
# Bodies above this are parsed in a thread: 1 MiB takes the core about a millisecond.
_OFF_LOOP_BYTES = 1024 * 1024
# An iterator lives five minutes. One that only failed for as long is dead, whatever code the
# failures carried: not every server says so.
_ITERATOR_LIFE = 300.0


class Reader:
    """Feeds the deliveries of one held shard into the channel until the shard ends.

    Args:
        shard: The shard, held.
        stream: Which stream, and the pace.
        transport: Makes the calls.
        channel: Takes the deliveries.
        clock: Time.
        gate: Bounds how many readers ask for an iterator at once.
        limit: Records a page.
        backoff: Delays between tries.
        confirm: Makes sure that the stream is still the same; raises `StreamRecreated`.
    """

    def __init__(
        self,
        shard: HeldShard,
        stream: KinesisStream,
        transport: Transport,
        channel: Channel,
        clock: Clock,
        *,
        gate: asyncio.Semaphore | None = None,
        limit: int = READ_LIMIT,
        backoff: Backoff | None = None,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._shard = shard
        self._stream = stream
        self._transport = transport
        self._channel = channel
        self._clock = clock
        self._gate = gate or asyncio.Semaphore()
        self._limit = limit
        self._backoff = backoff or Backoff()
        self._confirm = confirm
        self._generation = shard.generation
        self._iterator: str | None = None
        self._iterator_since = 0.0
        self._log = MinuteLog(clock)
        self._polls = MinuteLog(clock)
        self._cycle: asyncio.Timeout | None = None

    def interrupt(self) -> None:
        """Ends whatever the reader waits for, after a rewind: call, room, pace or back-off."""
        cycle, self._cycle = self._cycle, None
        if cycle is not None:
            cycle.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Reads until the shard ends, is lost, or holds too many records back.

        Raises:
            KinesisError: A failure that asking again cannot mend; the position is kept.
        """
        shard = self._shard
        while not shard.lost and shard.watermark.held <= MAX_HELD:
            # Without a deadline of its own: it is what `interrupt` ends.
            cycle = self._cycle = asyncio.timeout(None)
            try:
                async with cycle:
                    if await self._read_once():
                        return
            except TimeoutError:
                if not cycle.expired():
                    raise
            finally:
                self._cycle = None

    async def _read_once(self) -> bool:
        """Reads a page, feeds it, and keeps the pace; True at the end of the shard."""
        shard = self._shard
        # Stamped before the read starts: a rewind while it is on its way makes it void.
        generation, started = shard.generation, self._clock.monotonic()
        if generation != self._generation:
            # However the rewind came, between two reads or during one: the way goes from the
            # shard's position again, and whatever failed before is no failure of it.
            self._iterator, self._generation = None, generation
            self._backoff.reset()
        try:
            page = await self._read()
        except KinesisError as error:
            if shard.generation == generation:
                shard.failed(error)
                await self._failed(error)
            return False
        if shard.generation != generation:
            return False
        self._backoff.reset()
        self._note(len(page))
        shard.polled(page)
        self._iterator, self._iterator_since = page.next_shard_iterator, started
        # Before the first await that may be cancelled: position and places move together.
        base = shard.deliver(page)
        run = Run(shard, generation, page, base, range(len(page)))
        shard.feeding = True
        try:
            if not await self._channel.feed(run):
                return False
        finally:
            shard.feeding = False
        if page.next_shard_iterator is None:
            shard.end()
            return True
        await self._pace(page, started)
        return False

    def _note(self, records: int) -> None:
        """For whoever debugs: a line for each page with records, and one a minute for the others."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        count = 1 if records else self._polls.due()
        if count is not None:
            logger.debug(
                "shard %s of stream %s: %d read(s), %d record(s)",
                self._shard.shard_id,
                self._shard.stream,
                count,
                records,
                extra=fields(self._shard.stream, self._shard.shard_id),
            )

    async def _read(self) -> Page:
        if self._iterator is None:
            # Of this generation: a rewind gives the shard a new one.
            opened = self._shard.opened
            try:
                self._iterator = await self._new_iterator()
            finally:
                # It is there or failed once: who waits for the opening waits for no second try.
                opened.set()
            self._iterator_since = self._clock.monotonic()
        body = await self._transport.get_records(
            self._stream.ref, self._shard.shard_id, self._iterator, self._limit
        )
        if len(body) > _OFF_LOOP_BYTES:
            return await asyncio.to_thread(Page.parse, body)
        return Page.parse(body)

    async def _new_iterator(self) -> str:
        shard = self._shard
        position, after = shard.read_from, shard.read_after
        if shard.read_at_tip:
            # Only once: an iterator that is lost unread is built at the instant instead.
            position, shard.read_at_tip = KinesisPosition.latest(), False
        async with self._gate:
            return await self._transport.get_shard_iterator(
                self._stream.ref, shard.shard_id, position, after=after
            )

    async def _pace(self, page: Page, started: float) -> None:
        lag = page.millis_behind_latest
        # Where the service does not say, records mean that there may be more of them.
        behind = page.last_sequence_number is not None if lag is None else lag > 0
        interval = self._stream.read_interval if behind else self._stream.poll_interval
        rest = started + interval - self._clock.monotonic()
        if rest > 0:
            await self._clock.sleep(rest)

    async def _failed(self, error: KinesisError) -> None:
        failure = judge(error)
        if failure is Failure.TERMINAL:
            raise error
        if failure is Failure.ITERATOR:
            refused, self._iterator = self._iterator is None, None
            # Where no record was read yet there is no position that another stream would refuse.
            if (refused or self._shard.read_from.kind != "sequence") and not await self._is_same():
                return
            if refused:
                self._position_refused(error)
            if self._backoff.failures == 0:
                # The ordinary end of an iterator that waited for slow handlers: no reason to wait.
                logger.info(
                    "%s; a new iterator is built at %s",
                    error,
                    self._shard.read_from,
                    extra=fields(self._shard.stream, self._shard.shard_id),
                )
                self._backoff.next()
                return
        elif self._clock.monotonic() - self._iterator_since >= _ITERATOR_LIFE:
            self._iterator = None
        count = self._log.due()
        if count is not None:
            logger.warning(
                "reading shard %s of stream %s failed (%d time(s)), trying again: %s",
                self._shard.shard_id,
                self._shard.stream,
                count,
                error,
                extra=fields(self._shard.stream, self._shard.shard_id),
            )
        if isinstance(error, PageError):
            logger.debug(
                "response that could not be read",
                exc_info=error,
                extra=fields(self._shard.stream, self._shard.shard_id),
            )
        await self._clock.sleep(self._backoff.next())

    async def _is_same(self) -> bool:
        """Whether the stream is the one that was opened; false where a rewind came meanwhile, too.

        Raises:
            StreamRecreated: It is another one.
            KinesisError: There is none.
        """
        generation = self._shard.generation
        if self._confirm is not None:
            try:
                await self._confirm()
            except KinesisError as error:
                if judge(error) is Failure.TERMINAL:
                    raise
                # Not known now: the position stays, and is asked for again.
                logger.warning(
                    "cannot look whether a stream is the same, trying again: %s",
                    error,
                    extra=fields(self._shard.stream, self._shard.shard_id),
                )
                await self._clock.sleep(self._backoff.next())
                return False
        return self._shard.generation == generation

    def _position_refused(self, error: KinesisError) -> None:
        """The service knows nothing at our position any more: what lies before the horizon is lost.

        Reading on from the horizon repeats at worst; waiting would lose what expires meanwhile.
        """
        shard = self._shard
        if shard.read_from.kind != "sequence":
            return
        logger.error(
            "DATA LOSS: shard %s of stream %s cannot be read at %s (%s); records between it and the "
            "horizon have expired unread. Reading on from the horizon",
            shard.shard_id,
            shard.stream,
            shard.read_from,
            error,
            extra={
                **fields(shard.stream, shard.shard_id, shard.read_from.sequence_number),
                "event": "data_loss",
            },
        )
        shard.read_from, shard.read_after = KinesisPosition.horizon(), False
