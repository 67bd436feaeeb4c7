"""What watches a fleet: a monitor for each subscription, and the trace that they share."""

from __future__ import annotations

from ruststream_kinesis.stream import StreamRef
from tests.sim.invariants import Flags, Monitor
from tests.sim.kinesis import STREAM, Kinesis, Record
from tests.sim.process import Process
from tests.sim.trace import Trace

__all__ = ["ARN", "GROUP", "Fleet"]

ARN = f"arn:aws:kinesis:eu-west-1:123456789012:stream/{STREAM}"
"""How the second subscription names the stream."""
GROUP = "second"


class Fleet:
    """Watches one world.

    Args:
        trace: Events and failures.
        kinesis: The stream.
        flags: What is promised.
        groups: Of the subscriptions.
    """

    def __init__(
        self, trace: Trace, kinesis: Kinesis, flags: Flags, groups: tuple[str | None, ...]
    ) -> None:
        self.trace = trace
        self.flags = flags
        self.monitors = {group: Monitor(trace, kinesis, flags, group) for group in groups}

    @property
    def all(self) -> list[Monitor]:
        """All monitors."""
        return list(self.monitors.values())

    def monitor_of(self, stream: StreamRef) -> Monitor:
        """The one of the subscription that speaks of a stream in this way."""
        if stream.name == STREAM:
            return self.monitors[None if stream.arn is None else GROUP]
        return self.monitors[stream.name.partition(".")[2] or None]

    def put(self, record: Record) -> None:
        """A record is in the stream."""
        self.trace.note(
            "producer" if record.turn >= 0 else "copy",
            "put",
            record.number,
            record.shard.shard_id,
            record.key,
            record.turn,
        )
        for monitor in self.monitors.values():
            monitor.put(record)

    def opened(self, process: Process) -> None:
        """An instance says that what is put from now on is read."""
        self.trace.note(process, "opened")
        for monitor in self.monitors.values():
            monitor.duties.opened()

    def unfinished(self) -> list[Record]:
        """Records that somebody still has to handle."""
        return [each for monitor in self.all for each in monitor.duties.unfinished()]
