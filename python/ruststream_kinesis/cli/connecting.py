"""What the commands that talk to Kinesis share: their options, one connection, one end.

Invariant: a failure is one line on stderr and exit code 1, Ctrl-C is 130; neither shows a traceback,
unless `--debug` asks for the first one's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

    from ruststream_kinesis.connection import Connection
    from ruststream_kinesis.leases.base import LeaseStore
    from ruststream_kinesis.leases.dynamodb import DynamoLeaseStore

__all__ = [
    "Debug",
    "EndpointUrl",
    "Json",
    "Profile",
    "Region",
    "Table",
    "TableEndpointUrl",
    "TestCredentials",
    "carry_out",
    "connected",
    "lease_table",
    "session_of",
]

# As shells have it: 128 and the number of the signal, SIGINT and SIGPIPE.
_INTERRUPTED = 130
_NO_READER = 141
# What botocore reads for the endpoint of DynamoDB.
_TABLE_ENDPOINTS = ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL")

EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        envvar="RUSTSTREAM_ENDPOINT_URL",
        metavar="URL",
        help="Talk to this endpoint, for example of a local server.",
        show_default=False,
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        envvar="RUSTSTREAM_REGION",
        metavar="NAME",
        help="AWS region; by default AWS_REGION and the profile say it.",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar="RUSTSTREAM_PROFILE",
        metavar="NAME",
        help="Profile of the AWS configuration; by default AWS_PROFILE says it.",
        show_default=False,
    ),
]
TestCredentials = Annotated[
    bool,
    typer.Option(
        "--test-credentials",
        envvar="RUSTSTREAM_TEST_CREDENTIALS",
        help="Sign with made-up credentials: for a local server, which checks none.",
    ),
]
Table = Annotated[
    str,
    typer.Option(
        "--table",
        envvar="RUSTSTREAM_TABLE",
        metavar="TABLE",
        help="The lease table, by name or ARN.",
        show_default=False,
    ),
]
TableEndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--table-endpoint-url",
        envvar="RUSTSTREAM_TABLE_ENDPOINT_URL",
        metavar="URL",
        help="The endpoint of the lease table, where it is a local server.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", envvar="RUSTSTREAM_DEBUG", help="Show the traceback of a failure."),
]


def carry_out(work: Callable[[], Coroutine[Any, Any, int]], *, debug: bool) -> NoReturn:
    """Runs a command's work and exits with the code that it returns."""
    import asyncio  # noqa: PLC0415 - `--help` is quick: a tenth of its time

    from ruststream_kinesis.cli.explaining import explained  # noqa: PLC0415 - as above
    from ruststream_kinesis.cli.logs import log_to_stderr, say  # noqa: PLC0415 - as above

    # What goes wrong and is tried again is worth a line; what goes well is the command's to say.
    log_to_stderr("DEBUG" if debug else "WARNING", "text")
    try:
        code = asyncio.run(work())
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        # Whoever read it has enough. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _NO_READER
    except Exception as error:
        if debug:
            raise
        say(explained(error))
        code = 1
    raise typer.Exit(code)


@contextlib.asynccontextmanager
async def connected(
    endpoint_url: str | None,
    region: str | None,
    *,
    test_credentials: bool,
    profile: str | None = None,
    store: LeaseStore | None = None,
) -> AsyncIterator[Connection]:
    """A connection to Kinesis, and to the lease table where there is one.

    Raises:
        KinesisError: There is no such profile, no region, no credentials, or no such table.
    """
    from ruststream_kinesis.broker import KinesisBroker  # noqa: PLC0415 - as above

    broker = KinesisBroker(
        region=region,
        endpoint_url=endpoint_url,
        session=session_of(profile),
        test_credentials=test_credentials,
        lease_store=store,
    )
    await broker.connect()
    try:
        yield broker.connection
    finally:
        await broker.close()


def lease_table(
    table: str,
    endpoint_url: str | None,
    region: str | None,
    *,
    test_credentials: bool,
    profile: str | None = None,
    beside: str | None = None,
) -> DynamoLeaseStore:
    """The store over a table that is there already.

    Args:
        table: Name or ARN.
        endpoint_url: Where it is.
        region: Its region.
        test_credentials: Sign with made-up credentials.
        profile: Of the AWS configuration.
        beside: The endpoint of Kinesis. Where it is named and nothing names that of the table, it
            serves both, as servers for local work do: nobody means the real one there.
    """
    from ruststream_kinesis.leases.dynamodb import DynamoLeaseStore  # noqa: PLC0415 - as above

    if endpoint_url is None and not any(name in os.environ for name in _TABLE_ENDPOINTS):
        endpoint_url = beside
    return DynamoLeaseStore(
        table,
        region=region,
        endpoint_url=endpoint_url,
        session=session_of(profile),
        test_credentials=test_credentials,
    )


def session_of(profile: str | None) -> AioSession | None:
    """The session of a profile; `None` where none is named."""
    if profile is None:
        return None
    from ruststream_kinesis.clients import new_session  # noqa: PLC0415 - as above

    session: AioSession = new_session(profile)
    return session
