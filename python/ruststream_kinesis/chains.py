"""`Chains`: what is to be done for the records of a batch, at once and still in order for each key.

Invariant: no two works of one partition key are ever under way together, and they begin in the order
in which they were added. So the copies of a key stand in the stream as their originals did, while a
batch takes the time of a few publishes and not of one for each record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

__all__ = ["Chains", "Work"]

# Publishes of one batch that are on their way together, and the tasks that it takes.
_AT_ONCE = 32

Work = Callable[[], Awaitable[object]]
"""Called once, when its turn comes."""


class Chains:
    """Some work for each of many records, one chain a partition key."""

    def __init__(self) -> None:
        self._of: dict[str, list[Work]] = {}
        self._chains: deque[list[Work]] = deque()

    def add(self, key: str | None, work: Work) -> None:
        """Puts `work` behind what there is of this key; without one, behind nothing."""
        chain = self._of.get(key) if key else None
        if chain is None:
            chain = []
            self._chains.append(chain)
            if key:
                self._of[key] = chain
        chain.append(work)

    async def run(self) -> None:
        """Does all of it; cancelled, what is under way is cancelled too and the rest is not begun.

        Raises:
            Exception: The first that a work raised; the others are cancelled.
        """
        if len(self._chains) <= 1:
            await self._work()
            return
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(self._chains))):
                    group.create_task(self._work(), name="batch[chain]")
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _work(self) -> None:
        while self._chains:
            for work in self._chains.popleft():
                await work()
