"""The clients of the calls: their deadlines, and one client for each loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import aiobotocore.session
import pytest
from aiobotocore.credentials import AioCredentials
from botocore.exceptions import BotoCoreError

from ruststream_kinesis.aws import AwsTransport
from ruststream_kinesis.clients import ClientSettings
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import NotConnected, RequestError
from ruststream_kinesis.transport import Failure, judge
from tests.support.scripted import ScriptedKinesis, drop_connection, hang_after_headers, held
from tests.support.transports import (
    STREAM,
    WAYS,
    connected,
    open_transport,  # noqa: F401 - a fixture
    read,
    scripted_server,  # noqa: F401 - a fixture
)

# -- deadlines -------------------------------------------------------------------------------------


async def test_case_r7_an_answer_that_never_ends_is_cut_off_and_other_calls_go_on(
    server: ScriptedKinesis,
):
    async with connected(server, deadline=0.3) as transport:
        hang = hang_after_headers()
        server.on("GetRecords", hang)
        reading = asyncio.create_task(read(transport))
        await hang.reached.wait()
        await transport.put_record(STREAM, b"x", "k")
        with pytest.raises(RequestError, match=r"no whole answer within 0\.3 s") as caught:
            await reading
        assert caught.value.code == "Timeout"
        assert judge(caught.value) is Failure.PASSING


async def test_a_cancelled_call_stays_cancelled_and_is_no_failure(
    server: ScriptedKinesis, transport: AwsTransport
):
    hold = held()
    server.on("GetRecords", hold)
    reading = asyncio.create_task(read(transport))
    await hold.reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


# -- clients and loops -----------------------------------------------------------------------------


class CountingSession(aiobotocore.session.AioSession):
    """Counts the clients made; the first ones fail, when they are told to go on."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.clients = 0
        self.failures = failures
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _create_client(self, *args: Any, **more: Any) -> Any:
        self.asked.set()
        if self.failures:
            self.failures -= 1
            await self.go_on.wait()
            raise BotoCoreError
        self.clients += 1
        make: Any = super()._create_client  # type: ignore[misc]  # the stubs know no private name
        return await make(*args, **more)


async def test_case_r8_a_dropped_connection_does_not_cost_the_client(server: ScriptedKinesis):
    session = CountingSession()
    async with connected(server, session=session) as transport:
        server.on("GetRecords", [drop_connection(), drop_connection()])
        for _ in range(2):
            with pytest.raises(RequestError):
                await read(transport)
        await read(transport)
    assert session.clients == 1


async def test_calls_that_come_together_share_one_client(server: ScriptedKinesis):
    session = CountingSession()
    async with connected(server, session=session) as transport:
        await asyncio.gather(*(transport.list_shards(STREAM) for _ in range(20)))
    assert session.clients == 1


def in_own_loop(work: Any) -> Any:
    """Run a coroutine in a thread with a loop of its own."""
    result: list[Any] = []

    def target() -> None:
        try:
            result.append(asyncio.run(work()))
        except BaseException as failed:  # noqa: BLE001 - handed to the test
            result.append(failed)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, result


async def test_another_loop_has_a_client_of_its_own_that_the_stop_closes(
    server: ScriptedKinesis, transport: AwsTransport
):
    done = threading.Event()
    put: list[Any] = []

    async def work() -> None:
        put.extend([await transport.put_record(STREAM, b"x", "k") for _ in range(3)])
        # Beside the loop, which has to run for the close.
        await asyncio.to_thread(done.wait)
        with pytest.raises(NotConnected):
            await transport.put_record(STREAM, b"x", "k")

    thread, result = in_own_loop(work)
    await server.seen("PutRecord", 3)
    assert len(transport._clients._clients) == 2
    await transport.close()
    done.set()
    await asyncio.to_thread(thread.join)
    assert result == [None]
    assert len(put) == 3


@pytest.mark.parametrize("way", WAYS.values())
async def test_once_the_loop_that_opened_it_has_ended_calls_of_other_loops_say_so(
    server: ScriptedKinesis, way: type[AwsTransport]
):
    """However young what they sign with is: nobody is there to close the connection."""
    session: Any = aiobotocore.session.AioSession()
    session._credentials = AioCredentials("KEY", "secret")
    transport = way(ClientSettings("us-east-1", server.url, session), SystemClock(), deadline=10.0)
    opened, end = threading.Event(), threading.Event()

    async def own() -> None:
        await transport.open()
        opened.set()
        await asyncio.to_thread(end.wait)

    thread, result = in_own_loop(own)
    await asyncio.to_thread(opened.wait)
    await transport.put_record(STREAM, b"x", "k")
    end.set()
    await asyncio.to_thread(thread.join)
    assert result == [None]

    put = functools.partial(transport.put_record, STREAM, b"x", "k")
    with pytest.raises(NotConnected, match="loop of the service"):
        await put()
    third, said = in_own_loop(put)
    await asyncio.to_thread(third.join)
    assert type(said[0]) is NotConnected
    assert len(server.calls("PutRecord")) == 1
    await transport.close()


async def test_a_client_that_could_not_be_made_is_tried_again_even_if_nobody_waited_for_it(
    server: ScriptedKinesis,
):
    session = CountingSession(failures=1)
    transport = AwsTransport(
        ClientSettings("us-east-1", server.url, session, test_credentials=True), SystemClock()
    )
    opening = asyncio.create_task(transport.open())
    await session.asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    (making,) = transport._clients._clients.values()
    session.go_on.set()
    await asyncio.wait({making})
    await transport.list_shards(STREAM)
    assert session.clients == 1
    await transport.close()


async def test_after_the_close_every_call_says_so_and_closing_again_does_nothing(
    server: ScriptedKinesis,
):
    async with connected(server) as transport:
        pass
    with pytest.raises(NotConnected):
        await transport.list_shards(STREAM)
    await transport.close()
