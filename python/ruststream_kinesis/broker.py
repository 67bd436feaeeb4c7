"""`KinesisBroker`: how a service reaches Kinesis and where it keeps its leases."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings, Way, check_endpoint, check_transport
from ruststream_kinesis.clock import Clock, SystemClock
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.heartbeat import STALL_TIMEOUT
from ruststream_kinesis.leases.base import LeaseStore
from ruststream_kinesis.leases.memory import MemoryLeaseStore
from ruststream_kinesis.limits import check_seconds
from ruststream_kinesis.thin import ThinTransport

if TYPE_CHECKING:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

__all__ = ["KinesisBroker"]

# How the hot calls go, by the name that a user gives.
_TRANSPORTS: dict[Way, type[AwsTransport]] = {"thin": ThinTransport, "botocore": AwsTransport}


class KinesisBroker:
    """Connection settings. Making one does no I/O and starts no task.

    Args:
        region: AWS region; by default the session's own chain (environment, profile).
        endpoint_url: Another endpoint, for example of a local server.
        session: An `aiobotocore` session to take credentials and configuration from.
        config: An `AioConfig` merged over ours: proxies, timeouts, CA bundle, pool size. Retries
            are not taken from it: the readers and the publisher own them.
        lease_store: Where leases and checkpoints live; in memory by default, which is right for
            one instance and starts anew with every process.
        owner_id: Names this instance in lease rows.
        test_credentials: Sign with made-up credentials, for a local server.
        transport: How the calls that are made for every page and every publish reach the service.
            `"thin"`, the default, signs them in the native core and sends them over
            connections of our own with the settings of aiobotocore's client, or over its HTTP
            session where there is a proxy, a `before-send` handler or a tracer; certificates,
            time-outs and credentials stay in effect, and a client with other handlers, a tracer
            around its calls or another signature is used the stock way by itself. `"botocore"`
            makes every call the stock way, several times as expensive: the way back where the
            short one is in doubt.
        max_shards: Shards of each subscription that this instance takes at most; by default its
            fair share, however large. With too few instances the rest stays unread.
        stall_timeout: Seconds that the event loop may stand still before its leases are given to
            other instances; only with a store that renews on a thread of its own.
        clock: Time; for tests.

    Raises:
        ConfigurationError: A value is refused.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: AioSession | None = None,
        config: AioConfig | None = None,
        lease_store: LeaseStore | None = None,
        owner_id: str | None = None,
        test_credentials: bool = False,
        transport: Way = "thin",
        max_shards: int | None = None,
        stall_timeout: float = STALL_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        check_endpoint(endpoint_url)
        check_transport(transport)
        if owner_id is not None and (not owner_id or "#" in owner_id):
            raise ConfigurationError(f"owner_id must be non-empty and hold no '#': {owner_id!r}")
        if max_shards is not None and (
            isinstance(max_shards, bool) or not isinstance(max_shards, int) or max_shards < 1
        ):
            raise ConfigurationError(
                f"max_shards must be a number of shards, at least 1: {max_shards!r}"
            )
        if not check_seconds("stall_timeout", stall_timeout) > 0:
            raise ConfigurationError(f"stall_timeout must be positive seconds: {stall_timeout!r}")
        self.settings = ClientSettings(region, endpoint_url, session, config, test_credentials)
        self._make_transport = _TRANSPORTS[transport]
        self.lease_store: LeaseStore = MemoryLeaseStore() if lease_store is None else lease_store
        """Where leases and checkpoints live."""
        self.connection = Connection(
            self.lease_store,
            owner_id,
            clock or SystemClock(),
            max_shards=max_shards,
            stall_timeout=stall_timeout,
        )

    def override(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: AioSession | None = None,
        test_credentials: bool | None = None,
    ) -> None:
        """Replaces settings of a broker that an application made: what a command line knows better.

        Args:
            region: As in the constructor; `None` leaves what is set, here and below.
            endpoint_url: As in the constructor.
            session: As in the constructor.
            test_credentials: As in the constructor.

        Raises:
            ConfigurationError: A value is refused, or the broker is connected already.
        """
        check_endpoint(endpoint_url)
        if self.connection.connected:
            raise ConfigurationError("the broker is connected: override its settings before that")
        given: dict[str, Any] = {
            "region": region,
            "endpoint_url": endpoint_url,
            "session": session,
            "test_credentials": test_credentials,
        }
        self.settings = dataclasses.replace(
            self.settings, **{name: value for name, value in given.items() if value is not None}
        )

    async def connect(self) -> None:
        """Resolves region and credentials and opens the connection; once more does nothing.

        Raises:
            ConfigurationError: No region or no credentials can be found.
            LeaseTableError: The table of the lease store cannot be used.
        """
        if not self.connection.connected:
            transport = self._make_transport(self.settings, self.connection.clock)
            try:
                await transport.open()
                await self.connection.store.open()
            except BaseException:
                # Half open is not open: what it has made so far is nobody's.
                try:
                    await transport.close()
                finally:
                    await self.connection.store.close()
                raise
            self.connection.attach(transport)

    async def close(self) -> None:
        """Closes the connection; every handle raises `NotConnected` from now on."""
        await self.connection.close()
