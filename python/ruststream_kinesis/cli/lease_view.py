"""A lease table as somebody sees it who only looks: whose shards are whose, and who is alive.

Whether somebody is alive is seen best by watching: a row that is written again has a living owner,
whatever anybody's clock says. What does not move while it is watched is judged by the time that its
owner wrote, which is right as far as the two clocks agree; a member's row has no such time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import KinesisError, LeaseRowError
from ruststream_kinesis.leases import rows
from ruststream_kinesis.leases.base import (
    LeaseKey,
    LeaseState,
    Member,
    Opening,
    member_of,
    owner_id_of,
)
from ruststream_kinesis.leases.table import Row

__all__ = ["LeaseLine", "LeaseView", "MemberLine", "Rows", "view"]

_MS = 1_000
# Rows are written every three seconds by who lives; a scan costs what the table holds.
_LOOK = 1.0


class Rows(Protocol):
    """Where rows are read."""

    def pages(self) -> AsyncIterator[Sequence[tuple[str, Row]]]:
        """All of them."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseLine:
    """A lease row."""

    key: LeaseKey
    state: LeaseState | None
    """`None` where the row cannot be understood; then `problem` says why."""
    owner: str | None
    """Who holds it, `owner_id#token`; `None` where it was released."""
    alive: bool
    """Somebody holds it, and renews it."""
    renewed_ago: float | None
    """Seconds since the last renewal by the owner's clock; `None` where nobody holds it, or said."""
    problem: str | None = None

    @property
    def owner_id(self) -> str | None:
        """Who holds it, without the token."""
        return None if self.owner is None else owner_id_of(self.owner)


@dataclass(frozen=True, slots=True)
class MemberLine:
    """An instance of a service."""

    member: Member
    alive: bool | None
    """`None`: it holds nothing, and was not watched for long enough."""
    shards: int
    """Leases that it holds."""


@dataclass(slots=True)
class LeaseView:
    """A table, looked at."""

    leases: dict[LeaseKey, LeaseLine] = field(default_factory=dict)
    members: dict[str, MemberLine] = field(default_factory=dict)
    """By nonce."""
    openings: dict[str, Opening] = field(default_factory=dict)
    """By subscription: `stream`, or `group/stream`."""
    problems: list[str] = field(default_factory=list)
    """Rows of other kinds that cannot be understood."""
    foreign: int = 0
    """Rows that are none of ours."""
    watched: float = 0.0
    """Seconds."""

    def subscription(self, stream: str, group: str | None) -> dict[str, LeaseLine]:
        """The leases of one subscription, by shard."""
        return {
            key.shard_id: line
            for key, line in self.leases.items()
            if key.stream == stream and key.group == group
        }


async def view(table: Rows, clock: Clock, *, wait: float = 0.0) -> LeaseView:
    """Looks at a table.

    Args:
        table: Its rows.
        clock: Time.
        wait: Seconds to watch it at most; less where every row that has an owner moves before.

    Raises:
        KinesisError: It cannot be read.
    """
    began = clock.monotonic()
    first = now = await _scan(table)
    moved: set[str] = set()
    while True:
        moved |= {key for key, row in now.items() if _counter(row) != _counter(first.get(key))}
        left = began + wait - clock.monotonic()
        if left <= 0 or all(key in moved for key, row in now.items() if _living(key, row)):
            break
        await clock.sleep(min(left, _LOOK))
        now = await _scan(table)
    seen = LeaseView(watched=clock.monotonic() - began if wait else 0.0)
    _read(seen, now, moved, clock.time())
    return seen


async def _scan(table: Rows) -> dict[str, Row]:
    return {key: row async for page in table.pages() for key, row in page}


def _counter(row: Row | None) -> object:
    return None if row is None else row.get(rows.COUNTER)


def _living(key: str, row: Row) -> bool:
    """Whether somebody is to write it again."""
    if rows.lease_key(key) is not None:
        return bool(row.get(rows.OWNER))
    return rows.member_nonce(key) is not None


def _read(seen: LeaseView, found: dict[str, Row], moved: set[str], now: float) -> None:
    members: dict[str, tuple[str, Row]] = {}
    for name in sorted(found):
        row = found[name]
        try:
            if (key := rows.lease_key(name)) is not None:
                seen.leases[key] = _lease(key, row, now, moved=name in moved)
            elif (nonce := rows.member_nonce(name)) is not None:
                members[nonce] = (name, row)
            elif name.startswith(rows.OPENING):
                seen.openings[name.removeprefix(rows.OPENING)] = rows.opening_of(name, row)[0]
            else:
                seen.foreign += 1
        except KinesisError as error:
            seen.problems.append(str(error))
    _read_members(seen, members, moved)


def _read_members(seen: LeaseView, members: dict[str, tuple[str, Row]], moved: set[str]) -> None:
    held: dict[str, list[LeaseLine]] = {}
    for line in seen.leases.values():
        if (nonce := member_of(line.owner)) is not None:
            held.setdefault(nonce, []).append(line)
    for nonce, (name, row) in members.items():
        member = rows.MemberRow(nonce, row).member()
        if member is None:
            seen.foreign += 1
            continue
        leases = held.get(nonce, [])
        alive: bool | None = name in moved or any(line.alive for line in leases)
        if not alive and not leases and seen.watched < rows.period_of(row):
            alive = None
        seen.members[nonce] = MemberLine(member, alive, sum(line.alive for line in leases))


def _lease(key: LeaseKey, row: Row, now: float, *, moved: bool) -> LeaseLine:
    lease = rows.LeaseRow(key, row)
    try:
        owner = lease.owner
        expiry, ago = row.get(rows.EXPIRY), None
        if owner is not None and isinstance(expiry, int | float):
            ago = max(0.0, now - expiry / _MS + lease.period)
        alive = owner is not None and (moved or (ago is not None and ago < lease.period))
        state = lease.state(free=not alive)
    except LeaseRowError as error:
        return LeaseLine(key, None, None, moved, None, error.message)
    return LeaseLine(key, state, owner, alive, ago)
