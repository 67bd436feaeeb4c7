"""The order of keys over all shards and owners of a subscription.

Invariants:

* A record is followed by its successor, or by one that was handled before and is handled again, or by
  one before which everything was passed over by a seek.
* A child's records are handled after its parents are `SHARD_END`.

* While a parent is read again, nothing of what goes back to it is.

A seek moves the shards of one instance, and the parents of those; siblings that others hold go on until
their owners see that, *beside* a replay that has not begun. Of such a shard the first two promises above
are not asked, until the parents are finished again or it is moved itself. What is read of it under one
acquisition is in order all the same (`tenures.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tests.sim.duties import Duties
from tests.sim.kinesis import Record, Shard

__all__ = ["Order"]


class Order:
    """The keys of one subscription.

    Args:
        duties: What was passed over.
        finished: Whether a shard is.
    """

    def __init__(self, duties: Duties, finished: Callable[[Shard], bool]) -> None:
        self._duties = duties
        self._finished = finished
        self._originals: dict[str, list[Record]] = {}
        self._last: dict[str, int] = {}
        """By key: the turn of the record that was started last."""
        self._reached: dict[tuple[str, str], int] = {}
        """By shard and key: the highest turn that was started."""
        self.beside: set[str] = set()
        """Shards whose parents are to be read again."""
        self.replaying: dict[str, bool] = {}
        """Those parents that are not finished again, and whether their replay has begun."""

    def put(self, record: Record) -> None:
        """A producer put a record."""
        self._originals.setdefault(record.key, []).append(record)

    def started(self, record: Record) -> str | None:
        """Note that a handler is called; what is wrong with it, if something is."""
        shard, key, turn = record.shard, record.key, record.turn
        beside = shard.shard_id in self.beside
        if shard.shard_id in self.replaying:
            self.replaying[shard.shard_id] = True
        if beside:
            if (replayed := self._under_way(shard)) is not None:
                return f"starts {record.number} beside the replay of {replayed}"
        else:
            for parent in shard.parents:
                if not self._finished(parent):
                    return f"starts {record.number}: parent {parent.shard_id} is not done"
        if turn < 0:
            return None
        last = self._last.get(key, -1)
        self._last[key] = max(last, turn) if beside else turn
        place = shard.shard_id, key
        self._reached[place] = max(turn, self._reached.get(place, -1))
        if turn > last + 1 and not beside:
            missed = self._originals[key][turn - 1]
            if self._duties.excused(missed):
                return None
            return f"starts turn {turn} of key {key} after turn {last}"
        return None

    def replays(self, shard: Shard) -> None:
        """A finished shard is to be read again."""
        self.replaying.setdefault(shard.shard_id, False)
        todo = list(shard.children)
        while todo:
            child = todo.pop()
            self.beside.add(child.shard_id)
            todo += child.children

    def finished(self, shards: dict[str, Shard]) -> None:
        """A shard is finished: some may be beside no replay any more."""
        for shard_id in [each for each in self.replaying if self._finished(shards[each])]:
            del self.replaying[shard_id]
        for shard_id in sorted(self.beside):
            if not self._replayed(shards[shard_id]):
                self.in_step(shards[shard_id])

    def _replayed(self, shard: Shard) -> bool:
        """Whether one that it goes back to is not finished."""
        return any(not self._finished(each) or self._replayed(each) for each in shard.parents)

    def _under_way(self, shard: Shard) -> str | None:
        """One that it goes back to, and that is being read again."""
        for parent in shard.parents:
            if self.replaying.get(parent.shard_id):
                return parent.shard_id
            if (further := self._under_way(parent)) is not None:
                return further
        return None

    def in_step(self, shard: Shard) -> None:
        """It goes on where it was, whatever was read of it again."""
        self.beside.discard(shard.shard_id)
        for key in shard.lines:
            reached = self._reached.get((shard.shard_id, key), -1)
            self._last[key] = max(reached, self._last.get(key, -1))

    def moved(self, shard: Shard, index: int) -> None:
        """A shard is read from there on: it is in step with its parents, and may pass over some."""
        if shard.shard_id in self.beside and not self._replayed(shard):
            self.in_step(shard)
        for key, line in shard.lines.items():
            before = bisect_left(line, index, key=lambda each: each.index)
            passed = next((r.turn for r in reversed(line[:before]) if r.turn >= 0), -1)
            self._last[key] = max(passed, self._last.get(key, -1))
