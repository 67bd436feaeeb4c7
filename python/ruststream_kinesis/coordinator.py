"""One task a subscription: lists shards, takes leases, starts and ends readers.

Invariants:

* A shard is read only while its lease is held, by one reader.
* A child is taken only after its listed parents are `SHARD_END` (`shards.py`).
* Every shard opens at its checkpoint, else by one rule (`_position`), never at a later `LATEST`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import KinesisError, LeaseLost, StreamRecreated
from ruststream_kinesis.leases.base import LeaseKey, LeaseState, Opening
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.settlement import Checkpointer
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.shards import startable
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.transport import ShardInfo, StreamInfo, patiently

__all__ = ["Coordinator", "Holding"]

logger = logging.getLogger("ruststream_kinesis")

# One round of the lease loop; three of them fit into a lease, so two may fail.
PASS_INTERVAL = 3.0
LEASE_DURATION = 10.0
# A round of discovery of its own: ListShards allows ten calls a second and stream, for everybody.
DISCOVERY_INTERVAL = 10.0
# Thousands of shards start in waves: GetShardIterator allows five calls a second and shard, and a
# connection pool has its size.
_WAVE = 32
# Refused deliveries that a shard may hold before it is released and read again from the first.
MAX_HELD = 10_000
# The opening instant is this much before the service's own time, whose `Date` has whole seconds.
_OPENING_MARGIN = 1.0
# Two services round the creation time differently.
_SAME_CREATION = 1.0
# A shard that was held this long was well: its next failure starts the back-off anew.
_HEALTHY = 300.0


@dataclass(slots=True)
class Holding:
    """A held shard with what works on it."""

    shard: HeldShard
    checkpointer: Checkpointer
    taken: float
    """When the lease was asked for, on the monotonic clock."""
    renewed: float
    """When the last good renewal was sent."""
    reader: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Absence:
    """Back-off of a shard that was given up, and when it may be taken again."""

    backoff: Backoff = field(default_factory=lambda: Backoff(first=2.0, cap=60.0))
    until: float = 0.0


class Coordinator:
    """Keeps the shards of one subscription held and read.

    Args:
        stream: What to read, and the pace.
        group: Keeps this application's rows apart from another's on the same stream.
        start_at: Where shards start on the first pass; `None`: at their checkpoint, else the tip.
        connection: Transport, lease store, owner, clock.
        channel: Where readers put deliveries.
        supervisor: Owns the tasks.
        limit: Records a page.
    """

    def __init__(
        self,
        stream: KinesisStream,
        group: str | None,
        start_at: KinesisPosition | None,
        connection: Connection,
        channel: Channel,
        supervisor: Supervisor,
        limit: int,
    ) -> None:
        self._stream = stream
        self._group = group
        self._start_at = start_at
        self._connection = connection
        self._store = connection.store
        self._clock = connection.clock
        self._channel = channel
        self._supervisor = supervisor
        self._limit = limit
        self.holdings: dict[str, Holding] = {}
        self._listed: dict[str, ShardInfo] = {}
        self._listings = 0
        self._missing: dict[str, int] = {}
        self._absent: dict[str, _Absence] = {}
        self._opening: Opening | None = None
        self._started = 0.0
        self._first_opening = False
        self._first_pass = True
        self._discovered = float("-inf")
        self._wake = asyncio.Event()
        self._over: list[HeldShard] = []
        self._log = MinuteLog(self._clock)
        self._task: asyncio.Task[None] | None = None

    async def open(self, info: StreamInfo) -> None:
        """Takes the free shards; returns once each has its iterator or has failed once.

        A record that is published after this returns is read.

        Raises:
            StreamRecreated: The checkpoints belong to an earlier stream of this name.
        """
        service_time = await patiently(self._discover, self._clock)
        self._started = max(0.0, service_time - _OPENING_MARGIN)
        first = Opening(self._started, info.created)
        self._opening = await self._store.opening(self._stream.name, self._group, first)
        self._first_opening = self._opening is first
        known = self._opening.created
        if None not in (known, info.created) and abs(known - info.created) > _SAME_CREATION:  # type: ignore[operator]  # neither is None
            raise StreamRecreated(
                f"the stream was deleted and created anew (created {info.created}, its leases say "
                f"{known}): its checkpoints mean nothing in the new one. Use another group or "
                "delete the lease rows",
                stream=self._stream.name,
            )
        await self._pass()
        self._first_pass = False
        await asyncio.gather(*(h.shard.opened.wait() for h in self.holdings.values()))
        self._task = self._supervisor.spawn(f"coordinator[{self._stream.name}]", self._run())

    @property
    def shards(self) -> list[HeldShard]:
        """The shards that are held now."""
        return [holding.shard for holding in self.holdings.values()]

    async def stop_reading(self) -> None:
        """Ends the lease loop and every reader; leases stay held."""
        tasks = [h.reader for h in self.holdings.values() if h.reader is not None]
        if self._task is not None:
            tasks.append(self._task)
        await self._supervisor.cancel(tasks)

    async def release(self) -> None:
        """Releases every lease, each with its final checkpoint in the same write."""
        holdings = list(self.holdings.values())
        results = await asyncio.gather(
            *(self._release(holding) for holding in holdings), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            logger.error("cannot release a lease of stream %s: %r", self._stream.name, error)
        if errors:
            raise errors[0]

    async def _run(self) -> None:
        while True:
            await self._rest()
            try:
                if self._clock.monotonic() - self._discovered >= DISCOVERY_INTERVAL:
                    await self._discover()
                await self._pass()
            except Exception as error:  # noqa: BLE001 - the loop must outlive any store or service
                count = self._log.due()
                if count is not None:
                    logger.warning(
                        "a pass over the shards of stream %s failed (%d time(s)): %r; trying again",
                        self._stream.name,
                        count,
                        error,
                    )

    async def _rest(self) -> None:
        """Until the next pass is due, or something ended."""
        woken = asyncio.ensure_future(self._wake.wait())
        slept = asyncio.ensure_future(self._clock.sleep(PASS_INTERVAL))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            slept.cancel()
        self._wake.clear()

    async def _discover(self) -> float:
        listing = await self._connection.transport.list_shards(self._stream.ref)
        self._listed = {shard.shard_id: shard for shard in listing.shards}
        self._listings += 1
        self._discovered = self._clock.monotonic()
        return listing.service_time

    async def _pass(self) -> None:
        await self._end_over()
        await self._renew()
        await self._release_held()
        rows = {
            row.key.shard_id: row
            for row in await self._store.leases(self._stream.name, self._group)
        }
        await self._forget(rows.values())
        finished = {shard_id for shard_id, row in rows.items() if row.finished}
        now = self._clock.monotonic()
        wanted = [
            shard_id
            for shard_id in startable(self._listed.values(), finished)
            if shard_id not in self.holdings
            and (shard_id not in self._absent or self._absent[shard_id].until <= now)
        ]
        wave = asyncio.Semaphore(_WAVE)

        async def take(shard_id: str) -> None:
            async with wave:
                await self._take(shard_id)

        # One shard that cannot be taken holds up no other; it is asked for again next pass.
        for error in await asyncio.gather(*map(take, wanted), return_exceptions=True):
            if isinstance(error, Exception):
                logger.warning("cannot take a shard of stream %s: %r", self._stream.name, error)
            elif error is not None:
                raise error

    async def _take(self, shard_id: str) -> None:
        key = LeaseKey(self._stream.name, shard_id, self._group)
        sent = self._clock.monotonic()
        lease = await self._store.acquire(key, self._connection.owner_id, duration=LEASE_DURATION)
        if lease is None:
            return
        if lease.finished:
            await self._store.release(lease)
            return
        position, after, at_tip = self._position(lease)
        shard = HeldShard(lease, position, after=after, clock=self._clock, moved=self._shard_moved)
        checkpointer = Checkpointer(
            shard, self._store, self._clock, self._supervisor, self._shard_over
        )
        holding = self.holdings[shard_id] = Holding(shard, checkpointer, sent, sent)
        reader = Reader(
            shard,
            self._stream,
            self._connection.transport,
            self._channel,
            self._clock,
            at_tip=at_tip,
            limit=self._limit,
        )
        holding.reader = self._supervisor.spawn(
            f"reader[{self._stream.name}/{shard_id}]", self._read(holding, reader)
        )
        logger.info(
            "reading shard %s of stream %s from %s",
            shard_id,
            self._stream.name,
            "the tip" if at_tip else f"{'after ' if after else ''}{position}",
        )

    def _position(self, lease: LeaseState) -> tuple[KinesisPosition, bool, bool]:
        """Where a shard opens: (position, after it, first iterator at the tip)."""
        opening = self._opening
        if opening is None:
            raise RuntimeError("a shard is opened only after its stream")
        start = self._start_at
        instant = KinesisPosition.timestamp(opening.instant)
        if start is not None and self._first_pass:
            if start.kind in ("horizon", "timestamp"):
                return start, False, False
            if start.kind == "latest":
                return KinesisPosition.timestamp(self._started), False, True
            if start.shard_id == lease.key.shard_id:
                return start, False, False
        if lease.checkpoint is not None:
            return KinesisPosition.sequence(lease.key.shard_id, lease.checkpoint), True, False
        if start is not None and start.kind in ("horizon", "timestamp"):
            return start, False, False
        return instant, False, self._first_opening and self._first_pass

    async def _read(self, holding: Holding, reader: Reader) -> None:
        """Runs a reader and notices its end, whichever it is."""
        shard = holding.shard
        try:
            await reader.run()
        except KinesisError as error:
            logger.error(
                "shard %s of stream %s is not read any more; other shards go on, this one is tried "
                "again later: %s",
                shard.shard_id,
                shard.stream,
                error,
                extra={"stream": shard.stream, "shard_id": shard.shard_id},
            )
            await self._give_up(holding)
        except Exception:
            # A fault of ours: the shard is read anew from its checkpoint, never skipped.
            logger.exception("the reader of shard %s failed", shard.shard_id)
            await self._give_up(holding)
        else:
            # The children of a shard that ended are listed now.
            self._discovered = float("-inf")
            self._wake.set()

    async def _give_up(self, holding: Holding) -> None:
        """Releases a shard, to take it again after a back-off."""
        shard = holding.shard
        absence = self._absent.setdefault(shard.shard_id, _Absence())
        now = self._clock.monotonic()
        if now - holding.taken > _HEALTHY:
            absence.backoff.reset()
        absence.until = now + absence.backoff.next()
        await self._release(holding)

    async def _release(self, holding: Holding) -> None:
        shard = holding.shard
        # Settled places count until here; what is settled after this line is void.
        checkpoint = shard.checkpoint
        shard.lose()
        self._channel.discard(shard)
        self.holdings.pop(shard.shard_id, None)
        await holding.checkpointer.stop()
        await self._store.release(
            shard.lease, checkpoint=checkpoint, number=holding.checkpointer.next_number()
        )

    def _shard_moved(self, shard: HeldShard) -> None:
        holding = self.holdings.get(shard.shard_id)
        if holding is not None and holding.shard is shard:
            holding.checkpointer.moved()

    def _shard_over(self, shard: HeldShard) -> None:
        self._over.append(shard)
        self._wake.set()

    async def _end_over(self) -> None:
        """Lets go of shards that are finished or lost."""
        over, self._over = self._over, []
        for shard in over:
            holding = self.holdings.get(shard.shard_id)
            if holding is None or holding.shard is not shard:
                continue
            if holding.reader is not None:
                await self._supervisor.cancel([holding.reader])
            await self._release(holding)
            if shard.ended:
                logger.info("shard %s of stream %s is finished", shard.shard_id, shard.stream)

    async def _renew(self) -> None:
        """Prolongs every lease; one that is lost, or ran out unrenewed, ends its shard."""

        async def renew(holding: Holding) -> None:
            sent = self._clock.monotonic()
            try:
                await self._store.renew(holding.shard.lease)
                holding.renewed = sent
            except LeaseLost as error:
                self._lost(holding, str(error))
            except Exception as error:  # noqa: BLE001 - a store's failures are its own
                if self._clock.monotonic() - holding.renewed >= LEASE_DURATION:
                    self._lost(holding, f"it ran out unrenewed: {error!r}")

        await asyncio.gather(*map(renew, list(self.holdings.values())))
        await self._end_over()

    def _lost(self, holding: Holding, why: str) -> None:
        shard = holding.shard
        logger.warning("shard %s of stream %s is lost: %s", shard.shard_id, shard.stream, why)
        shard.lose()
        self._channel.discard(shard)
        self._shard_over(shard)

    async def _release_held(self) -> None:
        """Gives up shards that only hold: taken again, they are read from the first held record."""
        for holding in list(self.holdings.values()):
            watermark = holding.shard.watermark
            if not watermark.held or not watermark.drained:
                continue
            if holding.shard.ended or watermark.held > MAX_HELD:
                if holding.reader is not None:
                    await self._supervisor.cancel([holding.reader])
                await self._give_up(holding)

    async def _forget(self, rows: Iterable[LeaseState]) -> None:
        """Removes the rows of shards that two listings in a row did not name."""
        missing = {
            row.key.shard_id: row
            for row in rows
            if row.key.shard_id not in self._listed and row.key.shard_id not in self.holdings
        }
        self._missing = {
            shard_id: self._missing.get(shard_id, self._listings) for shard_id in missing
        }
        for shard_id, since in self._missing.items():
            if since == self._listings:
                continue
            logger.warning(
                "stream %s no longer lists shard %s (checkpoint %s): its lease row is removed",
                self._stream.name,
                shard_id,
                missing[shard_id].checkpoint,
            )
            await self._store.delete(missing[shard_id].key)
