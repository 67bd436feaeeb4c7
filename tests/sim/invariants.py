"""What must hold at every step, whatever the schedule: checked when something happens.

* At most one owner: a delivery starts only under the shard's latest acquisition. A lease is taken
  over only after nobody renewed it for its period. Nobody has more shards than its `max_shards`.
* Only the owner of a row changes its checkpoint, and a checkpoint never goes back, but to where a
  seek moved the shard. No row forgets that before something from there on is settled.
* A checkpoint covers no record that is not done, and none that is open where it is written. A record
  is done when a handler said so and its reply, where it has one, is in the stream; or when its copy,
  or its dead letter, is (`outgoing.py`). Each subscription has to do it by itself (`duties.py`).
* Where a shard opens is where its row says, or where a seek of its new owner went.
* The order of keys: `tenures.py`, within one shard and owner; `order.py`, over all of them. One
  process never handles a key twice at once; nor do two, where nothing was wrong for a while.
* A release in peace covers all that was started.
* A shard that can be read is read, if somebody healthy is there to do it.

What is not known, and not asked: between a seek to the tip and its return, which of the records of
the shards that it moves are read (any of them may be passed over); a crash of its instance ends that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis.leases import SHARD_END
from tests.sim.duties import Duties
from tests.sim.kinesis import Kinesis, Record, Shard
from tests.sim.order import Order
from tests.sim.outgoing import Outgoing
from tests.sim.process import Process
from tests.sim.readers import LEASE, Readers
from tests.sim.tenures import Acquisition, Delivery, RowView
from tests.sim.trace import Trace
from tests.sim.work import Work

__all__ = ["Flags", "Monitor"]

# A release is in peace if nothing disturbed anybody for so long.
_PEACE = 15.0


@dataclass(frozen=True, slots=True)
class Flags:
    """Promises that are kept once their part is built."""

    fencing: bool = True
    """A process starts nothing after its lease ran out by its own clock."""
    balance: bool = True
    """Shares are fair when it is quiet."""
    unread: bool = True
    """No shard is unread for long."""


class Monitor:
    """Watches one subscription.

    Args:
        trace: Events and failures.
        kinesis: The stream.
        flags: What is promised.
        group: The subscription's.
    """

    def __init__(self, trace: Trace, kinesis: Kinesis, flags: Flags, group: str | None) -> None:
        self._trace = trace
        self._scheduler = trace.scheduler
        self._kinesis = kinesis
        self.flags = flags
        self.group = group
        self.duties = Duties(kinesis)
        self.order = Order(self.duties, self.finished_shard)
        self.outgoing = Outgoing(trace, kinesis, self._done, self._passed)
        self.acquisitions: dict[str, Acquisition] = {}
        self.latest: dict[str, Acquisition] = {}
        """By shard."""
        self._mine: dict[tuple[Process, str], Acquisition] = {}
        """The last one of each process."""
        self.checkpoints: dict[str, str] = {}
        self.resumes: dict[str, str] = {}
        self._work = Work(trace)
        self.again = 0
        """Deliveries of records that somebody was done with."""
        self._seeking_since: dict[Process, float] = {}
        self.readers = Readers(trace, self)

    def __repr__(self) -> str:
        return "" if self.group is None else self.group

    def _note(self, who: object, what: str, *details: object) -> None:
        self._trace.note(who, what, *details, *(() if self.group is None else (self.group,)))

    def _fail(self, who: object, what: str) -> None:
        self._trace.fail(who, f"{what} ({self.group})" if self.group else what)

    # -- the stream --------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """A record is in the stream."""
        if record.turn >= 0:
            self.order.put(record)
        held = self.latest.get(record.shard.shard_id)
        if held is not None and held.to_tip and held.process.alive and not held.released:
            self.duties.skip(record)

    def finished_shard(self, shard: Shard) -> bool:
        """Whether it was read to its end, and not moved since."""
        shard_id = shard.shard_id
        return self.checkpoints.get(shard_id) == SHARD_END and shard_id not in self.resumes

    def readable(self) -> list[Shard]:
        """Shards that somebody should read now: nothing before them is read, or to be read again."""
        return [
            shard
            for shard in self._kinesis.shards.values()
            if not self.finished_shard(shard) and self._all_before(shard)
        ]

    def _all_before(self, shard: Shard) -> bool:
        return all(self.finished_shard(each) and self._all_before(each) for each in shard.parents)

    # -- rows --------------------------------------------------------------------------------------

    def row(
        self,
        process: Process,
        shard_id: str,
        before: RowView,
        after: RowView,
        generation: int | None,
    ) -> None:
        """A row was written, or not, by a process.

        Args:
            process: Whose request it was.
            shard_id: Of which shard.
            before: What it said.
            after: What it says.
            generation: Of the shard when the write was asked for, where it has something to store.
        """
        if before == after:
            return
        held = self.acquisitions.get(before.owner) if before.owner is not None else None
        if after.owner is not None and after.owner != before.owner:
            self._taken(process, shard_id, held, after)
        elif held is None or held.process is not process:
            self._fail(process, f"wrote a row of {shard_id} that {held and held.process} holds")
        elif after.beat != before.beat:
            held.touched = self._scheduler.now
        present = held is not None and generation == held.generation
        if held is not None and after.resume is not None and generation is not None:
            self._resumes(process, held, before, after.resume, present=present)
        elif (
            after.checkpoint != before.checkpoint
            or (before.resume and not after.resume)
            # What was handled again since it was moved may be just what was stored before.
            or (present and held is not None and held.unstored)
        ):
            self._stored(process, held, shard_id, before, after, present=present)
        if after.owner is None and held is not None:
            held.released = True
            self._note(process, "released", shard_id, after.checkpoint, after.resume or "")
            if held.unstored not in (None, after.resume):
                self._fail(process, f"released {shard_id} and forgot where it was moved")
            if process.stopping and self._trace.calm_for(_PEACE):
                self._covers(process, held, after.checkpoint)

    def _taken(
        self, process: Process, shard_id: str, held: Acquisition | None, row: RowView
    ) -> None:
        now = self._scheduler.now
        if held is not None and held.process is not process:
            unwritten = now - held.touched
            self._note(process, "took over", shard_id, str(held.process), round(unwritten, 3))
            if unwritten < LEASE:
                self._fail(
                    process, f"took {shard_id} {unwritten:.3f} s after {held.process} wrote it"
                )
        else:
            self._note(process, "took", shard_id)
        token = row.owner
        assert token is not None
        taken = Acquisition(token, process, self._kinesis.shards[shard_id], now, row)
        before = self.latest.get(shard_id)
        if before is not None and before.unstored is not None:
            # Whoever moved it died before that was stored: it goes on as if it had not been moved.
            self.order.in_step(before.shard)
        for each in self.latest.values():
            # The same of one that nobody takes: the write of an earlier move said that it is finished.
            if each.unstored and not each.process.alive and self.finished_shard(each.shard):
                each.unstored = None
                self.order.in_step(each.shard)
        if before is not None and before.superseded is not None and shard_id in self.resumes:
            self.duties.again(before.shard, before.superseded, before.done)
        self.acquisitions[token] = self.latest[shard_id] = taken
        self._mine[process, shard_id] = taken

    def _resumes(
        self,
        process: Process,
        held: Acquisition,
        before: RowView,
        resume: str,
        *,
        present: bool,
    ) -> None:
        """A row says from now on where its shard was moved."""
        shard = held.shard
        self._note(process, "resumes", shard.shard_id, resume)
        was_finished = self.finished_shard(shard)
        self.resumes[shard.shard_id] = resume
        index = self._kinesis.index(shard.shard_id, KinesisPosition.from_text(resume))
        if not present:
            # A later move goes on from elsewhere: it counts if that is never stored (`_taken`).
            held.superseded = index
        elif not (held.begins is None and held.generation):
            # At the tip, what comes between the instant that is stored and the tip is left as it is.
            self.duties.again(shard, index, held.done)
        self.duties.skip_before(shard, index)
        if present:
            held.unstored = held.superseded = None
        self.readers.readable(shard)
        if was_finished:
            self.order.replays(shard)
        self.order.moved(shard, index)

    def _stored(
        self,
        process: Process,
        held: Acquisition | None,
        shard_id: str,
        before: RowView,
        row: RowView,
        *,
        present: bool,
    ) -> None:
        after = row.checkpoint
        self._note(process, "stored", shard_id, after)
        if held is None or held.process is not process:
            self._fail(process, f"stored a checkpoint of {shard_id}, which it does not hold")
            return
        moved = before.resume is not None
        if present and held.unstored:
            held.unstored, moved = None, True
            if held.begins is not None:
                self.duties.again(held.shard, held.begins, held.done)
        if after is None or (_position(after) < _position(before.checkpoint) and not moved):
            self._fail(
                process,
                f"the checkpoint of {shard_id} went back from {before.checkpoint} to {after}",
            )
            return
        self.checkpoints[shard_id] = after
        self.resumes.pop(shard_id, None)
        held.superseded = None
        shard, position = held.shard, _position(after)
        rest = self.duties.first_open(shard)
        if rest is not None and rest.number <= position:
            self._fail(process, f"{shard_id} is stored as {after}, but {rest.number} is not done")
        if position == math.inf and shard.closed_at is None:
            self._fail(process, f"{shard_id} is open and stored as finished")
        first = min(held.open, default=math.inf)
        if first <= position and first != math.inf and present:
            self._fail(process, f"{shard_id} is stored as {after}, but {first} is open there")
        if after == SHARD_END:
            self.order.finished(self._kinesis.shards)
            todo = list(shard.children)
            while todo:
                later = todo.pop()
                todo += later.children
                if self._all_before(later):
                    self.readers.readable(later)

    def _covers(self, process: Process, held: Acquisition, checkpoint: str | None) -> None:
        first = min(held.open, default=math.inf)
        newest = max((number for number in held.started if number < first), default=-1)
        if newest > _position(checkpoint):
            self._fail(
                process,
                f"{held.shard.shard_id} was released at {checkpoint}, but {newest} was handled: "
                "it will be handled again",
            )

    # -- what the process does with what it took -----------------------------------------------------

    def opens(self, token: str | None, position: KinesisPosition, *, after: bool) -> None:
        """A shard is opened, not moved."""
        held = self.acquisitions.get(token or "")
        if held is None:
            self._fail(token, "opens a shard, but its row is another subscription's")
            return
        shard_id = held.shard.shard_id
        resume, checkpoint = held.row.resume, held.row.checkpoint
        if held is self.latest[shard_id]:
            # Its own process may have written since.
            resume, checkpoint = self.resumes.get(shard_id), self.checkpoints.get(shard_id)
        expected = resume
        if expected is None and checkpoint is not None:
            expected = f"sequence:{shard_id}:{checkpoint}"
        if expected is not None and (position.to_text() != expected or after != (resume is None)):
            self._fail(held.process, f"opens {shard_id} at {position}, and its row says {expected}")
        held.begins = self._kinesis.index(shard_id, position, after=after)

    def moves(
        self, token: str | None, position: KinesisPosition, *, to_tip: bool, opening: bool = False
    ) -> None:
        """A shard is moved, or opened elsewhere; what was delivered of it before is void."""
        held = self.acquisitions.get(token or "")
        if held is None:
            self._fail(token, "moves a shard, but its row is another subscription's")
            return
        shard = held.shard
        if position.kind in ("horizon", "timestamp") and not to_tip and not opening:
            self._replays(held.process, shard)
        self._note(
            held.process, "moves", shard.shard_id, "the tip" if to_tip else position.to_text()
        )
        index = self._kinesis.index(shard.shard_id, position)
        held.moved(position.to_text(), index, to_tip=to_tip, by_seek=not opening)
        passed = len(shard.records) if to_tip else index
        self.duties.skip_before(shard, passed)
        self.order.moved(shard, passed)

    def _replays(self, process: Process, shard: Shard) -> None:
        """A shard is replayed: so are those that it goes back to."""
        since = self._seeking_since.get(process, math.inf)
        for parent in shard.parents:
            resumed = self.readers.readable_since(parent)
            # Moved by the same seek a moment ago, and its row is about to say so.
            mine = self._mine.get((process, parent.shard_id))
            moved = mine is not None and mine.unstored is not None and not mine.released
            if self.finished_shard(parent) and resumed < since and not moved:
                self._fail(process, f"replays {shard.shard_id} without {parent.shard_id}")
            self._replays(process, parent)

    def seeks(self, process: Process) -> None:
        """A process begins to seek, and no other seek of it is under way."""
        self._seeking_since[process] = self._scheduler.now

    def sought(self, process: Process, *, done: bool) -> None:
        """The last seek that was on its way in a process has returned; `done`: without an error."""
        for held in self.latest.values():
            if held.process is process and not held.released:
                held.to_tip = False
                due = done and held.by_seek
                if due and held.unstored is not None and held.token not in process.told:
                    self._kept(process, held)

    def _kept(self, process: Process, held: Acquisition) -> None:
        """A seek has returned whose position was not written: the row has to say so already."""
        shard_id, stored = held.shard.shard_id, self.checkpoints.get(held.shard.shard_id)
        if stored is not None and stored.isdecimal() and int(stored) in held.done:
            # A write from before the seek says by chance what is handled since: there is nothing to add.
            stored_since = shard_id not in self.resumes
        elif stored == SHARD_END and held.begins is not None and shard_id not in self.resumes:
            # So does one that says it is finished, where nothing is left from there on.
            rest = held.shard.records[held.begins :]
            stored_since = all(record.number in held.done for record in rest)
        else:
            stored_since = False
        if self.resumes.get(shard_id) != held.unstored and not stored_since:
            self._fail(process, f"a seek returned, and {shard_id} forgets it")
        elif held.begins is not None:
            self.duties.again(held.shard, held.begins, held.done)
        held.unstored = None

    # -- deliveries --------------------------------------------------------------------------------

    def started(
        self, process: Process, record: Record, token: str | None, *, alone: bool = True
    ) -> Delivery | None:
        """A handler is called.

        Args:
            process: Where.
            record: With what.
            token: The acquisition under which the record was read, where the handler can see it.
            alone: Its call is for this record only, and no other of its key.
        """
        shard = record.shard
        shard_id = shard.shard_id
        if token is None:
            held = self._mine.get((process, shard_id))
        else:
            held = self.acquisitions.get(token)
        self._note(process, "started", record.number, shard_id, record.key, record.turn)
        if held is None:
            self._fail(process, f"handles {record.number} of {shard_id}, never taken")
            return None
        if held.token in process.told:
            self._fail(process, f"starts {record.number}, and knows that {shard_id} is gone")
        if self.flags.fencing and (held is not self.latest[shard_id] or held.released):
            self._fail(
                process,
                f"starts {record.number} of {shard_id}, which "
                f"{self.latest[shard_id].process} took meanwhile",
            )
        for wrong in (self.order.started(record), held.deliver(record)):
            # Two owners at once are found above; what they do to each other's order is no news.
            if wrong is not None and self.flags.fencing:
                self._fail(process, f"{shard_id}, {record.number}: {wrong}")
        self.again += self.duties.done(record)
        delivery = Delivery(record, held, held.generation)
        if alone and (wrong := self._work.begins(delivery)) is not None:
            self._fail(process, wrong)
        # Where handlers are slow, what was read long ago keeps the reader waiting.
        self.readers.read(shard_id)
        held.started.add(record.number)
        held.open[record.number] = record
        return delivery

    def finished(self, process: Process, deliveries: Iterable[Delivery | None], said: str) -> None:
        """A handler is about to return, or to raise; what it said counts from here on."""
        known = [each for each in deliveries if each is not None]
        for each in known:
            self._work.ends(each)
            self._note(process, said, each.record.number)
            if said in ("ack", "drop", "give up"):
                self._done(each)
            elif said in ("copy", "retry"):
                self.outgoing.asked("copy", each.record.value, [each])
            elif said == "bury":
                self.outgoing.asked("dead letter", each.record.number, [each])
        if said == "reply":
            self.outgoing.asked("reply", tuple(each.record.number for each in known), known)

    def _done(self, delivery: Delivery) -> None:
        if not delivery.void:
            number = delivery.record.number
            self.duties.finish(delivery.record)
            delivery.held.done.add(number)
            delivery.held.open.pop(number, None)

    def _passed(self, process: Process, record: Record) -> None:
        self.duties.finish(record)
        held = self._mine.get((process, record.shard.shard_id))
        if held is not None:
            held.done.add(record.number)


def _position(checkpoint: str | None) -> float:
    if checkpoint is None:
        return -1
    return math.inf if checkpoint == SHARD_END else int(checkpoint)
