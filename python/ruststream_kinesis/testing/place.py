"""Where a test runs: in process, here; on a server, in `live.py`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ruststream_kinesis.testing.feed import LogSource
from ruststream_kinesis.testing.log import Log, LogTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ruststream_kinesis.channel import Channel
    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.copies import Copies
    from ruststream_kinesis.router import Subscriber
    from ruststream_kinesis.subscriber import Source
    from ruststream_kinesis.supervisor import Supervisor
    from ruststream_kinesis.testing.clock import ManualClock
    from ruststream_kinesis.testing.faults import Faults
    from ruststream_kinesis.testing.record import LogRecord
    from ruststream_kinesis.testing.tracking import Tracker
    from ruststream_kinesis.transport import Transport

__all__ = ["InProcess", "Place"]


class Place(Protocol):
    """What one test runs on."""

    async def open(self, subscribers: Sequence[Subscriber]) -> Transport:
        """Makes sure that there are streams; what the service is to write to."""
        ...

    def opened(self) -> None:
        """The service reads: from now on every record that is put will be delivered."""
        ...

    def tuned(self, subscriber: Subscriber) -> Subscriber:
        """The subscription as it runs here."""
        ...

    def source(
        self,
        subscriber: Subscriber,
        connection: Connection,
        channel: Channel,
        copies: Copies,
        owner: Supervisor,
    ) -> Source:
        """What fills the channel of a subscription."""
        ...

    def records(self, stream: str) -> list[LogRecord]:
        """The records of a stream that were put since the start."""
        ...

    async def close(self) -> None:
        """The service has ended; `records` goes on to work."""
        ...


class InProcess:
    """A log in this process, for one test.

    Args:
        clock: Time.
        tracker: Is told of every delivery.
        faults: Which attempts to publish fail.
    """

    def __init__(self, clock: ManualClock, tracker: Tracker, faults: Faults) -> None:
        self._clock = clock
        self._tracker = tracker
        self._faults = faults
        self._log = Log(clock)

    async def open(self, subscribers: Sequence[Subscriber]) -> Transport:
        """Every stream exists."""
        del subscribers
        self._clock.loop = loop = asyncio.get_running_loop()
        return LogTransport(self._log, self._clock, loop, self._faults)

    def opened(self) -> None:
        """Records are handed over as they are put."""

    def tuned(self, subscriber: Subscriber) -> Subscriber:
        """As it is: nothing is polled."""
        return subscriber

    def source(
        self,
        subscriber: Subscriber,
        connection: Connection,
        channel: Channel,
        copies: Copies,
        owner: Supervisor,
    ) -> Source:
        """Feeds from the log."""
        return LogSource(self._log, self._tracker, subscriber, connection, channel, copies, owner)

    def records(self, stream: str) -> list[LogRecord]:
        """All of a stream, oldest first."""
        return list(self._log.records(stream))

    async def close(self) -> None:
        """Nothing to close."""
