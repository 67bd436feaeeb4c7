"""Acquisitions of shards, and what is read under each.

Invariant, checked at each delivery: under one acquisition, from one position to the next to which it
is moved, the records of a key come in the order in which they stand in the shard, each once, from the
first at that position on. Left out may be only what came early and is put off without a handler.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.kinesis import Record, Shard
from tests.sim.process import Process

__all__ = ["NO_ROW", "Acquisition", "Delivery", "RowView"]


class RowView(NamedTuple):
    """A lease row, as far as it is watched."""

    owner: str | None
    counter: int
    checkpoint: str | None
    resume: str | None
    """Where a rewind moved the shard, while that counts."""
    beat: float
    """Another value after each renewal."""


NO_ROW = RowView(None, 0, None, None, 0.0)


@dataclass(slots=True, eq=False)
class Acquisition:
    """One time that a process took a shard."""

    token: str
    process: Process
    shard: Shard
    touched: float
    """When it was last renewed."""
    row: RowView = NO_ROW
    """What it found."""
    released: bool = False
    given_up: bool = False
    """Its process knew that it was over before it was released."""
    generation: int = 0
    """How often it was moved."""
    begins: int | None = None
    """Index of the first record to be read; `None`: at the tip, or not known yet."""
    to_tip: bool = False
    """It was moved to the tip, which is found at some moment before the seek returns."""
    unstored: str | None = None
    """Where it was moved, until its row says so."""
    superseded: int | None = None
    """Where an earlier move began that its row says still, and that a later one replaced."""
    by_seek: bool = False
    """A seek moved it, while it was held."""
    done: set[int] = field(default_factory=set)
    """Since it was moved."""
    started: set[int] = field(default_factory=set)
    open: dict[int, Record] = field(default_factory=dict)
    """Started and not done, by sequence number."""
    _next: dict[str, int] = field(default_factory=dict)
    """By key: the place in its line that is to be delivered next."""

    def moved(self, position: str, begins: int, *, to_tip: bool, by_seek: bool) -> None:
        """Its shard is read anew from there; nothing delivered so far counts any more."""
        self.generation += 1
        self.begins = None if to_tip else begins
        self.to_tip = to_tip
        self.unstored = position
        self.by_seek = by_seek
        self.done, self.started = set(), set()
        self.open.clear()
        self._next.clear()

    def deliver(self, record: Record) -> str | None:
        """Note that a record comes; what is wrong with its place, if something is."""
        line = record.shard.lines[record.key]
        place = bisect_left(line, record.index, key=_index)
        expected = self._next.get(record.key)
        if expected is None:
            begins = self.begins
            expected = place if begins is None else bisect_left(line, begins, key=_index)
        self._next[record.key] = place + 1
        if place < expected:
            return f"comes again or too early, {line[expected - 1].number} did already"
        left_out = [each.number for each in line[expected:place] if not each.early]
        return f"leaves out {left_out}" if left_out else None


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One call of a handler with one record."""

    record: Record
    held: Acquisition
    generation: int

    @property
    def void(self) -> bool:
        """Its shard was moved meanwhile: what becomes of it changes nothing."""
        return self.generation != self.held.generation


def _index(record: Record) -> int:
    return record.index
