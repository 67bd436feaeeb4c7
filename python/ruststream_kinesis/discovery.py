"""Which shards a stream has, looked at anew every ten seconds, or when one of them ended.

A round of its own and not a part of the lease loop: a listing that is throttled, or hangs, must not
keep leases from being renewed.

Invariant: of several looks at once, as when somebody seeks, the answer to an earlier one never takes
the place of the answer to a later one, however they come in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ruststream_kinesis.backoff import Backoff, MinuteLog
from ruststream_kinesis.clock import wait
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import StreamRecreated
from ruststream_kinesis.identity import Identity, is_gone
from ruststream_kinesis.stream import KinesisStream
from ruststream_kinesis.transport import ShardInfo
from ruststream_kinesis.wording import fields, shown

__all__ = ["Discovery"]

logger = logging.getLogger("ruststream_kinesis")

# ListShards allows ten calls a second and stream, for everybody together.
DISCOVERY_INTERVAL = 10.0


class Discovery:
    """The shards of one stream as it listed them last.

    Args:
        stream: Which stream.
        connection: Transport and clock.
        changed: Called when a listing names other shards than the one before, or when doubts of
            the stream are over.
    """

    def __init__(
        self, stream: KinesisStream, connection: Connection, changed: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._changed = changed
        self.identity = Identity(stream.ref, connection)
        """Whether it is still the stream that was opened."""
        self.shards: dict[str, ShardInfo] = {}
        self.begun = self.shown = 0
        """Looks that were begun, and which of them `shards` is from."""
        self._asked = asyncio.Event()
        self._backoff = Backoff(first=1.0, cap=DISCOVERY_INTERVAL)
        self._log = MinuteLog(connection.clock)

    def soon(self) -> None:
        """Asks for a listing now: there are new shards to be found."""
        self._asked.set()

    def doubt(self) -> None:
        """A shard says that the stream is gone: none is taken until it is known to be the same."""
        self.identity.doubt()
        self.soon()

    async def look(self) -> float:
        """Lists the shards once.

        Returns:
            The service's time when it listed them.
        """
        self.begun += 1
        number = self.begun
        listing = await self._connection.transport.list_shards(self._stream.ref)
        if number > self.shown:
            self.shards = {shard.shard_id: shard for shard in listing.shards}
            self.shown = number
        return listing.service_time

    async def run(self) -> None:
        """Looks again and again.

        Raises:
            StreamRecreated: The stream was gone, and another one has its name.
        """
        clock = self._connection.clock
        while True:
            await wait(clock, DISCOVERY_INTERVAL, self._asked)
            # Before the look: what is asked for while it is on its way is due after it.
            self._asked.clear()
            before, doubted = self.shards, self.identity.doubted
            try:
                await self.look()
                if doubted:
                    await self.identity.confirm()
            except StreamRecreated:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, the next listing may work
                if is_gone(error):
                    self.identity.doubt()
                self._failed(error)
                await clock.sleep(self._backoff.next())
                self._asked.set()
                continue
            self._backoff.reset()
            if doubted or self.shards != before:
                self._changed()

    def _failed(self, error: Exception) -> None:
        count = self._log.due()
        if count is not None:
            logger.warning(
                "cannot list the shards of stream %s (%d time(s)), trying again: %s",
                self._stream.name,
                count,
                shown(error),
                extra=fields(self._stream.name),
            )
