"""Rewinds of a subscription: which shards move, when, and what is read before them.

Invariants:

* All held shards move at one moment, in which nothing is awaited.
* A replay reads parents that are still listed before their children. A finished parent is opened
  again by its row alone: `resume_from` beside `SHARD_END` makes it unfinished, so the gate that keeps
  children behind their parents (`shards.py`) does the rest, on every instance. Parents are written
  before their children move, so that a crash leaves a replay of too much, never of too little.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from ruststream_kinesis.connection import Connection
from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.errors import KinesisError, NotConnected
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.leases.base import LeaseKey, LeaseState
from ruststream_kinesis.opening import OpeningRule
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.transport import ShardInfo, patiently

__all__ = ["Rewinds"]

logger = logging.getLogger("ruststream_kinesis")

# A replay of a stream with thousands of shards asks the store for so many rows at once.
_AT_ONCE = 32


class _Loop(Protocol):
    """The lease loop, as far as a rewind needs it."""

    def restart(self, holding: Holding) -> None: ...

    def let_go(self, holding: Holding) -> None: ...

    def wake(self) -> None: ...


class Rewinds:
    """Moves the shards of one subscription.

    Args:
        stream: Its name.
        group: The subscription's.
        connection: Transport, lease store, owner, clock.
        holdings: The shards that are held, by id; the lease loop's own.
        discovery: What the stream lists.
        loop: The lease loop.
        duration: Seconds a lease lives.
    """

    def __init__(
        self,
        stream: str,
        group: str | None,
        connection: Connection,
        holdings: Mapping[str, Holding],
        discovery: Discovery,
        loop: _Loop,
        duration: float,
    ) -> None:
        self._stream = stream
        self._group = group
        self._connection = connection
        self._store = connection.store
        self._holdings = holdings
        self._discovery = discovery
        self._loop = loop
        self._duration = duration
        self._seeking = asyncio.Lock()
        self._stopped = False
        self.rule: OpeningRule | None = None
        """Where shards open; there is none before the stream was opened."""

    @property
    def moved(self) -> bool:
        """Whether all shards were moved since the start: those without a checkpoint open there."""
        return self.rule is not None and self.rule.rewound is not None

    def stop(self) -> None:
        """Moves nothing any more."""
        self._stopped = True
        for holding in self._holdings.values():
            # Their readers end: nobody finds the tip.
            holding.shard.opened.set()

    async def seek(self, position: KinesisPosition) -> None:
        """Moves the shards that `position` speaks of; returns once that is stored."""
        if position.shard_id is not None:
            await self._seek_one(position, position.shard_id)
            return
        # One at a time: a shard that the one before let go of has its row written by then.
        async with self._seeking:
            moved = await self._seek_all(position)
            await asyncio.gather(*(holding.rewound(position) for holding in moved))

    async def _seek_one(self, position: KinesisPosition, shard_id: str) -> None:
        self._open_rule()
        holding = self._holdings.get(shard_id)
        if holding is None or not holding.live:
            raise KinesisError(
                "this instance does not hold the shard, so it cannot move it",
                stream=self._stream,
                shard_id=shard_id,
            )
        self._move(holding, position)
        logger.info("moved shard %s of stream %s to %s", shard_id, self._stream, position)
        await holding.rewound(position)

    async def _seek_all(self, position: KinesisPosition) -> list[Holding]:
        self._open_rule()
        service_time = await patiently(self._discovery.look, self._connection.clock)
        at_tip = position.kind == "latest"
        if at_tip:
            position = OpeningRule.tip(service_time)
        rows = await self._rows()
        await self._redirect(rows, position, () if at_tip else list(self._holdings))
        # The stop may have begun meanwhile. From here on nothing is awaited.
        self.rule = self._open_rule().rewind(position)
        moved = [holding for holding in self._holdings.values() if holding.live]
        for holding in moved:
            self._move(holding, position, at_tip=at_tip)
        if not at_tip:
            self._stand_back(moved)
        logger.info("moved %d shard(s) of stream %s to %s", len(moved), self._stream, position)
        self._loop.wake()
        return moved

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
        rows = await self._rows()
        finished = {row.key.shard_id for row in rows if row.finished}
        if finished.isdisjoint(_ancestors(self._holdings, self._discovery.shards)):
            return False
        owners = {holding.shard.lease.owner for holding in held}
        if any(row.owner is not None and row.owner not in owners for row in rows):
            return False
        await self._redirect(rows, start, list(self._holdings))
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
                self._loop.let_go(holding)

    async def _redirect(
        self, rows: Iterable[LeaseState], position: KinesisPosition, replayed: Iterable[str]
    ) -> None:
        """Moves shards that nobody holds: finished parents, and what waits for its replay.

        Args:
            rows: What is stored.
            position: Where to.
            replayed: Shards whose parents are read again.
        """
        wanted = _ancestors(replayed, self._discovery.shards)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def redirect(key: LeaseKey) -> None:
            async with gate:
                owner_id = self._connection.owner_id
                lease = await self._store.acquire(key, owner_id, duration=self._duration)
                # Held by now: whoever it is reads it already.
                if lease is not None:
                    await self._store.release(lease, number=1, resume_from=position)

        await asyncio.gather(
            *(
                redirect(row.key)
                for row in rows
                if row.key.shard_id not in self._holdings
                and ((row.finished and row.key.shard_id in wanted) or row.resume_from is not None)
            )
        )


def _ancestors(shard_ids: Iterable[str], listed: Mapping[str, ShardInfo]) -> set[str]:
    """Every listed shard that one of `shard_ids` goes back to."""
    found: set[str] = set()
    todo = list(shard_ids)
    while todo:
        info = listed.get(todo.pop())
        for parent in () if info is None else info.parents:
            if parent in listed and parent not in found:
                found.add(parent)
                todo.append(parent)
    return found
