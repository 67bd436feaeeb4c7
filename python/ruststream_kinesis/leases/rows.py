"""The rows of a lease table: what stands where, and how it is read. No I/O.

Lease rows are shared with the Rust sibling, which knows `lease_key`, `lease_owner`, `lease_expiry`,
`lease_counter` and `checkpoint`, and ignores and keeps everything else. Whatever we write must keep
the meaning of those five to it: the owner is absent where the lease is free, and while it is held
the expiry lies in the future.

Reading is lenient in what decides nothing, and strict in what does: a checkpoint or a position that
cannot be understood is an error that names row and value, never "no checkpoint", since the shard
would be read from a wrong place.

| key | row |
| --- | --- |
| `stream:shard`, `group/stream:shard` | a lease |
| `member/<nonce>` | an instance of a service |
| `opening/<subscription>` | when a stream was first opened |

Neither a stream's name nor a group holds `/` or `:`, so no key of one kind is one of another.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from ruststream_kinesis.errors import ConfigurationError, LeaseRowError
from ruststream_kinesis.leases.base import (
    SHARD_END,
    LeaseKey,
    LeaseState,
    Member,
    Opening,
    subscription_name,
)
from ruststream_kinesis.leases.table import Change, Check, Row, Value
from ruststream_kinesis.position import KinesisPosition

__all__ = [
    "COUNTER",
    "DEFAULT_PERIOD",
    "EXPIRY",
    "KEY",
    "OPENING",
    "OWNER",
    "LeaseRow",
    "MemberRow",
    "acquired",
    "beaten",
    "held_by",
    "key_kind",
    "lease_key",
    "member_key",
    "member_nonce",
    "newer_than_stored",
    "opening_key",
    "opening_of",
    "opening_row",
    "period_of",
    "released",
    "renewed",
    "stored",
]

KEY = "lease_key"
"""The table's partition key, and its only one."""
OWNER = "lease_owner"
EXPIRY = "lease_expiry"
COUNTER = "lease_counter"
CHECKPOINT = "checkpoint"
# Our own attributes, which the sibling ignores.
PERIOD = "lease_ms"
NUMBER = "checkpoint_number"
SUCCESSOR = "successor"
RESUME = "resume_from"
RESUME_BESIDE = "resume_beside"
_OWNER_ID = "owner_id"
_SUBSCRIPTIONS = "subscriptions"
_MAX_SHARDS = "max_shards"
_INSTANT = "opening_instant"
_CREATED = "stream_created"
_MARK = "opened_by"

DEFAULT_PERIOD = 10.0
# Nobody's lease lives longer; a row that says so would keep its shard from everybody for good.
_LONGEST = 3600.0
"""Seconds that a lease lives whose row does not say so: the sibling's."""
# In `resume_beside` where there was no checkpoint: no checkpoint looks like it.
_NO_CHECKPOINT = "-"
# `stream:shard` with a group before it, or without.
_LEASE = re.compile(r"(?:([^/:]+)/)?([a-zA-Z0-9_.-]{1,128}):([a-zA-Z0-9_.-]{1,128})", re.ASCII)
_MEMBER = "member/"
OPENING = "opening/"
_BARE_SHARD = re.compile(r"shardId-[0-9]+", re.ASCII)


# -- keys ------------------------------------------------------------------------------------------


def lease_key(key: str) -> LeaseKey | None:
    """The shard that a row is of; `None` for a row of another kind."""
    match = _LEASE.fullmatch(key)
    return None if match is None else LeaseKey(match[2], match[3], match[1])


def member_key(nonce: str) -> str:
    """The key of a member's row."""
    return _MEMBER + nonce


def member_nonce(key: str) -> str | None:
    """The member that a row is of; `None` for a row of another kind."""
    return key.removeprefix(_MEMBER) if key.startswith(_MEMBER) else None


def opening_key(stream: str, group: str | None) -> str:
    """The key of the row that keeps an opening."""
    return OPENING + subscription_name(stream, group)


def key_kind(key: str) -> str | None:
    """What to call a row that is not ours in a warning; `None` for one that is."""
    if lease_key(key) is not None or key.startswith((_MEMBER, OPENING)):
        return None
    if _BARE_SHARD.fullmatch(key):
        return "shardId-… (a shard without its stream, as early versions of the Rust crate wrote)"
    prefix = re.split(r"[/:]", key, maxsplit=1)
    return f"{prefix[0]}{key[len(prefix[0])]}…" if len(prefix) > 1 else "without a '/' or ':'"


# -- leases ----------------------------------------------------------------------------------------


