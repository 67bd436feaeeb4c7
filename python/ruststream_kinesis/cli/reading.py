"""Commands that read and write nothing: streams, shards, leases. What they do is elsewhere."""

# `--help` waits for nothing but the parser: what a command does is imported when it runs.
# ruff: noqa: PLC0415

from __future__ import annotations

from typing import Annotated

import typer

from ruststream_kinesis.cli.connecting import (
    Debug,
    EndpointUrl,
    Json,
    Profile,
    Region,
    Table,
    TableEndpointUrl,
    TestCredentials,
    carry_out,
    connected,
    lease_table,
)

__all__ = ["add_commands"]

Stream = Annotated[str, typer.Argument(help="Name or ARN.", show_default=False)]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="The subscription's group, where it has one.",
        show_default=False,
    ),
]


def add_commands(cli: typer.Typer) -> None:
    """Adds them to the command line."""
    for command in (streams, shards, leases, lag, tail):
        cli.command()(command)


def streams(
    *,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """List the streams of this account and region."""

    async def work() -> int:
        from ruststream_kinesis.aws import AwsTransport
        from ruststream_kinesis.cli.streams import list_streams

        async with connected(
            endpoint_url, region, profile=profile, test_credentials=test_credentials
        ) as connection:
            transport = connection.transport
            assert isinstance(transport, AwsTransport)  # as a broker makes it
            return await list_streams(transport, connection.clock, as_json=as_json)

    carry_out(work, debug=debug)


def shards(
    stream: Stream,
    *,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            envvar="RUSTSTREAM_TABLE",
            metavar="TABLE",
            help="A lease table, by name or ARN: also show who is how far in each shard.",
            show_default=False,
        ),
    ] = None,
    group: Group = None,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    table_endpoint_url: TableEndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Show the shards of a stream, children below their parents."""

    async def work() -> int:
        from ruststream_kinesis.cli.shards import print_shards
        from ruststream_kinesis.stream import StreamRef

        ref = StreamRef.parse(stream)
        store = None
        if table is not None:
            store = lease_table(
                table,
                table_endpoint_url,
                region,
                profile=profile,
                test_credentials=test_credentials,
                beside=endpoint_url,
            )
        async with connected(
            endpoint_url, region, profile=profile, test_credentials=test_credentials, store=store
        ) as connection:
            return await print_shards(
                connection.transport,
                connection.clock,
                ref,
                rows=store,
                group=group,
                as_json=as_json,
            )

    carry_out(work, debug=debug)


def leases(
    table: Annotated[
        str, typer.Argument(help="The lease table, by name or ARN.", show_default=False)
    ],
    *,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.0,
            max=60.0,
            help="Watch so long, at most, who renews; who lives does so every 3 seconds.",
        ),
    ] = 4.0,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    table_endpoint_url: TableEndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Show a lease table: whose shards are whose, how far, and who is alive."""

    async def work() -> int:
        from ruststream_kinesis.cli.leases import print_leases
        from ruststream_kinesis.clock import SystemClock

        store = lease_table(
            table,
            table_endpoint_url,
            region,
            profile=profile,
            test_credentials=test_credentials,
            beside=endpoint_url,
        )
        try:
            await store.open()
            return await print_leases(table, store, SystemClock(), wait=wait, as_json=as_json)
        finally:
            await store.close()

    carry_out(work, debug=debug)


def lag(
    stream: Stream,
    *,
    table: Table,
    group: Group = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Again and again, until Ctrl-C; with --json a line each."),
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=1.0, help="With --watch: the time between two looks."
        ),
    ] = 5.0,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    table_endpoint_url: TableEndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Show how far a service is behind the tip, by shard.

    It reads each shard once, at the checkpoint that the lease table has.
    """

    async def work() -> int:
        from ruststream_kinesis.cli.lag import Subject, print_lag, watch_lag
        from ruststream_kinesis.stream import StreamRef

        ref = StreamRef.parse(stream)
        store = lease_table(
            table,
            table_endpoint_url,
            region,
            profile=profile,
            test_credentials=test_credentials,
            beside=endpoint_url,
        )
        async with connected(
            endpoint_url, region, profile=profile, test_credentials=test_credentials, store=store
        ) as connection:
            subject = Subject(connection.transport, connection.clock, ref, store, group)
            if watch:
                return await watch_lag(subject, every, as_json=as_json)
            return await print_lag(subject, as_json=as_json)

    carry_out(work, debug=debug)


def tail(
    stream: Stream,
    *,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="horizon, latest, a time (2026-01-31T12:00:00Z, or 15m ago), or SHARD:SEQ.",
        ),
    ] = "latest",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Only this partition key.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="NAME[=VALUE]",
            help="Only records with this header; may be given several times.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="End after so many.", show_default=False),
    ] = None,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="End at the tip, and do not wait for more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Show the records of a stream as they come, until Ctrl-C.

    Leases and checkpoints are left alone. Each shard is read once to
    four times a second, of the five reads that it allows.
    """

    async def work() -> int:
        from ruststream_kinesis.cli.positions import parse_position
        from ruststream_kinesis.cli.tail import parse_wanted, tail_stream
        from ruststream_kinesis.clock import SystemClock
        from ruststream_kinesis.stream import StreamRef

        ref = StreamRef.parse(stream)
        position = parse_position(begin, SystemClock().time())
        wanted = parse_wanted(key, header or [], limit)
        async with connected(
            endpoint_url, region, profile=profile, test_credentials=test_credentials
        ) as connection:
            return await tail_stream(
                connection.transport,
                connection.clock,
                ref,
                position,
                wanted,
                endless=not no_follow,
                as_json=as_json,
            )

    carry_out(work, debug=debug)
