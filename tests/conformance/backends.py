"""What one test body needs of a log, be it in process or a server.

Only public names of the package are used to run a service; what stands in a stream is looked at
from outside, on a server by a raw client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ruststream_kinesis import KinesisBroker, KinesisStream, RustStream
from ruststream_kinesis.testing import TestApp
from tests.support.servers import REGION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from tests.support.aws import Aws

PATIENCE = 20.0
"""Seconds until a service must have done what it was given. A CI machine stalls."""

POLL = 0.02
"""Seconds between reads. No test server throttles."""


@dataclass(frozen=True)
class Stored:
    """A record as it stands in its stream."""

    data: bytes
    key: str
    sequence_number: str


class Backend(Protocol):
    """One place to run a service in."""

    name: str

    def app(self) -> RustStream:
        """A fresh application for this place."""
        ...

    async def stream(self) -> str:
        """The name of a fresh stream with one shard."""
        ...

    def running(self, app: RustStream) -> AbstractAsyncContextManager[None]:
        """Runs `app`: it reads when entered, is stopped at the exit, and its failure raised."""
        ...

    async def stored(self, stream: str) -> list[Stored]:
        """All records of a stream, oldest first."""
        ...


class InProcess:
    """The log of the test kit."""

    name = "in-process"

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._test: TestApp | None = None

    def app(self) -> RustStream:
        return RustStream(KinesisBroker(), title="conformance", version="1")

    async def stream(self) -> str:
        return f"stream-{next(self._numbers)}"

    @contextlib.asynccontextmanager
    async def running(self, app: RustStream) -> AsyncIterator[None]:
        async with TestApp(app) as self._test:
            yield

    async def stored(self, stream: str) -> list[Stored]:
        if self._test is None:
            return []
        return [
            Stored(each.data, each.partition_key, each.sequence_number)
            for each in self._test.published(stream)
        ]


class OnServer:
    """A Kinesis API that others wrote."""

    def __init__(self, name: str, aws: Aws, way: Literal["thin", "botocore"]) -> None:
        self.name = name
        self._aws = aws
        self._way = way

    def app(self) -> RustStream:
        broker = KinesisBroker(
            region=REGION,
            endpoint_url=self._aws.url,
            test_credentials=True,
            transport=self._way,
        )
        return RustStream(broker, title="conformance", version="1")

    async def stream(self) -> str:
        return await self._aws.create_stream()

    @contextlib.asynccontextmanager
    async def running(self, app: RustStream) -> AsyncIterator[None]:
        open_ = asyncio.Event()
        run = asyncio.create_task(app.run(signals=False, started=open_.set))
        waiting = asyncio.create_task(open_.wait())
        try:
            await asyncio.wait(
                {run, waiting}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            if open_.is_set():
                yield
        finally:
            waiting.cancel()
            if not run.done():
                app.stop()
            await run

    async def stored(self, stream: str) -> list[Stored]:
        return [
            Stored(each["Data"], each["PartitionKey"], each["SequenceNumber"])
            for each in await self._aws.records(stream)
        ]


def quick(stream: str) -> KinesisStream:
    """A descriptor that is read as often as a test server stands."""
    return KinesisStream(stream, poll_interval=POLL, read_interval=POLL)


class Seen(list[Any]):
    """What a handler was called with; a test awaits its growth."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = asyncio.Condition()

    async def add(self, value: Any) -> None:
        """For the handler."""
        async with self._grown:
            self.append(value)
            self._grown.notify_all()

    async def reach(self, number: int) -> list[Any]:
        """Waits until there are `number`."""
        async with asyncio.timeout(PATIENCE), self._grown:
            await self._grown.wait_for(lambda: len(self) >= number)
        return list(self)
