"""A server of bytes: what it sends, and when it closes, is what the test wrote down.

No HTTP library stands between, so that it can send what none would. It runs on the loop of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from enum import Enum
from types import TracebackType
from typing import Self

__all__ = ["HUGE", "Act", "RawServer", "Step", "answer", "chunked"]

HUGE = 10 * 1024 * 1024
"""Records of a page at most, in bytes."""
_DEADLINE = 10.0


class Act(Enum):
    """What the server does beside sending."""

    CLOSE = "close"
    RESET = "reset"
    HEAR = "hear"
    """Reads one more request, to which the bytes that follow are the answer."""


Step = Sequence[bytes | asyncio.Event | Act]
"""Bytes to send, events to wait for, and acts, in their order."""


def answer(body: bytes = b"{}", *lines: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    """Return a response with a length, and with these header lines."""
    head = [f"HTTP/{version} {status}", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def chunked(*chunks: bytes, trailers: str = "") -> bytes:
    """Return a response in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + body + b"0\r\n" + trailers.encode() + b"\r\n"


class RawServer:
    """Answers the n-th request with the n-th step, and those beyond with `answer()`.

    Connections stay open after a step unless it closes them.
    """

    def __init__(self, *script: Step, tls: ssl.SSLContext | None = None) -> None:
        self.script = list(script)
        self.requests: list[tuple[bytes, bytes]] = []
        """Head and body of each request, as it came."""
        self.connections = 0
        """Connections that were ever made."""
        self.open = 0
        """Connections that are open now."""
        self.most_open = 0
        self.asked = asyncio.Event()
        """Set by every request."""
        self.port = 0
        self._tls = tls
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def until_open(self, count: int) -> None:
        """Wait until so many connections are open."""
        async with asyncio.timeout(_DEADLINE), self._changed:
            await self._changed.wait_for(lambda: self.open == count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        await self._count(1)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._hear(reader):
                    step = self.script.pop(0) if self.script else (answer(),)
                    if not await self._play(step, reader, writer):
                        break
        except asyncio.CancelledError:
            # The end of the server: `start_server` would report it as an error of ours.
            pass
        finally:
            writer.transport.abort()
            await self._count(-1)
            self._serving.discard(task)

    async def _count(self, by: int) -> None:
        self.open += by
        self.most_open = max(self.most_open, self.open)
        async with self._changed:
            self._changed.notify_all()

    async def _hear(self, reader: asyncio.StreamReader) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        lines = head.lower().split(b"\r\n")
        (length,) = (int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        self.requests.append((head, await reader.readexactly(length)))
        self.asked.set()
        return True

    async def _play(
        self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection goes on."""
        for each in step:
            match each:
                case asyncio.Event():
                    if not await _reached(each, reader):
                        return False
                case Act.CLOSE:
                    await writer.drain()
                    writer.close()
                    return False
                case Act.RESET:
                    writer.transport.abort()
                    return False
                case Act.HEAR:
                    await self._hear(reader)
                case bytes():
                    writer.write(each)
                    await writer.drain()
        return True


async def _reached(event: asyncio.Event, reader: asyncio.StreamReader) -> bool:
    """Whether the event came before the client went away."""
    going = asyncio.ensure_future(reader.read(1))
    coming = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((going, coming), return_when=asyncio.FIRST_COMPLETED)
        return coming.done()
    finally:
        for task in (going, coming):
            task.cancel()
        await asyncio.gather(going, coming, return_exceptions=True)
