"""Loop stall of full pages: 10,000 records, 10 MiB of data, through the real service.

For each page, from the moment its body has been read to the moment the next one's has:

- `longest hold`: the longest time in which the loop ran callbacks without going back to `select`.
  Whatever else the application does on that loop waits at least this long.
- `ours, one hold`: the longest part of one hold that was spent by this package once the body had
  been read. Time in the transport (reading the socket) and in the HTTP client up to the last byte
  of the body is not ours; everything else is, handlers and payload decode included.
- `ours, to first record`: all of our time on the loop between the body and the first handler call,
  however often we went back to the loop in between.
- `reading`: all time on the loop in the transport and the HTTP client for this page, in however
  many holds.
- `heartbeat late`: how late a timer came at worst, threads and the machine included.
"""

from __future__ import annotations

import asyncio
import bisect
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.loopwatch import Recording, Span, observe
from benches.pages import FULL, Order
from benches.raw_loop import stock
from benches.tally import TAIL_PAGES, WARMUP_PAGES, Plan, Tally

if TYPE_CHECKING:
    from benches.canned import Server

# Bounds, in milliseconds, 95th percentile of 50 pages.
TARGET_HOLD_MS = 25.0
TARGET_OURS_MS = 5.0

Main = Callable[[Tally, Callable[[Order], Awaitable[None]]], Awaitable[None]]


def full_pages(pages: int) -> Plan:
    """A plan of so many measured full pages."""
    return Plan(records=FULL.records, record_bytes=FULL.record_bytes, pages=pages)


@dataclass(frozen=True)
class PageStall:
    """One page, in milliseconds."""

    longest_hold: float
    ours_one_hold: float
    ours_to_first: float
    reading: float
    heartbeat_late: float
    worst: str
    """Whose callback took the largest part of the longest hold."""


def percentile(values: list[float], percent: int) -> float:
    """The value that `percent` of the values do not exceed."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def watch(plan: Plan, main: Main) -> list[PageStall]:
    """Run `main` on a watched loop and take the measured pages apart.

    Raises:
        WrongResultError: Records were lost, repeated or reordered.
    """
    first_record: dict[int, float] = {}
    starts = {plan.spec.record_id(0, page, 0): page for page in range(plan.spec.pages)}
    checked: list[object] = []

    async def run() -> None:
        tally = Tally(plan)
        count = tally.handler()

        async def handle(order: Order) -> None:
            if order.id in starts:
                first_record[starts[order.id]] = time.perf_counter()
            await count(order)

        await main(tally, handle)
        checked.append(tally.checked())

    recording = observe(run())
    assert checked
    if len(recording.bodies) != plan.spec.pages:
        raise RuntimeError(f"{len(recording.bodies)} bodies seen of {plan.spec.pages}")
    pages = range(WARMUP_PAGES, plan.spec.pages - TAIL_PAGES)
    return [_page(recording, page, first_record[page]) for page in pages]


def _ending(spans: list[Span], start: float, end: float) -> list[Span]:
    """The spans that end inside a stretch of time: they are in order, and do not overlap."""
    low = bisect.bisect_right(spans, start, key=lambda span: span.end)
    high = bisect.bisect_right(spans, end, key=lambda span: span.end)
    return spans[low:high]


def _seconds_within(spans: list[Span], start: float, end: float) -> float:
    """The part of the spans that lies inside a stretch of time."""
    low = bisect.bisect_right(spans, start, key=lambda span: span.end)
    total = 0.0
    for span in spans[low:]:
        if span.start >= end:
            break
        total += min(span.end, end) - max(span.start, start)
    return total


def _page(recording: Recording, page: int, first_record: float) -> PageStall:
    before, body, following = recording.bodies[page - 1 : page + 2]
    # A hold in which a body arrives belongs to that page: the work on it follows at once.
    holds = _ending(recording.holds, body, following)
    longest = max(holds, key=lambda hold: hold.seconds)
    inside = _ending(recording.callbacks, longest.start, longest.end)
    callbacks = _ending(recording.callbacks, body, following)
    # The callback in which the body arrived is ours from there on, the HTTP client's before. (The
    # one in which the next body arrives ends after it, so it is not among these.)
    ours = [
        Span(max(run.start, body), run.end, run.what)
        for run in callbacks
        if run.what not in {"network", "heartbeat"}
    ]
    fetching = _ending(recording.callbacks, before, body)
    network = sum(run.seconds for run in fetching if run.what == "network")
    arriving = [body - run.start for run in callbacks if run.start < body]
    late = [delay for moment, delay in recording.late if body <= moment <= following]
    return PageStall(
        longest_hold=longest.seconds * 1e3,
        ours_one_hold=1e3 * max(_seconds_within(ours, hold.start, hold.end) for hold in holds),
        ours_to_first=1e3 * _seconds_within(ours, body, first_record),
        reading=1e3 * (network + sum(arriving)),
        heartbeat_late=1e3 * max(late, default=0.0),
        worst=max(inside, key=lambda run: run.seconds).what if inside else "",
    )


def idle_lateness_ms(seconds: float = 1.0) -> float:
    """How late the heartbeat comes on an idle loop, 99th percentile: the machine's own noise."""
    recording = observe(asyncio.sleep(seconds))
    return percentile([delay * 1e3 for _, delay in recording.late], 99)


def stall_service(server: Server, plan: Plan) -> list[PageStall]:
    """The service's pages. The server must send whole pages whatever the limit asks for."""
    from benches.service import run_app  # noqa: PLC0415 (needs the finished package)

    async def main(tally: Tally, handle: Callable[[Order], Awaitable[None]]) -> None:
        await run_app(server.url, tally, handle)

    return watch(plan, main)


def stall_stock(server: Server, plan: Plan) -> list[PageStall]:
    """The hand-written aiobotocore loop's pages, for comparison."""

    async def main(_: Tally, handle: Callable[[Order], Awaitable[None]]) -> None:
        await stock(server.url, handle)

    return watch(plan, main)
