"""Takes leases: a row of the store becomes a holding with its reader.

Invariants:

* A shard is held here only as one acquisition, from the moment that its lease was asked for.
* A lease that was asked for without an answer is known to be in doubt (`Absences.doubt`), for as long
  as it may live: nobody may count on its being free, and the stop gives it back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.checkpoints import Checkpointer
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import LeaseRowError
from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.holdings import Holdings
from ruststream_kinesis.leases.base import SHARD_END, LeaseKey, LeaseState
from ruststream_kinesis.neighbours import Neighbours
from ruststream_kinesis.opening import OpeningRule, Place
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.shards import ancestors
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.wording import fields, label, shown

__all__ = ["Taking"]

logger = logging.getLogger("ruststream_kinesis")

# Thousands of shards start in waves: so many leases are asked for, and so many iterators, at once.
_WAVE = 32


class Taking:
    """Takes shards of one subscription.

    Args:
        stream: What to read, and the pace.
        group: Keeps this application's rows apart from another's on the same stream.
        connection: Transport, lease store, owner, clock.
        channel: Where readers put deliveries.
        supervisor: Owns the tasks.
        discovery: What the stream lists, and whether it is still the same.
        held: Gets what was taken.
        neighbours: Who had a shard before, for the log.
        limit: Records a page.
    """

    def __init__(
        self,
        stream: KinesisStream,
        group: str | None,
        connection: Connection,
        channel: Channel,
        supervisor: Supervisor,
        discovery: Discovery,
        held: Holdings,
        neighbours: Neighbours,
        limit: int,
    ) -> None:
        self._stream = stream
        self._group = group
        self._label = label(stream.name, group)
        self._connection = connection
        self._store = connection.store
        self._clock = connection.clock
        self._heartbeat = connection.heartbeat
        self._channel = channel
        self._supervisor = supervisor
        self._discovery = discovery
        self._held = held
        self._neighbours = neighbours
        self._limit = limit
        self._gate = asyncio.Semaphore(_WAVE)
        self._log = MinuteLog(self._clock)
        self.now: set[str] = set()
        """Shards whose lease is being asked for."""
        self.mixed = False
        """Others read the stream that know nothing of our rules: see `_begun`."""
        self.first_pass = True
        """Nothing but what was free at the start has been taken."""
        self.patient = False
        """What the first pass takes is not read before `Holdings.start_waiting`: where it starts in
        the past, parents may come first."""
        self.unmoved: set[str] = set()
        """Shards that the first pass could not take: they are moved by `start_at` all the same."""

    async def acquire(self, shard_id: str) -> LeaseState | None:
        """Asks for a lease; `None` where another holds it."""
        me = self._heartbeat.member
        return await self._store.acquire(
            LeaseKey(self._stream.name, shard_id, self._group),
            me.owner_id,
            duration=LEASE_DURATION,
            member=me.nonce,
        )

    async def take(
        self, wanted: Collection[str], rule: OpeningRule, told: Callable[[], None]
    ) -> None:
        """Takes what can be had of `wanted`, each where it opens by `rule`.

        One shard that cannot be taken holds up no other; it is asked for again next pass.

        Args:
            wanted: Ids.
            rule: Where shards open.
            told: Called for each when it was taken, or could not be.
        """
        wave = asyncio.Semaphore(_WAVE)
        self.now.update(wanted)

        async def take(shard_id: str) -> None:
            try:
                async with wave:
                    await self._take(shard_id, rule)
            except BaseException:  # cut off, too
                self._held.absent.doubt(shard_id)
                if self.first_pass:
                    self.unmoved.add(shard_id)
                raise
            finally:
                self.now.discard(shard_id)
                told()

        for error in await asyncio.gather(*map(take, wanted), return_exceptions=True):
            if isinstance(error, Exception):
                count = self._log.due()
                if count is not None:
                    logger.warning(
                        "cannot take a shard of stream %s (%d failure(s)), trying again: %s",
                        self._label,
                        count,
                        shown(error),
                        extra=fields(self._stream.name),
                    )
            elif error is not None:
                raise error

    async def _take(self, shard_id: str, rule: OpeningRule) -> None:
        sent = self._clock.monotonic()
        lease = await self.acquire(shard_id)
        if lease is None or lease.finished:
            # Another's, or read to its end by it.
            self.unmoved.discard(shard_id)
            if lease is not None:
                await self._store.release(lease)
            return
        if self._store.shared and await self._is_behind(shard_id):
            if self.first_pass:
                self.unmoved.add(shard_id)
            await self._store.release(lease)
            return
        lease = await self._begun(lease, rule)
        place = rule.place(lease, first_pass=self.first_pass or shard_id in self.unmoved)
        self.unmoved.discard(shard_id)
        # In that order everywhere: a lease is taken, and then it is looked whether it may be read. Of a
        # parent and a child that are taken at one moment, at least one finds the other.
        replays = self._store.shared and lease.checkpoint == SHARD_END
        waits = replays or (self.first_pass and self.patient)
        self._hold(lease, sent, place, waits=waits, replays=replays)
        if replays:
            self._held.wake()

    async def keep(self, shard_id: str, position: KinesisPosition, rule: OpeningRule) -> bool:
        """Takes a shard that is read from `position` on, but not before `Holdings.start_waiting`.

        Who calls notes a doubt where this fails.

        Returns:
            Whether it could be had.
        """
        sent = self._clock.monotonic()
        lease = await self.acquire(shard_id)
        if lease is None:
            return False
        await self._store.checkpoint(lease, None, number=0, resume_from=position)
        lease = dataclasses.replace(lease, resume_from=position)
        place = rule.place(lease, first_pass=False)
        self._hold(lease, sent, place, waits=True, replays=True)
        return True

    async def _is_behind(self, shard_id: str) -> bool:
        """Whether something that the shard goes back to is to be read again, by now."""
        before = ancestors([shard_id], self._discovery.shards)
        rows = await asyncio.gather(*map(self._read, sorted(before)))
        return any(row is not None and not row.finished for row in rows)

    async def _read(self, shard_id: str) -> LeaseState | None:
        try:
            return await self._store.read(LeaseKey(self._stream.name, shard_id, self._group))
        except LeaseRowError:
            return None  # told of where rows are surveyed; it costs its own shard only

    def _hold(
        self, lease: LeaseState, sent: float, place: Place, *, waits: bool, replays: bool
    ) -> None:
        shard_id = lease.key.shard_id
        shard = HeldShard(
            lease,
            place.position,
            after=place.after,
            clock=self._clock,
            moved=self._held.moved,
            at_tip=place.at_tip,
            counters=self._held.counters,
        )
        checkpointer = Checkpointer(
            shard, self._store, self._clock, self._supervisor, self._held.over
        )
        reader = Reader(
            shard,
            self._stream,
            self._connection.transport,
            self._channel,
            self._clock,
            gate=self._gate,
            limit=self._limit,
            confirm=self._discovery.identity.confirm,
        )
        tenure = self._heartbeat.hold(lease, sent, lambda why: self._held.lost(shard, why))
        shard.fence = tenure
        holding = Holding(shard, checkpointer, reader, sent, tenure, waits=waits, replays=replays)
        if place.moved:
            shard.resume_from = place.position
            checkpointer.moved()
        self._held.add(holding)
        previous = self._neighbours.previous(lease)
        logger.info(
            "reading shard %s of stream %s %s%s",
            shard_id,
            self._label,
            place,
            "" if previous is None else f", taken over from {previous}",
            extra=fields(self._stream.name, shard_id, place.position.sequence_number),
        )

    async def _begun(self, lease: LeaseState, rule: OpeningRule) -> LeaseState:
        """In a mixed fleet, gives a child its checkpoint before its first record.

        The sibling opens a child without one at the tip: a child that we open, and lose before
        anything of it is settled, must be no such child.
        """
        info = self._discovery.shards.get(lease.key.shard_id)
        if (
            not self.mixed
            or lease.checkpoint is not None
            or lease.resume_from is not None
            or rule.rewound is not None
            or info is None
            or info.starting_sequence_number is None
            or not any(parent in self._discovery.shards for parent in info.parents)
        ):
            return lease
        start = info.starting_sequence_number
        await self._store.checkpoint(lease, start, number=0)
        return dataclasses.replace(lease, checkpoint=start)

    async def give_back(self) -> None:
        """Releases what was asked for without an answer, at the stop: it may be ours unknown.

        Asked for again, it is this member's own, or nobody's; an answer that is still on its way
        changes nothing after that. What is left over runs out by itself.
        """
        doubted = self._held.absent.in_doubt(LEASE_DURATION) - self._held.by_id.keys()

        async def give_back(shard_id: str) -> None:
            lease = await self.acquire(shard_id)
            if lease is not None:
                await self._store.release(lease)

        for error in await asyncio.gather(*map(give_back, sorted(doubted)), return_exceptions=True):
            if isinstance(error, Exception):
                logger.debug(
                    "a lease of stream %s that may be held for nobody runs out by itself: %s",
                    self._label,
                    shown(error),
                    extra=fields(self._stream.name),
                )
            elif error is not None:
                raise error
