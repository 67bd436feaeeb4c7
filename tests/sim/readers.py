"""Who reads what: looked at from time to time.

Invariants:

* A shard that can be read is read, if somebody healthy is there to do it, and may.
* Nobody has more shards than its `max_shards`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.sim.kinesis import Shard
from tests.sim.process import Process
from tests.sim.trace import Trace

if TYPE_CHECKING:
    from tests.sim.invariants import Monitor

__all__ = ["LEASE", "Readers"]

LEASE = 10.0
"""A row may be taken when it was not written for this long."""
# Lease, two passes, a listing, and the time to get there.
_UNREAD = LEASE + 2 * 3.0 + 10.0 + 4.0


class Readers:
    """The readers of one subscription.

    Args:
        trace: Events and failures.
        monitor: Knows the shards and who has them.
    """

    def __init__(self, trace: Trace, monitor: Monitor) -> None:
        self._trace = trace
        self._monitor = monitor
        self._enough_since: float | None = None
        self._last_read: dict[str, float] = {}
        self._readable_since: dict[str, float] = {}

    def read(self, shard_id: str) -> None:
        """A shard is read."""
        self._last_read[shard_id] = self._trace.scheduler.now

    def readable(self, shard: Shard) -> None:
        """A shard can be read from now on, or is to be read again."""
        self._readable_since[shard.shard_id] = self._trace.scheduler.now

    def readable_since(self, shard: Shard) -> float:
        """Return when that was."""
        return self._readable_since.get(shard.shard_id, 0.0)

    def look(self, processes: Iterable[Process], *, enough: bool) -> None:
        """Whether every shard that could be read is read.

        Args:
            processes: All there are.
            enough: Whether they may take as many as there are.
        """
        now, monitor = self._trace.scheduler.now, self._monitor
        self._look_at_limits(now)
        healthy = [
            max(each.opened_at, each.disturbed_until)
            for each in processes
            if each.alive
            and each.opened_at is not None
            and not each.stopping
            and each.disturbed_until <= now
        ]
        if not enough or not healthy:
            self._enough_since = None
            return
        if self._enough_since is None:
            self._enough_since = now
        if not monitor.flags.unread:
            return
        for shard in monitor.readable():
            since = max(
                self._last_read.get(shard.shard_id, 0.0),
                self.readable_since(shard),
                shard.listed_from,
                self._trace.calm_since,
                self._enough_since,
                # Of one: a row of successors that crash one after the other is no reader.
                min(healthy),
            )
            if self._held_back(shard):
                # Whoever has it next takes it after this.
                self._last_read[shard.shard_id] = now
            elif now - since > _UNREAD:
                self._trace.fail(
                    "nobody", f"{shard.shard_id} was not read for {now - since:.1f} s ({monitor})"
                )

    def _look_at_limits(self, now: float) -> None:
        held: dict[Process, int] = {}
        for each in self._monitor.latest.values():
            process = each.process
            # What a seek takes to move its row is not read; a parent that is read again is begun
            # where its children were, and handed over then.
            reads = each.begins is not None or each.generation > 0
            reads = reads and each.shard.shard_id not in self._monitor.order.replaying
            mine = reads and not each.released and now - each.touched < LEASE
            if process.max_shards is not None and mine and each.token not in process.told:
                held[process] = held.get(process, 0) + 1
                if held[process] > process.max_shards:
                    self._trace.fail(process, f"has more than {process.max_shards} shards")

    def _held_back(self, shard: Shard) -> bool:
        """Whether everything of it was read, and only waits to be settled."""
        held = self._monitor.latest.get(shard.shard_id)
        if held is None or shard.closed_at is None or held.released:
            return False
        return bool(held.open)
