"""Rewinds of shards that nobody holds: their rows say where they are read from next.

Invariants:

* Finished parents of what is replayed are written before anything else: a crash leaves a replay of
  too much, never of too little.
* A row is written under its lease alone. Where an answer is lost, it is in doubt for as long as a
  lease lives (`Absences.doubt`), and no later rewind takes its being held for somebody's reading it.
* A parent is kept, unread, where others might read it beside what is at work of its children here.
  Whose the other children are lets go of them, too, when it sees the row (`coordinator.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from ruststream_kinesis.connection import Connection
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.holding import Absences, Holding
from ruststream_kinesis.leases.base import SHARD_END, LeaseState
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.shards import ancestors
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.taking import Taking

__all__ = ["Redirecting", "Shards"]

# A replay of a stream with thousands of shards asks the store for so many rows at once.
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of this instance; the lease loop's own, as it keeps them."""

    holdings: Mapping[str, Holding]
    """Those whose lease is held, by id; until they are released."""
    taking: Collection[str]
    """Those whose lease is being asked for."""
    absent: Absences
    """Those it let go of."""

    @property
    def in_transit(self) -> list[str]:
        """Those that are being taken or let go of."""
        leaving = [name for name, holding in self.holdings.items() if not holding.live]
        return [*leaving, *self.taking]


class Redirecting:
    """Moves the rows of one subscription.

    Args:
        stream: What it reads.
        connection: Lease store, who we are.
        shards: Which are this instance's.
        discovery: What the stream lists.
        taking: Takes leases.
    """

    def __init__(
        self,
        stream: KinesisStream,
        connection: Connection,
        shards: Shards,
        discovery: Discovery,
        taking: Taking,
    ) -> None:
        self._stream = stream.name
        self._connection = connection
        self._shards = shards
        self._discovery = discovery
        self._taking = taking

    def replayed(self, rows: Iterable[LeaseState]) -> set[str]:
        """Shards that a rewind of all moves: those held, those let go of, those not opened yet."""
        rows = list(rows)
        return set(self._shards.holdings) | self._left(rows) | self._unopened(rows)

    def _left(self, rows: Iterable[LeaseState]) -> set[str]:
        """Shards that this instance let go of, or is to have, and that nobody took since.

        A shard between its owner and the one it was handed to is moved by both: whichever seeks.
        """
        absent, me = self._shards.absent, self._connection.heartbeat.member.nonce
        handed = {
            row.key.shard_id
            for row in rows
            if row.successor is not None
            and (row.successor == me or row.key.shard_id in absent.handed)
        }
        return absent.left | handed

    def _unopened(self, rows: Iterable[LeaseState]) -> set[str]:
        """Listed shards that open by the rule, and so where all are moved."""
        placed = {
            row.key.shard_id
            for row in rows
            if row.owner is not None or row.checkpoint is not None or row.resume_from is not None
        }
        return self._discovery.shards.keys() - placed

    async def move(
        self,
        rows: Collection[LeaseState],
        position: KinesisPosition,
        replayed: Iterable[str],
        written: set[str],
        rule: OpeningRule,
    ) -> str | None:
        """Moves shards that nobody holds.

        Those are finished parents, what waits for a replay, and what this instance let go of.

        Args:
            rows: What is stored.
            position: Where to.
            replayed: Shards whose parents are read again.
            written: Shards that need not be moved any more.
            rule: Where shards open.

        Returns:
            A finished parent that another instance holds, and is about to move or has moved just now;
            `None` where there is none. Its row says which before long.

        Raises:
            KinesisError: It is not known whether one of them is held.
        """
        listed, holdings = self._discovery.shards, self._shards.holdings
        ended = {row.key.shard_id for row in rows if row.checkpoint == SHARD_END}
        wanted, left = self._read_first(replayed, ended), self._left(rows)
        # Those that come first: what is behind them waits for them everywhere.
        kept = {
            shard_id
            for shard_id in ancestors(holdings, listed)
            if not any(parent in listed for parent in listed[shard_id].parents)
        }
        free = [row for row in rows if row.key.shard_id not in holdings.keys() | written]
        parents = [row.key.shard_id for row in free if row.finished and row.key.shard_id in wanted]
        others = [
            row.key.shard_id
            for row in free
            if row.resume_from is not None or (row.key.shard_id in left and not row.finished)
        ]
        gate = asyncio.Semaphore(_AT_ONCE)

        moving: list[str] = []

        async def move(shard_id: str) -> None:
            async with gate:
                free = await self._move(shard_id, position, rule if shard_id in kept else None)
            if free or shard_id in others:
                written.add(shard_id)
            else:
                moving.append(shard_id)

        for shard_ids in (parents, others):
            results = await asyncio.gather(*map(move, shard_ids), return_exceptions=True)
            # All have ended: none may write after this, over what a later seek has written.
            for error in filter(None, results):
                raise error
        return moving[0] if moving else None

    def _read_first(self, replayed: Iterable[str], ended: Container[str]) -> set[str]:
        """The ended parents of what is replayed.

        One that has not ended is moved itself, or stays where it is, and everything before it then.
        """
        listed = self._discovery.shards
        found: set[str] = set()
        todo = set(replayed)
        while todo:
            info = listed.get(todo.pop())
            for parent in () if info is None else info.parents:
                if parent in listed and parent in ended and parent not in found:
                    found.add(parent)
                    todo.add(parent)
        return found

    async def _move(
        self, shard_id: str, position: KinesisPosition, keep: OpeningRule | None
    ) -> bool:
        """Moves a shard; whether it could be had."""
        absent = self._shards.absent
        try:
            if keep is not None:
                free = await self._taking.keep(shard_id, position, keep)
            else:
                lease = await self._taking.acquire(shard_id)
                free = lease is not None
                if lease is not None:
                    store = self._connection.store
                    await store.release(lease, number=1, resume_from=position)
        except BaseException:  # cut off, too
            absent.doubt(shard_id)
            raise
        # Held by now: whoever it is reads it already. If it is somebody.
        if not free and shard_id in absent.in_doubt(LEASE_DURATION):
            raise KinesisError(
                "nothing was moved: an earlier answer of the lease store was lost, and the shard "
                f"may be leased to nobody; that ends within {LEASE_DURATION:g} s, seek again then",
                stream=self._stream,
                shard_id=shard_id,
            )
        return free
