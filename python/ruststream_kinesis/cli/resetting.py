"""`ruststream-kinesis checkpoint reset`: where a service that does not run reads from next.

Invariants:

* Nothing is written while an instance is alive, or while anybody holds a shard.
* A row is written under its lease alone, as a service that rewinds writes it: `resume_from` beside the
  checkpoint, which the next start reads, and whose finished parents it opens before their children.
* All leases are taken before the first row is written. A row that is not as it was shown, or cannot be
  had, is the end of it: nothing is moved then.
* Parents are written before their children: a crash leaves a replay of too much, never of too little.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ruststream_kinesis.cli.shard_pages import generations
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import ConfigurationError, KinesisError, RequestError
from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.leases.base import (
    SHARD_END,
    LeaseKey,
    LeaseState,
    LeaseStore,
    owner_id_of,
)
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.seek import unknown_record
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, Transport, judge, patiently
from ruststream_kinesis.wording import label, listing, short

__all__ = ["Move", "Plan", "Resetting"]

# A table that is asked for a thousand rows at once throttles.
_AT_ONCE = 32
# Whoever is alive renews three times in a lease's life; this much longer, a member's row is old too.
_LOOK_FOR = LEASE_DURATION + 2.0
# A clock that is off by so much says nothing about a time that was meant to be now.
_SKEW = 60.0


@dataclass(frozen=True, slots=True)
class Move:
    """One row that is to be written."""

    shard_id: str
    stored: LeaseState | None
    """What stands there; `None` where there is no row."""
    to: KinesisPosition

    @property
    def old(self) -> str:
        """Where it would be read from, for people."""
        row = self.stored
        if row is None:
            return "not opened yet"
        if row.resume_from is not None:
            return f"moved to {row.resume_from}"
        if row.checkpoint == SHARD_END:
            return "finished"
        return "opened" if row.checkpoint is None else f"after {short(row.checkpoint)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reset would do."""

    generations: tuple[tuple[Move, ...], ...]
    """Parents before children."""
    finished: tuple[str, ...]
    """Shards that stay finished: what is read next is behind them."""

    @property
    def moves(self) -> list[Move]:
        """All of them."""
        return [move for generation in self.generations for move in generation]


