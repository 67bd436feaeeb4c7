"""Middlewares around publishes: which records pass them, and what they may change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPublish,
    KinesisPublisher,
    Publication,
    RustStream,
    retry,
)
from ruststream_kinesis.errors import (
    BufferFull,
    ConfigurationError,
    EnvelopeError,
    InvalidRecord,
    PublishError,
)
from ruststream_kinesis.testing import TestApp

BATCHED = KinesisPublish(batch=10, linger=0.01)


def an_app() -> RustStream:
    return RustStream(KinesisBroker(), title="test", version="0")


def stamp(app: RustStream, name: str = "mw", *, plain: bool = False) -> None:
    """Register a middleware that writes its name behind those that were there before."""

    def mark(record: Publication) -> None:
        record.headers["passed"] = record.headers.get("passed", "") + name

    if plain:

        @app.publish_middleware
        def plainly(record: Publication, call_next: Any) -> Any:
            mark(record)
            return call_next(record)
    else:

        @app.publish_middleware
        async def awaiting(record: Publication, call_next: Any) -> Any:
            mark(record)
            return await call_next(record)


@given(kinds=st.lists(st.booleans(), min_size=1, max_size=4), batched=st.booleans())
def test_the_first_is_the_outermost_whatever_kinds_stand_together(kinds: list[bool], batched: bool):
    app = an_app()
    publisher = app.publisher(BATCHED if batched else None)  # before any is registered
    for n, plain in enumerate(kinds):
        stamp(app, str(n), plain=plain)

    async def run() -> None:
        async with TestApp(app) as test:
            result = await publisher.publish({"id": 1}, "orders", partition_key="k")
            (record,) = test.published("orders")
            assert record.sequence_number == result.sequence_number
            assert (record.payload, record.partition_key) == (b'{"id":1}', "k")
            assert record.headers["passed"] == "".join(map(str, range(len(kinds))))

    asyncio.run(run())


class TestWhatPasses:
    async def test_publishes_replies_and_an_injected_publisher_but_no_copies_or_dead_letters(self):
        app = an_app()
        stamp(app)

        @app.subscriber("orders", publish="replies", max_attempts=2, dead_letter="dead")
        async def handle(value: int, publisher: KinesisPublisher) -> Any:
            if value < 0:
                return retry()
            await publisher.publish(value, "injected")
            return value

        async with TestApp(app) as test:
            await app.publisher().publish(1, "orders")
            await test.publish(-1, "orders")
            await test.settled()
            passed = {
                name: [each.headers.get("passed") for each in test.published(name)]
                for name in ("orders", "injected", "replies", "dead")
            }
        # What the test publishes comes from elsewhere; so does its copy.
        assert passed == {
            "orders": ["mw", None, None],
            "injected": ["mw"],
            "replies": ["mw"],
            "dead": [None],
        }

    @pytest.mark.parametrize("batch", [None, 2])
    async def test_replies_that_share_requests_pass_plain_ones(self, batch: int | None):
        app = an_app()
        stamp(app, plain=True)
        policy = KinesisPublish(to="replies", batch=10, linger=0.01)

        if batch:

            @app.subscriber("orders", publish=policy, batch=batch)
            async def handle_many(values: list[int]) -> dict[str, int]:
                return {"sum": sum(values)}
        else:

            @app.subscriber("orders", publish=policy)
            async def handle(value: int) -> int:
                return value

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert [each.headers["passed"] for each in test.published("replies")] == ["mw"]
            assert test.subscriber("orders").counters.replies == 1

    async def test_records_given_without_waiting_keep_their_order_among_others(self):
        app = an_app()
        stamp(app, plain=True)
        publisher = app.publisher(BATCHED)

        async with TestApp(app) as test:
            futures = [publisher.publish_nowait(n, "orders", partition_key="k") for n in range(3)]
            await publisher.publish(3, "orders", partition_key="k")
            await asyncio.gather(*futures)
            assert [each.payload for each in test.published("orders")] == [b"0", b"1", b"2", b"3"]
            assert {each.headers["passed"] for each in test.published("orders")} == {"mw"}


class TestWhatItMayNot:
    async def test_value_stream_and_keys_stay_what_the_caller_said(self):
        app = an_app()
        seen: list[Any] = []

        @app.publish_middleware
        async def look(record: Publication, call_next: Any) -> Any:
            with pytest.raises(AttributeError):
                record.partition_key = "other"  # type: ignore[misc]  # what is refused
            seen.append((record.value, record.to, record.stream, record.partition_key))
            seen.append(dict(record.headers))
            return await call_next(record)

        async with TestApp(app) as test:
            await app.publisher().publish(
                1, "orders", headers={"partition-key": "from-header", "a": "b"}
            )
            (record,) = test.published("orders")
        assert seen == [(1, "orders", "orders", "from-header"), {"a": "b"}]
        assert (record.partition_key, record.headers["a"]) == ("from-header", "b")

    @pytest.mark.parametrize("policy", [None, BATCHED])
    async def test_a_partition_key_among_the_headers_is_refused(self, policy: Any):
        app = an_app()

        @app.publish_middleware
        def sneak(record: Publication, call_next: Any) -> Any:
            record.headers["partition-key"] = "mine"
            return call_next(record)

        async with TestApp(app) as test:
            with pytest.raises(ConfigurationError, match="partition-key"):
                await app.publisher(policy).publish(1, "orders")
            assert test.published("orders") == []

    async def test_no_result_is_not_passed_off_as_one(self):
        app = an_app()

        @app.publish_middleware
        async def forgetful(record: Publication, call_next: Any) -> None:
            await call_next(record)

        @app.subscriber("orders", publish="replies")
        async def handle(value: int) -> int:
            return value

        async with TestApp(app) as test:
            with pytest.raises(PublishError, match="returned None"):
                await app.publisher().publish(1, "others")
            await test.publish(1, "orders")
            assert test.subscriber("orders").counters.held == 1

    async def test_a_plain_one_returns_the_future(self):
        app = an_app()

        @app.publish_middleware
        def forgetful(record: Publication, call_next: Any) -> None:
            call_next(record).cancel()

        async with TestApp(app):
            with pytest.raises(ConfigurationError, match=r"forgetful returned None"):
                await app.publisher(BATCHED).publish(1, "orders")

    async def test_one_that_awaits_cannot_stand_before_what_does_not_wait(self):
        app = an_app()
        stamp(app)

        async with TestApp(app) as test:
            with pytest.raises(ConfigurationError, match=r"publish_nowait cannot pass .*awaiting"):
                app.publisher(BATCHED).publish_nowait(1, "orders")
            # Without a batch it is a task of its own.
            await app.publisher().publish_nowait(1, "orders")
            assert [each.headers["passed"] for each in test.published("orders")] == ["mw"]

    async def test_nor_before_batched_replies_which_the_start_says(self):
        app = an_app()
        stamp(app)

        @app.subscriber("orders", publish=KinesisPublish(to="replies", batch=10))
        async def handle(value: int) -> int:
            return value

        with pytest.raises(ConfigurationError, match="batched replies cannot pass") as caught:
            async with TestApp(app):
                pass
        assert caught.value.stream == "orders"

    def test_what_is_no_function_is_refused(self):
        with pytest.raises(ConfigurationError, match="is a function"):
            an_app().publish_middleware(None)  # type: ignore[type-var]  # what is refused


class TestErrors:
    @pytest.mark.parametrize("policy", [None, BATCHED])
    @pytest.mark.parametrize("plain", [True, False])
    async def test_one_of_its_own_is_the_publish_s(self, policy: Any, plain: bool):
        app = an_app()

        if plain:

            @app.publish_middleware
            def broken(record: Publication, call_next: Any) -> Any:
                raise RuntimeError("it broke")
        else:

            @app.publish_middleware
            async def breaking(record: Publication, call_next: Any) -> Any:
                raise RuntimeError("it broke")

        async with TestApp(app) as test:
            publisher = app.publisher(policy)
            with pytest.raises(RuntimeError, match="it broke"):
                await publisher.publish(1, "orders")
            if plain:
                future = publisher.publish_nowait(1, "orders")
                with pytest.raises(RuntimeError, match="it broke"):
                    await future
            assert test.published("orders") == []

    async def test_one_around_a_reply_leaves_its_record_open(self):
        app = an_app()

        @app.publish_middleware
        async def broken(record: Publication, call_next: Any) -> Any:
            raise RuntimeError("it broke")

        @app.subscriber("orders", publish="replies")
        async def handle(value: int) -> int:
            return value

        async with TestApp(app) as test:
            await test.publish(1, "orders")
            assert test.subscriber("orders").counters.held == 1
            assert test.published("replies") == []

    async def test_those_of_the_publish_reach_it(self):
        app, seen = an_app(), []

        @app.publish_middleware
        async def watch(record: Publication, call_next: Any) -> Any:
            try:
                return await call_next(record)
            except Exception as error:
                seen.append(type(error))
                raise

        async with TestApp(app) as test:
            test.fail_publish("orders", error="terminal")
            for key, headers in (("k", {}), ("k" * 257, {}), ("k", {"bad": "two\nlines"})):
                with pytest.raises((PublishError, InvalidRecord, EnvelopeError)):
                    await app.publisher().publish(1, "orders", partition_key=key, headers=headers)
        assert seen == [PublishError, InvalidRecord, EnvelopeError]

    async def test_a_full_buffer_is_said_at_once(self):
        app = an_app()
        stamp(app, plain=True)
        publisher = app.publisher(KinesisPublish(batch=1, buffer_records=1))

        async with TestApp(app):
            first = publisher.publish_nowait(1, "orders")
            with pytest.raises(BufferFull):
                publisher.publish_nowait(2, "orders")
            await first


@pytest.mark.parametrize("policy", [None, BATCHED])
async def test_a_reply_that_nobody_wants_any_more_is_no_error(policy: Any):
    """Its shard was lost: there is no result, and nothing is wrong."""
    app = an_app()
    stamp(app, plain=True)
    publisher = app.publisher(policy)

    async with TestApp(app) as test:
        assert await publisher.publish_while(1, "replies", lambda: False) is None
        assert test.published("replies") == []
