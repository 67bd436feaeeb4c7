"""Middlewares around handlers: their order, what they see, and what they may change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    Outcome,
    Router,
    RustStream,
    ack,
    drop,
    retry,
)
from ruststream_kinesis.codec import JsonCodec
from ruststream_kinesis.dispatch import Caller
from ruststream_kinesis.errors import ConfigurationError, HandlerError, StopTimeout
from ruststream_kinesis.handlers import Tools, resolve_handler
from ruststream_kinesis.message import Headers
from ruststream_kinesis.middlewares import around
from ruststream_kinesis.testing import TestApp
from ruststream_kinesis.threads import HandlerThreads
from tests.support.world import World, running, until


def an_app() -> RustStream:
    return RustStream(KinesisBroker(), title="test", version="0")


def named(name: str, told: list[str]) -> Callable[..., Any]:
    """A middleware that tells when it is entered and left."""

    async def middleware(message: Any, call_next: Any) -> Any:
        told.append(f"+{name}")
        try:
            return await call_next(message)
        finally:
            told.append(f"-{name}")

    return middleware


class TestOrder:
    @given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans())
    def test_the_first_is_the_outermost_and_applications_stand_around_routers(
        self, outer: int, middle: int, inner: int, late: bool, batch: bool
    ):
        """Whatever their numbers, before or after the subscriber, for records and for batches."""
        told: list[str] = []

        async def run() -> None:
            app, mid, low = an_app(), Router(), Router()
            groups = ((app, "app", outer), (mid, "mid", middle), (low, "low", inner))

            def register() -> None:
                for router, name, count in groups:
                    for n in range(count):
                        router.middleware(named(f"{name}{n}", told))

            if not late:
                register()

            if batch:

                @low.subscriber("orders", batch=2)
                async def handle_many(values: list[int]) -> None:
                    told.append("!")
            else:

                @low.subscriber("orders")
                async def handle(value: int) -> None:
                    told.append("!")

            if late:
                register()
            mid.include(low)
            app.include(mid)
            async with TestApp(app) as test:
                await test.publish(1, "orders")

        asyncio.run(run())
        names = [f"app{n}" for n in range(outer)]
        names += [f"mid{n}" for n in range(middle)] + [f"low{n}" for n in range(inner)]
        assert told == [f"+{n}" for n in names] + ["!"] + [f"-{n}" for n in reversed(names)]

    async def test_a_router_s_middleware_stands_around_its_own_handlers_only(self):
        app, router = an_app(), Router()
        told: list[str] = []
        router.middleware(named("router", told))

        @router.subscriber("orders")
        async def mine(value: int) -> None: ...

        @app.subscriber("bills")
        async def other(value: int) -> None: ...

        app.include(router)
        async with TestApp(app) as test:
            await test.publish(1, "bills")
            assert told == []
            await test.publish(1, "orders")
        assert told == ["+router", "-router"]


class TestWhatItSees:
    async def test_the_message_with_its_payload_and_the_result_of_the_handler(self):
        app, seen = an_app(), []

        @app.middleware
        async def watch(message: KinesisMessage[Any], call_next: Any) -> Any:
            result = await call_next(message)
            seen.append((message.payload, message.headers.get("who"), message.stream, result))
            return result

        @app.subscriber("orders")
        async def handle(value: int) -> Outcome | None:
            return drop() if value == 2 else None

        async with TestApp(app) as test:
            await test.publish(1, "orders", headers={"who": "me"})
            await test.publish(2, "orders")
            counters = test.subscriber("orders").counters
            assert (counters.handled, counters.dropped) == (2, 1)
        assert seen == [(1, "me", "orders", None), (2, None, "orders", drop())]

    async def test_the_messages_of_a_batch_as_one_sequence(self):
        world = World()
        world.stream()
        world.put("orders", 1, 2, 3)
        app, seen = world.app(), []

        @app.middleware
        async def watch(messages: Any, call_next: Any) -> Any:
            result = await call_next(messages)
            seen.append(([each.payload for each in messages], result))
            return result

        @app.subscriber("orders", batch=3, start_at=KinesisPosition.horizon())
        async def handle(values: list[int], messages: list[KinesisMessage[int]]) -> list[Any]:
            assert [each.payload for each in messages] == values
            return [ack(), drop(), None]

        async with running(app):
            await until(lambda: len(seen) == 1)
            await until(lambda: app.counters["orders"].dropped == 1)
        assert seen == [([1, 2, 3], [ack(), drop(), None])]
        assert await world.checkpoint() == "3"

    async def test_the_error_of_the_handler_and_it_goes_on_to_on_error(self):
        app, seen = an_app(), []

        @app.middleware
        async def watch(message: Any, call_next: Any) -> Any:
            try:
                return await call_next(message)
            except ZeroDivisionError as error:
                seen.append(error)
                raise

        judged: list[BaseException] = []

        def judge(error: BaseException, message: KinesisMessage[Any]) -> Outcome:
            judged.append(error)
            return drop()

        @app.subscriber("orders", on_error=judge)
        async def handle(value: int) -> None:
            raise ZeroDivisionError

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert test.subscriber("orders").counters.failed == 1
        assert judged == seen
        assert len(seen) == 1

    async def test_nothing_of_a_record_that_does_not_decode(self):
        app = an_app()
        told: list[str] = []
        app.middleware(named("mw", told))

        @app.subscriber("orders")
        async def handle(value: int) -> None: ...

        async with TestApp(app) as test:
            await test.publish(b"nonsense", "orders")
            assert test.subscriber("orders").counters.undecodable == 1
        assert told == []

    async def test_a_handler_in_a_thread_from_the_loop_with_its_context_variables(self):
        app, seen = an_app(), []
        request: ContextVar[str] = ContextVar("request", default="")

        @app.middleware
        async def watch(message: Any, call_next: Any) -> Any:
            seen.append(threading.current_thread())
            request.set("this one")
            result = await call_next(message)
            seen.append(threading.current_thread())
            return result

        @app.subscriber("orders", publish="replies")
        def handle(value: int, headers: Headers) -> int:
            seen.append(threading.current_thread())
            assert request.get() == "this one"
            return value + 1

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert [each.payload for each in test.published("replies")] == [b"2"]
        assert seen[0] is seen[2] is threading.main_thread()
        assert seen[1] is not seen[0]


class TestWhatItChanges:
    async def test_a_middleware_that_swallows_an_error_decides_for_the_handler(self):
        app = an_app()

        @app.middleware
        async def swallow(message: Any, call_next: Any) -> Any:
            try:
                return await call_next(message)
            except ValueError:
                return drop()

        @app.subscriber("orders", on_error="stop")
        async def handle(value: int) -> None:
            raise ValueError

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            counters = test.subscriber("orders").counters
            assert (counters.failed, counters.dropped) == (0, 1)

    async def test_one_that_does_not_call_on_skips_the_handler(self):
        app, handled = an_app(), []

        @app.middleware
        async def only_once(message: Any, call_next: Any) -> Any:
            return await call_next(message) if message.payload != 2 else None

        @app.subscriber("orders")
        async def handle(value: int) -> None:
            handled.append(value)

        async with TestApp(app) as test:
            for value in (1, 2, 3):
                await test.publish(value, "orders")
        assert handled == [1, 3]

    async def test_the_reply_is_what_the_middleware_returns(self):
        app = an_app()

        @app.middleware
        async def double(message: Any, call_next: Any) -> Any:
            return 2 * await call_next(message)

        @app.subscriber("orders", publish="replies")
        async def handle(value: int) -> int:
            return value

        async with TestApp(app) as test:
            await test.publish(21, "orders")
            assert [each.payload for each in test.published("replies")] == [b"42"]

    async def test_a_payload_that_it_sets_is_what_the_handler_gets(self):
        app, handled = an_app(), []

        @app.middleware
        async def translate(message: Any, call_next: Any) -> Any:
            message.payload = -message.payload
            return await call_next(message)

        @app.subscriber("orders")
        async def handle(value: int) -> None:
            handled.append(value)

        async with TestApp(app) as test:
            await test.publish(1, "orders")
        assert handled == [-1]

    async def test_it_may_call_again(self):
        app, calls = an_app(), []

        @app.middleware
        async def twice(message: Any, call_next: Any) -> Any:
            try:
                return await call_next(message)
            except OSError:
                return await call_next(message)

        @app.subscriber("orders")
        async def handle(value: int) -> None:
            calls.append(value)
            if len(calls) == 1:
                raise OSError

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert test.subscriber("orders").counters.failed == 0
        assert calls == [1, 1]

    @pytest.mark.parametrize("batch", [None, 1])
    async def test_an_error_of_its_own_is_the_handler_s(self, batch: int | None):
        app = an_app()
        handled: list[Any] = []

        @app.middleware
        async def broken(message: Any, call_next: Any) -> Any:
            raise RuntimeError("the middleware broke")

        if batch:

            @app.subscriber("orders", batch=batch, dead_letter="dead")
            async def handle_many(values: list[int]) -> None:
                handled.append(values)
        else:

            @app.subscriber("orders", dead_letter="dead")
            async def handle(value: int) -> None:
                handled.append(value)

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            (dead,) = test.published("dead")
        assert dead.headers["x-ruststream-error"] == "RuntimeError: the middleware broke"
        assert handled == []

    async def test_a_part_of_a_batch_is_not_passed_on(self):
        """Or the handler's outcomes would be those of other records."""
        world = World()
        world.stream()
        world.put("orders", 1, 2)
        app, handled, errors = world.app(), [], []

        @app.middleware
        async def some(messages: Any, call_next: Any) -> Any:
            try:
                return await call_next(messages[1:])
            except HandlerError as error:
                errors.append(str(error))
                raise

        @app.subscriber("orders", batch=2, start_at=KinesisPosition.horizon())
        async def handle(values: list[int]) -> None:
            handled.append(values)

        async with running(app):
            await until(lambda: app.counters["orders"].failed == 2)
        assert handled == []
        assert "takes what the middleware was given" in errors[0]
        assert await world.checkpoint() is None

    async def test_return_retry_without_parentheses_is_an_error_here_too(self):
        app = an_app()

        @app.middleware
        async def mistaken(message: Any, call_next: Any) -> Any:
            return retry

        @app.subscriber("orders")
        async def handle(value: int) -> None: ...

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert test.subscriber("orders").counters.failed == 1


