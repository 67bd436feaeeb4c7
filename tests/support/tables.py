"""Tables for lease stores: one in memory that can fail at every step, and names for real ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiobotocore.session

from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import LeaseTableUnreachable
from ruststream_kinesis.leases.dynamo_table import DynamoTable
from ruststream_kinesis.leases.table import Change, Check, Outcome, Row, Value
from tests.support.servers import REGION

__all__ = [
    "Gate",
    "MemoryTable",
    "Step",
    "dynamo_table",
    "lost",
    "once",
    "refused",
    "settings",
    "unique_table",
]

SESSION = aiobotocore.session.AioSession()
"""The parsed service model is the slow part of a new client; a session keeps it, and has no loop."""


@dataclass(frozen=True)
class Step:
    """One call of a table."""

    call: str
    """`get`, `update`, `put`, `delete` or `pages`."""
    key: str = ""

    @property
    def writes(self) -> bool:
        """Whether it is a write."""
        return self.call in {"update", "put", "delete"}


Hook = Callable[[Step], Awaitable[None]]


class MemoryTable:
    """Rows in memory, shared by all stores that are given the same one."""

    def __init__(self, *, page: int = 3) -> None:
        self.rows: dict[str, dict[str, Value]] = {}
        self.steps: list[Step] = []
        """Every call that began, in order."""
        self.before: Hook | None = None
        """Awaited before a call takes effect; what it raises is the table's failure."""
        self.after: Hook | None = None
        """Awaited when a call took effect and before its answer is given."""
        self.closed = 0
        self._page = page

    @property
    def name(self) -> str:
        """As the table's."""
        return "memory"

    def writes(self, call: str | None = None) -> list[Step]:
        """Return the writes that began."""
        return [step for step in self.steps if step.writes and call in {None, step.call}]

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self, *, everywhere: bool = True) -> None:
        """Count."""
        self.closed += everywhere

    async def get(self, key: str) -> Row | None:
        """As the table's."""
        step = await self._begin("get", key)
        row = self.rows.get(key)
        answer = None if row is None else dict(row)
        await self._end(step)
        return answer

    async def update(self, key: str, change: Change, condition: Sequence[Check]) -> Outcome:
        """As the table's."""
        step = await self._begin("update", key)
        row = self.rows.get(key)
        applied = all(check.holds(row) for check in condition)
        if applied:
            self.rows[key] = row = change.apply(row)
        answer = Outcome(applied, None if row is None else dict(row))
        await self._end(step)
        return answer

    async def put(self, key: str, row: Row) -> Outcome:
        """As the table's."""
        step = await self._begin("put", key)
        applied = key not in self.rows
        stored = self.rows.setdefault(key, dict(row))
        await self._end(step)
        return Outcome(applied, dict(stored))

    async def delete(self, key: str, condition: Sequence[Check]) -> Outcome:
        """As the table's."""
        step = await self._begin("delete", key)
        row = self.rows.get(key)
        applied = all(check.holds(row) for check in condition)
        if applied:
            self.rows.pop(key, None)
        await self._end(step)
        return Outcome(applied, None if applied or row is None else dict(row))

    async def pages(self) -> AsyncGenerator[Sequence[tuple[str, Row]], None]:
        """As the table's."""
        keys = sorted(self.rows)
        for start in range(0, max(1, len(keys)), self._page):
            step = await self._begin("pages", "")
            page = [
                (key, dict(self.rows[key]))
                for key in keys[start : start + self._page]
                if key in self.rows
            ]
            await self._end(step)
            yield page

    async def _begin(self, call: str, key: str) -> Step:
        step = Step(call, key)
        self.steps.append(step)
        if self.before is not None:
            await self.before(step)
        return step

    async def _end(self, step: Step) -> None:
        if self.after is not None:
            await self.after(step)


def once(error: Exception, *, times: int = 1) -> Callable[[Step], Awaitable[None]]:
    """Fail the next writes, and no later ones."""
    left = times

    async def hook(step: Step) -> None:
        nonlocal left
        if step.writes and left:
            left -= 1
            raise error

    return hook


class Gate:
    """Holds the first call of a kind until it is opened."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, step: Step) -> None:
        if step.call == self.call and not self.reached.is_set():
            self.reached.set()
            await self.open.wait()


def lost() -> LeaseTableUnreachable:
    """Return what a table raises when the answer to a write was lost."""
    return LeaseTableUnreachable("no answer", table="memory", code="Timeout", uncertain=True)


def refused() -> LeaseTableUnreachable:
    """Return what a table raises when it is throttled for too long."""
    return LeaseTableUnreachable("throttled", table="memory", code="ThrottlingException")


def unique_table() -> str:
    """Return a table name that no other test uses."""
    return f"leases-{uuid.uuid4().hex[:12]}"


def settings(url: str, **more: Any) -> ClientSettings:
    """Return how a server at `url` is reached."""
    known = {"session": SESSION, "region": REGION, "test_credentials": True}
    return ClientSettings(endpoint_url=url, **{**known, **more})


def dynamo_table(url: str, name: str | None = None, **more: Any) -> DynamoTable:
    """Return a table on a server at `url`, which has real time for its pauses, and enough of it."""
    patience = {"attempt": 10.0, "deadline": 30.0}
    return DynamoTable(name or unique_table(), settings(url), SystemClock(), **{**patience, **more})
