"""A lease store whose every call ends in time.

A store that never answers must not freeze the lease loop: the call fails, like any other call that
the store could not make, and is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ruststream_kinesis.leases.base import (
    LeaseKey,
    LeaseState,
    LeaseStore,
    Member,
    Opening,
    Survey,
)
from ruststream_kinesis.position import KinesisPosition

__all__ = ["STORE_DEADLINE", "PunctualStore"]

# Two of them fit into a lease, so one call that hangs costs no shard.
STORE_DEADLINE = 4.0

T = TypeVar("T")


class PunctualStore:
    """`store` with a deadline on each of its calls.

    Args:
        store: The user's.
    """

    def __init__(self, store: LeaseStore) -> None:
        self.inner = store

    @property
    def shared(self) -> bool:
        """As the store's."""
        return self.inner.shared

    async def open(self) -> None:
        """As the store's, which bounds it by itself."""
        await self.inner.open()

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """As the store's."""
        work = self.inner.acquire(key, owner_id, duration=duration, member=member)
        return await _timely(work, "acquire", key)

    async def renew(self, held: LeaseState) -> None:
        """As the store's."""
        await _timely(self.inner.renew(held), "renew", held.key)

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """As the store's."""
        work = self.inner.checkpoint(held, checkpoint, number=number, resume_from=resume_from)
        await _timely(work, "checkpoint", held.key)

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """As the store's."""
        work = self.inner.release(
            held,
            checkpoint=checkpoint,
            number=number,
            resume_from=resume_from,
            successor=successor,
        )
        await _timely(work, "release", held.key)

    async def read(self, key: LeaseKey) -> LeaseState | None:
        """As the store's."""
        return await _timely(self.inner.read(key), "read", key)

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """As the store's."""
        return await _timely(self.inner.leases(stream, group), "leases", stream)

    async def survey(
        self, stream: str, group: str | None = None, *, max_age: float = 0.0
    ) -> Survey:
        """As the store's."""
        return await _timely(self.inner.survey(stream, group, max_age=max_age), "survey", stream)

    async def beat(self, member: Member, *, duration: float) -> None:
        """As the store's."""
        await _timely(self.inner.beat(member, duration=duration), "beat", member.owner_id)

    async def leave(self, nonce: str) -> None:
        """As the store's."""
        await _timely(self.inner.leave(nonce), "leave", nonce)

    def renewer(self) -> LeaseStore | None:
        """As the store's."""
        inner = self.inner.renewer()
        return None if inner is None else PunctualStore(inner)

    async def close(self) -> None:
        """As the store's."""
        await _timely(self.inner.close(), "close", "its connections")

    async def delete(self, key: LeaseKey) -> None:
        """As the store's."""
        await _timely(self.inner.delete(key), "delete", key)

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        """As the store's."""
        return await _timely(self.inner.opening(stream, group, first), "opening", stream)


async def _timely(work: Awaitable[T], call: str, what: LeaseKey | str) -> T:
    try:
        async with asyncio.timeout(STORE_DEADLINE):
            return await work
    except TimeoutError as error:
        where = what.row if isinstance(what, LeaseKey) else what
        raise TimeoutError(
            f"the lease store did not answer {call} of {where} within {STORE_DEADLINE:g} s"
        ) from error
