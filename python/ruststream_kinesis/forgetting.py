"""Removes the lease rows of shards that a stream no longer lists.

Invariant: a row is removed only when a listing that was asked for after the row had been missed once
does not name its shard either. An answer that was slow says nothing of a shard that is younger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ruststream_kinesis.discovery import Discovery
from ruststream_kinesis.leases.base import LeaseState, LeaseStore
from ruststream_kinesis.wording import fields

__all__ = ["Forgetting"]

logger = logging.getLogger("ruststream_kinesis")


class Forgetting:
    """The rows of one stream whose shards are gone.

    Args:
        stream: Its name, for logs.
        store: Where the rows are.
    """

    def __init__(self, stream: str, store: LeaseStore) -> None:
        self._stream = stream
        self._store = store
        self._missing: dict[str, int] = {}
        self._told: set[str] = set()

    async def look(self, rows: Iterable[LeaseState], discovery: Discovery) -> None:
        """Removes the rows of shards that two listings in a row did not name.

        Args:
            rows: Those that this instance does not hold.
            discovery: What is listed.
        """
        listed, begun = discovery.shards, discovery.begun
        missing = {row.key.shard_id: row for row in rows if row.key.shard_id not in listed}
        self._missing = {shard_id: self._missing.get(shard_id, begun) for shard_id in missing}
        self._told &= missing.keys()
        for shard_id, since in self._missing.items():
            if discovery.shown <= since:
                continue
            if shard_id not in self._told:
                # Once: a row that another instance still holds is there at the next pass too.
                self._told.add(shard_id)
                logger.warning(
                    "stream %s no longer lists shard %s (checkpoint %s): its lease row is removed",
                    self._stream,
                    shard_id,
                    missing[shard_id].checkpoint,
                    extra=fields(self._stream, shard_id),
                )
            await self._store.delete(missing[shard_id].key)