@pytest.mark.parametrize("wrong", [None, "mw", lambda message, call_next: None])
def test_what_cannot_be_awaited_is_refused(wrong: Any):
    with pytest.raises(ConfigurationError, match="async def"):
        an_app().middleware(wrong)


def test_an_object_that_is_called_and_a_partial_are_middlewares():
    class Counting:
        async def __call__(self, message: Any, call_next: Any) -> Any:
            return await call_next(message)

    app, counting = an_app(), Counting()
    assert app.middleware(counting) is counting


async def test_without_middlewares_the_handler_stays_on_its_short_way():
    async def handle(value: int) -> None: ...

    handler = resolve_handler(handle, JsonCodec())
    nothing: Any = None
    caller = Caller(handler, Tools(nothing, nothing), HandlerThreads(1, "unused"))

    assert around(handler, caller, ()) == (handler, caller)
    assert handler.sources is None
    assert not handler.wants_message


async def test_a_stop_lets_a_middleware_finish_and_cuts_off_one_that_does_not():
    world = World()
    world.stream()
    world.put("orders", 1, 2)
    entered, gate = asyncio.Event(), asyncio.Event()

    def app(timeout: float) -> RustStream:
        app = world.app(shutdown_timeout=timeout)

        @app.middleware
        async def wait(message: Any, call_next: Any) -> Any:
            result = await call_next(message)
            entered.set()
            await gate.wait()
            return result

        @app.subscriber("orders", start_at=KinesisPosition.horizon())
        async def handle(value: int) -> None: ...

        return app

    with pytest.raises(StopTimeout, match=r"worker\[orders/0\]"):
        async with running(app(0.01)):
            await entered.wait()
    assert await world.checkpoint() is None

    entered.clear()
    async with running(patient := app(10.0)):
        await entered.wait()
        patient.stop()
        for _ in range(50):  # the stop closes the channel
            await asyncio.sleep(0)
        gate.set()
    assert await world.checkpoint() == "1"
