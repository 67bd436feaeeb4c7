"""Who is alive, judged by watching: a row that nobody writes for its own period was left.

Invariant: no wall clock decides, neither ours nor anybody's. A row counts as left only when it had
one and the same stamp in two looks that lie its whole period apart on this process's monotonic
clock, counted from when the answer of the first was here to when the second was asked for: whatever
the network did to the answers, the row was unchanged for at least that long.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from ruststream_kinesis.leases.table import Value

__all__ = ["Look", "Sightings"]


class Look(NamedTuple):
    """One look at rows, on the monotonic clock."""

    asked: float
    answered: float


class _Sighting(NamedTuple):
    stamp: tuple[Value, ...]
    since: float


class Sightings:
    """The stamps under which rows were last seen, and since when.

    Not thread-safe: `Notebook` holds the lock.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, _Sighting] = {}

    def left(self, key: str, stamp: tuple[Value, ...], period: float, look: Look) -> bool:
        """Notes the row as it was seen, and judges it.

        Args:
            key: The row.
            stamp: What its owner changes with every write.
            period: Seconds without a write after which it is left.
            look: When it was seen.
        """
        last = self._seen.get(key)
        if last is None or last.stamp != stamp:
            self._seen[key] = _Sighting(stamp, look.answered)
            return False
        return look.asked - last.since >= period

    def forget(self, key: str) -> None:
        """The row is gone."""
        self._seen.pop(key, None)

    def keep(self, present: Container[str]) -> None:
        """Forgets all rows but these, so that shards of the past cost nothing."""
        for key in [each for each in self._seen if each not in present]:
            del self._seen[key]

    def __len__(self) -> int:
        return len(self._seen)
