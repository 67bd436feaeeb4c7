"""From a delivery to its outcome: what handlers return, raise, settle and publish."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisMessage,
    KinesisPosition,
    Outcome,
    ack,
    drop,
    retry,
)
from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.errors import (
    HandlerFailed,
)
from tests.support.world import PATIENCE, World, outcome_of, serve, until

HORIZON = KinesisPosition.horizon()
SHARD = "shardId-000000000000"


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    world.stream("replies")
    return world


class TestOutcomes:
    @pytest.mark.parametrize(
        ("outcome", "becomes"),
        [
            (None, "settled"),
            (ack(), "settled"),
            (Outcome("ack"), "settled"),
            (drop(), "settled"),
            (Outcome("drop"), "settled"),
            (retry(), "open"),
            (Outcome("retry"), "open"),
        ],
        ids=repr,
    )
    async def test_what_is_returned_decides(
        self, world: World, outcome: Outcome | None, becomes: str
    ):
        async def handle(message: KinesisMessage[int]) -> Outcome | None:
            return outcome

        assert await outcome_of(world, handle) == becomes

    async def test_a_dropped_record_is_logged_with_its_place(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        async def handle(message: KinesisMessage[int]) -> Outcome:
            return drop()

        await outcome_of(world, handle)

        (line,) = [r for r in caplog.records if "dropped record" in r.getMessage()]
        assert "record 1 " in line.getMessage()
        assert SHARD in line.getMessage()
        assert "orders" in line.getMessage()

    async def test_a_value_without_a_stream_for_it_is_acked_and_said_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        world.put("orders", 1, 2, 3)

        async def handle(value: int):
            return {"value": value}

        await serve(world, handle, until_handled=3)

        assert await world.checkpoint() == "3"
        said = [r.getMessage() for r in caplog.records if "publish=" in r.getMessage()]
        assert len(said) == 1
        assert "dict" in said[0]


class TestHandlersThatRaise:
    @pytest.mark.parametrize(
        ("policy", "becomes"),
        [
            ("retry", "open"),
            ("drop", "settled"),
            (lambda error, message: ack(), "settled"),
            (lambda error, message: drop(), "settled"),
            (lambda error, message: retry(), "open"),
            (lambda error, message: None, "open"),
            (lambda error, message: "drop", "open"),
            (lambda error, message: 1 / 0, "open"),
            (drop, "open"),
        ],
    )
    async def test_on_error_decides_and_rubbish_leaves_the_record_open(
        self, world: World, policy: Any, becomes: str
    ):
        async def handle(message: KinesisMessage[int]) -> None:
            raise RuntimeError("it broke")

        assert await outcome_of(world, handle, on_error=policy) == becomes

    async def test_by_default_the_record_stays_open(self, world: World):
        async def handle(message: KinesisMessage[int]) -> None:
            raise RuntimeError("it broke")

        assert await outcome_of(world, handle) == "open"

    async def test_stop_stops_the_service_and_leaves_the_record_open(self, world: World):
        world.put("orders", *range(1, 9))
        seen: list[int] = []
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, on_error="stop")
        async def handle(value: int) -> None:
            seen.append(value)
            if value == 3:
                raise RuntimeError("it broke")

        with pytest.raises(HandlerFailed, match="it broke") as caught:
            async with asyncio.timeout(PATIENCE):
                await app.run(signals=False)

        assert seen == [1, 2, 3], "nothing newer starts in the shard"
        assert await world.checkpoint() == "2"
        assert (caught.value.stream, caught.value.shard_id) == ("orders", SHARD)
        assert caught.value.sequence_number == "3"

    async def test_a_policy_is_told_the_error_and_the_message(self, world: World):
        told: list[tuple[BaseException, KinesisMessage[Any]]] = []
        error = RuntimeError("it broke")

        def policy(error: BaseException, message: KinesisMessage[Any]) -> Outcome:
            told.append((error, message))
            return drop()

        world.append("orders", SHARD, encode_envelope({"a": "b"}, b"5"), "k")

        async def handle(value: int) -> None:
            raise error

        await serve(world, handle, until_handled=1, on_error=policy)

        ((given, message),) = told
        assert given is error
        assert message.payload == 5
        assert message.headers["a"] == "b"
        assert (message.partition_key, message.sequence_number) == ("k", "1")

    @pytest.mark.parametrize("policy", ["retry", "drop"])
    async def test_a_cancellation_of_the_handlers_own_making_is_an_error_like_any_other(
        self, world: World, policy: Any
    ):
        async def handle(message: KinesisMessage[int]) -> None:
            raise asyncio.CancelledError

        becomes = {"retry": "open", "drop": "settled"}[policy]
        assert await outcome_of(world, handle, on_error=policy) == becomes

    async def test_awaiting_a_task_that_was_cancelled_is_an_error_like_any_other(
        self, world: World
    ):
        async def handle(message: KinesisMessage[int]) -> None:
            task = asyncio.create_task(asyncio.Event().wait())
            await asyncio.sleep(0)
            task.cancel()
            await task

        assert await outcome_of(world, handle, on_error="drop") == "settled"

    async def test_a_timeout_within_the_handler_is_an_error_like_any_other(self, world: World):
        async def handle(message: KinesisMessage[int]) -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        assert await outcome_of(world, handle, on_error="drop") == "settled"

    async def test_an_error_is_logged_with_its_place_and_trace(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        async def handle(message: KinesisMessage[int]) -> None:
            raise RuntimeError("it broke")

        await outcome_of(world, handle)

        (line,) = [r for r in caplog.records if "failed at record" in r.getMessage()]
        assert "record 1 " in line.getMessage()
        assert SHARD in line.getMessage()
        assert line.exc_info is not None
        assert vars(line)["sequence_number"] == "1"


class TestPayloadsThatDoNotDecode:
    @pytest.mark.parametrize(
        ("policy", "becomes"),
        [
            ("drop", "3"),
            ("retry", None),
            (lambda error, message: ack(), "3"),
            (lambda error, message: retry(), None),
            (lambda error, message: 1 / 0, None),
            (lambda error, message: "rubbish", None),
        ],
    )
    async def test_on_decode_error_decides(self, world: World, policy: Any, becomes: str | None):
        world.put("orders", b"{nope", 2, 3)
        seen: list[int] = []

        async def handle(value: int) -> None:
            seen.append(value)

        await serve(world, handle, until_handled=3, on_decode_error=policy)

        assert seen == [2, 3], "it never reaches the handler"
        assert await world.checkpoint() == becomes

    async def test_by_default_it_is_dropped_and_logged_with_its_place(
        self, world: World, caplog: pytest.LogCaptureFixture
    ):
        world.put("orders", b"{nope", 2)

        async def handle(value: int) -> None: ...

        await serve(world, handle, until_handled=2)

        assert await world.checkpoint() == "2"
        said = [r.getMessage() for r in caplog.records if "does not decode" in r.getMessage()]
        assert len(said) == 1
        assert all(part in said[0] for part in ("record 1 ", SHARD, "orders", "int"))

    async def test_stop_stops_the_service(self, world: World):
        world.put("orders", 1, b"{nope", 3)
        app = world.app()

        @app.subscriber("orders", start_at=HORIZON, on_decode_error="stop")
        async def handle(value: int) -> None: ...

        with pytest.raises(HandlerFailed) as caught:
            async with asyncio.timeout(PATIENCE):
                await app.run(signals=False)

        assert caught.value.sequence_number == "2"
        assert await world.checkpoint() == "1"

    async def test_a_policy_gets_the_bytes_that_did_not_decode(self, world: World):
        world.put("orders", b"{nope")
        told: list[Any] = []

        def policy(error: BaseException, message: KinesisMessage[Any]) -> Outcome:
            told.append(message.payload)
            return drop()

        async def handle(value: int) -> None: ...

        await serve(world, handle, until_handled=1, on_decode_error=policy)

        assert told == [b"{nope"]

    @pytest.mark.parametrize(
        "blob",
        [
            bytes.fromhex("F3899AC2") + b"hello",
            bytes.fromhex("F3899AC2"),
            b"x" * 19,
            b"RSK1",
            b"RSK1\xff\xff\xff\xffrest",
            b"",
        ],
    )
    async def test_odd_blobs_are_plain_payloads(self, world: World, blob: bytes):
        """Case K1, and an envelope whose length is beyond the blob."""
        world.put("orders", blob)
        seen: list[bytes] = []

        async def handle(value: bytes) -> None:
            seen.append(value)

        await serve(world, handle, until_handled=1)

        assert seen == [blob]
        assert await world.checkpoint() == "1"


class TestPlainFunctions:
    async def test_they_run_in_threads_with_the_context_of_their_worker(self, world: World):
        world.put("orders", 1, 2)
        found: list[tuple[int, str]] = []

        def handle(value: int) -> None:
            found.append((value, threading.current_thread().name))

        await serve(world, handle, until_handled=2)

        assert [value for value, _ in found] == [1, 2]
        assert all(name.startswith("handler-orders") for _, name in found)
        assert await world.checkpoint() == "2"

    async def test_what_one_sets_in_its_context_does_not_leak_into_the_next(self, world: World):
        variable = contextvars.ContextVar("variable", default=0)
        world.put("orders", 1, 2)
        found: list[int] = []

        def handle(value: int) -> None:
            found.append(variable.get())
            variable.set(value)

        await serve(world, handle, until_handled=2)

        assert found == [0, 0]

    @pytest.mark.parametrize("error", [RuntimeError("it broke"), asyncio.CancelledError()])
    async def test_what_they_raise_is_an_error_like_any_other(
        self, world: World, error: BaseException
    ):
        world.put("orders", 1, 2)

        def handle(value: int) -> None:
            if value == 1:
                raise error

        await serve(world, handle, until_handled=2, on_error="drop")

        assert await world.checkpoint() == "2"

    async def test_their_value_is_a_reply(self, world: World):
        world.put("orders", 1)

        def handle(value: int) -> dict[str, int]:
            return {"got": value}

        await serve(world, handle, until_handled=1, publish="replies")

        assert [each.data for each in world.records("replies")] == [b'{"got":1}']

    async def test_one_key_is_never_handled_twice_at_once(self, world: World):
        for key in "abc":
            world.put("orders", *range(20), key=key)
        inside: set[str] = set()
        clashes: list[str] = []
        lock = threading.Lock()

        def handle(value: int, message: KinesisMessage[int]) -> None:
            key = message.partition_key
            with lock:
                if key in inside:
                    clashes.append(key)
                inside.add(key)
            with lock:
                inside.discard(key)

        await serve(world, handle, until_handled=60, workers=4)

        assert clashes == []

    async def test_no_thread_is_left_after_the_stop(self, world: World):
        world.put("orders", 1)

        def handle(value: int) -> None: ...

        await serve(world, handle, until_handled=1)
        await until(
            lambda: not [t for t in threading.enumerate() if t.name.startswith("handler-orders")]
        )

    async def test_one_that_returns_a_coroutine_has_it_awaited(self, world: World):
        """A decorator that is no `async def` around a handler that is one."""
        world.put("orders", 1)
        ran: list[int] = []

        async def work(value: int) -> None:
            ran.append(value)

        def handle(value: int) -> Any:
            return work(value)

        await serve(world, handle, until_handled=1)

        assert ran == [1]
        assert await world.checkpoint() == "1"
