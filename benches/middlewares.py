"""What stands around a handler: the same service with nothing, with a middleware, and traced.

A middleware that only passes on is the least that one can cost: a message is made for each record,
which the service spares a handler that takes the payload alone. The traced service has the SDK of
OpenTelemetry with a processor that counts spans and throws them away, so that what is measured is
their making; the number of spans is checked, like every record. Publishes are timed beside it.
"""

from __future__ import annotations

import asyncio
import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

from benches.canned import serving
from benches.cpu import Sample, Stopwatch, interleave, ratio
from benches.raw_loop import REGION, STREAM
from benches.report import Table
from benches.service import BATCH, run_app
from benches.tally import Plan, Tally, WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisPublish, RustStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.canned import Server
    from benches.sections import Context

    Around = Callable[[RustStream], Callable[[], int] | None]
    """Puts something around an application; what it returns counts spans."""

# Records that are given to a publisher before their results are awaited.
_AT_ONCE = 1_000
_DATA = b"x" * 512


def passing_on(app: RustStream) -> None:
    """A middleware that does nothing."""

    @app.middleware
    async def pass_on(message: Any, call_next: Any) -> Any:
        return await call_next(message)

    @app.publish_middleware
    def pass_on_too(record: Any, call_next: Any) -> Any:
        return call_next(record)


def traced(app: RustStream) -> Callable[[], int]:
    """Spans for everything; how many there were."""
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415 - optional

    from ruststream_kinesis.otel import OpenTelemetry  # noqa: PLC0415 - as above

    class Counting(SpanProcessor):
        count = 0

        def on_end(self, span: object) -> None:
            del span
            Counting.count += 1

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Counting())
    OpenTelemetry(tracer_provider=provider).instrument(app)
    return lambda: Counting.count


def sampled(app: RustStream) -> None:
    """The same where one trace in a hundred is kept; how many that are is chance."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased  # noqa: PLC0415 - as above

    from ruststream_kinesis.otel import OpenTelemetry  # noqa: PLC0415 - as above

    provider = TracerProvider(sampler=TraceIdRatioBased(0.01), shutdown_on_exit=False)
    OpenTelemetry(tracer_provider=provider).instrument(app)


def untraced(app: RustStream) -> None:
    """The same without an SDK: every span is a no-op."""
    from ruststream_kinesis.otel import OpenTelemetry  # noqa: PLC0415 - optional

    OpenTelemetry().instrument(app)


def run_around(
    server: Server,
    plan: Plan,
    around: Around | None,
    batch: int | None = None,
) -> Sample:
    """One checked run of the service with something around its handler."""

    async def run() -> Sample:
        tally = Tally(plan)
        spans: list[Callable[[], int]] = []

        def put_around(app: RustStream) -> None:
            if around is not None and (count := around(app)) is not None:
                spans.append(count)

        handle = tally.handler() if batch is None else tally.batch_handler()
        await run_app(server.url, tally, handle, batch=batch, around=put_around)
        _check(spans, plan.spec.records * plan.spec.pages, exactly=batch is None)
        return tally.checked(in_order=True)

    return plan.run(run())


def run_publishes(server: Server, around: Around | None, count: int) -> Sample:
    """One checked run of `publish_nowait` with `batch=500`."""

    async def run() -> Sample:
        broker = KinesisBroker(endpoint_url=server.url, region=REGION, test_credentials=True)
        app = RustStream(broker, title="benchmark", version="0.0.0")
        spans = around(app) if around is not None else None
        publisher = app.publisher(KinesisPublish(batch=500))
        await broker.connect()
        numbers: set[str] = set()
        watch = Stopwatch()
        for first in range(0, count + _AT_ONCE, _AT_ONCE):
            if first == _AT_ONCE:  # connections and caches have settled
                watch.start()
            futures = [
                publisher.publish_nowait(_DATA, STREAM, partition_key=f"key-{first + n}")
                for n in range(_AT_ONCE)
            ]
            numbers.update([(await future).sequence_number for future in futures])
        sample = watch.stop(count)
        await broker.close()
        if len(numbers) != count + _AT_ONCE:
            raise WrongResultError(f"{len(numbers)} sequence numbers for {count + _AT_ONCE}")
        _check([] if spans is None else [spans], count + _AT_ONCE, exactly=True)
        return sample

    return asyncio.run(run())


def _check(spans: list[Callable[[], int]], records: int, *, exactly: bool) -> None:
    for count in spans:
        if (count() != records) if exactly else not 0 < count() < records:
            raise WrongResultError(f"{count()} spans for {records} records")


def run_middlewares_section(context: Context) -> None:
    """CPU a record of a service with something around its handler, and of a publish."""
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        context.report.missing.append("middlewares: opentelemetry-sdk is not installed")
        return
    plan, count = Plan(pages=context.size.pages), 10 * context.size.publishes
    kinds: dict[str, Around | None] = {
        "nothing": None,
        "a middleware that passes on": passing_on,
        "OpenTelemetry without an SDK": untraced,
        "OpenTelemetry, 1 in 100 sampled": sampled,
        "OpenTelemetry, every span sampled": traced,
    }
    runs: dict[str, Callable[[Server, Around | None], Sample]] = {
        "handlers": lambda server, around: run_around(server, plan, around),
        f"handlers, batch={BATCH}": lambda server, around: run_around(server, plan, around, BATCH),
        "publishes, batch=500": lambda server, around: run_publishes(server, around, count),
    }
    for what, run in runs.items():
        with serving(plan.spec) as server:
            contenders = {name: partial(run, server, around) for name, around in kinds.items()}
            series = interleave(contenders, context.size.rounds, context.progress)
        base = series["nothing"]
        table = Table(
            f"Around {what}: CPU µs a record",
            ["", "median", "range", "of nothing", "more"],
        )
        for one in series.values():
            more = (1 / ratio(base, one).median - 1) * base.median
            compared = "1" if one is base else str(ratio(base, one))
            table.rows.append([one.name, *one.cells, compared, f"{more:.2f}"])
        context.report.tables.append(table)
        context.record(f"around {what}", series)
