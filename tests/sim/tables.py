"""The table behind `TableLeaseStore`, as one process reaches it: conditional writes, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from ruststream_kinesis.errors import LeaseTableUnreachable
from ruststream_kinesis.leases import rows
from ruststream_kinesis.leases.table import Change, Check, Outcome, Row, Table
from ruststream_kinesis.leases.tabled import TableLeaseStore
from tests.sim.fleet import Fleet
from tests.sim.network import Link
from tests.sim.process import Process
from tests.sim.tenures import NO_ROW, RowView

__all__ = ["FEW_ROWS", "GENERATION", "SimTable", "failed", "table_store"]

T = TypeVar("T")

FEW_ROWS = 5
"""Rows in a page of a scan: few, so that things happen between two of them."""
GENERATION: ContextVar[int | None] = ContextVar("GENERATION", default=None)
"""How often a shard had been moved when the write under way was asked for; `None`: it stores
nothing of how far the shard is."""


def failed(uncertain: bool) -> Exception:
    """Return the error of a request that failed, or whose answer was lost."""
    code, status = ("InternalServerError", 500) if uncertain else ("ThrottlingException", 400)
    return LeaseTableUnreachable(
        "made by the simulation", table="leases", code=code, status=status, uncertain=uncertain
    )


class SimTable:
    """One process's way to the shared rows.

    Args:
        shared: The rows, by key.
        link: The way.
        fleet: Shown every lease row that changes.
        process: Who calls.
        page: Rows in a page of a scan.
    """

    def __init__(
        self, shared: dict[str, Row], link: Link, fleet: Fleet, process: Process, page: int
    ) -> None:
        self._rows = shared
        self._link = link
        self._fleet = fleet
        self._process = process
        self._page = page

    @property
    def name(self) -> str:
        """Return its name."""
        return "leases"

    async def open(self) -> None:
        """Do nothing: it is there."""

    async def close(self, *, everywhere: bool = True) -> None:
        """Do nothing: nothing is open."""

    async def get(self, key: str) -> Row | None:
        """Return a row."""
        return await self._link.call(lambda: self._rows.get(key))

    async def _write(
        self, key: str, condition: Sequence[Check], changed: Callable[[Row | None], Row | None]
    ) -> Outcome:
        generation = GENERATION.get()

        def effect() -> Outcome:
            row = self._rows.get(key)
            if not all(check.holds(row) for check in condition):
                return Outcome(False, row)
            after = changed(row)
            if after is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = after
            lease = rows.lease_key(key)
            if lease is not None:
                monitor = self._fleet.monitors[lease.group]
                monitor.row(self._process, lease.shard_id, _view(row), _view(after), generation)
            return Outcome(True, after)

        return await self._link.call(effect)

    async def update(self, key: str, change: Change, condition: Sequence[Check]) -> Outcome:
        """Change a row."""
        return await self._write(key, condition, change.apply)

    async def put(self, key: str, row: Row) -> Outcome:
        """Store a row unless there is one."""
        return await self._write(key, [Check("no row")], lambda _: dict(row))

    async def delete(self, key: str, condition: Sequence[Check]) -> Outcome:
        """Remove a row."""
        return await self._write(key, condition, lambda _: None)

    async def pages(self) -> AsyncIterator[Sequence[tuple[str, Row]]]:
        """Yield all rows, a page at a time, each as of when it was asked for."""
        last = ""
        while True:
            start = last

            def page(start: str = start) -> list[tuple[str, Row]]:
                keys = sorted(key for key in self._rows if key > start)
                return [(key, self._rows[key]) for key in keys[: self._page]]

            found = await self._link.call(page)
            if found:
                yield found
            if len(found) < self._page:
                return
            last = found[-1][0]


def _view(row: Row | None) -> RowView:
    if row is None:
        return NO_ROW
    found: Any = row
    counter = found.get(rows.COUNTER, 0)
    checkpoint, resume = found.get(rows.CHECKPOINT), found.get(rows.RESUME)
    # It counts beside the checkpoint that it was stored with.
    counts = found.get(rows.RESUME_BESIDE) == found.get(rows.CHECKPOINT, "-")
    # Every write is a sign of life to whoever watches.
    return RowView(
        found.get(rows.OWNER), counter, checkpoint, resume if counts else None, float(counter)
    )


def table_store(
    shared: dict[str, Row], link: Link, fleet: Fleet, process: Process, page: int
) -> TableLeaseStore:
    """Return the real store over the simulated table."""
    table: Table = SimTable(shared, link, fleet, process, page)
    return TableLeaseStore(table, clock=process.clock)
