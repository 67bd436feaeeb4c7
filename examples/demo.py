"""The example service at work, with a progress bar and a table of what became of the orders.

`python -m examples.demo` runs it on the in-process log: no server, no network. With
`--endpoint-url` the very same application reads and writes a real Kinesis API. An installed package
has the first of them as `ruststream-kinesis demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from examples.orders import app
from ruststream_kinesis.cli.demo import (
    IN_PROCESS_ORDERS,
    LEAST_ORDERS,
    Advance,
    Tally,
    chunks,
    in_process,
    quiet_log,
    report,
    with_progress,
)

# A local Kinesis server takes some 30 ms for every record that is put.
ENDPOINT_ORDERS = 500
# A service that handles nothing for this long is stuck, and so would be the demo.
PATIENCE = 30.0


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
    quiet_log(console)
    where = "the in-process log" if url is None else url
    console.print(f"{app.title} {app.version} on {where}, {count:,} orders")
    start = time.monotonic()
    try:
        tally = with_progress(
            console,
            count,
            lambda advance: (
                in_process(app, count, advance) if url is None else on_endpoint(url, count, advance)
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
