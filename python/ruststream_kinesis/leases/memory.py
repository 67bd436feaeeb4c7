"""Leases in memory: the default, and right for one instance.

A restart starts anew, since nothing is written anywhere. Two applications of one process may share
a store and then share the shards.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass

from ruststream_kinesis.clock import Clock, SystemClock
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases.base import (
    LeaseKey,
    LeaseState,
    LeaseStore,
    Member,
    Opening,
    Survey,
    member_of,
    subscription_name,
    token,
)
from ruststream_kinesis.position import KinesisPosition

__all__ = ["MemoryLeaseStore"]


@dataclass(slots=True)
class _Row:
    key: LeaseKey
    owner: str | None = None
    counter: int = 0
    checkpoint: str | None = None
    resume_from: KinesisPosition | None = None
    duration: float = 0.0
    renewed: float = 0.0
    number: int = -1
    successor: str | None = None

    def live(self, now: float) -> bool:
        """Whether somebody holds it, and renewed it in time."""
        return self.owner is not None and now - self.renewed < self.duration

    def state(self, now: float) -> LeaseState:
        return LeaseState(
            self.key,
            self.owner,
            self.counter,
            self.checkpoint,
            self.resume_from,
            not self.live(now),
            self.successor,
        )


@dataclass(slots=True)
class _Beat:
    member: Member
    until: float


class MemoryLeaseStore:
    """A `LeaseStore` that lives as long as the process.

    Args:
        clock: Measures how long a lease has not been renewed; for tests.
    """

    shared: bool = False
    """It lives and ends with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._rows: dict[LeaseKey, _Row] = {}
        self._openings: dict[tuple[str, str | None], Opening] = {}
        self._beats: dict[str, _Beat] = {}
        # Renewals may come from another thread than checkpoints.
        self._lock = threading.Lock()

    async def open(self) -> None:
        """It is there."""

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """Takes a shard that is free, or whose lease ran out on this clock."""
        with self._lock:
            row = self._rows.setdefault(key, _Row(key))
            now = self._clock.monotonic()
            if row.live(now) and not (member and member_of(row.owner) == member):
                return None
            row.owner = f"{owner_id}#{token(member, secrets.token_hex(8))}"
            row.duration, row.renewed, row.number, row.successor = duration, now, -1, None
            row.counter += 1
            return row.state(now)

    async def renew(self, held: LeaseState) -> None:
        """Prolongs the lease by its duration."""
        with self._lock:
            row = self._held(held)
            row.renewed = self._clock.monotonic()
            row.counter += 1

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Stores checkpoint or position unless a later write is stored."""
        with self._lock:
            row = self._held(held)
            if self._store(row, checkpoint, resume_from, number):
                row.counter += 1

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """Frees the shard, with its final checkpoint or position."""
        with self._lock:
            row = self._rows.get(held.key)
            if row is None or row.owner != held.owner:
                return
            self._store(row, checkpoint, resume_from, number)
            row.owner, row.successor = None, successor
            row.counter += 1

    async def read(self, key: LeaseKey) -> LeaseState | None:
        """The row as it is."""
        with self._lock:
            row = self._rows.get(key)
            return None if row is None else row.state(self._clock.monotonic())

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """The rows of a stream."""
        with self._lock:
            now = self._clock.monotonic()
            return [
                row.state(now)
                for key, row in self._rows.items()
                if key.stream == stream and key.group == group
            ]

    async def survey(
        self,
        stream: str,
        group: str | None = None,
        *,
        max_age: float = 0.0,  # noqa: ARG002 - it is always fresh
    ) -> Survey:
        """The rows of a stream and the members that read it, as they are now."""
        leases = await self.leases(stream, group)
        name = subscription_name(stream, group)
        with self._lock:
            now = self._clock.monotonic()
            self._beats = {nonce: beat for nonce, beat in self._beats.items() if now < beat.until}
            members = [beat.member for beat in self._beats.values()]
        readers = sorted(
            (member for member in members if name in member.subscriptions),
            key=lambda member: member.nonce,
        )
        return Survey(tuple(leases), tuple(readers))

    async def beat(self, member: Member, *, duration: float) -> None:
        """Keeps a member alive."""
        with self._lock:
            self._beats[member.nonce] = _Beat(member, self._clock.monotonic() + duration)

    async def leave(self, nonce: str) -> None:
        """Forgets a member."""
        with self._lock:
            self._beats.pop(nonce, None)

    def renewer(self) -> LeaseStore | None:
        """Nobody outside this process looks: the main loop may renew."""
        return None

    async def close(self) -> None:
        """Nothing is open."""

    async def delete(self, key: LeaseKey) -> None:
        """Removes a row that nobody holds."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None and not row.live(self._clock.monotonic()):
                del self._rows[key]

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        """Keeps the first opening of a stream."""
        with self._lock:
            return self._openings.setdefault((stream, group), first)

    def _held(self, held: LeaseState) -> _Row:
        row = self._rows.get(held.key)
        if row is None or row.owner != held.owner:
            raise LeaseLost(
                f"the lease of {held.owner} is lost"
                + ("" if row is None else f"; it is held by {row.owner}"),
                stream=held.key.stream,
                shard_id=held.key.shard_id,
            )
        return row

    @staticmethod
    def _store(
        row: _Row, checkpoint: str | None, resume_from: KinesisPosition | None, number: int
    ) -> bool:
        if number <= row.number or (checkpoint is None and resume_from is None):
            return False
        if checkpoint is not None:
            row.checkpoint = checkpoint
        row.resume_from, row.number = resume_from, number
        return True
