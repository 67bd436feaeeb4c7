"""Tables for people and JSON for programs.

On a terminal a table has the terminal's width, and what does not fit is folded or cut with an ellipsis. Through
a pipe it is as wide as it needs to be, with nothing cut and no lines drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

__all__ = ["console", "duration", "print_json", "print_table", "table"]

# Wider than any row; a pipe has no width of its own.
_ENDLESS = 10_000
_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def console() -> Console:
    """Standard output, for tables: names and numbers stay as they are, whatever they look like."""
    width = None if sys.stdout.isatty() else _ENDLESS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    folded: Collection[str] = (),
) -> Table:
    """A table.

    Args:
        columns: Their names.
        rows: A text for each.
        right: The columns of numbers.
        folded: Those that take several lines where the terminal is narrow, before others are cut.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        side: Literal["left", "right"] = "right" if name in right else "left"
        fold = name in folded
        made.add_column(
            name, justify=side, no_wrap=not fold, overflow="fold" if fold else "ellipsis"
        )
    for row in rows:
        made.add_row(*row)
    return made


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    folded: Collection[str] = (),
) -> None:
    """Prints a table, or nothing but its header where there is no row."""
    out, made = console(), table(columns, rows, right=right, folded=folded)
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as text:
        out.print(made)
    # The last column is padded, too.
    for line in text.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(value: Any) -> None:
    """One JSON document on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def duration(ms: float) -> str:
    """A duration that is read at a glance: its two largest units at most."""
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < _MINUTE - _SECOND / 20:  # what is not rounded up to 60.0
        return f"{ms / _SECOND:.1f} s"
    for unit, name, smaller, its_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", _SECOND, "s"),
    ):
        if ms >= unit or unit == _MINUTE:
            whole, rest = divmod(max(ms, unit), unit)
            return f"{whole:.0f} {name} {rest // smaller:.0f} {its_name}"
    raise AssertionError("unreachable: a minute is the least of them")
