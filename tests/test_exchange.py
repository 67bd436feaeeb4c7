"""The pool: over real sockets, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ruststream_kinesis.exchange import Exchange, Origin, Plain
from ruststream_kinesis.http_connection import (
    BadAnswer,
    ConnectFailed,
    ConnectionEnded,
    ExchangeError,
    ReadTimeout,
)
from tests.support.raw_http import HUGE, Act, RawServer, Step, answer, chunked

SETTINGS = Plain(ssl.create_default_context(), 5, 5.0, 10.0, 12.0, ())
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def on_both_loops(test: Callable[[], Awaitable[None]]) -> Callable[[str], None]:
    """Run a test on the stock loop and on uvloop."""

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def run(loop: str) -> None:
        factory = None
        if loop == "uvloop":
            factory = pytest.importorskip("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_within(test()))

    run.__doc__ = test.__doc__
    run.__name__ = test.__name__
    return run


async def _within(test: Awaitable[None]) -> None:
    async with asyncio.timeout(30.0):
        await test


@contextlib.asynccontextmanager
async def serving(*script: Step, **changed: Any) -> AsyncIterator[tuple[RawServer, Exchange]]:
    """Run a server, and an exchange with it."""
    exchange = Exchange(replace(SETTINGS, **changed))
    async with RawServer(*script) as server:
        try:
            yield server, exchange
        finally:
            await exchange.close()
            await server.until_open(0)


async def ask(server: RawServer, exchange: Exchange, body: bytes = b"{}") -> bytes:
    """Return the body of an answer."""
    origin = Origin("127.0.0.1", server.port, tls=False)
    return (await exchange.post(origin, HEAD % len(body), body)).body


@on_both_loops
async def test_requests_one_after_the_other_share_a_connection():
    bodies = [b"", b"x", b"y" * 300_000, b"z" * HUGE, b"last"]
    async with serving(*[(answer(body),) for body in bodies]) as (server, exchange):
        for body in bodies:
            assert await ask(server, exchange, body) == body
        assert [body for _, body in server.requests] == bodies
        assert server.connections == 1


@on_both_loops
async def test_an_answer_that_drips_is_put_together():
    data = answer(b"a" * 100) + b""
    drips = [bytes([byte]) for byte in data]
    async with serving(drips, [chunked(b"x" * 100_000, b"y" * 200_000)]) as (server, exchange):
        assert await ask(server, exchange) == b"a" * 100
        assert await ask(server, exchange) == b"x" * 100_000 + b"y" * 200_000
        assert server.connections == 1


@on_both_loops
async def test_fifty_at_once_on_five_connections_each_get_their_own_answer():
    async with serving() as (server, exchange):
        hold = asyncio.Event()

        class Echo(list[Step]):
            def pop(self, _: Any = None) -> Step:
                return (hold, answer(server.requests[-1][1] * 1000))

            def __bool__(self) -> bool:
                return True

        server.script = Echo()
        asked = [b"<%d>" % number for number in range(50)]
        # The script looks at the request that was heard last: one at a time comes to it.
        tasks = [asyncio.ensure_future(ask(server, exchange, body)) for body in asked]
        await server.until_open(5)
        hold.set()
        found = await asyncio.gather(*tasks)
        assert found == [body * 1000 for body in asked]
        assert (server.connections, server.most_open) == (5, 5)


@on_both_loops
async def test_a_connection_that_was_closed_while_unused_is_not_tried():
    async with serving((answer(b"1"), Act.CLOSE), (answer(b"2"),)) as (server, exchange):
        assert await ask(server, exchange) == b"1"
        await server.until_open(0)
        assert await ask(server, exchange) == b"2"
        assert len(server.requests) == 2


@on_both_loops
async def test_a_request_that_meets_the_end_of_a_used_connection_is_sent_again_once():
    for end in (Act.CLOSE, Act.RESET):
        script: list[Step] = [(answer(b"1"),), (end,), (answer(b"2"),)]
        async with serving(*script) as (server, exchange):
            assert await ask(server, exchange) == b"1"
            assert await ask(server, exchange, b"twice") == b"2"
            assert [body for _, body in server.requests] == [b"{}", b"twice", b"twice"]
            assert server.connections == 2


@on_both_loops
async def test_it_is_not_sent_a_third_time():
    async with serving((answer(),), (Act.CLOSE,), (Act.CLOSE,)) as (server, exchange):
        await ask(server, exchange)
        with pytest.raises(ConnectionEnded):
            await ask(server, exchange)
        assert len(server.requests) == 3


@on_both_loops
async def test_a_request_on_a_new_connection_or_with_some_answer_is_not_sent_again():
    async with serving((Act.CLOSE,), (answer(),), (b"H", Act.CLOSE)) as (server, exchange):
        with pytest.raises(ConnectionEnded):
            await ask(server, exchange)
        assert len(server.requests) == 1
        await ask(server, exchange)
        with pytest.raises(ConnectionEnded):
            await ask(server, exchange)
        assert len(server.requests) == 3


@on_both_loops
async def test_garbage_and_time_outs_are_not_asked_again():
    hold = asyncio.Event()
    script: list[Step] = [(answer(),), (b"garbage\r\n\r\n",), (answer(),), (hold,)]
    async with serving(*script, read_timeout=0.1) as (server, exchange):
        for kind in (BadAnswer, ReadTimeout):
            await ask(server, exchange)
            with pytest.raises(kind):
                await ask(server, exchange)
        assert len(server.requests) == 4
        await server.until_open(0)
        assert await ask(server, exchange) == b"{}"


@on_both_loops
async def test_an_answer_behind_an_answer_reaches_nobody():
    for body in (b"mine", b"m" * 400_000):
        evil = answer(body) + answer(b"evil")
        async with serving((evil,), (answer(b"good"),)) as (server, exchange):
            assert await ask(server, exchange) == body
            await server.until_open(0)
            assert await ask(server, exchange) == b"good"


@on_both_loops
async def test_a_cancelled_request_takes_its_connection_with_it():
    hold = asyncio.Event()
    whole = answer(b"x" * 300_000)
    cuts = [0, 5, len(whole) - 300_000, len(whole) - 1]
    script: list[Step] = [
        step for cut in cuts for step in ((whole[:cut], hold, whole[cut:]), (answer(b"next"),))
    ]
    async with serving(*script) as (server, exchange):
        for _ in cuts:
            server.asked.clear()
            task = asyncio.ensure_future(ask(server, exchange))
            await server.asked.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await ask(server, exchange) == b"next"
        assert server.connections == len(cuts) + 1


@on_both_loops
async def test_cancelling_at_every_turn_of_the_loop_leaves_nothing_behind():
    async with serving() as (server, exchange):
        for turns in range(12):
            task = asyncio.ensure_future(ask(server, exchange, b"%d" % turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == b"{}"
            # All five turns are free: nobody of those who gave up kept one.
            bodies = await asyncio.gather(*(ask(server, exchange) for _ in range(5)))
            assert bodies == [b"{}"] * 5
        assert len(exchange._open) <= 5
        assert exchange._turns._value == 5


@on_both_loops
async def test_who_waits_for_a_connection_can_be_cancelled():
    hold = asyncio.Event()
    async with serving((hold, answer(b"1")), (answer(b"3"),), limit=1) as (server, exchange):
        tasks = [asyncio.ensure_future(ask(server, exchange, b"%d" % each)) for each in (1, 2, 3)]
        await server.asked.wait()
        tasks[1].cancel()
        hold.set()
        assert await tasks[0] == b"1"
        assert await tasks[2] == b"3"
        assert [body for _, body in server.requests] == [b"1", b"3"]
        assert tasks[1].cancelled()


@on_both_loops
async def test_a_connection_that_was_unused_for_too_long_is_replaced():
    async with serving(keepalive=-1.0) as (server, exchange):
        for count in (1, 2, 3):
            await ask(server, exchange)
            assert server.connections == count
        await server.until_open(1)


@on_both_loops
async def test_a_port_where_nobody_listens_is_an_error_of_ours():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        exchange = Exchange(SETTINGS)
        for host in ("127.0.0.1", "kinesis.invalid", "no..name"):
            with pytest.raises(ConnectFailed, match=host):
                await exchange.post(Origin(host, port, tls=False), HEAD % 0, b"")
        await exchange.close()
        assert exchange._turns._value == 5


@on_both_loops
async def test_a_handshake_that_does_not_come_ends_with_the_connect_timeout():
    async with serving(connect_timeout=0.1) as (server, exchange):
        # It waits for a request, and says nothing of TLS.
        with pytest.raises(ConnectFailed, match="in time"):
            await exchange.post(Origin("127.0.0.1", server.port, tls=True), HEAD % 0, b"")


@on_both_loops
async def test_the_end_of_the_client_ends_requests_and_connections():
    hold = asyncio.Event()
    async with serving((answer(),), (hold,)) as (server, exchange):
        await ask(server, exchange)
        server.asked.clear()
        task = asyncio.ensure_future(ask(server, exchange))
        await server.asked.wait()
        await exchange.close()
        with pytest.raises(ConnectionEnded):
            await task
        assert len(server.requests) == 2, "it is not sent again"
        with pytest.raises(ExchangeError, match="closed"):
            await ask(server, exchange)
        assert not exchange._open


@on_both_loops
async def test_options_of_the_client_are_set_on_every_socket():
    option = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for options, wanted in (((option,), 1), ((), 0)):
        async with serving(options=options) as (server, exchange):
            await ask(server, exchange)
            (connection,) = exchange._open
            peer = connection._transport.get_extra_info("socket")
            assert bool(peer.getsockopt(*option[:2])) == bool(wanted)


async def _two_unused(server: RawServer, exchange: Exchange, hold: asyncio.Event) -> None:
    """Leave two connections unused, both with an answer behind them."""
    tasks = [asyncio.ensure_future(ask(server, exchange)) for _ in range(2)]
    await server.until_open(2)
    hold.set()
    await asyncio.gather(*tasks)


@on_both_loops
async def test_a_second_try_does_not_meet_the_next_connection_that_the_server_gave_up():
    hold = asyncio.Event()
    first = (hold, answer())
    async with serving(first, first, (Act.CLOSE,), (answer(b"new"),)) as (server, exchange):
        await _two_unused(server, exchange, hold)
        assert await ask(server, exchange) == b"new"
        assert server.connections == 3


@on_both_loops
async def test_none_that_was_unused_for_too_long_is_taken_however_many_there_are():
    hold = asyncio.Event()
    first = (hold, answer())
    async with serving(first, first, keepalive=-1.0) as (server, exchange):
        await _two_unused(server, exchange, hold)
        await ask(server, exchange)
        assert server.connections == 3
        await server.until_open(1)


@on_both_loops
async def test_cancelling_at_every_turn_of_connecting_leaves_no_socket_open():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for turns in range(25):
            async with serving() as (server, exchange):
                task = asyncio.ensure_future(ask(server, exchange))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            gc.collect()
    assert [str(each.message) for each in seen] == []
