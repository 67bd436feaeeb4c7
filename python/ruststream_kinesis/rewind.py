"""Rewinds of a subscription: which shards move, when, and what is read before them.

Invariants:

* Seeks have their effect one after another, in the order in which they were asked for.
* All shards of this instance move at one moment, in which nothing is awaited and none of them is
  between owners: none is being taken or released, and the rows of those that this instance let go
  of, and did not take again, say where they were moved.
* A seek waits for the lease loop, the store and the service, never for a worker; the stop cuts off
  what has moved nothing yet.
* A replay reads parents that are still listed before their children. A finished parent is opened
  again by its row alone: `resume_from` beside `SHARD_END` makes it unfinished, so the gate that keeps
  children behind their parents (`shards.py`) does the rest, on every instance (`redirect.py`).
* No key is handled in two places: a child is let go of when no handler of it runs any more, and the
  parents that are read again are kept here, unread, for as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Protocol

from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import AccessDenied, KinesisError, NotConnected, RequestError
from ruststream_kinesis.handover import LOOK
from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.leases.base import SHARD_END, LeaseState, member_of
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.redirect import Redirecting, Shards
from ruststream_kinesis.seek import not_held, unknown_record
from ruststream_kinesis.shards import ancestors
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.taking import Taking
from ruststream_kinesis.transport import Failure, judge, patiently
from ruststream_kinesis.wording import fields, label

__all__ = ["Rewinds"]

logger = logging.getLogger("ruststream_kinesis")


class _Loop(Protocol):
    """The lease loop, as far as a rewind needs it."""

    @property
    def going(self) -> set[str]: ...

    def start_waiting(self, but: Collection[str], seen: Collection[str]) -> None: ...

    def restart(self, holding: Holding) -> None: ...

    def stand_back(self, holding: Holding) -> None: ...

    def wake(self) -> None: ...


class Rewinds:
    """Moves the shards of one subscription.

    Args:
        stream: What it reads.
        group: The subscription's.
        connection: Transport, lease store, owner, clock.
        shards: Which are this instance's.
        discovery: What the stream lists.
        loop: The lease loop.
        taking: Takes leases.
    """

    def __init__(
        self,
        stream: KinesisStream,
        group: str | None,
        connection: Connection,
        shards: Shards,
        discovery: Discovery,
        loop: _Loop,
        taking: Taking,
    ) -> None:
        self._ref = stream.ref
        self._stream = stream.name
        self._label = label(stream.name, group)
        self._group = group
        self._connection = connection
        self._store = connection.store
        self._shards = shards
        self._holdings = shards.holdings
        self._discovery = discovery
        self._loop = loop
        self._taking = taking
        self._redirecting = Redirecting(stream, connection, shards, discovery, taking)
        self._seeking = asyncio.Lock()
        self._stopped = False
        self._cut_off: set[asyncio.Timeout] = set()
        self._look = asyncio.Event()
        self.moving = False
        """All shards are about to move: none is taken meanwhile."""
        self.rule: OpeningRule | None = None
        """Where shards open; there is none before the stream was opened."""

    def stop(self) -> None:
        """Moves nothing any more."""
        self._stopped = True
        # Taken out: one that is about to end may not be told so again.
        scopes, self._cut_off = self._cut_off, set()
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())
        for holding in self._holdings.values():
            # Their readers end: nobody finds the tip.
            holding.shard.opened.set()

    def look_again(self) -> None:
        """Notes that a shard was taken, or could not be, or was released."""
        self._look.set()

    async def seek(self, position: KinesisPosition) -> None:
        """Moves the shards that `position` speaks of; returns once that is stored."""
        async with self._turn():
            if position.shard_id is None:
                moved = await self._seek_all(position)
            else:
                moved = [await self._seek_one(position, position.shard_id)]
        # Not in its turn: while the store cannot be reached, a later seek moves on all the same.
        await asyncio.gather(*(holding.rewound(position) for holding in moved))

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._unless_stopped():
            await self._seeking.acquire()
        try:
            yield
        finally:
            self._seeking.release()

    @contextlib.asynccontextmanager
    async def _unless_stopped(self) -> AsyncIterator[None]:
        """Waits in it end with the stop, which would wait for the handler that seeks."""
        self._open_rule()
        # Without a deadline of its own: it is what `stop` ends.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._cut_off.add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                self._open_rule()
            raise
        finally:
            self._cut_off.discard(scope)

    async def _seek_one(self, position: KinesisPosition, shard_id: str) -> Holding:
        self._held(shard_id)
        async with self._unless_stopped():
            await self._try(position, shard_id)
        # The stop may have begun meanwhile, and the shard may be lost. Nothing is awaited from here.
        self._open_rule()
        holding = self._held(shard_id)
        self._move(holding, position)
        logger.info(
            "moved shard %s of stream %s to %s",
            shard_id,
            self._label,
            position,
            extra=fields(self._stream, shard_id, position.sequence_number),
        )
        return holding

    def _held(self, shard_id: str) -> Holding:
        holding = self._holdings.get(shard_id)
        if holding is None or not holding.live:
            raise not_held(self._stream, shard_id)
        return holding

    async def _try(self, position: KinesisPosition, shard_id: str) -> None:
        """Makes sure that the service knows the record: a shard moved elsewhere is not read again."""
        transport = self._connection.transport
        try:
            await patiently(
                lambda: transport.get_shard_iterator(self._ref, shard_id, position),
                self._connection.clock,
            )
        except AccessDenied:
            raise
        except RequestError as error:
            if judge(error) is Failure.PASSING:
                raise
            raise unknown_record(self._stream, position) from error

    async def _seek_all(self, position: KinesisPosition) -> list[Holding]:
        async with self._unless_stopped():
            service_time = await patiently(self._discovery.look, self._connection.clock)
        at_tip = position.kind == "latest"
        if at_tip:
            position = OpeningRule.tip(service_time)
        self.moving = True
        try:
            rows = await self._move_rows(position, at_tip=at_tip)
            # The stop may have begun meanwhile. From here on nothing is awaited.
            self.rule = self._open_rule().rewind(position)
            moved = list(self._holdings.values())
            for holding in moved:
                self._move(holding, position, at_tip=at_tip)
            self._shards.absent.recall()
            if not at_tip:
                self._stand_back(moved)
        finally:
            self.moving = False
            self._loop.wake()
        elsewhere = self._elsewhere(rows)
        logger.info(
            "moved %d shard(s) of stream %s to %s%s",
            len(moved),
            self._label,
            position,
            f"; {elsewhere} shard(s) of it are held by other instances and were not moved"
            if elsewhere
            else "",
            extra=fields(self._stream),
        )
        return moved

    def _elsewhere(self, rows: Iterable[LeaseState]) -> int:
        """Listed shards that another instance holds."""
        mine, listed = self._holdings, self._discovery.shards
        others = (row.key.shard_id for row in rows if row.owner is not None and not row.free)
        return sum(shard_id in listed and shard_id not in mine for shard_id in others)

    async def _move_rows(self, position: KinesisPosition, *, at_tip: bool) -> list[LeaseState]:
        """Moves what nobody holds; then all that this instance holds is live.

        Returns:
            The rows as they were read last.
        """
        written: set[str] = set()
        ends = self._connection.clock.monotonic() + LEASE_DURATION
        while True:
            await self._all_arrived()
            held = set(self._holdings)
            rows = await self._rows()
            replayed = () if at_tip else self._redirecting.replayed(rows)
            rule = self._open_rule()
            moving = await self._redirecting.move(rows, position, replayed, written, rule)
            # Else one was let go of meanwhile, after its row was read.
            if not moving and not self._shards.in_transit and held <= self._holdings.keys():
                return rows
            if moving:
                await self._look_later(moving, ends)

    async def _look_later(self, shard_id: str, ends: float) -> None:
        """Another instance seeks, too: gives it time to write where it has moved a parent."""
        clock = self._connection.clock
        if clock.monotonic() >= ends:
            raise KinesisError(
                "nothing was moved: another instance has been moving the shard for as long as a "
                "lease lives; seek again",
                stream=self._stream,
                shard_id=shard_id,
            )
        async with self._unless_stopped():
            await clock.sleep(LOOK)

    async def _all_arrived(self) -> None:
        """Waits until no shard is being taken or let go of.

        Raises:
            KinesisError: For as long as a lease lives, nothing moved on.
        """
        async with self._unless_stopped():
            while waiting := self._shards.in_transit:
                self._look.clear()
                self._loop.wake()
                await wait(self._connection.clock, LEASE_DURATION, self._look)
                if not self._look.is_set():
                    raise KinesisError(
                        f"nothing was moved: {len(waiting)} shard(s) are being taken or released, "
                        "and the lease store does not get on with it; seek again when it does",
                        stream=self._stream,
                        shard_id=waiting[0],
                    )

    async def replay_parents(self, start: KinesisPosition | None) -> bool:
        """Where `start_at` asks for the past: its first pass is over, now parents come first.

        Only if the stream is all ours: another instance at work has read the parents, or reads
        other children of them.

        Returns:
            Whether there is something to be replayed, and another pass due for it.
        """
        if start is None or start.kind not in ("horizon", "timestamp"):
            return False
        if self._open_rule().rewound is not None:
            return False  # a handler was quicker, and has the last word
        held = list(self._holdings.values())
        moved = {*self._holdings, *self._taking.unmoved}
        rows = await self._rows()
        # Those moved already, by an attempt that failed in its middle, included.
        ended = {row.key.shard_id for row in rows if row.checkpoint == SHARD_END}
        if ended.isdisjoint(ancestors(moved, self._discovery.shards)):
            return False
        me = self._connection.heartbeat.member.nonce
        if any(row.owner is not None and member_of(row.owner) != me for row in rows):
            return False
        rule = self._open_rule()
        await self._redirecting.move(rows, start, moved, set(), rule)
        self._stand_back(held)
        return True

    def _open_rule(self) -> OpeningRule:
        if self._stopped:
            raise NotConnected("the service is stopping", stream=self._stream)
        if self.rule is None:
            raise NotConnected("the subscription is not open yet", stream=self._stream)
        return self.rule

    async def _rows(self) -> list[LeaseState]:
        return await self._store.leases(self._stream, self._group)

    def _move(self, holding: Holding, position: KinesisPosition, *, at_tip: bool = False) -> None:
        holding.rewind(position, at_tip=at_tip)
        self._loop.restart(holding)

    def _stand_back(self, moved: Iterable[Holding]) -> None:
        """Lets go of moved shards whose parents are read first; they are taken again after them."""
        listed = self._discovery.shards
        for holding in moved:
            info = listed.get(holding.shard.shard_id)
            if holding.live and info is not None and any(p in listed for p in info.parents):
                self._loop.stand_back(holding)

    def start_waiting(self, elsewhere: Collection[str], seen: Collection[str]) -> None:
        """Reads what waits and has nothing left to wait for.

        Args:
            elsewhere: Shards that other instances hold.
            seen: Shards that were held here before that was looked at.
        """
        if not self.moving:
            held = self._loop.going.union(elsewhere)
            self._loop.start_waiting(ancestors(held, self._discovery.shards), seen)
