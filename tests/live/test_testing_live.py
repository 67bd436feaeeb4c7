"""`TestApp(app, live=url)`: one test body on the in-process log and on both real servers."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublisher,
    Outcome,
    RustStream,
    Seeker,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import (
    AckUnsupported,
    ConfigurationError,
    NotConnected,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.testing import TestApp
from tests.support.servers import Server, free_port

_SERVERS = {"kinesis-local": "kinesis_local", "moto": "moto_server"}


@pytest.fixture(
    params=["in-process", *(pytest.param(name, marks=pytest.mark.live) for name in _SERVERS)]
)
def url(request: pytest.FixtureRequest) -> str | None:
    """Where the test runs; `None` in process."""
    if request.param == "in-process":
        return None
    server: Server = request.getfixturevalue(_SERVERS[request.param])
    return server.url


@pytest.fixture
def app() -> RustStream:
    return RustStream(KinesisBroker(), title="orders", version="1.0")


@pytest.fixture
def orders() -> str:
    """A stream that is not there yet."""
    return f"orders-{uuid.uuid4().hex[:8]}"


async def test_a_publish_waits_for_its_handler_and_what_that_published(
    app: RustStream, orders: str, url: str | None
) -> None:
    @app.subscriber(orders, workers=2, publish=f"{orders}.replies")
    async def handle(number: int, publisher: KinesisPublisher) -> int:
        await publisher.publish(number, f"{orders}.more", partition_key="k")
        return number + 1

    @app.subscriber(f"{orders}.replies")
    async def hear(number: int) -> None:
        await asyncio.sleep(0)

    @app.subscriber(f"{orders}.more")
    def more(number: int) -> Outcome:
        return drop()

    async with TestApp(app, live=url) as test:
        puts = []
        for number in range(3):
            puts.append(
                await test.publish(
                    number, orders, partition_key="ada", headers={"trace": f"{number}"}
                )
            )
            assert test.subscriber(f"{orders}.replies").values[-1] == number + 1
            assert test.subscriber(f"{orders}.more").outcomes[-1] == drop()
        *_, last = test.published(orders)
        assert last.sequence_number == puts[-1].sequence_number
        assert (last.payload, last.partition_key, last.headers) == (b"2", "ada", {"trace": "2"})
        assert [each.payload for each in test.published(f"{orders}.more")] == [b"0", b"1", b"2"]

    # After the test, too.
    assert test.subscriber(orders).values == [0, 1, 2]
    assert len(test.published(f"{orders}.replies")) == 3


async def test_retries_dead_letters_and_waiting_copies(
    app: RustStream, orders: str, url: str | None
) -> None:
    @app.subscriber(orders, max_attempts=2, dead_letter=f"{orders}.dead")
    async def handle(kind: str, message: KinesisMessage[str]) -> Outcome | None:
        if kind == "later" and message.attempt == 1:
            return retry_after(0.3)
        return retry() if kind == "never" else None

    async with TestApp(app, live=url) as test:
        await test.publish("never", orders)
        assert test.subscriber(orders).attempts == [1, 2]
        (dead,) = test.published(f"{orders}.dead")
        assert dead.headers["x-ruststream-attempts"] == "2"

        await test.publish("later", orders)
        (waiting,) = test.subscriber(orders).calls[2:]
        assert waiting.waiting
        await test.advance(0.3)
        assert test.subscriber(orders).attempts == [1, 2, 1, 2]
        assert waiting.settled


async def test_a_refused_retry_is_held(app: RustStream, orders: str, url: str | None) -> None:
    @app.subscriber(orders)
    async def handle(number: int) -> Outcome:
        return retry()

    async with TestApp(app, live=url) as test:
        await test.publish(1, orders)
        (call,) = test.subscriber(orders).calls

    assert (call.held, call.outcome) == (True, retry())
    assert isinstance(call.error, AckUnsupported)


async def test_a_batch_is_decided_element_by_element(
    app: RustStream, orders: str, url: str | None
) -> None:
    @app.subscriber(orders, batch=10, batch_window=0.2)
    async def handle(numbers: list[int]) -> list[Outcome | None]:
        return [drop() if number == 2 else None for number in numbers]

    async with TestApp(app, live=url) as test:
        await asyncio.gather(*(test.publish(number, orders) for number in (1, 2, 3)))
        calls = test.subscriber(orders)

    assert sorted(calls.values) == [1, 2, 3]
    assert [call.value for call in calls.calls if call.outcome == drop()] == [2]


async def test_publishes_fail_as_asked(app: RustStream, orders: str, url: str | None) -> None:
    @app.subscriber(orders, publish=f"{orders}.replies")
    async def handle(number: int) -> int:
        return number

    async with TestApp(app, live=url) as test:
        with test.fail_publish(f"{orders}.replies", times=2) as fault:
            await test.publish(1, orders)
        assert fault.hits == 2
        test.fail_publish(f"{orders}.replies", error="terminal")
        await test.publish(2, orders)

        assert [call.held for call in test.subscriber(orders).calls] == [False, True]
        assert [each.payload for each in test.published(f"{orders}.replies")] == [b"1"]


async def test_a_rewind_does_not_leave_a_publish_waiting(
    app: RustStream, orders: str, url: str | None
) -> None:
    rewound = list[int]()

    @app.subscriber(orders)
    async def handle(number: int, seeker: Seeker) -> None:
        if number == 3 and not rewound:
            rewound.append(number)
            await seeker.seek(KinesisPosition.horizon())

    async with TestApp(app, live=url) as test:
        for number in (1, 2, 3):
            await test.publish(number, orders)
        await test.publish(4, orders)
        assert test.subscriber(orders).values == [1, 2, 3, 1, 2, 3, 4]


async def test_a_handler_thread_publishes_from_a_loop_of_its_own(
    app: RustStream, orders: str, url: str | None
) -> None:
    publisher = app.publisher()

    @app.subscriber(orders)
    def handle(number: int) -> None:
        asyncio.run(publisher.publish(number, f"{orders}.more"))

    @app.subscriber(f"{orders}.more")
    async def more(number: int) -> None:
        pass

    async with TestApp(app, live=url) as test:
        await test.publish(1, orders)
        assert test.subscriber(f"{orders}.more").values == [1]


async def test_one_application_serves_one_test_after_the_other(
    app: RustStream, orders: str, url: str | None
) -> None:
    @app.subscriber(orders)
    async def handle(number: int) -> Outcome:
        return retry()  # left open: the next test must not see it

    connection = app.broker.connection
    store = connection.store
    for number in range(2):
        async with TestApp(app, live=url) as test:
            await test.publish(number, orders)
            assert test.subscriber(orders).values == [number]
            assert len(test.published(orders)) == 1
        assert connection.store is store
        assert isinstance(connection.clock, SystemClock)
        assert not connection.connected
        with pytest.raises(NotConnected):
            await test.publish(number, orders)


async def test_a_stream_that_nobody_declared_is_created_at_its_first_record(
    app: RustStream, orders: str, url: str | None
) -> None:
    async with TestApp(app, live=url) as test:
        assert test.published(f"{orders}.empty") == []
        await test.publish(b"x", orders)
        assert [each.data for each in test.published(orders)] == [b"x"]


@pytest.mark.live
async def test_a_long_wait_on_a_server_is_refused(app: RustStream, moto_server: Server) -> None:
    async with TestApp(app, live=moto_server.url) as test:
        with pytest.raises(ConfigurationError, match="on a server time is real"):
            await test.advance(3600)


@pytest.mark.live
async def test_a_missing_stream_that_an_arn_names_is_not_created(
    app: RustStream, moto_server: Server
) -> None:
    clock = app.broker.connection.clock

    @app.subscriber("arn:aws:kinesis:us-east-1:123456789012:stream/nowhere")
    async def handle(number: int) -> None:
        pass

    with pytest.raises(StreamNotFound):
        async with TestApp(app, live=moto_server.url):
            pytest.fail("it has not started")
    assert app.broker.connection.clock is clock


async def test_a_server_that_is_not_there_leaves_the_application_as_it_was(
    app: RustStream,
) -> None:
    connection, before = app.broker.connection, asyncio.all_tasks()
    clock, store = connection.clock, connection.store

    @app.subscriber("orders")
    async def handle(number: int) -> None:
        pass

    with pytest.raises(RequestError):
        async with TestApp(app, live=f"http://127.0.0.1:{free_port()}"):
            pytest.fail("it has not started")
    assert (connection.clock, connection.store, connection.connected) == (clock, store, False)
    assert asyncio.all_tasks() == before


def test_an_endpoint_that_is_no_url_is_refused(app: RustStream) -> None:
    with pytest.raises(ConfigurationError, match="URL"):
        TestApp(app, live="localhost:4567")
