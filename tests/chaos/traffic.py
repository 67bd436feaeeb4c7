"""What is put and what is handled, while it happens and as a story afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

from tests.chaos.book import Acquired, Book, Fault, Handled, Line, Put, Released
from tests.chaos.checks import Story
from tests.chaos.fleet import ChaosError, Fleet, Process, until

L = TypeVar("L", Acquired, Fault, Handled, Put, Released)

QUIET_TIMEOUT = 60.0
"""Seconds until all is handled after the last record was put: a lease, and what it held back."""
_EXIT_TIMEOUT = 10.0


class Traffic:
    """A producer at work, and what became of its records.

    Args:
        fleet: Whose services handle them; one of them has to be reading.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._producer = fleet.spawn("producer", "producer")
        self.handled = 0
        self.open: set[tuple[str, int]] = set()
        """Acknowledged and not handled."""
        self._seen: set[tuple[str, int]] = set()
        self._lines: dict[str, int] = {}

    def update(self) -> None:
        """Read what was written since."""
        for process in self._fleet.services:
            for line in self._news(process):
                if isinstance(line, Handled):
                    self.handled += 1
                    self._seen.add((line.key, line.n))
        self.open |= {(e.key, e.n) for e in self._news(self._producer) if isinstance(e, Put)}
        self.open -= self._seen

    async def finish(self) -> None:
        """Put no more, and wait until all is handled, as long as that may take.

        What is not handled by then shows in the story, as what was lost.
        """
        popen = self._producer.popen
        popen.terminate()
        await until(lambda: popen.poll() is not None, _EXIT_TIMEOUT, "the producer exits")

        def all_handled() -> bool:
            self._fleet.watch()
            self.update()
            return not self.open

        with contextlib.suppress(ChaosError):
            await until(all_handled, QUIET_TIMEOUT, "all is handled")

    def _news(self, process: Process) -> list[Line]:
        lines = process.book.read()
        known = self._lines.get(process.name, 0)
        self._lines[process.name] = len(lines)
        return lines[known:]


def read_story(folder: Path) -> Story:
    """All that the books of a run tell, by now or afterwards."""
    story = Story(faults=_lines(folder / "script.jsonl", Fault))
    story.puts = _lines(folder / "producer.jsonl", Put)
    for book in sorted(folder.glob("p[0-9]*.jsonl")):
        story.handled[book.stem] = _lines(book, Handled)
        story.acquired[book.stem] = _lines(book, Acquired)
        story.released[book.stem] = _lines(book, Released)
    return story


def _lines(book: Path, kind: type[L]) -> list[L]:
    return [line for line in Book(book).read() if isinstance(line, kind)]
