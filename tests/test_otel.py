"""Traces: which spans there are, how they hang together, and what they say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisPublish,
    KinesisPublisher,
    Outcome,
    RustStream,
    drop,
    retry,
)
from ruststream_kinesis.errors import BufferFull, PublishError
from ruststream_kinesis.otel import OpenTelemetry
from ruststream_kinesis.testing import TestApp
from tests.support.world import World, running, until

# A producer elsewhere, with its headers.
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_ELSEWHERE = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Traced:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """All, or those of one name, as they ended."""
        return [s for s in self._exporter.get_finished_spans() if name in (None, s.name)]

    def one(self, name: str) -> Any:
        """The only one of its name."""
        (span,) = self.spans(name)
        return span


@pytest.fixture
def traced() -> Traced:
    return Traced()


def an_app(traced: Traced, app: RustStream | None = None, **options: Any) -> RustStream:
    app = app or RustStream(KinesisBroker(), title="test", version="0")
    OpenTelemetry(tracer_provider=traced.provider, **options).instrument(app)
    return app


def hexed(span: Any) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def test_a_handler_s_span_is_the_producer_s_child_and_says_which_record_it_is(traced):
    app = an_app(traced)
    current: list[Any] = []

    @app.subscriber("orders")
    async def handle(value: int) -> None:
        current.append(trace.get_current_span())

    async with TestApp(app) as test:
        result = await test.publish(1, "orders", headers=FROM_ELSEWHERE)
    span = traced.one("process orders")
    assert span.kind is SpanKind.CONSUMER
    assert hexed(span)[0] == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert current[0].get_span_context() == span.context
    assert dict(span.attributes) == {
        "messaging.system": "aws.kinesis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": result.shard_id,
        "messaging.message.id": result.sequence_number,
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_what_a_handler_publishes_and_its_reply_stand_in_the_same_trace(traced):
    app = an_app(traced)

    @app.subscriber("orders", publish="replies")
    async def handle(value: int, publisher: KinesisPublisher) -> int:
        await publisher.publish(value, "log", headers={"a": "b"})
        return value

    @app.subscriber("replies")
    def in_a_thread(value: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        with trace.get_tracer("mine", tracer_provider=traced.provider).start_as_current_span("own"):
            pass

    @app.subscriber("unrelated")
    async def unrelated(value: int) -> None: ...

    async with TestApp(app) as test:
        await test.publish(1, "orders", headers=FROM_ELSEWHERE)
        await test.publish(2, "orders")
        (first, _) = test.published("log")
        sent = test.published("replies")[0]
    processed, other = traced.spans("process orders")
    log, reply = traced.spans("send log")[0], traced.spans("send replies")[0]
    for span in (log, reply):
        assert span.kind is SpanKind.PRODUCER
        assert span.parent == processed.context
    assert hexed(reply)[0] == TRACE
    assert first.headers["a"] == "b"
    assert first.headers["traceparent"] == "00-{}-{}-01".format(*hexed(log))
    assert dict(reply.attributes) == {
        "messaging.system": "aws.kinesis",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "replies",
        "messaging.destination.partition.id": sent.shard_id,
        "messaging.message.id": sent.sequence_number,
    }
    assert traced.spans("process replies")[0].parent.span_id == reply.context.span_id
    assert traced.spans("own")[0].parent == traced.spans("process replies")[0].context
    # The next record brought no context: it begins a trace of its own, not one of its neighbour's.
    assert other.parent is None
    assert traced.spans("send replies")[1].parent == other.context


async def test_nothing_of_a_delivery_stays_for_the_next(traced):
    app = an_app(traced)
    seen: list[dict[str, object]] = []

    @app.subscriber("orders", publish="replies")
    async def handle(value: int) -> int:
        seen.append(dict(baggage.get_all()))
        return value

    @app.subscriber("batches", batch=1, publish="replies")
    async def handle_many(values: list[int]) -> dict[str, int]:
        return {}

    async with TestApp(app) as test:
        await test.publish(1, "orders", headers={"baggage": "who=me"})
        await test.publish(2, "orders")
        await test.publish(3, "batches")
        await test.publish(4, "batches")
    assert seen == [{"who": "me"}, {}]
    assert [span.parent for span in traced.spans("process batches")] == [None, None]
    assert [span.parent for span in traced.spans("send replies")] == [
        span.context for span in traced.spans() if span.kind is SpanKind.CONSUMER
    ]


async def test_batched_replies_are_children_too(traced):
    app = an_app(traced)

    @app.subscriber("orders", publish=KinesisPublish(to="replies", batch=10, linger=0.01))
    async def handle(value: int) -> int:
        return value

    async with TestApp(app) as test:
        for value in range(3):
            await test.publish(value, "orders")
    parents = [span.parent for span in traced.spans("send replies")]
    assert sorted(p.span_id for p in parents if p) == sorted(
        span.context.span_id for span in traced.spans("process orders")
    )


async def test_a_batch_is_a_trace_of_its_own_with_links_to_the_producers(traced):
    world = World()
    world.stream()
    app = an_app(traced, world.app())
    handled: list[list[int]] = []

    @app.subscriber("orders", batch=3)
    async def handle(values: list[int]) -> None:
        handled.append(values)

    async with running(app):
        publisher = app.publisher()
        for value in range(2):
            await publisher.publish(value, "orders")
        world.put("orders", 2)
        await world.clock.advance(1.0)
        await until(lambda: bool(handled))
    span = traced.one("process orders")
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [
        each.context.span_id for each in traced.spans("send orders")
    ]
    assert [dict(link.attributes) for link in span.links] == [
        {"messaging.message.id": "1"},
        {"messaging.message.id": "2"},
    ]
    assert span.attributes["messaging.batch.message_count"] == 3
    assert span.attributes["messaging.destination.partition.id"] == "shardId-000000000000"


async def test_an_error_and_an_outcome_are_recorded_and_so_is_the_attempt(traced):
    app = an_app(traced)

    @app.subscriber("orders", max_attempts=2)
    async def handle(value: int) -> Outcome:
        if value == 1:
            raise ZeroDivisionError("by zero")
        return drop() if value == 2 else retry()

    async with TestApp(app) as test:
        for value in (1, 2, 3):
            await test.publish(value, "orders")
    failed, _, dropped, retried, last = traced.spans("process orders")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ZeroDivisionError: by zero"
    assert failed.attributes["error.type"] == "ZeroDivisionError"
    assert [event.name for event in failed.events] == ["exception"]
    assert dropped.status.status_code is StatusCode.UNSET
    assert [each.attributes["ruststream.outcome"] for each in (dropped, retried, last)] == [
        "drop",
        "retry",
        "retry",
    ]
    assert "ruststream.attempt" not in retried.attributes
    assert last.attributes["ruststream.attempt"] == 2


async def test_a_publish_that_fails_says_so(traced):
    app = an_app(traced)
    batched = app.publisher(KinesisPublish(batch=1, buffer_records=1))

    async with TestApp(app) as test:
        test.fail_publish("orders", error="terminal")
        with pytest.raises(PublishError):
            await app.publisher().publish(1, "orders")
        first = batched.publish_nowait(1, "full")
        with pytest.raises(BufferFull):
            batched.publish_nowait(2, "full")
        await first
        cancelled = batched.publish_nowait(3, "given-up")
        cancelled.cancel()
        await asyncio.sleep(0)
    for name, kind in (
        ("send orders", "ruststream_kinesis.errors.PublishError"),
        ("send given-up", "asyncio.exceptions.CancelledError"),
    ):
        span = traced.one(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == kind
    full, put = traced.spans("send full")
    assert full.attributes["error.type"] == "ruststream_kinesis.errors.BufferFull"
    assert put.status.status_code is StatusCode.UNSET


async def test_a_context_that_the_caller_brings_stays_and_is_linked(traced):
    app = an_app(traced)

    async with TestApp(app) as test:
        await app.publisher().publish(1, "orders", headers=FROM_ELSEWHERE)
        (record,) = test.published("orders")
    assert record.headers["traceparent"] == FROM_ELSEWHERE["traceparent"]
    (link,) = traced.one("send orders").links
    assert f"{link.context.span_id:016x}" == PARENT


async def test_records_stay_without_an_envelope_where_that_is_asked_for(traced):
    app = an_app(traced, propagate=False)

    async with TestApp(app) as test:
        await app.publisher().publish(b"plain", "orders")
        (record,) = test.published("orders")
    assert record.data == b"plain"
    assert traced.one("send orders").kind is SpanKind.PRODUCER


async def test_without_a_provider_nothing_is_traced_and_no_header_is_written():
    app = RustStream(KinesisBroker(), title="test", version="0")
    OpenTelemetry().instrument(app)

    async with TestApp(app) as test:
        await app.publisher().publish(b"plain", "orders")
        (record,) = test.published("orders")
    assert record.data == b"plain"


async def test_a_restart_traces_a_record_that_was_read_again(traced):
    """The context stands in the record: it is the parent of every delivery."""
    world = World()
    world.stream()
    app = an_app(traced, world.app())
    seen: list[int] = []

    @app.subscriber("orders", start_at=KinesisPosition.horizon())
    async def handle(value: int) -> Outcome | None:
        seen.append(value)
        return retry() if len(seen) == 1 else None

    async with running(app):
        await app.publisher().publish(1, "orders")
        await world.clock.advance(1.0)
        await until(lambda: len(seen) == 1)
    app.broker.connection.attach(world.broker().connection.transport)
    async with running(app):
        await until(lambda: len(seen) == 2)
    send = traced.one("send orders")
    assert [each.parent.span_id for each in traced.spans("process orders")] == [
        send.context.span_id
    ] * 2


def test_without_the_extra_the_import_says_what_to_install():
    program = "import sys\nsys.modules['opentelemetry'] = None\nimport ruststream_kinesis.otel\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert "pip install 'ruststream-kinesis[otel]'" in done.stderr
