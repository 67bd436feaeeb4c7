"""What is handled at this moment, in all processes.

Invariants: a process handles one record of a key at a time; nor do two processes handle a key at once,
where nothing was wrong for a while. (One that sleeps or is cut off in a handler goes on in it.)
"""

from __future__ import annotations

from tests.sim.tenures import Delivery
from tests.sim.trace import Trace

__all__ = ["Work"]

# So long nothing was wrong: a lease, and what it takes to notice.
_PEACE = 15.0


class Work:
    """The handlers of one subscription.

    Args:
        trace: When it was last calm.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._running: dict[str, list[Delivery]] = {}
        """By key, of all processes."""

    def begins(self, delivery: Delivery) -> str | None:
        """Note that a handler is called; what is wrong with that, if something is."""
        record, process = delivery.record, delivery.held.process
        running, wrong = self._running.setdefault(record.key, []), None
        for other in running:
            them = other.held.process
            if them is process:
                wrong = f"handles two records of key {record.key} at once"
            elif them.alive and self._trace.calm_for(_PEACE):
                at = other.record.number
                wrong = f"handles {record.number} of key {record.key}, and {them} is at {at}"
        running.append(delivery)
        return wrong

    def ends(self, delivery: Delivery) -> None:
        """Note that it returns; nothing, if it was called with other records as well."""
        running = self._running.get(delivery.record.key, [])
        if delivery in running:
            running.remove(delivery)
