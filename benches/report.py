"""Results as tables on the terminal, as JSON and as the markdown of the docs page."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

# What the numbers depend on, besides the interpreter and the machine.
_PACKAGES = (
    "ruststream-kinesis",
    "aiobotocore",
    "botocore",
    "aiohttp",
    "msgspec",
    "uvloop",
    "faststream",
    "async-kinesis",
)


@dataclass(frozen=True)
class Check:
    """A bound, and what was measured."""

    what: str
    measured: float
    bound: float
    unit: str
    at_least: bool = False
    """The bound is a floor (a ratio to reach), not a ceiling."""

    @property
    def met(self) -> bool:
        """Whether the measured value keeps the bound."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def row(self) -> list[str]:
        """As a table row."""
        sign = "≥" if self.at_least else "≤"
        measured, bound = f"{self.measured:.4g} {self.unit}", f"{sign} {self.bound:g} {self.unit}"
        return [self.what, measured.strip(), bound.strip(), "met" if self.met else "MISSED"]


@dataclass
class Table:
    """One table of text cells, the first column a name."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """As GitHub markdown."""
        lines = [
            f"### {self.title}",
            "",
            "| " + " | ".join(self.columns) + " |",
            "| --- |" + " ---: |" * (len(self.columns) - 1),
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]
        return "\n".join([*lines, "", self.note] if self.note else lines)

    def text(self) -> str:
        """As plain text, for terminals without rich."""
        table = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])


@dataclass
class Report:
    """Everything that one run found."""

    quick: bool
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sections that could not run, with the reason."""
    absent: list[str] = field(default_factory=list)
    """Optional peers that are not installed: what they would have been compared with."""
    data: dict[str, Any] = field(default_factory=dict)
    """Raw values by section."""

    @property
    def all_tables(self) -> list[Table]:
        """The tables, and one more for the bounds."""
        if not self.checks:
            return self.tables
        rows = [check.row() for check in self.checks]
        return [*self.tables, Table("Bounds", ["what", "measured", "bound", ""], rows)]

    def show(self) -> None:
        """Print the tables."""
        for table in self.all_tables:
            print()
            if not _show_with_rich(table):
                print(table.text())
        for reason in self.missing:
            print(f"\nNOT RUN: {reason}")
        for reason in self.absent:
            print(f"\nNOT COMPARED: {reason}")

    def write_json(self, path: Path) -> None:
        """Write everything, raw values included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": machine(),
            "quick": self.quick,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "checks": [asdict(check) | {"met": check.met} for check in self.checks],
            "missing": self.missing,
            "absent": self.absent,
            "data": self.data,
        }
        path.write_text(json.dumps(content, indent=2) + "\n")

    def write_markdown(self, path: Path) -> None:
        """Write the tables and the machine."""
        facts = machine()
        versions = ", ".join(f"{name} {facts[name]}" for name in _PACKAGES if name in facts)
        head = (
            f"Measured on {facts['cores']} cores ({facts['cpu']}), {facts['system']}, "
            f"Python {facts['python']}; {versions}."
        )
        parts = [head, *(table.markdown() for table in self.all_tables)]
        parts += [f"Not run: {reason}" for reason in self.missing]
        parts += [f"Not compared: {reason}" for reason in self.absent]
        path.write_text("\n\n".join(parts) + "\n")


def _show_with_rich(table: Table) -> bool:
    try:
        from rich.console import Console  # noqa: PLC0415 (optional)
        from rich.table import Table as RichTable  # noqa: PLC0415 (optional)
    except ImportError:
        return False
    shown = RichTable(title=table.title, caption=table.note or None, title_justify="left")
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        shown.add_row(*row)
    console = Console()
    # Into a file or a CI log, rich would fold everything to 80 columns.
    (console if console.is_terminal else Console(width=120)).print(shown)
    return True


def machine() -> dict[str, Any]:
    """The machine and the versions: no host name, no path."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "unknown")
