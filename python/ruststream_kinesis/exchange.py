"""`Exchange`: requests and answers over a pool of connections of our own.

It stands in for the aiohttp session of aiobotocore's client in the plain case (no proxy, nobody who
wants to see the requests), with the settings of that client. `aws_internals.py` says whether the
case is plain; `thin.py` decides it for each of its routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ruststream_kinesis.http_connection import (
    Answer,
    ConnectFailed,
    Connection,
    ConnectionEnded,
)

__all__ = ["Exchange", "Origin", "Plain"]

# No limit, where the client's configuration has none.
_NO_LIMIT = 1_000_000
# Connections that are closed at once are gone in a turn of the loop or two.
_CLOSE_DEADLINE = 1.0


class Origin(NamedTuple):
    """Whom a connection leads to."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Plain:
    """What a client's configuration means for connections."""

    tls: ssl.SSLContext
    """With its verification, CA bundle and client certificate."""
    limit: int
    """Connections in use at once; 0 for any number."""
    connect_timeout: float | None
    """Seconds until a new connection is there, its TLS handshake included."""
    read_timeout: float | None
    """Seconds without a byte of the answer."""
    keepalive: float
    """Seconds that an unused connection is good for."""
    options: Sequence[tuple[Any, ...]]
    """For `setsockopt`."""


class Exchange:
    """The connections of one client; they belong to the event loop that it was made in.

    Nothing is made before the first request. A request has a connection for itself, so no answer
    can be another request's; who finds none free waits, first come first served.

    A request is sent a second time in one case only: its connection had been used before, and ended
    without a byte of an answer. That is how a server looks that closes an unused connection while
    the request is on its way. The second one goes over a new connection, and there is no third.
    The server may have done what the first one asked for: a read may be done twice, and a put is
    at-least-once here as everywhere (its callers, too, put again what was not answered).
    """

    def __init__(self, settings: Plain) -> None:
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.limit or _NO_LIMIT)
        self._free: dict[Origin, list[Connection]] = {}
        """The one that was used last is at the end, and taken first."""
        self._open: set[Connection] = set()
        self._emptied = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.closed = False

    async def post(self, origin: Origin, head: bytes, body: bytes) -> Answer:
        """Sends a request and returns the whole answer, whatever it says.

        Deadlines are the caller's. Cancelling it closes the connection of the request.

        Args:
            origin: Where to.
            head: Request line and headers, the empty line included.
            body: The request's body.

        Raises:
            ExchangeError: There is no whole answer.
        """
        async with self._turns:
            connection = self._take(origin)
            if connection is not None:
                try:
                    return await self._ask(origin, connection, head, body)
                except ConnectionEnded as ended:
                    if not ended.silent or self.closed:
                        raise
            return await self._ask(origin, await self._connect(origin), head, body)

    async def close(self) -> None:
        """Closes every connection; a request on its way fails."""
        self.closed = True
        self._free.clear()
        for connection in list(self._open):
            connection.abort()
        if self._open:
            # They are aborted already; this waits for the loop to say so.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_DEADLINE):
                    await self._emptied.wait()

    async def _ask(
        self, origin: Origin, connection: Connection, head: bytes, body: bytes
    ) -> Answer:
        answer = await connection.ask(head, body)
        if connection.reusable and not self.closed:
            connection.idle_since = self._loop.time()
            self._free.setdefault(origin, []).append(connection)
        return answer

    def _take(self, origin: Origin) -> Connection | None:
        if self.closed:
            raise ConnectFailed("the client is closed")
        free = self._free.get(origin)
        if not free:
            return None
        oldest_good = self._loop.time() - self._settings.keepalive
        # Those at the front were used longest ago: one look a request keeps the pool fresh.
        if free[0].idle_since < oldest_good:
            free.pop(0).abort()
        while free:
            connection = free.pop()
            if connection.reusable and connection.idle_since >= oldest_good:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        settings = self._settings
        more: dict[str, Any] = {}
        if origin.tls:
            more |= {"ssl": settings.tls, "server_hostname": origin.host}
        try:
            # The addresses of a name one after the other: asyncio's race between them
            # (`happy_eyeballs_delay`) leaves a socket open where it is cancelled as it ends.
            async with asyncio.timeout(settings.connect_timeout):
                transport, connection = await self._loop.create_connection(
                    lambda: Connection(settings.read_timeout, self._gone),
                    origin.host,
                    origin.port,
                    **more,
                )
        except TimeoutError as late:
            raise ConnectFailed(f"no connection to {origin.host}:{origin.port} in time") from late
        except (OSError, ValueError) as error:
            # `ValueError`: a host name that no certificate and no resolver knows how to read.
            raise ConnectFailed(
                f"no connection to {origin.host}:{origin.port}: {type(error).__name__}: {error}"
            ) from error
        if not connection.ended:
            self._open.add(connection)
        if self.closed:
            connection.abort()
            raise ConnectFailed("the client is closed")
        peer: socket.socket = transport.get_extra_info("socket")
        # The server may have closed it already; the request finds out.
        with contextlib.suppress(OSError):
            for option in settings.options:
                peer.setsockopt(*option)
        return connection

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        for free in self._free.values():
            if connection in free:
                free.remove(connection)
        if not self._open:
            self._emptied.set()
