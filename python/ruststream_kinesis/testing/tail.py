"""Reading a stream back from where it stood when a test met it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ruststream_kinesis._core import Page
from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.testing.record import LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

    from ruststream_kinesis.clock import Clock
    from ruststream_kinesis.transport import Transport

__all__ = ["Aside", "Tail"]

T = TypeVar("T")

# The most that the service gives for one read.
_LIMIT = 10_000
# An empty page with a lag is normal on the real service, for a while.
_EMPTY_PAGES = 20


class Tail:
    """The records of a stream behind its tip of one moment; read on at every look."""

    def __init__(self, ref: StreamRef, iterators: dict[str, str | None]) -> None:
        self.ref = ref
        self.records: list[LogRecord] = []
        self._iterators = iterators

    @classmethod
    async def at_the_tip(cls, transport: Transport, ref: StreamRef) -> Self:
        """From here on."""
        iterators: dict[str, str | None] = {}
        for shard in (await transport.list_shards(ref)).shards:
            iterators[shard.shard_id] = await transport.get_shard_iterator(
                ref, shard.shard_id, KinesisPosition.latest()
            )
        return cls(ref, iterators)

    async def read(self, transport: Transport) -> list[LogRecord]:
        """All records so far, oldest first; of several shards by their arrival."""
        for shard in (await transport.list_shards(self.ref)).shards:
            if shard.shard_id not in self._iterators:  # made by a split or a merge meanwhile
                self._iterators[shard.shard_id] = await transport.get_shard_iterator(
                    self.ref, shard.shard_id, KinesisPosition.horizon()
                )
        for shard_id in self._iterators:
            await self._read_shard(transport, shard_id)
        if len(self._iterators) > 1:
            self.records.sort(key=lambda record: record.arrival)
        return list(self.records)

    async def _read_shard(self, transport: Transport, shard_id: str) -> None:
        empty = 0
        while (iterator := self._iterators[shard_id]) is not None and empty < _EMPTY_PAGES:
            body = await transport.get_records(self.ref, shard_id, iterator, _LIMIT)
            page = Page.parse(body)
            self._iterators[shard_id] = page.next_shard_iterator
            self.records += [
                LogRecord.of(self.ref.name, shard_id, page, index) for index in range(len(page))
            ]
            if not len(page):
                empty += 1
                if not page.millis_behind_latest:
                    return


class Aside:
    """A client on a loop in a thread of its own: for reading while the caller's loop is blocked.

    Args:
        settings: Of the endpoint.
        clock: Time.
        timeout: Seconds until a read must be done.
    """

    def __init__(self, settings: ClientSettings, clock: Clock, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._transport = AwsTransport(settings, clock)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="test[published]", daemon=True
        )
        self._thread.start()
        self._await(self._transport.open)

    def run(self, work: Callable[[Transport], Coroutine[Any, Any, T]]) -> T:
        """Blocks until it is done."""
        return self._await(lambda: work(self._transport))

    def close(self) -> None:
        """Closes the client and ends the thread."""
        try:
            self._await(self._transport.close)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _await(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(self._timeout)
