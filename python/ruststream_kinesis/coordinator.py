"""The lease loop of a subscription: takes leases, starts, moves and ends readers.

Invariants:

* A shard is read only while its lease is held, by one reader.
* A child is taken only after its listed parents are `SHARD_END` (`shards.py`).
* Every shard opens where it was rewound to, else at its checkpoint, else by one rule
  (`opening.py`), never at a later `LATEST`.
* Only the loop and the stop let go of a shard; whatever ends one only says so (`_shard_over`). A
  release that fails or is cut off is made up for: the shard stays among the holdings until then.
* What is taken, and what is handed over to whom, is the plan's decision (`sharing.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.checkpoints import Checkpointer
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.forgetting import Forgetting
from ruststream_kinesis.handover import drain
from ruststream_kinesis.heartbeat import LEASE_DURATION, PASS_INTERVAL
from ruststream_kinesis.holding import Absences, Holding
from ruststream_kinesis.leases.base import LeaseKey, LeaseState, subscription_name
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.rewind import Rewinds
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.shards import startable
from ruststream_kinesis.sharing import Sharing
from ruststream_kinesis.state import ShardState
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.transport import StreamInfo, patiently

__all__ = ["Coordinator", "Holding"]

logger = logging.getLogger("ruststream_kinesis")

# One look at the store serves all passes of a process that are due in the same interval; a pass that
# something woke wants to see what woke it.
_SHARED_LOOK = 0.9 * PASS_INTERVAL
_FRESH_LOOK = 0.1 * PASS_INTERVAL
# Thousands of shards start in waves: so many leases are asked for, and so many iterators, at once.
_WAVE = 32
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
        self._channel = channel
        self._copies = copies
        self._supervisor = supervisor
        self._limit = limit
        self.holdings: dict[str, Holding] = {}
        self._discovery = Discovery(stream, connection, self.wake)
        self._gate = asyncio.Semaphore(_WAVE)
        self._forgetting = Forgetting(stream.name, connection.store)
        self._absent = Absences(connection.clock)
        self._sharing = Sharing(connection.clock)
        self._heartbeat = connection.heartbeat
        self._name = subscription_name(stream.name, group)
        self._first_pass = True
        self._mixed = False
        self._wake = asyncio.Event()
        self._over: list[HeldShard] = []
        self._log = MinuteLog(self._clock)
        self._take_log = MinuteLog(self._clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._rewinds = Rewinds(
            stream.name, group, connection, self.holdings, self._discovery, self, LEASE_DURATION
        )

    async def open(self, info: StreamInfo) -> None:
        """Takes the free shards; returns once each has its iterator or has failed once.

        A record that is published after this returns is read.

        Raises:
            StreamRecreated: The checkpoints belong to an earlier stream of this name.
        """
        service_time = await patiently(self._discovery.look, self._clock)
        self._rewinds.rule = await OpeningRule.agree(
            self._store, info, self._group, service_time, self._start_at
        )
        # First of all: who looks from now on counts on us.
        await self._heartbeat.join(self._name, self._supervisor)
        await self._pass(0.0)
        if await self._rewinds.replay_parents(self._start_at):
            await self._pass(0.0)
        self._first_pass = False
        first = [holding.shard for holding in self.holdings.values()]
        name, spawn = self._stream.name, self._supervisor.spawn
        # Before the shards have opened: a slow iterator must not cost the others their leases.
        self._tasks = [
            spawn(f"coordinator[{name}]", self._run()),
            spawn(f"discovery[{name}]", self._discovery.run()),
        ]
        await asyncio.gather(*(shard.opened.wait() for shard in first))

    @property
    def shards(self) -> list[HeldShard]:
        """The shards that are held now."""
        return [holding.shard for holding in self.holdings.values()]

    @property
    def state(self) -> tuple[ShardState, ...]:
        """Those shards at this moment."""
        return tuple(shard.state for shard in self.shards)

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
            self._conclude(holding)

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
        backoff = Backoff()
        try:
            while errors := await self._release_all():
                for error in errors:
                    logger.error(
                        "cannot release a lease of stream %s: %r", self._stream.name, error
                    )
                if backoff.failures >= _RELEASE_ATTEMPTS:
                    raise errors[0]
                await self._clock.sleep(backoff.next())
        finally:
            # Whatever came of it: nobody waits for a release any more.
            for holding in self.holdings.values():
                holding.released.set()

    async def _part(self) -> None:
        """The others plan without us from here on, and wait for our leases to become free."""
        try:
            await self._heartbeat.part(self._name)
        except Exception as error:  # noqa: BLE001 - a store's failures are its own; the row runs out
            logger.warning("cannot tell the other instances that this one stops: %r", error)

    async def _release_all(self) -> list[BaseException]:
        results = await asyncio.gather(
            *map(self._release, list(self.holdings.values())), return_exceptions=True
        )
        return [result for result in results if isinstance(result, BaseException)]

    async def _run(self) -> None:
        while True:
            await wait(self._clock, PASS_INTERVAL, self._wake)
            look = _FRESH_LOOK if self._wake.is_set() else _SHARED_LOOK
            self._wake.clear()
            try:
                await self._pass(look)
            except Exception as error:  # noqa: BLE001 - the loop must outlive any store or service
                count = self._log.due()
                if count is not None:
                    logger.warning(
                        "a pass over the shards of stream %s failed (%d time(s)): %r; trying again",
                        self._stream.name,
                        count,
                        error,
                    )

    async def _pass(self, look: float) -> None:
        now = self._clock.monotonic()
        for holding in list(self.holdings.values()):
            holding.tenure.expire(now)
        self._give_up_held()
        await self._end_over()
        survey = await self._store.survey(self._stream.name, self._group, max_age=look)
        leases = survey.leases
        rows = {row.key.shard_id: row for row in leases}
        self._absent.keep(self._discovery.shards)
        gone = [row for row in leases if row.key.shard_id not in self.holdings]
        await self._forgetting.look(gone, self._discovery.shards, self._discovery.rounds)
        finished = {
            shard_id
            for shard_id, row in rows.items()
            # One that is held may be on its way through a replay, with its row not written yet.
            if row.finished and (shard_id not in self.holdings or self.holdings[shard_id].finished)
        }
        decision = self._sharing.decide(
            self._heartbeat.member,
            survey,
            startable(self._discovery.shards.values(), finished),
            self.holdings,
        )
        self._mixed = decision.mixed
        for shard_id, successor in decision.hand_over.items():
            self._hand_over(self.holdings[shard_id], successor)
        wanted = [shard_id for shard_id in decision.take if not self._absent.has(shard_id)]
        wave = asyncio.Semaphore(_WAVE)

        async def take(shard_id: str) -> None:
            async with wave:
                await self._take(shard_id)

        # One shard that cannot be taken holds up no other; it is asked for again next pass.
        for error in await asyncio.gather(*map(take, wanted), return_exceptions=True):
            if isinstance(error, Exception):
                count = self._take_log.due()
                if count is not None:
                    logger.warning(
                        "cannot take a shard of stream %s (%d failure(s)), trying again: %r",
                        self._stream.name,
                        count,
                        error,
                    )
            elif error is not None:
                raise error

    async def _take(self, shard_id: str) -> None:
        key = LeaseKey(self._stream.name, shard_id, self._group)
        sent = self._clock.monotonic()
        me = self._heartbeat.member
        lease = await self._store.acquire(
            key, me.owner_id, duration=LEASE_DURATION, member=me.nonce
        )
        if lease is None:
            return
        if lease.finished:
            await self._store.release(lease)
            return
        if self._rewinds.rule is None:
            raise RuntimeError("a shard is taken only after its stream was opened")
        lease = await self._begun(lease)
        place = self._rewinds.rule.place(lease, first_pass=self._first_pass)
        shard = HeldShard(
            lease,
            place.position,
            after=place.after,
            clock=self._clock,
            moved=self._shard_moved,
            at_tip=place.at_tip,
        )
        checkpointer = Checkpointer(
            shard, self._store, self._clock, self._supervisor, self._shard_over
        )
        reader = Reader(
            shard,
            self._stream,
            self._connection.transport,
            self._channel,
            self._clock,
            gate=self._gate,
            limit=self._limit,
        )
        tenure = self._heartbeat.hold(lease, sent, lambda why: self._lost(shard, why))
        shard.fence = tenure
        holding = self.holdings[shard_id] = Holding(shard, checkpointer, reader, sent, tenure)
        if place.moved:
            shard.resume_from = place.position
            checkpointer.moved()
        self._start(holding)
        logger.info("reading shard %s of stream %s from %s", shard_id, self._stream.name, place)

    async def _begun(self, lease: LeaseState) -> LeaseState:
        """In a mixed fleet, gives a child its checkpoint before its first record.

        The sibling opens a child without one at the tip: a child that we open, and lose before
        anything of it is settled, must be no such child.
        """
        info = self._discovery.shards.get(lease.key.shard_id)
        if (
            not self._mixed
            or lease.checkpoint is not None
            or lease.resume_from is not None
            or self._rewinds.moved
            or info is None
            or info.starting_sequence_number is None
            or not any(parent in self._discovery.shards for parent in info.parents)
        ):
            return lease
        start = info.starting_sequence_number
        await self._store.checkpoint(lease, start, number=0)
        return dataclasses.replace(lease, checkpoint=start)

    def _start(self, holding: Holding) -> None:
        name = f"reader[{self._stream.name}/{holding.shard.shard_id}]"
        holding.reader = self._supervisor.spawn(name, self._read(holding))

    async def _read(self, holding: Holding) -> None:
        """Runs a reader and notices its end, whichever it is."""
        shard = holding.shard
        try:
            await holding.reading.run()
        except KinesisError as error:
            logger.error(
                "shard %s of stream %s is not read any more; other shards go on, this one is tried "
                "again later: %s",
                shard.shard_id,
                shard.stream,
                error,
                extra={"stream": shard.stream, "shard_id": shard.shard_id},
            )
            self._give_up(holding)
        except Exception:
            # A fault of ours: the shard is read anew from its checkpoint, never skipped.
            logger.exception("the reader of shard %s failed", shard.shard_id)
            self._give_up(holding)
        else:
            # Nothing is awaited from here to the end of the task: a rewind finds it at work or done.
            if shard.ended:
                # Its children are listed now, and must not wait for copies that do.
                self._discovery.soon()
            # It ended, or holds too much: either way it is let go of when nothing else is open.
            self._copies.flush(shard)
            self.wake()

    def _give_up(self, holding: Holding) -> None:
        """Ends the holding of a shard, to take it again after a back-off."""
        self._absent.add(holding)
        self._shard_over(holding.shard)

    async def _release(self, holding: Holding) -> None:
        self._conclude(holding)
        self._copies.discard(holding.shard)
        await holding.release(self._store)
        self._heartbeat.drop(holding.tenure)
        self.holdings.pop(holding.shard.shard_id, None)

    def _conclude(self, holding: Holding) -> None:
        """Settled places count until here; what is settled from now on is void."""
        if not holding.concluded:
            holding.conclude()
            self._channel.discard(holding.shard)

    def _shard_moved(self, shard: HeldShard) -> None:
        holding = self.holdings.get(shard.shard_id)
        if holding is not None and holding.shard is shard:
            holding.checkpointer.moved()

    def restart(self, holding: Holding) -> None:
        """After a rewind: nothing old is delivered, and a reader that came to its end reads again."""
        self._discard(holding.shard)
        # One that is about to be let go is read from there when it is taken again.
        if holding.reader is None or not holding.reader.done() or holding.successor is not None:
            return
        if holding.shard not in self._over:
            self._start(holding)

    def let_go(self, holding: Holding) -> None:
        """Ends a holding at the next pass, which is due now; nothing of it counts any more."""
        self._conclude(holding)
        self._shard_over(holding.shard)

    def wake(self) -> None:
        """Makes the next pass due now."""
        self._wake.set()

    def _discard(self, shard: HeldShard) -> None:
        """Drops what is queued, and what waits, of a shard whose deliveries became void."""
        self._channel.discard(shard)
        self._copies.discard(shard)

    def _shard_over(self, shard: HeldShard) -> None:
        """Notes that a shard is finished, lost or given up; the loop lets go of it at once."""
        if shard.lost:
            self._discard(shard)
        if shard not in self._over:
            self._over.append(shard)
        self.wake()

    async def _end_over(self) -> None:
        """Lets go of shards that are finished, lost or given up."""
        over, self._over = self._over, []
        held = [self.holdings.get(shard.shard_id) for shard in over]
        await asyncio.gather(
            *(
                self._let_go(holding)
                for holding, shard in zip(held, over, strict=True)
                if holding is not None and holding.shard is shard
            )
        )

    async def _let_go(self, holding: Holding) -> None:
        shard = holding.shard
        if holding.reader is not None:
            await self._supervisor.cancel([holding.reader])
        try:
            await self._release(holding)
        except Exception as error:  # noqa: BLE001 - a store's failures are its own
            self._over.append(shard)
            logger.warning(
                "cannot release the lease of shard %s, stream %s, trying again: %r",
                shard.shard_id,
                shard.stream,
                error,
            )
            return
        if holding.finished:
            logger.info("shard %s of stream %s is finished", shard.shard_id, shard.stream)

    def _hand_over(self, holding: Holding, successor: str) -> None:
        """Begins to hand a shard over, unless its end began already."""
        shard = holding.shard
        if holding.successor is not None or not holding.live or shard in self._over:
            return
        holding.successor = successor
        name = f"hand-over[{shard.stream}/{shard.shard_id}]"
        self._supervisor.spawn(name, self._handing_over(holding))

    async def _handing_over(self, holding: Holding) -> None:
        shard = holding.shard
        logger.info(
            "handing shard %s of stream %s over to another instance", shard.shard_id, shard.stream
        )
        if holding.reader is not None:
            await self._supervisor.cancel([holding.reader])
        await drain(holding, self._channel, self._copies, self._clock)
        if holding.live:
            self._shard_over(shard)

    def _lost(self, shard: HeldShard, why: str) -> None:
        if shard.lost:
            return
        logger.warning("shard %s of stream %s is lost: %s", shard.shard_id, shard.stream, why)
        shard.lose()
        self._shard_over(shard)

    def _give_up_held(self) -> None:
        """Gives up shards that only hold: taken again, they are read from the first held record."""
        for holding in self.holdings.values():
            shard, reader = holding.shard, holding.reader
            # A reader that is done before the end stopped because the shard holds too many.
            if reader is None or not reader.done() or shard in self._over:
                continue
            if holding.successor is not None:
                continue  # on its way already
            if shard.watermark.drained and not shard.finished and not shard.lost:
                self._give_up(holding)
