"""The holdings of one subscription, from the start of a reader to the release of the lease.

Invariants:

* A holding has one reader at most, and none after its end began.
* A shard is let go of only while no handler of it runs, be its delivery void or not, but for one that
  is lost: else the next owner might handle a key beside that handler. A parent that is read again
  waits for the handlers of its children for the same reason.
* Only the lease loop and the stop let go of a shard; whatever ends one only says so (`over`). A
  release that fails or is cut off is made up for: the shard stays among the holdings until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.counters import ReadCounters
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import KinesisError, StreamRecreated
from ruststream_kinesis.handover import LOOK, drain
from ruststream_kinesis.holding import Absences, Holding
from ruststream_kinesis.identity import is_gone
from ruststream_kinesis.shard import HeldShard
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.wording import fields, kind, shown

__all__ = ["Holdings"]

logger = logging.getLogger("ruststream_kinesis")


class Holdings:
    """The shards that are held, with what works on each.

    Args:
        label: The subscription, for the log.
        connection: Lease store, heartbeat, clock.
        channel: What is queued of a shard that ends is dropped.
        copies: What waits of a shard that ends is published early; of one that is lost, dropped.
        supervisor: Owns the tasks.
        discovery: Told when a shard ends, or the stream is not found.
        wake: Makes the next pass of the lease loop due.
    """

    def __init__(
        self,
        label: str,
        connection: Connection,
        channel: Channel,
        copies: Copies,
        supervisor: Supervisor,
        discovery: Discovery,
        wake: asyncio.Event,
    ) -> None:
        self._label = label
        self._store = connection.store
        self._heartbeat = connection.heartbeat
        self._clock = connection.clock
        self._channel = channel
        self._copies = copies
        self._supervisor = supervisor
        self._discovery = discovery
        self._wake = wake
        self.by_id: dict[str, Holding] = {}
        self.counters = ReadCounters()
        self.absent = Absences(connection.clock)
        self.released: Callable[[], None] = lambda: None
        """Called whenever a shard was released."""
        self._ending: list[HeldShard] = []
        self._leaving: set[HeldShard] = set()
        """Given up, or standing back behind their parents, while handlers of them run."""
        self._log = MinuteLog(connection.clock)
        self._blind = False
        """Nothing is read, since every lease ran out."""

    def add(self, holding: Holding) -> None:
        """Starts to read a shard whose lease was taken."""
        shard_id = holding.shard.shard_id
        self.by_id[shard_id] = holding
        # Until a read is answered, it is what it was given up for.
        holding.shard.read_error = self.absent.why.get(shard_id)
        self.absent.taken(shard_id)
        if holding.waits:
            # Nobody may wait for that: it takes as long as a handler.
            holding.shard.opened.set()
        else:
            self._start(holding)
        if self._blind:
            self._blind = False
            logger.info(
                "%s is read here again: leases can be had again",
                self._label,
                extra=fields(holding.shard.stream),
            )

    def _start(self, holding: Holding) -> None:
        holding.shard.begins()
        name = f"reader[{self._label}/{holding.shard.shard_id}]"
        holding.reader = self._supervisor.spawn(name, self._read(holding))

    async def _read(self, holding: Holding) -> None:
        """Runs a reader and notices its end, whichever it is."""
        shard = holding.shard
        try:
            await holding.reading.run()
        except StreamRecreated:
            # Ends the service: nothing that is stored means anything in the new stream.
            raise
        except KinesisError as error:
            if is_gone(error):
                self._discovery.doubt()
            logger.error(
                "shard %s of stream %s is not read any more; other shards go on, this one is tried "
                "again later: %s",
                shard.shard_id,
                self._label,
                error,
                extra=fields(shard.stream, shard.shard_id),
            )
            self.give_up(holding)
        except Exception as error:
            # A fault of ours: the shard is read anew from its checkpoint, never skipped.
            shard.read_error = kind(error)
            logger.exception(
                "the reader of shard %s failed",
                shard.shard_id,
                extra=fields(shard.stream, shard.shard_id),
            )
            self.give_up(holding)
        else:
            # Nothing is awaited from here to the end of the task: a rewind finds it at work or done.
            if shard.ended:
                # Its children are listed now, and must not wait for copies that do.
                self._discovery.soon()
            # It ended, or holds too much: either way it is let go of when nothing else is open, so
            # neither the copies that wait nor those to come may wait any longer.
            shard.unread = True
            self._copies.flush(shard)
            self.wake()

    def give_up(self, holding: Holding) -> None:
        """Ends the holding of a shard, to take it again after a back-off.

        Not while a handler of it runs: another instance may be the one that takes it.
        """
        shard = holding.shard
        if shard in self._leaving:
            return
        self.absent.add(holding)
        self._leave(holding)

    def stand_back(self, holding: Holding) -> None:
        """Ends the holding of a shard that is taken again after its parents, which are read anew.

        Nothing of it is read, and no delivery started, from now on.
        """
        if holding.live and not self._is_going(holding):
            if holding.reader is not None:
                self._supervisor.dismiss([holding.reader])
            self._leave(holding)

    def _leave(self, holding: Holding) -> None:
        """Ends a holding once no handler of it runs; what is queued is not started any more.

        There is no deadline, and the lease is renewed meanwhile.
        """
        shard = holding.shard
        self._channel.halt(shard)
        # Whoever has it next finds its tip.
        shard.opened.set()
        if self._channel.at_work(shard):
            self._leaving.add(shard)
            name = f"leaving[{shard.stream}/{shard.shard_id}]"
            self._supervisor.spawn(name, self._leaving_when_idle(holding))
        else:
            self.over(shard)

    async def _leaving_when_idle(self, holding: Holding) -> None:
        shard = holding.shard
        try:
            while holding.live and self._channel.at_work(shard):
                await self._clock.sleep(LOOK)
        finally:
            self._leaving.discard(shard)
        if holding.live:
            self.over(shard)

    @property
    def going(self) -> set[str]:
        """Ids of shards whose end was decided, and that are held still."""
        return {name for name, each in self.by_id.items() if not each.live or self._is_going(each)}

    @property
    def waiting(self) -> set[str]:
        """Ids of shards that wait to be read again."""
        return {name for name, each in self.by_id.items() if each.waits and each.replays}

    def start_waiting(self, but: Container[str], seen: Container[str]) -> None:
        """Starts the readers of those that wait.

        Args:
            but: All except these.
            seen: Those that are read again need this, too: to have been held before who holds what was
                looked at.
        """
        for shard_id, holding in self.by_id.items():
            ready = holding.waits and holding.live and not self._is_going(holding)
            if ready and shard_id not in but and (not holding.replays or shard_id in seen):
                holding.waits = False
                holding.shard.opened = asyncio.Event()
                self._start(holding)

    async def _release(self, holding: Holding) -> None:
        self.conclude(holding)
        self._copies.discard(holding.shard)
        await holding.release(self._store)
        self._heartbeat.drop(holding.tenure)
        self.by_id.pop(holding.shard.shard_id, None)
        if not holding.finished:
            gone = self.absent.left if holding.successor is None else self.absent.handed
            gone.add(holding.shard.shard_id)
        self.released()

    def conclude(self, holding: Holding) -> None:
        """Settled places count until here; what is settled from now on is void."""
        if not holding.concluded:
            # What handlers have acked by now counts.
            self._channel.catch_up()
            holding.conclude()
            self._channel.discard(holding.shard)

    def moved(self, shard: HeldShard) -> None:
        """There is something new to store of a shard."""
        holding = self.by_id.get(shard.shard_id)
        if holding is not None and holding.shard is shard:
            holding.checkpointer.moved()

    def restart(self, holding: Holding) -> None:
        """After a rewind: nothing old is delivered, and a reader that came to its end reads again."""
        shard = holding.shard
        self._discard(shard)
        if not shard.busy and self._channel.at_work(shard):
            shard.busy = True
            name = f"void-work[{shard.stream}/{shard.shard_id}]"
            self._supervisor.spawn(name, self._until_idle(shard))
        if holding.waits or self._is_going(holding):
            # It is read from there later, or by its next owner: the instant is where the tip is.
            shard.opened.set()
        elif holding.reader is not None and holding.reader.done():
            self._start(holding)

    async def _until_idle(self, shard: HeldShard) -> None:
        while not shard.lost and self._channel.at_work(shard):
            await self._clock.sleep(LOOK)
        shard.idle()

    def _is_going(self, holding: Holding) -> bool:
        """Whether the end of a holding was decided, and it is kept only for what is at work."""
        shard = holding.shard
        return holding.successor is not None or shard in self._leaving or shard in self._ending

    def wake(self) -> None:
        """Makes the next pass due now."""
        self._wake.set()

    def _discard(self, shard: HeldShard) -> None:
        """Drops what is queued, and what waits, of a shard whose deliveries became void."""
        self._channel.discard(shard)
        self._copies.discard(shard)

    def over(self, shard: HeldShard) -> None:
        """Notes that a shard is finished, lost or given up; the loop lets go of it at once."""
        if shard.lost:
            self._discard(shard)
        if shard not in self._ending:
            self._ending.append(shard)
        self.wake()

    async def end_over(self) -> None:
        """Lets go of shards that are finished, lost or given up."""
        over, self._ending = self._ending, []
        held = [self.by_id.get(shard.shard_id) for shard in over]
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
        if holding.live and not holding.finished and self._channel.at_work(shard):
            # An older delivery, which waited for its worker, was started meanwhile.
            self._leave(holding)
            return
        try:
            await self._release(holding)
        except Exception as error:  # noqa: BLE001 - a store's failures are its own
            self._ending.append(shard)
            # All of them fail together, again at each pass.
            count = self._log.due()
            if count is not None:
                logger.warning(
                    "cannot release a lease of stream %s (%d failure(s)), trying again: shard %s: %s",
                    self._label,
                    count,
                    shard.shard_id,
                    shown(error),
                    extra=fields(shard.stream, shard.shard_id),
                )
            return
        if holding.finished:
            logger.info(
                "shard %s of stream %s is finished",
                shard.shard_id,
                self._label,
                extra=fields(shard.stream, shard_id=shard.shard_id),
            )
        elif holding.successor is not None and holding.tenure.reason is None:
            logger.info(
                "shard %s of stream %s is handed over to %s",
                shard.shard_id,
                self._label,
                holding.successor_name,
                extra=fields(shard.stream, shard.shard_id),
            )

    def hand_over(self, holding: Holding, successor: str, name: str) -> None:
        """Begins to hand a shard over, unless its end began already.

        Args:
            holding: Of the shard.
            successor: Nonce of the member that is to have it.
            name: Owner id of that member, for the log.
        """
        shard = holding.shard
        if holding.waits or not holding.live or self._is_going(holding):
            return
        holding.successor, holding.successor_name = successor, name
        task = f"hand-over[{self._label}/{shard.shard_id}]"
        self._supervisor.spawn(task, self._handing_over(holding))

    async def _handing_over(self, holding: Holding) -> None:
        shard = holding.shard
        logger.info(
            "handing shard %s of stream %s over to %s",
            shard.shard_id,
            self._label,
            holding.successor_name,
            extra=fields(shard.stream, shard.shard_id),
        )
        if holding.reader is not None:
            await self._supervisor.cancel([holding.reader])
        shard.unread = True
        shard.opened.set()
        await drain(holding, self._channel, self._copies, self._clock)
        if holding.live:
            self.over(shard)

    def lost(self, shard: HeldShard, why: str) -> None:
        """The shard is another's now, or may be."""
        holding = self.by_id.get(shard.shard_id)
        if holding is None or holding.shard is not shard or shard.lost:
            return
        logger.warning(
            "shard %s of stream %s is lost: %s",
            shard.shard_id,
            self._label,
            why,
            extra=fields(shard.stream, shard.shard_id),
        )
        self.counters.leases_lost += 1
        # Not without its mark: where the row is ours still, an old rewind must not pass for the last.
        self.conclude(holding)
        self.over(shard)
        if holding.tenure.ran_out and not self._blind:
            self._blind = not any(each.live for each in self.by_id.values())
            if self._blind:
                logger.error(
                    "this instance (%s) reads NOTHING of %s any more: its leases ran out unrenewed, "
                    "because the lease store did not answer (the warnings before this say so) or "
                    "this process stood still. It asks for shards again at each pass",
                    self._heartbeat.member.owner_id,
                    self._label,
                    extra=fields(shard.stream),
                )

    def give_up_held(self) -> None:
        """Gives up shards that only hold: taken again, they are read from the first held record."""
        for holding in self.by_id.values():
            shard, reader = holding.shard, holding.reader
            # A reader that is done before the end stopped because the shard holds too many.
            if reader is None or not reader.done() or shard in self._ending:
                continue
            if holding.successor is not None or shard.busy:
                continue  # on its way already, or not at its end yet
            if shard.watermark.drained and not shard.finished and not shard.lost:
                self.give_up(holding)

    async def release_all(self) -> list[BaseException]:
        """Lets go of everything, for the stop; returns what failed."""
        results = await asyncio.gather(
            *map(self._release, list(self.by_id.values())), return_exceptions=True
        )
        return [result for result in results if isinstance(result, BaseException)]
