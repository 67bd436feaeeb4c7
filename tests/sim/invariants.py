"""What must hold at every step, whatever the schedule: checked when something happens.

* At most one owner: a delivery starts only under the shard's latest acquisition. A lease is taken
  over only after nobody renewed it for its period.
* Only the owner of a row changes its checkpoint, and a checkpoint never goes back.
* A checkpoint covers no record that is not done, and none that is open where it is written. A record
  is done when a handler said so or a copy of it is in the stream.
* A child's records are handled after its parents are `SHARD_END`.
* Per key: a record is followed by its successor, or by one that was handled before and is handled
  again. One process never handles a key twice at once.
* A release in peace covers all that was started.
* A shard that can be read is read, if somebody healthy is there to do it.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ruststream_kinesis.leases import SHARD_END
from tests.sim.kinesis import Kinesis, Record, Shard
from tests.sim.loop import Scheduler
from tests.sim.process import Process

__all__ = ["NO_ROW", "Acquisition", "Flags", "Monitor", "RowView"]

# A row may be taken when it was not written for this long.
_LEASE = 10.0
# Lease, two passes, a listing, and the time to get there.
_UNREAD = 10.0 + 2 * 3.0 + 10.0 + 4.0
# A release is in peace if nothing disturbed anybody for so long.
_PEACE = 15.0
_TRACE = 300


class RowView(NamedTuple):
    """A lease row, as far as it is watched."""

    owner: str | None
    counter: int
    checkpoint: str | None
    rewound: bool
    beat: float
    """Another value after each renewal."""


NO_ROW = RowView(None, 0, None, False, 0.0)


@dataclass(frozen=True, slots=True)
class Flags:
    """Promises that are kept once their part is built."""

    fencing: bool = True
    """A process starts nothing after its lease ran out by its own clock."""
    balance: bool = True
    """Shares are fair when it is quiet."""
    unread: bool = True
    """No shard is unread for long."""


@dataclass(slots=True, eq=False)
class Acquisition:
    """One time that a process took a shard."""

    token: str
    process: Process
    shard: Shard
    touched: float
    """When it was last renewed."""
    released: bool = False
    started: set[int] = field(default_factory=set)
    open: dict[int, Record] = field(default_factory=dict)
    """Started and not done, by sequence number."""


class Monitor:
    """Watches one world.

    Args:
        scheduler: Time, and where a failure is noted.
        kinesis: The stream.
        flags: What is promised.
    """

    def __init__(self, scheduler: Scheduler, kinesis: Kinesis, flags: Flags) -> None:
        self._scheduler = scheduler
        self._kinesis = kinesis
        self.flags = flags
        self.trace: deque[tuple[float, object, str, tuple[object, ...]]] = deque(maxlen=_TRACE)
        self.events = 0
        self.digest = 0
        self.hashing = False
        """Whether all events go into `digest`."""
        self.acquisitions: dict[str, Acquisition] = {}
        self.latest: dict[str, Acquisition] = {}
        """By shard."""
        self._mine: dict[tuple[Process, str], Acquisition] = {}
        """The last one of each process."""
        self._copying: dict[tuple[Process, int], list[tuple[Acquisition, int]]] = {}
        """Deliveries whose copies are to be published, by value."""
        self.checkpoints: dict[str, str] = {}
        self.due_from = math.inf
        """Records that arrived before the stream was first opened are nobody's duty."""
        self.opener: Process | None = None
        self.calm_since = 0.0
        self.healthy_since: float | None = None
        self.counts: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """By key: the turn of the record that was started last."""
        self._of_key: dict[str, list[Record]] = {}
        self._last_read: dict[str, float] = {}
        self._readable_since: dict[str, float] = {}

    def note(self, who: object, what: str, *details: object) -> None:
        """Keep for the trace what happened."""
        self.events += 1
        self.counts[what] = self.counts.get(what, 0) + 1
        self.trace.append((self._scheduler.now, who, what, details))
        if self.hashing:
            text = f"{self._scheduler.now!r} {who} {what} {details}"
            # Python's own hash of a text differs from run to run.
            self.digest = zlib.crc32(text.encode(), self.digest)

    def _fail(self, who: object, what: str) -> None:
        self.note(who, f"FAILED: {what}")
        self._scheduler.fail(f"{who}: {what}")

    # -- the stream --------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """A producer put a record."""
        self._of_key.setdefault(record.key, []).append(record)
        self.note("producer", "put", record.number, record.shard.shard_id, record.key, record.turn)

    def copied(self, process: Process, copy: Record) -> None:
        """A copy is in the stream: its original is done."""
        # Whichever of them this is a copy of, none before it needs to be seen again. It may have been
        # no handler that asked for it: what came too early is put off by another copy.
        for record in self._kinesis.of_value[copy.value][:-1]:
            record.done = True
        # Nor can be told which delivery asked, where it was delivered again: none is taken for open.
        for held, number in self._copying.pop((process, copy.value), ()):
            held.open.pop(number, None)

    def opened(self, process: Process) -> None:
        """An instance says that what is put from now on is read."""
        self.note(process, "opened")
        self._due()

    def opening(self, process: Process) -> None:
        """A process is told that it is the first one: it opens its shards at the tip of then."""
        self.opener = process

    def _due(self) -> None:
        """From when on records are somebody's duty: once the first one has opened, or is gone."""
        first = self.opener
        if first is None or first.opened_at is not None or not first.alive:
            self.due_from = min(self.due_from, self._kinesis.time)

    def disturbed(self, seconds: float) -> None:
        """Something is wrong for so long from now on."""
        self.calm_since = max(self.calm_since, self._scheduler.now + seconds)

    def read(self, process: Process, shard_id: str) -> None:
        """A shard is read."""
        self._last_read[shard_id] = self._scheduler.now

    def excused(self, record: Record) -> bool:
        """Whether nobody promised to handle it."""
        return record.arrival < self.due_from

    # -- rows --------------------------------------------------------------------------------------

    def row(self, process: Process, shard_id: str, before: RowView, after: RowView) -> None:
        """A row was written, or not, by a process."""
        if before == after:
            return
        held = self.acquisitions.get(before.owner) if before.owner is not None else None
        if after.owner is not None and after.owner != before.owner:
            self._taken(process, shard_id, held, after.owner)
        elif held is None or held.process is not process:
            self._fail(process, f"wrote a row of {shard_id} that {held and held.process} holds")
        elif after.beat != before.beat:
            held.touched = self._scheduler.now
        if after.checkpoint != before.checkpoint:
            self._stored(process, held, shard_id, before.checkpoint, after.checkpoint)
        if after.owner is None and held is not None:
            held.released = True
            self.note(process, "released", shard_id, after.checkpoint)
            if process.stopping and self._scheduler.now - self.calm_since > _PEACE:
                self._covers(process, held, after.checkpoint)

    def _taken(self, process: Process, shard_id: str, held: Acquisition | None, token: str) -> None:
        now = self._scheduler.now
        if held is not None and held.process is not process:
            unwritten = now - held.touched
            self.note(process, "took over", shard_id, str(held.process), round(unwritten, 3))
            if unwritten < _LEASE:
                self._fail(
                    process, f"took {shard_id} {unwritten:.3f} s after {held.process} wrote it"
                )
        else:
            self.note(process, "took", shard_id)
        taken = Acquisition(token, process, self._kinesis.shards[shard_id], now)
        self.acquisitions[token] = self.latest[shard_id] = taken
        self._mine[process, shard_id] = taken

    def _stored(
        self,
        process: Process,
        held: Acquisition | None,
        shard_id: str,
        before: str | None,
        after: str | None,
    ) -> None:
        self.note(process, "stored", shard_id, after)
        if held is None or held.process is not process:
            self._fail(process, f"stored a checkpoint of {shard_id}, which it does not hold")
            return
        if after is None or _position(after) < _position(before):
            self._fail(process, f"the checkpoint of {shard_id} went back from {before} to {after}")
            return
        self.checkpoints[shard_id] = after
        shard, position = held.shard, _position(after)
        self._advance(shard)
        rest = shard.records[shard.done] if shard.done < len(shard.records) else None
        if rest is not None and rest.number <= position:
            self._fail(process, f"{shard_id} is stored as {after}, but {rest.number} is not done")
        if position == math.inf and shard.closed_at is None:
            self._fail(process, f"{shard_id} is open and stored as finished")
        first = min(held.open, default=math.inf)
        if first <= position and first != math.inf:
            self._fail(process, f"{shard_id} is stored as {after}, but {first} is open there")
        if after == SHARD_END:
            for child in shard.children:
                self._readable(child)

    def _advance(self, shard: Shard) -> None:
        records, done = shard.records, shard.done
        while done < len(records) and (records[done].done or self.excused(records[done])):
            done += 1
        shard.done = done

    def _covers(self, process: Process, held: Acquisition, checkpoint: str | None) -> None:
        first = min(held.open, default=math.inf)
        newest = max((number for number in held.started if number < first), default=-1)
        if newest > _position(checkpoint):
            self._fail(
                process,
                f"{held.shard.shard_id} was released at {checkpoint}, but {newest} was handled: "
                "it will be handled again",
            )

    # -- deliveries --------------------------------------------------------------------------------

    def held_by(self, process: Process, shard: Shard, token: str | None) -> Acquisition | None:
        """The acquisition under which a delivery runs; the last of the process if it cannot say."""
        if token is not None:
            return self.acquisitions.get(token)
        return self._mine.get((process, shard.shard_id))

    def started(
        self, process: Process, record: Record, token: str | None, *, alone: bool = True
    ) -> Acquisition | None:
        """A handler is called.

        Args:
            process: Where.
            record: With what.
            token: The acquisition under which the record was read, where the handler can see it.
            alone: Its call is for this record only, and no other of its key.
        """
        shard = record.shard
        held = self.held_by(process, shard, token)
        self.note(process, "started", record.number, shard.shard_id, record.key, record.turn)
        if held is None:
            self._fail(process, f"handles {record.number} of {shard.shard_id}, never taken")
            return None
        if held.token in process.told:
            self._fail(process, f"starts {record.number}, and knows that {shard.shard_id} is gone")
        if self.flags.fencing and (held is not self.latest[shard.shard_id] or held.released):
            self._fail(
                process,
                f"starts {record.number} of {shard.shard_id}, which "
                f"{self.latest[shard.shard_id].process} took meanwhile",
            )
        for parent in shard.parents:
            if self.checkpoints.get(parent.shard_id) != SHARD_END:
                self._fail(process, f"starts {record.number}: parent {parent.shard_id} is not done")
        self._order(process, record)
        if alone:
            if record.key in process.running:
                self._fail(process, f"handles two records of key {record.key} at once")
            process.running[record.key] = record
        record.starts += 1
        held.started.add(record.number)
        held.open[record.number] = record
        return held

    def _order(self, process: Process, record: Record) -> None:
        if record.turn < 0:
            return
        last = self._last.get(record.key, -1)
        # Two owners at once are found above; what they do to each other's order is no news.
        if record.turn > last + 1 and self.flags.fencing:
            missed = self._of_key[record.key][record.turn - 1]
            if not self.excused(missed):
                self._fail(
                    process,
                    f"starts turn {record.turn} of key {record.key} after turn {last}",
                )
        self._last[record.key] = record.turn

    def finished(
        self, process: Process, record: Record, held: Acquisition | None, said: str
    ) -> None:
        """A handler is about to return, or to raise; what it said counts from here on."""
        process.running.pop(record.key, None)
        self.note(process, said, record.number)
        if said in ("ack", "drop"):
            record.done = True
            record.acked += 1
            if held is not None:
                held.open.pop(record.number, None)
        elif said == "copy" and held is not None:
            self._copying.setdefault((process, record.value), []).append((held, record.number))

    # -- looks from time to time -------------------------------------------------------------------

    def _readable(self, shard: Shard) -> None:
        if all(self.checkpoints.get(p.shard_id) == SHARD_END for p in shard.parents):
            self._readable_since[shard.shard_id] = self._scheduler.now

    def look(self, processes: Iterable[Process]) -> None:
        """Whether every shard that could be read is read."""
        now = self._scheduler.now
        healthy = any(
            each.alive
            and each.opened_at is not None
            and not each.stopping
            and each.disturbed_until <= now
            for each in processes
        )
        if not healthy:
            self.healthy_since = None
            return
        if self.healthy_since is None:
            self.healthy_since = now
        if self.due_from == math.inf:
            self._due()
        if not self.flags.unread:
            return
        for shard in self._kinesis.shards.values():
            since = max(
                self._last_read.get(shard.shard_id, 0.0),
                self._readable_since.get(shard.shard_id, 0.0),
                shard.listed_from,
                self.calm_since,
                self.healthy_since,
            )
            if (
                now - since > _UNREAD
                and self.checkpoints.get(shard.shard_id) != SHARD_END
                and all(self.checkpoints.get(p.shard_id) == SHARD_END for p in shard.parents)
                and not (self._held_back(shard))
            ):
                self._fail("nobody", f"{shard.shard_id} was not read for {now - since:.1f} s")

    def _held_back(self, shard: Shard) -> bool:
        """Whether everything of it was read, and only waits to be settled."""
        held = self.latest.get(shard.shard_id)
        if held is None or shard.closed_at is None or held.released:
            return False
        return bool(held.open)

    def unfinished(self) -> list[Record]:
        """Records that still have to be handled."""
        rest: list[Record] = []
        for shard in self._kinesis.shards.values():
            self._advance(shard)
            rest += [
                each
                for each in shard.records[shard.done :]
                if not each.done and not self.excused(each)
            ]
        return rest

    def told(self, last: int = 60) -> str:
        """The last events, a line each."""
        return "\n".join(
            f"{when:10.4f} {who!s:>14} {what} {' '.join(map(str, details))}"
            for when, who, what, details in list(self.trace)[-last:]
        )


def _position(checkpoint: str | None) -> float:
    if checkpoint is None:
        return -1
    return math.inf if checkpoint == SHARD_END else int(checkpoint)
