"""The lease store of one process: the real one, on rows that every process shares.

What the process is told passes an `Ear`: from then on it knows.
"""

from __future__ import annotations

import random
from typing import Any

from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import LeaseKey, LeaseState
from ruststream_kinesis.leases.base import Opening
from tests.sim.invariants import Monitor
from tests.sim.loop import Scheduler
from tests.sim.network import Link
from tests.sim.process import Process
from tests.sim.tables import failed, table_store

__all__ = ["Ear", "Storage"]

# The real table gives a call up by itself.
_PATIENCE = 5.0


class Storage:
    """What all processes share, and the store of each.

    Args:
        scheduler: Time.
        rng: The way to it.
        monitor: Watches it.
        page: Rows in a page of a scan.
    """

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, monitor: Monitor, page: int
    ) -> None:
        self.rows: dict[str, Any] = {}
        self.monitor = monitor
        self._page = page
        self.link = Link(scheduler, rng, failed, patience=_PATIENCE)

    def store(self, process: Process) -> Any:
        """Return the store of a process."""
        store = table_store(self.rows, self.link, self.monitor, process, self._page)
        return Ear(store, process, self.monitor)


class Ear:
    """A store that hears what its process is told: from then on the process knows.

    Everything else goes through as it is.
    """

    def __init__(self, store: Any, process: Process, monitor: Monitor) -> None:
        self._store = store
        self._process = process
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def renewer(self) -> Any:
        """Return the renewing store, which hears as much."""
        inner = self._store.renewer()
        return None if inner is None else Ear(inner, self._process, self._monitor)

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        stored: Opening = await self._store.opening(stream, group, first)
        if stored is first:
            self._monitor.opening(self._process)
        return stored

    async def acquire(self, key: LeaseKey, owner_id: str, **more: Any) -> LeaseState | None:
        lease: LeaseState | None = await self._store.acquire(key, owner_id, **more)
        if lease is not None:
            self._process.known.add(lease.owner)
        return lease

    async def renew(self, held: LeaseState) -> None:
        try:
            await self._store.renew(held)
        except LeaseLost:
            self._process.told.add(held.owner)
            raise

    async def checkpoint(self, held: LeaseState, checkpoint: str | None, **more: Any) -> None:
        try:
            await self._store.checkpoint(held, checkpoint, **more)
        except LeaseLost:
            self._process.told.add(held.owner)
            raise

    async def release(self, held: LeaseState, **more: Any) -> None:
        await self._store.release(held, **more)
        self._process.told.add(held.owner)
