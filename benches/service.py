"""This package's service, written as a user would write it, against the canned server.

One handler (of records, or of batches), msgspec payload, ack by returning, leases in memory, one
shard. Besides the ids, every run checks what the service is for: after the stop, the stored
checkpoint is the last record.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from benches.raw_loop import REGION, STREAM
from benches.tally import Plan, Tally, WrongResultError
from ruststream_kinesis import KinesisBroker, KinesisStream, MemoryLeaseStore, RustStream
from ruststream_kinesis.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benches.canned import Server
    from benches.cpu import Sample
    from benches.pages import Spec
    from ruststream_kinesis.leases import LeaseStore
    from ruststream_kinesis.probe import Probe

# CPU is measured, not time: the pause between two reads (0.2 s by default, for the service's limit
# of five reads a second and shard) would only make the benchmark slow.
READ_INTERVAL = 0.0

# Records a call of a handler of batches.
BATCH = 1_000

# A run that hangs is a failure, not a long run: far above what the slowest machine needs.
DEADLINE = 300.0


def run_service(server: Server, plan: Plan, *, workers: int = 1) -> Sample:
    """One checked run of the service."""
    return plan.run(_run(server.url, plan, workers))


def run_batches(server: Server, plan: Plan, *, workers: int = 1) -> Sample:
    """One checked run of the service with a handler of batches."""
    return plan.run(_run_batches(server.url, plan, workers))


async def _run(url: str, plan: Plan, workers: int) -> Sample:
    tally = Tally(plan)
    await run_app(url, tally, tally.handler(), workers=workers)
    return tally.checked(in_order=workers == 1)


async def _run_batches(url: str, plan: Plan, workers: int) -> Sample:
    tally = Tally(plan)
    await run_app(url, tally, tally.batch_handler(), workers=workers, batch=BATCH)
    return tally.checked(in_order=workers == 1)


async def run_app(
    url: str,
    tally: Tally,
    handle: Callable[..., Awaitable[None]],
    *,
    workers: int = 1,
    batch: int | None = None,
    store: LeaseStore | None = None,
    read_interval: float = READ_INTERVAL,
    around: Callable[[RustStream], object] | None = None,
) -> None:
    """The application itself: it runs until the last record was handled, and is checked."""
    store = MemoryLeaseStore() if store is None else store
    broker = KinesisBroker(
        endpoint_url=url, region=REGION, test_credentials=True, lease_store=store
    )
    app = RustStream(broker, title="benchmark", version="0.0.0")
    if around is not None:
        around(app)
    stream = KinesisStream(STREAM, read_interval=read_interval)
    app.subscriber(stream, workers=workers, batch=batch)(handle)
    await serve_until(app, tally.done)
    try:
        await check_checkpoint(store, tally.plan.spec)
    finally:
        # The check has opened it once more.
        await store.close()


async def serve_until(
    app: RustStream,
    done: asyncio.Event,
    service: Callable[..., Service] = Service,
    probe: Probe | None = None,
) -> None:
    """Run an application until `done` is set, then stop it and wait for its clean end.

    Raises:
        TimeoutError: It did not get there; the application is cancelled.
    """
    running = asyncio.create_task(app.run(signals=False, service=service, probe=probe), name="app")
    waiting = asyncio.create_task(done.wait(), name="done")
    try:
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            app.stop()
            await running
        if not done.is_set():
            raise WrongResultError("the service ended before it had seen all records")
    finally:
        for task in (waiting, running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def check_checkpoint(store: LeaseStore, spec: Spec) -> None:
    """The stored checkpoint of the only shard is the last record of the stream.

    Raises:
        WrongResultError: It is another one, or there is none.
    """
    last = spec.sequence_number(0, spec.pages - 1, spec.records - 1)
    stored = [state.checkpoint for state in await store.leases(STREAM)]
    if stored != [last]:
        raise WrongResultError(f"checkpoints {stored}, not the last record {last}")
