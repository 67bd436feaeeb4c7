"""One connection: where an answer ends, wherever its bytes are cut, and what is no answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis.http_connection import (
    Answer,
    BadAnswer,
    Connection,
    ConnectionEnded,
    ReadTimeout,
)
from tests.support.raw_http import answer, chunked

BIG = bytes(range(256)) * 400
GOOD = {
    "a length": (answer(b'{"a": 1}'), 200, b'{"a": 1}'),
    "an empty body": (answer(b""), 200, b""),
    "more than fits behind the head": (answer(BIG), 200, BIG),
    "chunks": (
        chunked(b"one", b"two" * 50, trailers="Expires: now\r\n"),
        200,
        b"one" + b"two" * 50,
    ),
    "no chunk": (chunked(), 200, b""),
    "100": (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"x"), 200, b"x"),
    "100 and 103": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
        + answer(b"x", status="400 Bad Request"),
        400,
        b"x",
    ),
    "a proxy's page": (
        answer(b"<html>no</html>", "Server: p", status="502 Bad"),
        502,
        b"<html>no</html>",
    ),
    "packed": (
        answer(gzip.compress(b"x", mtime=0), "Content-Encoding: gzip"),
        200,
        gzip.compress(b"x", mtime=0),
    ),
    "no body at all": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
}
WRONG = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a page without a head": b"<html>\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "an unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    "no chunk": chunked()[:-5] + b"zz\r\n",
    "trailers that are none": chunked()[:-2] + b"what\r\n\r\n",
    "a body that is no page": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000,
    "interim answers for ever": b"HTTP/1.1 102 Processing\r\n\r\n" * 1000,
}


class Wire:
    """A transport that goes nowhere: the test is the server."""

    def __init__(self) -> None:
        self.sent = b""
        self.closing = False
        self.unsent = 0

    def write(self, data: bytes) -> None:
        """Keep what is sent."""
        self.sent += data

    def writelines(self, parts: Any) -> None:
        """Keep what is sent."""
        self.sent += b"".join(parts)

    def abort(self) -> None:
        """Be closed."""
        self.closing = True

    def is_closing(self) -> bool:
        """Tell whether it is."""
        return self.closing

    def get_write_buffer_size(self) -> int:
        """Tell what the test says."""
        return self.unsent


class Line:
    """A connection with a request on its way."""

    def __init__(self, read_timeout: float | None = None) -> None:
        self.gone: list[Connection] = []
        self.wire = Wire()
        self.connection = Connection(read_timeout, self.gone.append)
        self.connection.connection_made(self.wire)

    async def asking(self, body: bytes = b"") -> asyncio.Task[Answer]:
        """Send a request."""
        task = asyncio.ensure_future(self.connection.ask(b"HEAD", body))
        await asyncio.sleep(0)
        return task

    def come(self, data: bytes, *cuts: int) -> None:
        """Let bytes arrive, cut at these places."""
        places = [0, *sorted(cuts), len(data)]
        for start, stop in itertools.pairwise(places):
            piece = memoryview(data)[start:stop]
            while piece:
                room = self.connection.get_buffer(-1)
                count = min(len(room), len(piece))
                assert count, "the loop takes an empty buffer for an error"
                room[:count] = piece[:count]
                self.connection.buffer_updated(count)
                piece = piece[count:]


def run(main: Any) -> None:
    """Run a test that hypothesis or many cases call again and again."""
    asyncio.run(main)


@pytest.mark.parametrize("name", GOOD)
async def test_an_answer_is_whole_wherever_it_is_cut_in_two(name: str):
    data, status, body = GOOD[name]
    step = math.ceil(len(data) / 2000)
    for cut in range(0, len(data), step):
        line = Line()
        task = await line.asking()
        line.come(data[:cut])
        await asyncio.sleep(0)
        assert not task.done()
        line.come(data[cut:])
        found = await task
        assert (found.status, found.body) == (status, body)
        assert line.connection.reusable


@pytest.mark.parametrize("name", GOOD)
async def test_an_answer_is_whole_when_it_comes_byte_by_byte(name: str):
    data, status, body = GOOD[name]
    line = Line()
    task = await line.asking()
    line.come(data, *range(len(data)))
    found = await task
    assert (found.status, found.body) == (status, body)


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    trailers=st.sampled_from(["", "A: b\r\n", "A: b\r\nC: d\r\n"]),
)
def test_chunks_are_put_together_wherever_they_are_cut(
    chunks: list[bytes], cuts: list[int], trailers: str
):
    async def main() -> None:
        data = chunked(*chunks, trailers=trailers)
        line = Line()
        task = await line.asking()
        line.come(data, *(cut for cut in cuts if cut < len(data)))
        assert (await task).body == b"".join(chunks)
        assert line.connection.reusable

    run(main())


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_garbage_ends_in_an_error_of_ours_or_in_waiting_and_never_otherwise(
    data: bytes, cuts: list[int]
):
    async def main() -> None:
        for start in (b"", b"HTTP/1.1 200 OK\r\n", chunked()[:-5]):
            line = Line()
            task = await line.asking()
            whole = start + data
            line.come(whole, *(cut for cut in cuts if cut < len(whole)))
            line.connection.connection_lost(None)
            with contextlib.suppress(BadAnswer, ConnectionEnded):
                await task
            assert not line.connection.reusable

    run(main())


@pytest.mark.parametrize("name", WRONG)
async def test_what_leaves_a_doubt_is_an_error_and_the_end_of_the_connection(name: str):
    line = Line()
    task = await line.asking()
    line.come(WRONG[name])
    with pytest.raises(BadAnswer):
        await task
    assert line.wire.closing
    assert not line.connection.reusable


@pytest.mark.parametrize("body", [b"{}", BIG], ids=["small", "large"])
@pytest.mark.parametrize("together", [True, False])
async def test_what_follows_an_answer_unasked_ends_the_connection(body: bytes, together: bool):
    line = Line()
    task = await line.asking()
    data, surplus = answer(body), answer(b"somebody else's")
    if together:
        line.come(data + surplus)
        found = await task
    else:
        line.come(data)
        found = await task
        assert line.connection.reusable
        line.come(surplus)
    assert found.body == body
    assert line.wire.closing
    assert not line.connection.reusable
    with pytest.raises(ConnectionEnded):
        await line.connection.ask(b"", b"")


async def test_a_surplus_that_comes_before_the_caller_wakes_does_not_touch_its_answer():
    line = Line()
    task = await line.asking()
    line.come(answer(b"mine"))
    line.come(b"X" * 20_000)
    assert (await task).body == b"mine"


@pytest.mark.parametrize(
    "data",
    [
        answer(version="1.0"),
        answer(b"{}", "Connection: close"),
        answer(b"{}", "Connection: Keep-Alive, Close"),
    ],
)
async def test_a_connection_that_the_server_will_close_is_not_used_again(data: bytes):
    line = Line()
    task = await line.asking()
    line.come(data)
    assert (await task).body == b"{}"
    assert not line.connection.reusable
    assert line.wire.closing


async def test_an_answer_without_a_length_ends_with_the_connection():
    line = Line()
    task = await line.asking()
    line.come(b"HTTP/1.0 200 OK\r\n\r\n")
    line.come(BIG)
    await asyncio.sleep(0)
    assert not task.done()
    line.connection.eof_received()
    assert (await task).body == BIG
    assert not line.connection.reusable


async def test_an_answer_without_a_length_is_not_whole_where_the_connection_breaks():
    line = Line()
    task = await line.asking()
    line.come(b"HTTP/1.0 200 OK\r\n\r\nabc")
    line.connection.connection_lost(ConnectionResetError(104, "reset"))
    with pytest.raises(ConnectionEnded, match="reset") as caught:
        await task
    assert not caught.value.silent


@pytest.mark.parametrize("name", [name for name in GOOD if name != "a length"])
async def test_an_answer_that_is_cut_off_is_no_answer(name: str):
    data, _, _ = GOOD[name]
    for cut in {0, 1, 10, len(data) // 2, len(data) - 1}:
        line = Line()
        task = await line.asking()
        line.come(data[:cut])
        line.connection.eof_received()
        with pytest.raises(ConnectionEnded) as caught:
            await task
        assert caught.value.silent is (cut == 0)
        assert line.wire.closing


async def test_an_answer_that_comes_before_its_request_was_sent_ends_the_connection():
    line = Line()
    task = await line.asking(b"x" * 100_000)
    line.wire.unsent = 5
    line.come(answer(status="413 Too Large"))
    assert (await task).status == 413
    assert line.wire.closing


async def test_a_cancelled_request_closes_its_connection():
    for came in (b"", b"HTTP/1.1 2", answer(BIG)[:-1], chunked(b"x")[:-3]):
        line = Line()
        task = await line.asking()
        line.come(came)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert line.wire.closing
        assert not line.connection.reusable
        line.come(b"late")  # and nothing happens


async def test_the_headers_of_an_answer_have_names_in_lower_case():
    line = Line()
    task = await line.asking()
    line.come(answer(b"", "DATE: now", "X-A: 1", "x-a: 2", "X-B: \xe9"))
    headers = (await task).headers
    assert headers == {"content-length": "0", "date": "now", "x-a": "1, 2", "x-b": "Ã©"}


async def test_a_request_is_its_head_and_its_body_whatever_its_size():
    for body in (b"", b"{}", b"x" * 1_000_000):
        line = Line()
        task = await line.asking(body)
        assert line.wire.sent == b"HEAD" + body
        line.come(answer())
        await task


class Hours:
    """The loop's clock and timers, by hand."""

    def __init__(self, loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any, Any]] = []
        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop, "call_later", self._later)

    def _later(self, delay: float, call: Any, *_: Any) -> Any:
        handle = asyncio.Handle(call, (), asyncio.get_running_loop())
        self.timers.append((self.now + delay, call, handle))
        return handle

    def pass_to(self, moment: float) -> None:
        """Let the time be this, and what is due by then happen."""
        while due := [each for each in self.timers if each[0] <= moment]:
            first = min(due, key=lambda each: each[0])
            self.timers.remove(first)
            self.now = first[0]
            if not first[2].cancelled():
                first[1]()
        self.now = moment


