"""The lease loop of a subscription: takes leases, starts, moves and ends readers.

Invariants:

* A shard is read only while its lease is held, by one reader.
* A child is taken only after its listed parents are `SHARD_END` (`shards.py`), and let go of when a
  rewind, anybody's, makes one of them unfinished again.
* Every shard opens where it was rewound to, else at its checkpoint, else by one rule
  (`opening.py`), never at a later `LATEST`.
* What is taken, and what is handed over to whom, is the plan's decision (`sharing.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import KinesisError, LeaseTableUnreachable, StreamRecreated
from ruststream_kinesis.forgetting import Forgetting
from ruststream_kinesis.heartbeat import LEASE_DURATION, PASS_INTERVAL
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.holdings import Holdings
from ruststream_kinesis.leases.base import SHARD_END, LeaseState, subscription_name
from ruststream_kinesis.neighbours import Neighbours
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.redirect import Shards
from ruststream_kinesis.rewind import Rewinds
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.shards import ancestors, startable
from ruststream_kinesis.sharing import Sharing
from ruststream_kinesis.state import ShardState, SourceState
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.taking import Taking
from ruststream_kinesis.transport import Failure, StreamInfo, judge, patiently
from ruststream_kinesis.wording import fields, fields_of, kind, label, listing, shown

__all__ = ["Coordinator", "Holding"]

logger = logging.getLogger("ruststream_kinesis")

T = TypeVar("T")

# One look at the store serves all passes of a process that are due in the same interval; a pass that
# something woke wants to see what woke it.
_SHARED_LOOK = 0.9 * PASS_INTERVAL
_FRESH_LOOK = 0.1 * PASS_INTERVAL
# Tries, at least, of each call that the start needs; a store that does not answer takes 4 s a try.
_START_TRIES = 3
# Tries at the stop, over some six seconds, before the leases are left to run out.
_RELEASE_ATTEMPTS = 5


class Coordinator:
    """Keeps the shards of one subscription held and read.

    Args:
        stream: What to read, and the pace.
        group: Keeps this application's rows apart from another's on the same stream.
        start_at: Where shards start on the first pass; `None`: at their checkpoint, else the tip.
        connection: Transport, lease store, owner, clock.
        channel: Where readers put deliveries.
        copies: What waits of a shard that ends is published early; of one that is lost, dropped.
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
        copies: Copies,
        supervisor: Supervisor,
        limit: int,
    ) -> None:
        self._stream = stream
        self._group = group
        self._start_at = start_at
        self._connection = connection
        self._store = connection.store
        self._clock = connection.clock
        self._supervisor = supervisor
        self._wake = asyncio.Event()
        self._discovery = Discovery(stream, connection, self._wake.set)
        self._label = label(stream.name, group)
        self.held = Holdings(
            self._label, connection, channel, copies, supervisor, self._discovery, self._wake
        )
        self.holdings = self.held.by_id
        self._forgetting = Forgetting(stream.name, connection.store)
        self._sharing = Sharing(connection.clock)
        self._heartbeat = connection.heartbeat
        self._neighbours = Neighbours(self._label, self._heartbeat.member.nonce)
        self._name = subscription_name(stream.name, group)
        self._taking = Taking(
            stream,
            group,
            connection,
            channel,
            supervisor,
            self._discovery,
            self.held,
            self._neighbours,
            limit,
        )
        self._answered: float | None = None
        """When the store was read last, on the monotonic clock."""
        self._store_error: str | None = None
        self._joined = False
        self._elsewhere: set[str] = set()
        """Shards that other instances held at the last pass."""
        self._unknown: dict[str, int] = {}
        """Those of them that are not listed here, and how many listings had been begun by then."""
        self._log = MinuteLog(self._clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._rewinds = Rewinds(
            stream,
            group,
            connection,
            Shards(self.holdings, self._taking.now, self.held.absent),
            self._discovery,
            self.held,
            self._taking,
        )
        self.held.released = self._rewinds.look_again

    async def open(self, info: StreamInfo) -> None:
        """Takes the free shards; returns once each has its iterator or has failed once.

        A record that is published after this returns is read.

        Raises:
            StreamRecreated: The checkpoints belong to an earlier stream of this name.
        """
        self._discovery.identity.opened(info)
        service_time = await patiently(self._discovery.look, self._clock)
        self._rewinds.rule = await self._insist(
            lambda: OpeningRule.agree(self._store, info, self._group, service_time, self._start_at)
        )
        # First of all: who looks from now on counts on us.
        await self._insist(self._join)
        self._taking.patient = self._start_at is not None and self._start_at.kind != "latest"
        await self._insist(lambda: self._pass(0.0))
        if await self._insist(lambda: self._rewinds.replay_parents(self._start_at)):
            await self._insist(lambda: self._pass(0.0))
        self._rewinds.start_waiting(self._elsewhere, ())
        self._taking.first_pass = False
        first = [holding.shard for holding in self.holdings.values()]
        name, spawn = self._label, self._supervisor.spawn
        # Before the shards have opened: a slow iterator must not cost the others their leases.
        self._tasks = [
            spawn(f"coordinator[{name}]", self._run()),
            spawn(f"discovery[{name}]", self._discovery.run()),
        ]
        await asyncio.gather(*(shard.opened.wait() for shard in first))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a start needs of the store, asked for again: one hiccup is no reason to end.

        What may pass gets as long as a lease can do without a renewal, too.
        """
        backoff, began = Backoff(first=0.3), self._clock.monotonic()
        while True:
            try:
                return await call()
            except StreamRecreated:
                raise
            except Exception as error:
                self._store_error = kind(error)
                delay = backoff.next()
                passing = (
                    not isinstance(error, KinesisError)
                    or isinstance(error, LeaseTableUnreachable)
                    or judge(error) is Failure.PASSING
                )
                late = self._clock.monotonic() - began >= LEASE_DURATION
                if backoff.failures >= _START_TRIES and (late or not passing):
                    raise
                logger.warning(
                    "the start of stream %s waits for the lease store, trying again: %s",
                    self._label,
                    shown(error),
                    extra=fields(self._stream.name),
                )
            await self._clock.sleep(delay)

    @property
    def shards(self) -> list[HeldShard]:
        """The shards that are held now."""
        return [holding.shard for holding in self.holdings.values()]

    @property
    def state(self) -> tuple[ShardState, ...]:
        """Those shards at this moment."""
        # A copy: somebody who scrapes metrics may ask from another thread.
        return tuple(each.shard.state for each in list(self.holdings.values()) if each.live)

    @property
    def source(self) -> SourceState:
        """The other shards, the other instances, and the lease store, as of the last pass."""
        me = self._heartbeat.member
        held = {
            e.shard.shard_id: e.shard.checkpoint for e in list(self.holdings.values()) if e.live
        }
        answered = self._answered
        return SourceState(
            counters=dataclasses.replace(
                self.held.counters, read_errors=dict(self.held.counters.read_errors)
            ),
            owners=self._neighbours.owners(
                self._discovery.shards, held, self.held.absent.why, me.owner_id
            ),
            members=tuple(sorted((*self._neighbours.members, me.owner_id))),
            store_answered_ago=None if answered is None else self._clock.monotonic() - answered,
            store_error=self._store_error or self._heartbeat.error,
            poll_interval=self._stream.poll_interval,
        )

    async def stop_reading(self) -> None:
        """Ends the lease loop and every reader; leases stay held until `release`."""
        self._rewinds.stop()
        # The loop first: it must not start a reader behind our back.
        await self._supervisor.cancel(self._tasks)
        await self._part()
        readers = [h.reader for h in self.holdings.values() if h.reader is not None]
        await self._supervisor.cancel(readers)

    def cut_off(self) -> None:
        """Nothing that is settled after this counts, and no delivery starts any more."""
        for holding in self.holdings.values():
            self.held.conclude(holding)

    async def seek(self, position: KinesisPosition) -> None:
        """Moves the shards that `position` speaks of; returns once that is stored.

        It waits for no worker, so a handler may call it.

        Raises:
            NotConnected: The subscription is not open yet, or not any more.
            KinesisError: The shard is not held here, or the stream cannot be asked.
        """
        await self._rewinds.seek(position)

    async def release(self) -> None:
        """Releases every lease, each with its final checkpoint in the same write.

        A store that fails is asked again: what was settled last is in that write alone.
        """
        await self._supervisor.cancel(self._tasks)
        await self._taking.give_back()
        held = list(self.holdings)
        backoff = Backoff()
        try:
            while errors := await self.held.release_all():
                if backoff.failures >= _RELEASE_ATTEMPTS:
                    raise errors[0]
                if backoff.failures == 0:
                    logger.warning(
                        "cannot release %d lease(s) of stream %s, trying again: %s",
                        len(errors),
                        self._label,
                        shown(errors[0]),
                        extra=fields(self._stream.name),
                    )
                await self._clock.sleep(backoff.next())
            if held:
                logger.info(
                    "released %d shard(s) of stream %s: %s",
                    len(held),
                    self._label,
                    listing(held),
                    extra=fields(self._stream.name),
                )
        finally:
            # Whatever came of it: nobody waits for a release any more.
            for holding in self.holdings.values():
                holding.over.set()

    async def _join(self) -> None:
        # Before it is asked for: an answer that is lost may be a row that is there.
        self._joined = True
        await self._heartbeat.join(self._name, self._supervisor)

    async def _part(self) -> None:
        """The others plan without us from here on, and wait for our leases to become free."""
        if not self._joined:
            return
        try:
            await self._heartbeat.part(self._name)
        except Exception as error:  # noqa: BLE001 - a store's failures are its own; the row runs out
            logger.warning(
                "cannot tell the other instances that this one stops: %s",
                shown(error),
                extra=fields(self._stream.name),
            )

    async def _run(self) -> None:
        while True:
            await wait(self._clock, PASS_INTERVAL, self._wake)
            look = _FRESH_LOOK if self._wake.is_set() else _SHARED_LOOK
            self._wake.clear()
            try:
                await self._pass(look)
            except Exception as error:  # noqa: BLE001 - the loop must outlive any store or service
                # Next to nothing but the store can fail in a pass.
                self._store_error = kind(error)
                count = self._log.due()
                if count is not None:
                    logger.warning(
                        "a pass over the shards of stream %s failed (%d time(s)): %s; trying again",
                        self._label,
                        count,
                        shown(error),
                        extra={**fields_of(error), **fields(self._stream.name)},
                    )

    async def _pass(self, look: float) -> None:
        now = self._clock.monotonic()
        for holding in list(self.holdings.values()):
            holding.tenure.expire(now)
        self.held.give_up_held()
        await self.held.end_over()
        # Who waits for others wants to know who holds what since it waits.
        waiting = self.held.waiting
        survey = await self._store.survey(
            self._stream.name, self._group, max_age=0.0 if waiting else look
        )
        self._answered, self._store_error = self._clock.monotonic(), None
        self._neighbours.look(survey, self._discovery.shards)
        leases = survey.leases
        rows = {row.key.shard_id: row for row in leases}
        # What the Rust sibling holds is left out: it knows of no replays, and would not let go.
        self._elsewhere = {
            shard_id
            for shard_id, row in rows.items()
            if row.member not in (None, self._heartbeat.member.nonce)
        }
        self.held.absent.taken_elsewhere(self._elsewhere)
        self.held.absent.keep(self._discovery.shards)
        gone = [row for row in leases if row.key.shard_id not in self.holdings]
        await self._forgetting.look(gone, self._discovery)
        finished = {
            shard_id
            for shard_id, row in rows.items()
            # One that is held may be on its way through a replay, with its row not written yet.
            if row.finished and (shard_id not in self.holdings or self.holdings[shard_id].finished)
        }
        if self._discovery.identity.doubted:
            # Nothing of a stream that may be another one; the discovery finds out, and wakes us.
            return
        self._stand_back(rows.values())
        if self._unlisted() and waiting:
            self._discovery.soon()
            waiting = set()
        self._rewinds.start_waiting(self._elsewhere, waiting)
        if self._rewinds.moving and not self._taking.first_pass:
            return  # they are taken in a moment, where they are moved to
        decision = self._sharing.decide(
            self._heartbeat.member,
            survey,
            startable(
                self._discovery.shards.values(),
                finished,
                self._elsewhere.union(self.holdings),
                rows.keys() - finished,
            ),
            self.holdings,
        )
        self._taking.mixed = decision.mixed
        for shard_id, successor in decision.hand_over.items():
            name = self._neighbours.name(successor)
            self.held.hand_over(self.holdings[shard_id], successor, name)
        wanted = [shard_id for shard_id in decision.take if not self.held.absent.has(shard_id)]
        logger.debug(
            "a pass over stream %s: %d shard(s) listed, %d held, %d to take, %d to hand over",
            self._label,
            len(self._discovery.shards),
            len(self.holdings),
            len(wanted),
            len(decision.hand_over),
            extra=fields(self._stream.name),
        )
        if self._rewinds.rule is None:
            raise RuntimeError("shards are taken only after their stream was opened")
        await self._taking.take(wanted, self._rewinds.rule, self._rewinds.look_again)

    def _unlisted(self) -> bool:
        """Whether others hold shards that are not listed here yet: what they go back to is not known.

        One that is missing in a listing that was asked for since is gone, and goes back to nothing.
        """
        discovery = self._discovery
        unknown = self._elsewhere - discovery.shards.keys()
        self._unknown = {each: self._unknown.get(each, discovery.begun) for each in unknown}
        return any(discovery.shown <= begun for begun in self._unknown.values())

    def _stand_back(self, rows: Iterable[LeaseState]) -> None:
        """Lets go of what goes back to a shard that is to be read again, whoever moved that one."""
        replayed = {
            row.key.shard_id
            for row in rows
            if row.checkpoint == SHARD_END and row.resume_from is not None
        }
        if not replayed:
            return
        for shard_id, holding in self.holdings.items():
            if not replayed.isdisjoint(ancestors([shard_id], self._discovery.shards)):
                self.held.stand_back(holding)
