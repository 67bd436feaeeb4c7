"""The one connection of a service: transport, lease store, owner, and whether it is open.

The broker, every publisher and every subscription hold this object and nothing else, so that after
the stop every handle says `NotConnected`, and a test can put another transport in its place.
"""

from __future__ import annotations

import os
import secrets
import socket

from ruststream_kinesis.clock import Clock
from ruststream_kinesis.collectors import Collectors
from ruststream_kinesis.errors import NotConnected
from ruststream_kinesis.heartbeat import STALL_TIMEOUT, Heartbeat
from ruststream_kinesis.leases.base import LeaseStore
from ruststream_kinesis.leases.deadline import PunctualStore
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Transport

__all__ = ["Connection"]


class Connection:
    """Shared by every handle of a service; starts closed and does no I/O by itself.

    Args:
        store: Leases and checkpoints.
        owner_id: Names this instance in lease rows; host, process and a random part by default.
        clock: Time, for everything that hangs on this connection.
        max_shards: Shards of each subscription that this instance takes at most.
        stall_timeout: Seconds that the event loop may stand still and keep its leases.
    """

    def __init__(
        self,
        store: LeaseStore,
        owner_id: str | None,
        clock: Clock,
        *,
        max_shards: int | None = None,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        self.store: LeaseStore = PunctualStore(store)
        self.clock = clock
        self.owner_id = owner_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.heartbeat = Heartbeat(
            self.store, clock, self.owner_id, max_shards=max_shards, stall_timeout=stall_timeout
        )
        self._transport: Transport | None = None
        self.connected = False
        """Whether a transport is attached; an attribute, as every publish asks."""
        self.max_record_bytes: dict[StreamRef, int] = {}
        """Record limit of the streams that were looked at."""
        self.collectors = Collectors(self)
        """What publishes in batches."""

    @property
    def transport(self) -> Transport:
        """The open transport.

        Raises:
            NotConnected: Before the start or after the stop.
        """
        if self._transport is None:
            raise NotConnected("not connected to Kinesis: the service is not running")
        return self._transport

    def attach(self, transport: Transport) -> None:
        """Opens the connection over `transport`."""
        self._transport = transport
        self.connected = True

    async def close(self) -> None:
        """Detaches the transport first, so that nobody starts a call on it, then closes it.

        What waits to be published then is not sent any more; its publishers are told.
        """
        transport, self._transport, self.connected = self._transport, None, False
        self.collectors.close()
        if transport is not None:
            try:
                await transport.close()
            finally:
                await self.store.close()
