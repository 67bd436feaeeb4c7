"""A client of aiobotocore for one event loop: how it is made, and how it ends.

It stands apart from the calls (`aws.py`) because every transport makes its clients here: pool,
timeouts, region and credentials are the same whichever way a call takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruststream_kinesis import aws_internals
from ruststream_kinesis.errors import ConfigurationError, NotConnected

if TYPE_CHECKING:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

__all__ = ["BODY", "ERROR_STATUS", "AwsSettings", "Client", "close_on", "connect", "new_session"]

# From here on an answer is a refusal, as botocore sees it.
ERROR_STATUS = 300
# Under this name the hook below hands the unparsed body through botocore's parsed response.
BODY = "ruststream_body"
# botocore pools ten connections; a service with hundreds of shards would queue behind them.
_POOL_SIZE = 128
# A host that answers at all takes a connection within seconds; botocore would wait a minute.
_CONNECT_TIMEOUT = 5.0
# One connection in so many is kept for everything that is no GetRecords.
_POOL_SHARE = 4
# The client of a thread that is busy at the stop is left to the end of its loop.
_CLOSE_DEADLINE = 2.0


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How to reach the service; region and credentials are resolved on connect."""

    region: str | None = None
    endpoint_url: str | None = None
    session: AioSession | None = None
    config: AioConfig | None = None
    test_credentials: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """One loop's client."""

    kinesis: Any
    credentials: Any
    """Whose `get_frozen_credentials` the client signs with."""
    life: AsyncGenerator[Any, None]
    belongings: contextlib.AsyncExitStack
    """What is closed with it, in its loop."""
    reads: asyncio.Semaphore
    """Turns for GetRecords, a part of the pool."""
    puts: asyncio.Semaphore
    """Turns for PutRecord and PutRecords: half of the pool. A put that waits for its turn is not late
    yet; one that waited for a connection with its deadline running would be given up, and sent
    again, though the first may have been taken."""


async def connect(settings: AwsSettings, session: Any, owner: asyncio.AbstractEventLoop) -> Client:
    """Makes the running loop's client.

    Args:
        settings: Where and as whom.
        session: The session of the loop that opened the transport.
        owner: That loop: it alone refreshes credentials.

    Raises:
        ConfigurationError: No region, or no credentials, anywhere in the configuration.
    """
    from aiobotocore.config import AioConfig  # noqa: PLC0415 - see the header of aws.py

    # Our request checks are stricter and cheaper than the client's model walk.
    config = AioConfig(
        connect_timeout=_CONNECT_TIMEOUT,
        max_pool_connections=_POOL_SIZE,
        tcp_keepalive=True,
        parameter_validation=False,
    )
    if settings.config is not None:
        config = config.merge(settings.config)
    # One attempt a call is ours to decide: the callers own back-off and the iterator.
    config = config.merge(AioConfig(retries={"total_max_attempts": 1, "mode": "standard"}))
    region = settings.region or session.get_config_variable("region")
    if region is None and settings.test_credentials:
        region = "us-east-1"
    if region is None:
        raise ConfigurationError(
            "no region: set AWS_REGION or the profile's, or pass KinesisBroker(region=...), "
            "on the command line --region"
        )
    keys: dict[str, Any] = {}
    if settings.test_credentials:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    elif asyncio.get_running_loop() is not owner:
        snapshots = _snapshots(session, owner)
        session = new_session()
        aws_internals.give_credentials(session, snapshots)
    credentials = _made_up() if keys else await session.get_credentials()
    if credentials is None:
        raise ConfigurationError(
            "no credentials: configure a profile, a role or AWS_ACCESS_KEY_ID; for a local "
            "endpoint pass KinesisBroker(test_credentials=True), on the command line "
            "--test-credentials"
        )
    belongings = contextlib.AsyncExitStack()
    life = _life(
        session.create_client(
            "kinesis",
            region_name=region,
            endpoint_url=settings.endpoint_url,
            config=config,
            **keys,
        ),
        belongings,
    )
    pool = max(1, config.max_pool_connections)  # type: ignore[attr-defined]  # set by botocore
    reads = asyncio.Semaphore(max(1, pool - pool // _POOL_SHARE))
    puts = asyncio.Semaphore(max(1, pool // 2))
    return Client(await anext(life), credentials, life, belongings, reads, puts)


async def _life(opening: Any, belongings: contextlib.AsyncExitStack) -> AsyncGenerator[Any, None]:
    """A client, until it is closed or its loop ends.

    A loop closes the generators that are left open in it (`asyncio.run` does): the sockets of a
    thread that came, published and went do not wait for the stop of the service.
    """
    async with opening as kinesis, belongings:
        kinesis.meta.events.register("before-parse.kinesis.GetRecords", _take_body)
        yield kinesis


def _take_body(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Keeps botocore's parser away from a page of records: it costs 23 µs a record."""
    if response_dict["status_code"] < ERROR_STATUS:
        customized_response_dict[BODY] = response_dict["body"]
        response_dict["body"] = b""


async def close_on(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Client]) -> None:
    """Closes a client where it lives; a loop that is gone, or going, takes its client with it."""
    if loop is asyncio.get_running_loop():
        await _close(task)
        return
    closing = _close(task)
    try:
        there = asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop was closed meanwhile
        closing.close()
        return
    # Waited for, not awaited: however it ends there, nothing of it is ours. A busy loop may take
    # longer than anybody should wait.
    await asyncio.wait([asyncio.wrap_future(there)], timeout=_CLOSE_DEADLINE)


async def _close(task: asyncio.Task[Client]) -> None:
    if not task.done():
        task.cancel()
    # A client that never came to be has nothing to close.
    with contextlib.suppress(asyncio.CancelledError, Exception):
        client = await task
        await client.life.aclose()


def new_session() -> Any:
    """A session of our own, where the user gave none."""
    from aiobotocore.session import AioSession  # noqa: PLC0415 - see the header of aws.py

    session = AioSession()
    # The name that every other SDK reads; botocore by itself knows AWS_DEFAULT_REGION only.
    region = os.environ.get("AWS_REGION")
    if region:
        session.set_config_variable("region", region)
    return session


def _made_up() -> Any:
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - see the header of aws.py

    return AioCredentials("test", "test", method="ruststream-test")


def _snapshots(session: Any, owner: asyncio.AbstractEventLoop) -> Any:
    """Credentials for another loop: frozen copies, asked for on the loop that refreshes them."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - see the header of aws.py

    async def snapshot() -> Any:
        credentials = await session.get_credentials()
        return None if credentials is None else await credentials.get_frozen_credentials()

    class Snapshots(AioCredentials):
        def __init__(self) -> None:
            super().__init__("pending", "pending", method="ruststream-snapshot")

        async def get_frozen_credentials(self) -> Any:  # type: ignore[override]  # as AioCredentials
            if not owner.is_running():
                raise NotConnected("not connected to Kinesis: the service's loop has ended")
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(snapshot(), owner))

    return Snapshots()
