"""`Connection`: one HTTP/1.1 connection of our own, for one request at a time.

aiohttp's client costs some 200 µs of CPU a request and copies a large body twice. What the hot
calls need is little: send bytes, find the end of the answer, hand over its body. The loop writes
the body's bytes straight to where they stay.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ruststream_kinesis._core import Chunks, parse_head

__all__ = [
    "Answer",
    "BadAnswer",
    "ConnectFailed",
    "Connection",
    "ConnectionEnded",
    "ExchangeError",
    "ReadTimeout",
]

# Head and body of an empty poll have room in it. A longer head is not the service's.
_BUFFER_BYTES = 16 * 1024
# A page is 10 MiB of records at most, 14 MiB of JSON: what is longer is no answer of the service.
MAX_BODY_BYTES = 64 * 1024 * 1024
# As `parse_head` says them in place of a length.
_CHUNKED = -1
_UNTIL_CLOSE = -2
# A larger request is not copied to stand behind its head.
_JOINED_BYTES = 64 * 1024


class ExchangeError(ConnectionError):
    """No answer, by no fault of the request's. An `OSError`, as `aws_errors.py` takes them."""


class ConnectFailed(ExchangeError):
    """There is no connection to be had: name, port, certificate or time-out."""


class ReadTimeout(ExchangeError):
    """Nothing came for as long as the client's `read_timeout`."""


class BadAnswer(ExchangeError):
    """What came is no answer of HTTP, or leaves a doubt about where it ends."""


