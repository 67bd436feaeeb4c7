"""A record's way through the service, beside everything that it can be compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches import raw_loop, service
from benches.canned import serving
from benches.cpu import interleave, ratio
from benches.peer_async_kinesis import has_async_kinesis, run_consumer
from benches.report import Check, Table
from benches.tally import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.cpu import Sample
    from benches.sections import Context

PEER = "async-kinesis, Consumer"

# What the package promises of itself; a miss is shown, and fails only with --strict.
SERVICE_RATIO = 9.0
BATCH_RATIO = 13.0
WORKERS_RATIO = 1.5
PEER_RATIO = 20.0
FLOOR_RATIO = 2.5


def run_service_section(context: Context) -> None:
    """CPU a record: the hand-written loops, and this package's service."""
    for loop in context.loops:
        _service_on(context, loop)


def _service_on(context: Context, loop: str) -> None:
    plan, with_peer = Plan(pages=context.size.pages, uvloop=loop == "uvloop"), has_async_kinesis()
    with serving(plan.spec) as server:
        contenders: dict[str, Callable[[], Sample]] = {
            "aiobotocore loop": lambda: raw_loop.run_stock(server, plan),
            "loop with before-parse hook": lambda: raw_loop.run_hook(server, plan),
            "floor: fetch + payload decode": lambda: raw_loop.run_floor(server, plan),
            "service": lambda: service.run_service(server, plan),
            "service, workers=8": lambda: service.run_service(server, plan, workers=8),
            "service, batch=1000": lambda: service.run_batches(server, plan),
            "service, batch=1000, workers=8": lambda: service.run_batches(server, plan, workers=8),
        }
        if with_peer:
            contenders[PEER] = lambda: run_consumer(server, plan)
        series = interleave(contenders, context.size.rounds, context.progress)
    base, floor = series["aiobotocore loop"], series["floor: fetch + payload decode"]
    table = Table(
        f"CPU µs a record, {plan.records} x {plan.record_bytes} B a page, {loop}",
        ["", "median", "range", "of the loop", "x floor", "records/s"],
        note="CPU of the whole client process, all threads. records/s is wall time, not judged.",
    )
    for one in series.values():
        compared = "1" if one is base else str(ratio(base, one))
        over_floor = 1 / ratio(floor, one).median
        table.rows.append([one.name, *one.cells, compared, f"{over_floor:.1f}", f"{one.rate:,.0f}"])
    if not with_peer:
        table.rows.append([PEER, "not installed", "", "", "", ""])
        context.report.absent.append(
            f"{PEER} with the service on {loop}: pip install async-kinesis"
        )
    context.report.tables.append(table)
    context.record(f"service on {loop}", series)
    single, batched = series["service"], series["service, batch=1000"]
    loop_over, spread = (
        f"aiobotocore loop ÷ service{{}}, CPU a record, {loop}",
        "service, workers=8",
    )
    context.report.checks += [
        Check(loop_over.format(""), ratio(base, single).median, SERVICE_RATIO, "x", at_least=True),
        Check(
            loop_over.format(", batch=1000"),
            ratio(base, batched).median,
            BATCH_RATIO,
            "x",
            at_least=True,
        ),
        Check(
            f"service, workers=8 ÷ workers=1, CPU a record, {loop}",
            1 / ratio(single, series[spread]).median,
            WORKERS_RATIO,
            "x",
        ),
    ]
    if with_peer:
        context.report.checks.append(
            Check(
                f"{PEER} ÷ service, CPU a record, {loop}",
                ratio(series[PEER], single).median,
                PEER_RATIO,
                "x",
                at_least=True,
            )
        )
    context.report.checks.append(
        Check(
            f"service ÷ floor, CPU a record, {loop}",
            1 / ratio(floor, single).median,
            FLOOR_RATIO,
            "x",
        )
    )
