"""How far a long command is, on a terminal: nothing of it is in what a script reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Meter", "meter"]


class Meter(Protocol):
    """Is told how far it is."""

    def records(self, more: int) -> None:
        """So many more are decided."""
        ...

    def bytes(self, more: int) -> None:
        """So many more of the input are read."""
        ...


class _Silent:
    def records(self, more: int) -> None:
        """Nobody looks."""

    def bytes(self, more: int) -> None:
        """Nobody looks."""


class _Bar:
    def __init__(self, progress: Progress, what: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total, count=0)
        self._bytes = total is not None
        self._count = 0

    def records(self, more: int) -> None:
        self._count += more
        self._progress.update(self._task, count=self._count)

    def bytes(self, more: int) -> None:
        if self._bytes:
            self._progress.advance(self._task, more)


@contextlib.contextmanager
def meter(what: str, total: int | None = None) -> Iterator[Meter]:
    """A bar on stderr where that is a terminal, gone in the end; else nothing.

    Args:
        what: Stands before it.
        total: Bytes of the input, where they are known.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Silent()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]:,} records"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, what, total)