class ConnectionEnded(ExchangeError):
    """The connection ended before the answer did.

    Args:
        message: For people.
        silent: Whether not a byte of an answer had come.
    """

    def __init__(self, message: str, *, silent: bool) -> None:
        super().__init__(message)
        self.silent = silent


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Connection(asyncio.BufferedProtocol):
    """A connection and the request that is on its way, if any.

    An answer belongs to the request that was sent last: `ask` is called by one caller at a time,
    only while `reusable`, and the connection is closed by everything but a whole answer (a
    cancelled call, a time-out, an answer that is none). Bytes that nobody asked for close it, too:
    those that come with the last ones of an answer, or later while nothing is asked. The only ones
    that cannot be told are those that come after the next request was sent; they are read as the
    start of its answer.

    Args:
        read_timeout: Seconds without a byte after which an answer is given up; `None` for never.
        gone: Called once, when the connection has ended.
    """

    def __init__(self, read_timeout: float | None, gone: Callable[[Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_timeout = read_timeout
        self._gone = gone
        self._transport: Any = None
        self._room = memoryview(bytearray(_BUFFER_BYTES))
        """Heads, and bodies that have room behind them."""
        self._filled = 0
        self._waiter: asyncio.Future[None] | None = None
        """Of the request on its way; `None` while nothing is asked."""
        self._error: ExchangeError | None = None
        self._head: tuple[int, int, int, bool, dict[str, str]] | None = None
        self._end = 0
        """Where a body in `_room` ends; 0 where it stands elsewhere."""
        self._target: io.BytesIO | None = None
        self._rest: memoryview | None = None
        """The part of `_target` that has not come yet."""
        self._body = b""
        """A whole one that stood elsewhere."""
        self._chunks: Chunks | None = None
        self._loose = bytearray()
        """A body that ends with the connection."""
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.reusable = True
        """Whether a request may be sent: connected, and the answer before was whole."""
        self.ended = False
        self.idle_since = 0.0

    async def ask(self, head: bytes, body: bytes) -> Answer:
        """Sends a request and waits for the whole answer.

        There is no deadline here but `read_timeout`: the caller has one. Cancelling it closes the
        connection.

        Raises:
            ExchangeError: There is no whole answer; the connection is closed.
        """
        if not self.reusable:
            raise ConnectionEnded("the connection ended before the request", silent=True)
        self._filled = self._end = 0
        self._head = self._error = None
        waiter = self._waiter = self._loop.create_future()
        self.reusable = False
        self._heard = self._loop.time()
        if self._timer is None and self._read_timeout is not None:
            self._timer = self._loop.call_later(self._read_timeout, self._look)
        whole = False
        try:
            if len(body) > _JOINED_BYTES:
                self._transport.writelines((head, body))
            else:
                self._transport.write(head + body)
            await waiter
            if self._error is not None:
                raise self._error
            whole = True
        finally:
            self._waiter = None
            if not whole:
                self._error = None  # it knows this frame, and the frame knows us
                self.abort()
        return self._answer()

    def abort(self) -> None:
        """Closes it at once. Idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _answer(self) -> Answer:
        assert self._head is not None
        body, self._body = self._body, b""
        if self._target is not None:
            # The loop has let go of its view by now: the buffer itself becomes the bytes, no copy.
            body, self._target = self._target.getvalue(), None
        return Answer(self._head[1], self._head[4], body)

    # -- what the loop calls -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """It is there."""
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as the loop calls it
        """Where the next bytes go."""
        return self._room[self._filled :] if self._rest is None else self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        if self._waiter is None or self._waiter.done():
            self.abort()
            return
        self._heard = self._loop.time()
        try:
            self._take(nbytes)
        except ValueError as wrong:
            self._fail(BadAnswer(str(wrong)))

    def eof_received(self) -> None:
        """The server sends no more; the loop closes the connection."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.ended = True
        self._ended(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._gone(self)

    # -- what becomes of it ------------------------------------------------------------------------

    def _take(self, count: int) -> None:
        if self._head is None:
            self._filled += count
            self._take_head()
        elif self._end:
            self._filled += count
            if self._filled >= self._end:
                self._finish(exact=self._filled == self._end)
        elif self._rest is not None:
            self._rest = self._rest[count:]
            if not self._rest:
                self._finish(exact=True)
        else:
            self._take_piece(self._room[:count])

    def _take_head(self) -> None:
        head = self._head = parse_head(bytes(self._room[: self._filled]))
        if head is None:
            if self._filled == _BUFFER_BYTES:
                raise ValueError("the head of the answer does not end")
            return
        start, _, length, _, _ = head
        if length > MAX_BODY_BYTES:
            raise ValueError(f"an answer of {length} bytes is none of the service's")
        if 0 <= length <= _BUFFER_BYTES - start:
            self._end = start + length
            if self._filled >= self._end:
                self._finish(exact=self._filled == self._end)
            return
        here = self._room[start : self._filled]
        if length >= 0:
            self._target = io.BytesIO(bytes(length))
            rest = self._target.getbuffer()
            rest[: len(here)] = here
            self._rest = rest[len(here) :]
            return
        if length == _CHUNKED:
            self._chunks = Chunks(MAX_BODY_BYTES)
        self._filled = 0
        self._take_piece(here)

    def _take_piece(self, piece: memoryview) -> None:
        if self._chunks is None:
            if len(self._loose) + len(piece) > MAX_BODY_BYTES:
                raise ValueError("the answer does not end")
            self._loose += piece
            return
        taken = self._chunks.feed(bytes(piece))
        if self._chunks.done:
            self._finish(exact=taken == len(piece))

    def _finish(self, *, exact: bool) -> None:
        assert self._head is not None
        assert self._waiter is not None
        # Taken now: whatever comes next is written over it.
        if self._end:
            self._body = bytes(self._room[self._head[0] : self._end])
        elif self._chunks is not None:
            self._body, self._chunks = self._chunks.take(), None
        elif self._target is None:
            self._body, self._loose = bytes(self._loose), bytearray()
        self._rest, self._filled = None, 0
        # An answer that came before its request was sent ends the connection, too.
        unsent = self._transport.get_write_buffer_size()
        self.reusable = exact and self._head[3] and not unsent and not self._transport.is_closing()
        self._waiter.set_result(None)
        if not self.reusable:
            self.abort()

    def _ended(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._waiter is None or self._waiter.done():
            return
        head = self._head
        if head is not None and head[2] == _UNTIL_CLOSE and exc is None:
            self._finish(exact=False)
            return
        why = f": {type(exc).__name__}: {exc}" if exc is not None else ""
        silent = head is None and self._filled == 0
        what = "without an answer" if silent else "in the middle of the answer"
        self._fail(ConnectionEnded(f"the connection ended {what}{why}", silent=silent))

    def _fail(self, error: ExchangeError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._error = error
            self._waiter.set_result(None)
        # The loop may ask for room once more, and takes none at all for an error.
        self._rest, self._filled = None, 0
        self.abort()

    def _look(self) -> None:
        """Looks, once in `read_timeout`, whether something came: no timer for each request."""
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._read_timeout is None:
            return
        now = self._loop.time()
        if self._transport.get_write_buffer_size():
            # A large request on a slow line: the answer is not due yet.
            self._heard = now
        rest = self._heard + self._read_timeout - now
        if rest <= 0:
            self._fail(ReadTimeout(f"nothing came for {self._read_timeout:g} s"))
        else:
            self._timer = self._loop.call_later(rest, self._look)
