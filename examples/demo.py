"""The example service at work, with a progress bar and a table of what became of the orders.

`python -m examples.demo` runs it on the in-process log: no server, no network. With
`--endpoint-url` the very same application reads and writes a real Kinesis API.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

from examples.orders import Order, app
from ruststream_kinesis.testing import TestApp

# The in-process log is fast; a local Kinesis server takes some 30 ms for every record that is put.
IN_PROCESS_ORDERS = 20_000
ENDPOINT_ORDERS = 500
# Fewer, and the two bad orders would be the same one.
LEAST_ORDERS = 10
CUSTOMERS = 97
# Orders that are published at once.
CHUNK = 500
# A service that handles nothing for this long is stuck, and so would be the demo.
PATIENCE = 30.0

Advance = Callable[[int], None]
"""Told how many more orders are done."""


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


async def in_process(count: int, advance: Advance) -> Tally:
    """Runs the service on the in-process log."""
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


async def on_endpoint(url: str, count: int, advance: Advance) -> Tally:
    """Runs the service against a Kinesis API, for example of a local server."""
    await create_streams(url)
    app.broker.override(endpoint_url=url, test_credentials=True)
    reading = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        # If the service fails, the group ends us too.
        tasks.create_task(app.run(signals=False, started=reading.set))
        await reading.wait()
        publisher, counted = app.publisher(), app.counters["orders"]
        last = ""
        done = 0
        for chunk in chunks(count):
            puts = await asyncio.gather(
                *(publisher.publish(order, "orders", partition_key=key) for order, key in chunk)
            )
            last = puts[-1].sequence_number
            # The service reads meanwhile; how far it is shows at the latest when all is put.
            now = counted.handled + counted.undecodable
            advance(now - done)
            done = now
        quiet_since = time.monotonic()
        while done < count and time.monotonic() - quiet_since < PATIENCE:
            await asyncio.sleep(0.05)
            now = counted.handled + counted.undecodable
            if now > done:
                advance(now - done)
                done, quiet_since = now, time.monotonic()
        app.stop()
    return Tally(done, counted.handled, counted.dropped, counted.replies, last)


async def create_streams(url: str) -> None:
    """Creates what the service reads and writes, where it does not exist yet."""
    from aiobotocore.session import get_session  # noqa: PLC0415 - half a second, for this one only

    async with get_session().create_client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - a local server checks none
    ) as client:
        for name in ("orders", "confirmations"):
            try:
                await client.create_stream(StreamName=name, ShardCount=1)
            except client.exceptions.ResourceInUseException:
                continue
        await client.get_waiter("stream_exists").wait(
            StreamName="confirmations", WaiterConfig={"Delay": 1}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; the exit code is 0 when every count is right."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--orders", type=int, metavar="N", help=f"how many (default {IN_PROCESS_ORDERS})"
    )
    parser.add_argument(
        "--endpoint-url",
        metavar="URL",
        help=f"a Kinesis API instead of the in-process log (then {ENDPOINT_ORDERS} orders)",
    )
    options = parser.parse_args(arguments)
    url: str | None = options.endpoint_url
    count: int | None = options.orders
    if count is None:
        count = IN_PROCESS_ORDERS if url is None else ENDPOINT_ORDERS
    if count < LEAST_ORDERS:
        parser.error(f"--orders: at least {LEAST_ORDERS}")

    console = Console(highlight=False)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_path=False, show_time=False)],
    )
    where = "the in-process log" if url is None else url
    console.print(f"{app.title} {app.version} on {where}, {count:,} orders")
    start = time.monotonic()
    try:
        tally = with_progress(
            console,
            count,
            lambda advance: (
                in_process(count, advance) if url is None else on_endpoint(url, count, advance)
            ),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, one line says it
        # A task group names its first failure first; the others followed from it.
        reason = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        console.print(f"{type(reason).__name__}: {reason}", style="bold red", markup=False)
        return 1
    return 0 if report(console, tally, count, time.monotonic() - start) else 1


if __name__ == "__main__":
    sys.exit(main())
