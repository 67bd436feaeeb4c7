"""Which records a subscription owes somebody, and which are done.

Whoever seeks decides anew: what lies from the new position on is owed again, and what lies before it
and was not done is owed to nobody. The first counts from when the position is stored (a crash before
that forgets it), the second from when the instance moves.
"""

from __future__ import annotations

import math
from collections.abc import Container

from tests.sim.kinesis import Kinesis, Record, Shard

__all__ = ["Duties"]


class Duties:
    """The records of one subscription.

    Args:
        kinesis: The stream.
    """

    def __init__(self, kinesis: Kinesis) -> None:
        self._kinesis = kinesis
        self._due_from = math.inf
        self._done: set[int] = set()
        self._skipped: set[int] = set()
        self._front: dict[str, int] = {}
        """So many records of a shard, from the first on, are done."""

    def opened(self) -> None:
        """An instance says that what is put from now on is read."""
        self._due_from = min(self._due_from, self._kinesis.time)

    def excused(self, record: Record) -> bool:
        """Whether nobody promised to handle it."""
        return record.arrival < self._due_from or record.number in self._skipped

    def finish(self, record: Record) -> None:
        """Nothing is lost if nobody ever sees it again."""
        self._done.add(record.number)

    def done(self, record: Record) -> bool:
        """Whether somebody was done with it."""
        return record.number in self._done

    def skip(self, record: Record) -> None:
        """It was passed over on purpose."""
        if record.number not in self._done:
            self._skipped.add(record.number)

    def skip_before(self, shard: Shard, index: int) -> None:
        """The shard was moved there: what was not done before is passed over."""
        for record in shard.records[self._front.get(shard.shard_id, 0) : index]:
            self.skip(record)

    def again(self, shard: Shard, index: int, kept: Container[int]) -> None:
        """The shard was moved there, which is stored: all from there on is owed again.

        Args:
            shard: Which.
            index: Of its first record that is owed.
            kept: Records that were done since it was moved.
        """
        for record in shard.records[index:]:
            self._skipped.discard(record.number)
            if record.number not in kept:
                self._done.discard(record.number)
        front = self._front.get(shard.shard_id, 0)
        self._front[shard.shard_id] = min(front, index)

    def first_open(self, shard: Shard) -> Record | None:
        """The first record of a shard that is owed and not done."""
        records, done = shard.records, self._front.get(shard.shard_id, 0)
        while done < len(records) and (
            records[done].number in self._done or self.excused(records[done])
        ):
            done += 1
        self._front[shard.shard_id] = done
        return records[done] if done < len(records) else None

    def last_due(self, shard: Shard) -> Record | None:
        """The last record of a shard that is owed."""
        return next((each for each in reversed(shard.records) if not self.excused(each)), None)

    def unfinished(self) -> list[Record]:
        """Records that still have to be handled."""
        rest: list[Record] = []
        for shard in self._kinesis.shards.values():
            first = self.first_open(shard)
            if first is not None:
                rest += [
                    each
                    for each in shard.records[first.index :]
                    if each.number not in self._done and not self.excused(each)
                ]
        return rest
