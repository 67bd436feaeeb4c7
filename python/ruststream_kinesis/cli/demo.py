"""`ruststream-kinesis demo`: a small service at work on the in-process log, with nothing to set up.

The service is here, and not an example of the checkout, because an installed package has no
examples. `examples/demo.py` shows the same orders to the example's application.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ruststream_kinesis import KinesisBroker, KinesisPublish, Outcome, RustStream, drop
from ruststream_kinesis.testing import TestApp

__all__ = [
    "IN_PROCESS_ORDERS",
    "LEAST_ORDERS",
    "Advance",
    "Order",
    "Tally",
    "app",
    "chunks",
    "in_process",
    "orders",
    "quiet_log",
    "report",
    "run_demo",
    "with_progress",
]

# The in-process log is fast: these take a second or two.
IN_PROCESS_ORDERS = 20_000
# Fewer, and the two bad orders would be the same one.
LEAST_ORDERS = 10
CUSTOMERS = 97
# Orders that are published at once.
CHUNK = 500

Advance = Callable[[int], None]
"""Told how many more orders are done."""


# -- the service -----------------------------------------------------------------------------------


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    customer: str
    quantity: int
    unit_cents: int


class Confirmation(msgspec.Struct):
    """What the customer gets to see."""

    order_id: int
    customer: str
    total_cents: int


def _by_customer(confirmation: Confirmation) -> str:
    return confirmation.customer


app = RustStream(KinesisBroker(), title="demo", version="1.0.0")


@app.subscriber(
    "orders", workers=8, publish=KinesisPublish(to="confirmations", partition_key=_by_customer)
)
async def confirm(order: Order) -> Confirmation | Outcome:
    """Confirms one order; one for nothing is dropped."""
    if order.quantity < 1:
        return drop()
    return Confirmation(order.id, order.customer, order.quantity * order.unit_cents)


# -- what it is fed, and what comes of it ----------------------------------------------------------


@dataclass
class Tally:
    """What became of the orders, counted where it can be seen."""

    records: int
    """Records in the stream of orders."""
    handled: int
    """Orders whose handler returned, be it with a confirmation or with `drop()`."""
    dropped: int
    """Orders that were given up: the poison one and the unreadable one."""
    replies: int
    """Confirmations in their stream."""
    last: str
    """Sequence number of the last order."""


def orders(count: int) -> Iterator[tuple[Order | bytes, str]]:
    """Makes `count` orders with their partition keys, two of them bad."""
    poison, unreadable = count // 2, count // 3
    for number in range(count):
        customer = f"customer-{number % CUSTOMERS}"
        order = Order(number, customer, quantity=1 + number % 5, unit_cents=995)
        if number == poison:
            order.quantity = 0
        yield (b'{"id": ' if number == unreadable else order), customer


def chunks(count: int) -> Iterator[list[tuple[Order | bytes, str]]]:
    """The same in lists of `CHUNK`."""
    made = orders(count)
    while chunk := list(itertools.islice(made, CHUNK)):
        yield chunk


async def in_process(app: RustStream, count: int, advance: Advance) -> Tally:
    """Runs an application that confirms orders on the in-process log."""
    async with TestApp(app) as test:
        for chunk in chunks(count):
            # Each returns when its order is decided and its confirmation written.
            await asyncio.gather(
                *(test.publish(order, "orders", partition_key=key) for order, key in chunk)
            )
            advance(len(chunk))
        records, counted = test.published("orders"), app.counters["orders"]
        return Tally(
            records=len(records),
            handled=counted.handled,
            dropped=counted.dropped,
            replies=len(test.published("confirmations")),
            last=records[-1].sequence_number,
        )


def run_demo(count: int) -> int:
    """Runs the demo; the exit code is 0 when every count is right."""
    console = Console(highlight=False)
    quiet_log(console)
    console.print(f"{count:,} orders on the in-process log: no server, no network")
    start = time.monotonic()
    tally = with_progress(console, count, lambda advance: in_process(app, count, advance))
    right = report(console, tally, count, time.monotonic() - start)
    if right:
        console.print("A service of your own: ruststream-kinesis new NAME")
    return 0 if right else 1


def quiet_log(console: Console) -> None:
    """Logs what is a warning or worse, above the bar."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_path=False, show_time=False)],
    )


class Rate(ProgressColumn):
    """Orders per second, lately."""

    def render(self, task: Task) -> Text:
        """The rate, zero until it is known."""
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} per second")


def with_progress(
    console: Console, count: int, run: Callable[[Advance], Coroutine[Any, Any, Tally]]
) -> Tally:
    """Runs it below a live bar on a terminal, and with a line for each tenth elsewhere."""
    if not console.is_terminal:
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            before, done = done, done + more
            if done * 10 // count > before * 10 // count:
                console.print(f"{done:>7,} of {count:,} orders")

        return asyncio.run(run(advance))

    columns = (
        TextColumn("orders"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("orders", total=count)
        return asyncio.run(run(lambda more: progress.advance(bar, more)))


def report(console: Console, tally: Tally, count: int, seconds: float) -> bool:
    """Prints the table and says whether every count is what it has to be."""
    # So narrow that a sequence number fits where a log is 80 characters wide.
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("orders")
    table.add_column("count", justify="right")
    right = True
    for name, value, expected in (
        ("records in", tally.records, count),
        ("handled", tally.handled, count - 1),
        ("dropped", tally.dropped, 2),
        ("replies", tally.replies, count - 2),
    ):
        right &= value == expected
        wrong = "" if value == expected else f"[bold red]expected {expected:,}, got[/] "
        table.add_row(name, f"{wrong}{value:,}")
    table.add_section()
    table.add_row("records per second", f"{count / seconds:,.0f}")
    table.add_row("last sequence number", tally.last)
    console.print(table)
    console.print(
        "Every count is right; the two that were dropped are the bad orders among them."
        if right
        else "[bold red]A count is off.[/]"
    )
    return right
