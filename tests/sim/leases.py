"""The lease store of one process: the real one, on rows that every process shares.

What the process is told passes an `Ear`: from then on it knows.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import LeaseKey, LeaseState
from tests.sim.fleet import Fleet
from tests.sim.loop import Scheduler
from tests.sim.network import Link
from tests.sim.process import Process
from tests.sim.tables import GENERATION, failed, table_store

__all__ = ["Ear", "Storage"]

# The real table gives a call up by itself.
_PATIENCE = 5.0


class Storage:
    """What all processes share, and the store of each.

    Args:
        scheduler: Time.
        rng: The way to it.
        fleet: Watches it.
        page: Rows in a page of a scan.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, fleet: Fleet, page: int) -> None:
        self.rows: dict[str, Any] = {}
        self._fleet = fleet
        self._page = page
        self.link = Link(scheduler, rng, failed, patience=_PATIENCE)

    def store(self, process: Process) -> Any:
        """Return the store of a process."""
        store = table_store(self.rows, self.link, self._fleet, process, self._page)
        return Ear(store, process, self._fleet)


class Ear:
    """A store that hears what its process is told: from then on the process knows.

    Everything else goes through as it is.
    """

    def __init__(self, store: Any, process: Process, fleet: Fleet) -> None:
        self._store = store
        self._process = process
        self._fleet = fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def renewer(self) -> Any:
        """Return the renewing store, which hears as much."""
        inner = self._store.renewer()
        return None if inner is None else Ear(inner, self._process, self._fleet)

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
            with self._storing(held, checkpoint, more):
                await self._store.checkpoint(held, checkpoint, **more)
        except LeaseLost:
            self._process.told.add(held.owner)
            raise

    async def release(self, held: LeaseState, **more: Any) -> None:
        with self._storing(held, more.get("checkpoint"), more):
            await self._store.release(held, **more)
        self._process.told.add(held.owner)

    @contextlib.contextmanager
    def _storing(
        self, held: LeaseState, checkpoint: str | None, more: dict[str, Any]
    ) -> Iterator[None]:
        """Say with each write how far the shard has been moved by now: it may arrive later."""
        known = self._fleet.monitors[held.key.group].acquisitions.get(held.owner or "")
        if known is None or (checkpoint is None and more.get("resume_from") is None):
            yield
            return
        token = GENERATION.set(known.generation)
        try:
            yield
        finally:
            GENERATION.reset(token)