class Resetting:
    """Resets one subscription of a service.

    Args:
        stream: What it reads.
        group: The subscription's.
        transport: Lists the shards.
        store: Where its leases are.
        clock: Time.
    """

    def __init__(
        self,
        stream: StreamRef,
        group: str | None,
        transport: Transport,
        store: LeaseStore,
        clock: Clock,
    ) -> None:
        self._ref = stream
        self._stream = stream.name
        self._group = group
        self._label = label(stream.name, group)
        self._transport = transport
        self._store = store
        self._clock = clock
        self._owner = f"checkpoint-reset-{socket.gethostname()}-{os.getpid()}"

    async def plan(self, position: KinesisPosition) -> Plan:
        """What has to be written for the next start to read from `position`.

        Raises:
            ConfigurationError: The position is none of this stream.
            KinesisError: Stream or table cannot be looked at.
        """
        listed = await patiently(lambda: self._transport.list_shards(self._ref), self._clock)
        rows = {
            row.key.shard_id: row for row in await self._store.leases(self._stream, self._group)
        }
        ordered = [[shard.shard_id for shard in each] for each in generations(listed.shards)]
        at_tip = position.kind == "latest"
        if at_tip:
            # An instant, as wherever a service is at the tip: it means now, not the next start.
            position = OpeningRule.tip(listed.service_time)
        elif position.kind == "timestamp" and (position.when or 0.0) > listed.service_time + _SKEW:
            raise ConfigurationError(f"{position} is in the future", stream=self._stream)
        if position.shard_id is not None:
            await self._check(position, position.shard_id, [*itertools.chain(*ordered)])
            ordered = [[position.shard_id]]
        done = {name for name, row in rows.items() if at_tip and row.finished}
        moves = (
            tuple(Move(name, rows.get(name), position) for name in each if name not in done)
            for each in ordered
        )
        return Plan(
            tuple(each for each in moves if each),
            tuple(name for name in itertools.chain(*ordered) if name in done),
        )

    async def _check(
        self, position: KinesisPosition, shard_id: str, listed: Collection[str]
    ) -> None:
        """Makes sure that the shard has the record: one moved elsewhere is not read again."""
        if shard_id not in listed:
            raise ConfigurationError(
                f"the stream has no shard {shard_id} (any more)", stream=self._stream
            )
        try:
            await patiently(
                lambda: self._transport.get_shard_iterator(self._ref, shard_id, position),
                self._clock,
            )
        except RequestError as error:
            if judge(error) is not Failure.ITERATOR:
                raise
            raise unknown_record(self._stream, position) from error

    async def busy(self) -> list[str]:
        """Instances that are alive, or may be, as far as one look tells."""
        survey = await self._store.survey(self._stream, self._group)
        names = {member.owner_id for member in survey.members}
        names |= {owner_id_of(row.owner) for row in survey.leases if row.owner and not row.free}
        return sorted(names)

    async def wait_until_quiet(self, waiting: Callable[[Sequence[str]], None]) -> None:
        """Makes sure that nobody is at work.

        Who crashed left rows that look like those of who lives; only time tells them apart.

        Args:
            waiting: Told whose rows are watched, where there are some.

        Raises:
            KinesisError: Somebody is.
        """
        ends = self._clock.monotonic() + _LOOK_FOR
        busy = await self.busy()
        if busy:
            waiting(busy)
        while busy:
            if self._clock.monotonic() >= ends:
                raise KinesisError(
                    f"nothing was moved: {len(busy)} instance(s) are alive: {listing(busy)}. Stop "
                    "them first; one that crashed counts as alive until its leases have run out",
                    stream=self._stream,
                )
            await self._clock.sleep(1.0)
            busy = await self.busy()

    async def apply(self, plan: Plan) -> None:
        """Writes the rows; nobody may be at work (`wait_until_quiet`).

        Raises:
            KinesisError: A row was not as it was shown, and nothing was moved; or some of them were
                taken by somebody at the last moment, and are named.
        """
        held: dict[str, LeaseState] = {}
        try:
            await self._acquire(plan.moves, held)
        except BaseException:
            await self._let_go(plan.moves, held)
            raise
        written: list[Move] = []
        gate = asyncio.Semaphore(_AT_ONCE)

        async def write(move: Move) -> None:
            async with gate:
                await self._store.release(held[move.shard_id], number=1, resume_from=move.to)
            written.append(move)

        try:
            for generation in plan.generations:
                await _all(write(move) for move in generation)
        finally:
            left = [move for move in plan.moves if move not in written]
            await self._let_go(left, held)
        await self._confirm(plan.moves)

    async def _acquire(self, moves: Sequence[Move], held: dict[str, LeaseState]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def acquire(move: Move) -> None:
            async with gate:
                lease = await self._store.acquire(
                    self._key(move), self._owner, duration=LEASE_DURATION
                )
            if lease is not None:
                held[move.shard_id] = lease
            if lease is None or not _as_shown(move.stored, lease):
                raise KinesisError(
                    "nothing was moved: the row of the shard has changed meanwhile; look again",
                    stream=self._stream,
                    shard_id=move.shard_id,
                )

        await _all(acquire(move) for move in moves)

    async def _let_go(self, moves: Sequence[Move], held: dict[str, LeaseState]) -> None:
        """Gives back what was taken and not written; a row that was not there goes again."""

        async def give_back(move: Move) -> None:
            lease = held.get(move.shard_id)
            if lease is not None:
                await self._store.release(lease)
                if move.stored is None:
                    await self._store.delete(self._key(move))

        # Those that fail run out by themselves.
        await asyncio.gather(*map(give_back, moves), return_exceptions=True)

    async def _confirm(self, moves: Sequence[Move]) -> None:
        """A release does not say so where its lease was lost: the rows do."""
        rows = {
            row.key.shard_id: row for row in await self._store.leases(self._stream, self._group)
        }
        missing = [
            move.shard_id
            for move in moves
            if (row := rows.get(move.shard_id)) is None or row.resume_from != move.to
        ]
        if missing:
            raise KinesisError(
                f"{len(missing)} shard(s) were taken by somebody at the last moment and may not be "
                f"moved: {listing(missing)}; look again",
                stream=self._stream,
            )

    def _key(self, move: Move) -> LeaseKey:
        return LeaseKey(self._stream, move.shard_id, self._group)


def _as_shown(shown: LeaseState | None, taken: LeaseState) -> bool:
    """Whether nobody wrote the row since; taking it was one write."""
    if shown is None:
        return taken.checkpoint is None and taken.resume_from is None
    return taken.counter == shown.counter + 1


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Waits for all of them, and raises the first failure then: none may write after that."""
    for error in await asyncio.gather(*calls, return_exceptions=True):
        if error is not None:
            raise error