class LeaseRow(NamedTuple):
    """A lease row, as far as it decides anything."""

    key: LeaseKey
    row: Row

    @property
    def owner(self) -> str | None:
        """Who holds it, or held it until its lease ran out; `None` where it was released."""
        # Absent, empty, or a null: writers differ in how they take a name away.
        owner = self.row.get(OWNER)
        if owner is None or isinstance(owner, str):
            return owner or None
        raise self._unreadable(OWNER, "is no text")

    @property
    def counter(self) -> int:
        """How often it was written."""
        counter = self.row.get(COUNTER, 0)
        if isinstance(counter, bool) or not isinstance(counter, int):
            raise self._unreadable(COUNTER, "is no whole number")
        return counter

    @property
    def period(self) -> float:
        """Seconds that its lease lives without a renewal."""
        return period_of(self.row)

    @property
    def number(self) -> int:
        """The number of the last checkpoint write of this acquisition."""
        number = self.row.get(NUMBER)
        return number if isinstance(number, int) else -1

    @property
    def as_seen(self) -> list[Check]:
        """Nobody wrote the row since: owner and counter are those that were watched."""
        return [Check("row"), Check.same(OWNER, self.row), Check.same(COUNTER, self.row)]

    def state(self, *, free: bool, last: LeaseState | None = None) -> LeaseState:
        """What it says.

        Args:
            free: Whether it may be taken.
            last: What it said when it was last read: a checkpoint that was understood then is not
                looked at again, since most rows of a scan have the same one as in the scan before.

        Raises:
            LeaseRowError: It cannot be understood.
        """
        row = self.row
        successor, known = row.get(SUCCESSOR), None if last is None else last.checkpoint
        same = known is not None and row.get(CHECKPOINT) == known
        checkpoint = known if same else self._checkpoint()
        return LeaseState(
            self.key,
            self.owner,
            self.counter,
            checkpoint,
            self._resume_from() if RESUME in row else None,
            free,
            successor if isinstance(successor, str) and successor else None,
        )

    def _checkpoint(self) -> str | None:
        checkpoint = self.row.get(CHECKPOINT)
        if CHECKPOINT not in self.row or checkpoint == SHARD_END:
            return None if checkpoint is None else SHARD_END
        try:
            # Refuses what is no sequence number; what is one comes back as it was.
            return KinesisPosition.sequence(self.key.shard_id, checkpoint).sequence_number  # type: ignore[arg-type]  # checked there
        except ConfigurationError as error:
            raise self._unreadable(
                CHECKPOINT, f"is neither a sequence number nor {SHARD_END}"
            ) from (error)

    def _resume_from(self) -> KinesisPosition | None:
        """A stored position, unless a checkpoint was written since by whomever."""
        text = self.row.get(RESUME)
        beside = self.row.get(RESUME_BESIDE)
        if text is None or beside != self.row.get(CHECKPOINT, _NO_CHECKPOINT):
            return None
        try:
            return KinesisPosition.from_text(str(text))
        except ConfigurationError as error:
            raise self._unreadable(RESUME, "is no position that this version knows") from error

    def _unreadable(self, name: str, what: str) -> LeaseRowError:
        return LeaseRowError(
            f"row {self.key.row!r} of the lease table cannot be understood: {name} "
            f"{self.row.get(name)!r} {what}. The shard is not read: correct the attribute, or "
            "delete the row, which forgets how far the shard was",
            stream=self.key.stream,
            shard_id=self.key.shard_id,
        )


def period_of(row: Row) -> float:
    """Seconds until a row that nobody writes counts as left, lease or member."""
    period = row.get(PERIOD)
    if isinstance(period, bool) or not isinstance(period, int | float):
        return DEFAULT_PERIOD
    if not 0 < period <= _LONGEST * 1000:
        return DEFAULT_PERIOD
    return period / 1000


def acquired(owner: str, duration: float, now: float) -> Change:
    """A lease that is taken.

    Args:
        owner: `owner_id#token`.
        duration: Seconds it lives without a renewal.
        now: Wall clock, for the sibling.
    """
    return Change(
        set={OWNER: owner, PERIOD: _milliseconds(duration), EXPIRY: _expiry(now, duration)},
        remove=(NUMBER, SUCCESSOR),
    )


def renewed(duration: float, now: float) -> Change:
    """A lease that is prolonged."""
    return Change(set={EXPIRY: _expiry(now, duration)})


