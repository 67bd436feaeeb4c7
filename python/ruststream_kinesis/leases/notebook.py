"""What a process knows of a lease table: sightings, the last scan, and what it wrote since.

Invariants:

* A row that was written through this notebook never looks older than that write: what the write's
  answer said is put over the last scan, and over a scan that was on its way meanwhile.
* After a write that may or may not have been applied, the last scan is not used again.
* Every look at a row, by whatever call, is a sighting.

The renewal thread shares the notebook of the main loop, so that its beats and renewals are known
there; a lock guards every step. None of them waits for anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from ruststream_kinesis.errors import LeaseRowError
from ruststream_kinesis.leases.base import (
    LeaseKey,
    LeaseState,
    Member,
    Survey,
    subscription_name,
)
from ruststream_kinesis.leases.rows import (
    DEFAULT_PERIOD,
    LeaseRow,
    MemberRow,
    key_kind,
    lease_key,
    member_key,
    member_nonce,
    period_of,
)
from ruststream_kinesis.leases.sightings import Look, Sightings
from ruststream_kinesis.leases.table import Row
from ruststream_kinesis.wording import fields_of

__all__ = ["Notebook", "Scan"]

logger = logging.getLogger("ruststream_kinesis")

# A member that was silent for so many of its periods does not come back: its row is removed.
_BURIED = 30
# A table that is full of other things is named by the first few of them.
_MOST_KINDS = 20


@dataclass(slots=True)
class Scan:
    """One scan of the whole table, while and after it is made."""

    asked: float
    """When it began, on the monotonic clock."""
    begun: int
    """How many writes were noted before."""
    leases: dict[str, dict[str, LeaseState]] = field(default_factory=dict)
    """By subscription and row key."""
    members: dict[str, Member] = field(default_factory=dict)
    """Those alive, by nonce."""
    buried: list[MemberRow] = field(default_factory=list)
    """Rows of members that are long gone."""
    present: set[str] = field(default_factory=set)
    """Every key of ours."""

    def put(self, state: LeaseState) -> None:
        """Notes a lease, unless a later state of it is known."""
        key = state.key
        self.put_as(subscription_name(key.stream, key.group), key.row, state)

    def put_as(self, name: str, key: str, state: LeaseState) -> None:
        """The same, where the names of its subscription and of its row are at hand."""
        rows = self.leases.get(name)
        if rows is None:
            rows = self.leases[name] = {}
        known = rows.get(key)
        if known is None or known.counter <= state.counter:
            rows[key] = state

    def drop(self, key: str) -> None:
        """Notes that a row is gone."""
        for rows in self.leases.values():
            rows.pop(key, None)
        nonce = member_nonce(key)
        if nonce is not None:
            self.members.pop(nonce, None)

    def survey(self, name: str) -> Survey:
        """What it says of one subscription."""
        rows = self.leases.get(name, {})
        readers = (each for each in self.members.values() if name in each.subscriptions)
        return Survey(
            tuple(rows[key] for key in sorted(rows)),
            tuple(sorted(readers, key=lambda member: member.nonce)),
        )


@dataclass(slots=True)
class _Known:
    """A lease row that was seen before: its names, and what it said last.

    A table of a thousand shards is read every three seconds on the event loop, so what is the same in
    every scan is worked out once.
    """

    key: LeaseKey
    name: str
    """Of its subscription."""
    last: LeaseState | None = None


class Notebook:
    """Shared by the stores of a process on one table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sightings = Sightings()
        self._known: dict[str, _Known] = {}
        """Lease rows, by key."""
        self._last: Scan | None = None
        self._scans = 0
        """Scans on their way."""
        self._noted = 0
        """Writes noted so far."""
        self._doubted = 0
        """As `_noted`, at the last write whose outcome is not known."""
        self._since: list[tuple[int, str, LeaseState | Member | None]] = []
        """What was written while scans are on their way; `None`: removed."""
        self._periods: dict[str, float] = {}
        self._unheard: dict[str, str] = {}
        self._kinds: set[str] = set()
        self._unreadable: dict[str, str] = {}

    # -- single rows -------------------------------------------------------------------------------

    def lease(self, key: LeaseKey, row: Row, look: Look, *, written: bool = False) -> LeaseState:
        """Notes a lease row that was read or written.

        Raises:
            LeaseRowError: It cannot be understood.
        """
        with self._lock:
            state = self._judged(key.row, LeaseRow(key, row), look)
            if written:
                self._note(key.row, state)
            if self._last is not None:
                self._last.put(state)
            return state

    def member(self, nonce: str, row: Row, look: Look) -> None:
        """Notes a member's row that was written."""
        with self._lock:
            found = MemberRow(nonce, row)
            key, member = member_key(nonce), found.member()
            self._sightings.left(key, (found.counter,), period_of(found.row), look)
            if member is not None:
                self._note(key, member)
                if self._last is not None:
                    self._last.members[nonce] = member

    def now(self) -> int:
        """How many writes were noted so far."""
        with self._lock:
            return self._noted

    def gone(self, key: str, *, since: int | None = None) -> None:
        """Notes that there is no such row any more, so no scan from before may show it.

        Args:
            key: The row.
            since: What `now` said before the row was looked for and not found: it may have been
                written in the meantime. `None`: it was removed by this very process.
        """
        with self._lock:
            self._sightings.forget(key)
            if since is None or since == self._noted:
                self._note(key, None)
                if self._last is not None:
                    self._last.drop(key)

    def doubt(self) -> None:
        """Notes that a write may have been applied, or may yet be."""
        with self._lock:
            self._noted += 1
            self._doubted = self._noted
            self._last = None

    def _note(self, key: str, what: LeaseState | Member | None) -> None:
        self._noted += 1
        if self._scans:
            self._since.append((self._noted, key, what))

    def _judged(
        self, key: str, lease: LeaseRow, look: Look, last: LeaseState | None = None
    ) -> LeaseState:
        owner = lease.owner
        left = self._sightings.left(key, (owner, lease.counter), period_of(lease.row), look)
        return lease.state(free=owner is None or left, last=last)

    # -- what is held ------------------------------------------------------------------------------

    def hold(self, key: str, owner: str, period: float) -> None:
        """Keeps for how long each renewal of an acquisition of this row prolongs it."""
        with self._lock:
            self._periods[owner] = period
            self._unheard.pop(key, None)

    def period(self, owner: str | None) -> float:
        """Seconds that a renewal of this acquisition prolongs it."""
        with self._lock:
            return self._periods.get(owner or "", DEFAULT_PERIOD)

    def let_go(self, owner: str | None) -> None:
        """The acquisition is over."""
        with self._lock:
            self._periods.pop(owner or "", None)

    def unheard(self, key: str, owner: str) -> None:
        """An acquisition failed that may have been applied all the same: nobody was given it."""
        with self._lock:
            self._unheard[key] = owner

    def is_unheard(self, key: str, owner: str | None) -> bool:
        """Whether this acquisition is one that nobody was given."""
        with self._lock:
            return owner is not None and self._unheard.get(key) == owner

    # -- scans -------------------------------------------------------------------------------------

    def begin(self, asked: float) -> Scan:
        """A scan that is to be made; `finish` or `abandon` it."""
        with self._lock:
            self._scans += 1
            return Scan(asked, self._noted)

    def page(self, scan: Scan, rows: Iterable[tuple[str, Row]], look: Look) -> None:
        """Notes a page of a scan."""
        with self._lock:
            for key, row in rows:
                self._row(scan, key, row, look)

    def _row(self, scan: Scan, key: str, row: Row, look: Look) -> None:
        known = self._known.get(key)
        if known is None and (lease := lease_key(key)) is not None:
            name = subscription_name(lease.stream, lease.group)
            known = self._known[key] = _Known(lease, name)
        if known is not None:
            scan.present.add(key)
            try:
                known.last = self._judged(key, LeaseRow(known.key, row), look, known.last)
            except LeaseRowError as error:
                # One row that cannot be understood costs its own shard, and no other.
                self._tell(key, error)
            else:
                scan.put_as(known.name, key, known.last)
        elif (nonce := member_nonce(key)) is not None:
            scan.present.add(key)
            self._member(scan, MemberRow(nonce, row), look)
        elif (kind := key_kind(key)) is not None:
            self._tell_kind(kind, key)

    def _member(self, scan: Scan, found: MemberRow, look: Look) -> None:
        key, stamp, period = member_key(found.nonce), (found.counter,), period_of(found.row)
        member = found.member()
        if member is None:
            return
        if not self._sightings.left(key, stamp, period, look):
            scan.members[found.nonce] = member
        elif self._sightings.left(key, stamp, _BURIED * period, look):
            scan.buried.append(found)

    def _tell_kind(self, kind: str, key: str) -> None:
        if kind in self._kinds or len(self._kinds) == _MOST_KINDS:
            return
        self._kinds.add(kind)
        logger.warning(
            "the lease table holds rows that are not ours, and are left alone: %s, for example %r",
            kind,
            key,
        )

    def _tell(self, key: str, error: LeaseRowError) -> None:
        if self._unreadable.get(key) != error.message:
            self._unreadable[key] = error.message
            logger.error("%s", error, extra=fields_of(error))

    def finish(self, scan: Scan) -> None:
        """The scan is whole: it gets what was written while it was made, and is the last one."""
        with self._lock:
            for number, key, what in self._since:
                if number <= scan.begun:
                    continue
                scan.present.add(key)
                match what:
                    case LeaseState():
                        scan.put(what)
                    case Member():
                        scan.members[what.nonce] = what
                    case None:
                        scan.drop(key)
            self._sightings.keep(scan.present)
            for key in [each for each in self._known if each not in scan.present]:
                del self._known[key]
            for key in [each for each in self._unheard if each not in scan.present]:
                del self._unheard[key]
            self._unreadable = {
                key: said for key, said in self._unreadable.items() if key in scan.present
            }
            newest = self._last is None or self._last.asked <= scan.asked
            if newest and self._doubted <= scan.begun:
                self._last = scan
            self._end()

    def abandon(self) -> None:
        """A scan came to nothing."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._scans -= 1
        if not self._scans:
            self._since.clear()

    def view(self, name: str, since: float) -> Survey | None:
        """What is known of a subscription from a scan no older than `since`; `None`: too little."""
        with self._lock:
            if self._last is None or self._last.asked < since:
                return None
            return self._last.survey(name)

    def survey(self, scan: Scan, name: str) -> Survey:
        """What `scan` says of a subscription, or a later one that is whole by now."""
        with self._lock:
            later = self._last is not None and self._last.asked >= scan.asked
            return (self._last if later and self._last is not None else scan).survey(name)

    @property
    def size(self) -> tuple[int, int]:
        """Sightings and noted writes kept: both bounded by the rows that there are."""
        with self._lock:
            return len(self._sightings), len(self._since)