async def test_an_answer_that_stops_coming_is_given_up_after_the_read_timeout(
    monkeypatch: pytest.MonkeyPatch,
):
    hours = Hours(asyncio.get_running_loop(), monkeypatch)
    line = Line(read_timeout=10.0)
    task = await line.asking()
    for moment in (109.0, 118.0, 127.0):
        hours.pass_to(moment)
        line.come(b"HTTP/1.1 200 OK\r\n"[:5] if moment == 109.0 else b"")
        if moment == 109.0:
            line.come(b"1.1 200 OK\r\n")
            continue
        break
    assert not task.done()
    hours.pass_to(119.0)
    with pytest.raises(ReadTimeout, match="10 s"):
        await task
    assert line.wire.closing


async def test_one_timer_serves_every_request_of_a_connection_and_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    hours = Hours(asyncio.get_running_loop(), monkeypatch)
    line = Line(read_timeout=10.0)
    for _ in range(3):
        task = await line.asking()
        line.come(answer())
        await task
        hours.now += 4.0
    assert len(hours.timers) == 1
    task = await line.asking()
    hours.pass_to(121.0)
    assert not task.done(), "counted from this request, not from the first"
    line.wire.unsent = 1
    hours.pass_to(122.0)
    assert not task.done(), "the request itself is still on its way"
    line.wire.unsent = 0
    hours.pass_to(132.0)
    with pytest.raises(ReadTimeout):
        await task
    line.connection.connection_lost(None)
    assert line.gone == [line.connection]
    assert all(handle.cancelled() for _, _, handle in hours.timers)