def stored(
    checkpoint: str | None,
    resume_from: KinesisPosition | None,
    number: int,
    *,
    until: tuple[float, float] | None,
) -> Change:
    """A checkpoint or position that is written.

    Args:
        checkpoint: As in `LeaseStore.checkpoint`, like the next two.
        resume_from: As above.
        number: As above.
        until: Now on the wall clock and the lease's period, where the lease is prolonged with it;
            `None` where it is given up in the same write.
    """
    to_set: dict[str, Value] = {}
    copy: dict[str, tuple[str, Value]] = {}
    remove: list[str] = []
    if checkpoint is not None:
        to_set[CHECKPOINT] = checkpoint
    if resume_from is None:
        remove += [RESUME, RESUME_BESIDE]
    else:
        to_set[RESUME] = resume_from.to_text()
        if checkpoint is None:
            copy[RESUME_BESIDE] = (CHECKPOINT, _NO_CHECKPOINT)
        else:
            to_set[RESUME_BESIDE] = checkpoint
    if until is None:
        return Change(to_set, copy, remove)
    return Change({**to_set, NUMBER: number, EXPIRY: _expiry(*until)}, copy, remove)


def released(final: Change | None, successor: str | None) -> Change:
    """A lease that is given up, with what `stored` made of its end in the same write."""
    final = final or Change()
    gone = [*final.remove, OWNER, EXPIRY, NUMBER]
    if successor is None:
        return Change(final.set, final.copy, [*gone, SUCCESSOR])
    return Change({**final.set, SUCCESSOR: successor}, final.copy, gone)


def held_by(owner: str | None) -> Check:
    """The row still belongs to this acquisition."""
    return Check("is", OWNER, owner)


def newer_than_stored(number: int) -> Check:
    """No later checkpoint of this acquisition is stored."""
    return Check("absent or below", NUMBER, number)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _expiry(now: float, duration: float) -> int:
    return _milliseconds(now + duration)


# -- members ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member's row, as far as it decides anything."""

    nonce: str
    row: Row

    @property
    def counter(self) -> Value:
        """How often it was written."""
        return self.row.get(COUNTER)

    @property
    def as_seen(self) -> list[Check]:
        """Nobody wrote the row since."""
        return [Check("row"), Check.same(COUNTER, self.row)]

    def member(self) -> Member | None:
        """Who it is; `None` where the row is not one of ours."""
        owner_id, subscriptions = self.row.get(_OWNER_ID), self.row.get(_SUBSCRIPTIONS)
        if (
            not isinstance(owner_id, str)
            or not isinstance(subscriptions, tuple)
            or not isinstance(self.counter, int)
        ):
            return None
        most = self.row.get(_MAX_SHARDS)
        return Member(
            self.nonce,
            owner_id,
            tuple(sorted(subscriptions)),
            most if isinstance(most, int) else None,
        )


def beaten(member: Member, duration: float) -> tuple[Change, list[Check]]:
    """A member that is kept alive, and the condition: the row is its own or nobody's."""
    to_set: dict[str, Value] = {
        _OWNER_ID: member.owner_id,
        _SUBSCRIPTIONS: tuple(sorted(member.subscriptions)),
        PERIOD: _milliseconds(duration),
    }
    remove = []
    if member.max_shards is None:
        remove.append(_MAX_SHARDS)
    else:
        to_set[_MAX_SHARDS] = member.max_shards
    return Change(to_set, remove=remove), [Check("absent or is", _OWNER_ID, member.owner_id)]


# -- openings --------------------------------------------------------------------------------------


def opening_row(opening: Opening, mark: str) -> Row:
    """The row of an opening.

    Args:
        opening: When, and which stream.
        mark: Made anew by everybody who tries: the row tells who was the first.
    """
    row: dict[str, Value] = {_INSTANT: opening.instant, _MARK: mark}
    if opening.created is not None:
        row[_CREATED] = opening.created
    return row


def opening_of(key: str, row: Row) -> tuple[Opening, str | None]:
    """The opening that a row keeps, and the mark of who stored it.

    Raises:
        LeaseRowError: It cannot be understood.
    """
    instant, created, mark = row.get(_INSTANT), row.get(_CREATED), row.get(_MARK)
    for name, value in ((_INSTANT, instant), (_CREATED, 0 if created is None else created)):
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
            or value < 0
        ):
            raise LeaseRowError(
                f"row {key!r} of the lease table cannot be understood: {name} {value!r} is no time. "
                "Delete it: the next start then opens anew what has no checkpoint",
                stream=key.rpartition("/")[2],
            )
    assert isinstance(instant, int | float)  # just seen
    assert created is None or isinstance(created, int | float)  # as above
    return (
        Opening(float(instant), None if created is None else float(created)),
        mark if isinstance(mark, str) else None,
    )
