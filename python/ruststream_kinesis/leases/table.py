"""What a lease store needs of a table: rows under string keys, and conditional writes.

Conditions and changes are values, not expression texts: a table in memory evaluates them by `holds`
and `apply`, DynamoDB gets them translated (`dynamo_table.py`), and the two mean the same.

Invariant, for every table: a write applies as a whole or not at all, on the row as it is at that
moment; reads are consistent, so a read that starts after a write ended sees it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

__all__ = ["Change", "Check", "Foreign", "Outcome", "Row", "Table", "Value"]


@dataclass(frozen=True, slots=True)
class Foreign:
    """An attribute of a type that no row of ours has; never written, and never equal to anything."""

    text: str


Value: TypeAlias = str | int | float | bool | tuple[str, ...] | Foreign | None
"""An attribute: S, N, BOOL, L of S, anything else, NULL."""
Row: TypeAlias = Mapping[str, Value]
"""A row without its key."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true of a row for a write to apply; a condition is all of several."""

    kind: Literal["no row", "row", "is", "absent", "absent or is", "absent or below"]
    name: str = ""
    value: Value = None

    def holds(self, row: Row | None) -> bool:
        """Whether it is true of `row`; no row is one without attributes."""
        there = row is not None and self.name in row
        stored = None if row is None else row.get(self.name)
        match self.kind:
            case "no row":
                return row is None
            case "row":
                return row is not None
            case "is":
                return there and stored == self.value
            case "absent":
                return not there
            case "absent or is":
                return not there or stored == self.value
            case "absent or below":
                return not there or _below(stored, self.value)

    @classmethod
    def same(cls, name: str, row: Row) -> Check:
        """The attribute is as it was seen in `row`."""
        return cls("is", name, row[name]) if name in row else cls("absent", name)


def _below(stored: Value, value: Value) -> bool:
    # As in DynamoDB: values of other types are not comparable, so nothing is below anything.
    numbers = isinstance(stored, int | float) and isinstance(value, int | float)
    return numbers and stored < value  # type: ignore[operator]  # both are numbers


@dataclass(frozen=True, slots=True)
class Change:
    """What a write does to a row; an attribute is named once at most."""

    set: Mapping[str, Value] = field(default_factory=dict)
    copy: Mapping[str, tuple[str, Value]] = field(default_factory=dict)
    """Target: the attribute whose value from before the write it gets, and what it gets where that
    is absent."""
    remove: Sequence[str] = ()
    count: str = "lease_counter"
    """The number that grows by one; from nothing where it is absent."""

    def apply(self, row: Row | None) -> dict[str, Value]:
        """The row after the write."""
        before = dict(row or {})
        after = {**before, **self.set}
        for target, (source, otherwise) in self.copy.items():
            after[target] = before.get(source, otherwise)
        for name in self.remove:
            after.pop(name, None)
        counted = before.get(self.count, 0)
        assert isinstance(counted, int | float)  # DynamoDB refuses to add to anything else
        after[self.count] = counted + 1
        return after


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a conditional write."""

    applied: bool
    row: Row | None
    """The row after the write; where it was not applied, the row that did not meet the condition,
    or a later one."""


class Table(Protocol):
    """The primitives. Each may raise a `LeaseTableError`, which says whether it may have applied."""

    @property
    def name(self) -> str:
        """What to call the table in messages."""
        ...

    async def open(self) -> None:
        """Makes sure that the table is there and is one for leases; once more does nothing."""
        ...

    async def close(self, *, everywhere: bool = True) -> None:
        """Ends what it has open, on this event loop or on every one; a later call opens it again."""
        ...

    async def get(self, key: str) -> Row | None:
        """The row as it is now."""
        ...

    async def update(self, key: str, change: Change, condition: Sequence[Check]) -> Outcome:
        """Changes a row, or makes it."""
        ...

    async def put(self, key: str, row: Row) -> Outcome:
        """Stores a row unless there is one."""
        ...

    async def delete(self, key: str, condition: Sequence[Check]) -> Outcome:
        """Removes a row; that there is none is up to the condition."""
        ...

    def pages(self) -> AsyncIterator[Sequence[tuple[str, Row]]]:
        """All rows with their keys, a page at a time, each page as of when it was asked for."""
        ...
