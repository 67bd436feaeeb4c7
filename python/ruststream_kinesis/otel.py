"""OpenTelemetry: a span for each call of a handler and for each record published, in one trace.

The extra `[otel]` brings the API; a service brings its own SDK and exporter. Without one, spans are
no-ops. Names and attributes follow the semantic conventions for messaging spans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as missing:
    raise ImportError(
        "ruststream_kinesis.otel needs OpenTelemetry's API: pip install 'ruststream-kinesis[otel]'"
    ) from missing

from ruststream_kinesis.app import RustStream
from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.middlewares import CallNext, Delivered
from ruststream_kinesis.outcomes import Outcome
from ruststream_kinesis.publications import Publication
from ruststream_kinesis.transport import PutResult

__all__ = ["OpenTelemetry"]

# What the names below are taken from.
_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
# The conventions list no value for Kinesis; it is formed like theirs for SNS.
_SYSTEM = "aws.kinesis"
_PARTITION = "messaging.destination.partition.id"
_MESSAGE_ID = "messaging.message.id"
_BATCH_COUNT = "messaging.batch.message_count"
_ERROR_TYPE = "error.type"
# Our own: what the handler said, and which delivery of its record it was.
_OUTCOME = "ruststream.outcome"
_ATTEMPT = "ruststream.attempt"


class OpenTelemetry:
    """Traces an application: `OpenTelemetry().instrument(app)`.

    Args:
        tracer_provider: Makes the spans; the global one by default, also where it is set later.
        propagate: Write the trace context into the headers of published records. With headers, a
            record travels in an envelope: turn it off where others read the streams, who know none.
    """

    def __init__(
        self, *, tracer_provider: trace.TracerProvider | None = None, propagate: bool = True
    ) -> None:
        self._tracer = trace.get_tracer(
            "ruststream_kinesis", tracer_provider=tracer_provider, schema_url=_SCHEMA
        )
        self._propagate = propagate
        self._sends: dict[str, tuple[str, dict[str, Any]]] = {}
        """Name and attributes of the spans, by stream as a publisher names it."""

    def instrument(self, app: RustStream) -> None:
        """Puts it around handlers and publishes, within the middlewares that are there already."""
        app.middleware(self.consume)
        app.publish_middleware(self.publish)

    async def consume(self, delivered: Delivered, call_next: CallNext) -> Any:
        """The middleware around handlers: `process STREAM`."""
        context = Context()
        if isinstance(delivered, KinesisMessage):
            if _has_headers(delivered):
                # Its baggage is the producer's, too.
                context = propagate.extract(delivered.headers, context)
            span = self._process(delivered, context)
        else:
            span = self._process_batch(delivered, context)
        token = otel_context.attach(trace.set_span_in_context(span, context))
        reply = False
        try:
            result = await call_next(delivered)
            if isinstance(result, Outcome):
                span.set_attribute(_OUTCOME, result.kind)
            else:
                reply = result is not None
        except BaseException as error:
            _failed(span, error)
            raise
        else:
            return result
        finally:
            span.end()
            # A reply is published by the worker after this: its span is this one's child. The
            # context that stays behind is used for nothing else, as the next delivery brings its own.
            if not reply:
                otel_context.detach(token)

    def _process(self, message: KinesisMessage[Any], context: Context) -> Span:
        """The span of one delivery: a child of its producer's, wherever that ran."""
        attributes: dict[str, Any] = {
            **_about("process", message.stream),
            _PARTITION: message.shard_id,
            _MESSAGE_ID: message.sequence_number,
        }
        if (attempt := message.attempt) > 1:
            attributes[_ATTEMPT] = attempt
        return self._tracer.start_span(
            f"process {message.stream}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )

    def _process_batch(self, messages: Sequence[KinesisMessage[Any]], context: Context) -> Span:
        """The span of a batch: a trace of its own, with a link to each producer's."""
        stream = messages[0].stream
        attributes: dict[str, Any] = {
            **_about("process", stream),
            _BATCH_COUNT: len(messages),
        }
        if len(shards := {each.shard_id for each in messages}) == 1:
            attributes[_PARTITION] = shards.pop()
        links = [
            Link(producer, {_MESSAGE_ID: each.sequence_number})
            for each in messages
            if _has_headers(each) and (producer := _span_context(each.headers)).is_valid
        ]
        return self._tracer.start_span(
            f"process {stream}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )

    def publish(
        self,
        record: Publication,
        call_next: Callable[[Publication], asyncio.Future[PutResult | None]],
    ) -> asyncio.Future[PutResult | None]:
        """The middleware around publishes: `send STREAM`, from here to the service's answer."""
        known = self._sends.get(record.to)
        if known is None:
            stream = record.stream
            known = self._sends[record.to] = f"send {stream}", _about("send", stream)
        name, attributes = known
        span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
        if self._propagate:
            carrier: dict[str, str] = {}
            propagate.inject(carrier, trace.set_span_in_context(span))
            if carrier.keys().isdisjoint(record.headers):
                record.headers.update(carrier)
            else:  # the caller has brought a context of its own, which stays
                span.add_link(_span_context(record.headers))
        try:
            future = call_next(record)
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise

        def put(future: asyncio.Future[PutResult | None]) -> None:
            if future.cancelled():
                _failed(span, asyncio.CancelledError())
            elif (error := future.exception()) is not None:
                _failed(span, error)
            elif (result := future.result()) is not None:
                span.set_attributes(
                    {_PARTITION: result.shard_id, _MESSAGE_ID: result.sequence_number}
                )
            span.end()

        future.add_done_callback(put)
        return future


def _about(operation: str, stream: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": stream,
    }


def _has_headers(message: KinesisMessage[Any]) -> bool:
    """Whether it came in an envelope: no other record brings a context."""
    return message.run.page.header_block(message.index) is not None


def _span_context(headers: dict[str, str]) -> trace.SpanContext:
    return trace.get_current_span(propagate.extract(headers, Context())).get_span_context()


def _failed(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    span.set_attribute(_ERROR_TYPE, name)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))
