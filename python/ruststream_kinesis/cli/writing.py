"""Commands that write something: a new service, records, checkpoints. What they do is elsewhere."""

# `--help` waits for nothing but the parser: what a command does is imported when it runs.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
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


def add_commands(cli: typer.Typer) -> None:
    """Adds them to the command line."""
    cli.command()(new)
    cli.command()(demo)
    cli.command()(put)
    dead_letters = typer.Typer(
        help="Records that a service gave up.", no_args_is_help=True, rich_markup_mode=None
    )
    dead_letters.command()(redrive)
    cli.add_typer(dead_letters, name="dead-letters")
    checkpoint = typer.Typer(
        help="Where a service reads from next.", no_args_is_help=True, rich_markup_mode=None
    )
    # So that it stays a command of a group while it is the only one.
    checkpoint.callback()(lambda: None)
    dead_letters.callback()(lambda: None)
    checkpoint.command()(reset)
    cli.add_typer(checkpoint, name="checkpoint")


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the service and of its folder.", show_default=False
        ),
    ],
) -> None:
    """Write a small service, with a test that passes, in a folder of its own."""
    from ruststream_kinesis.cli.scaffold import new_service

    async def work() -> int:
        typer.echo("\n".join(new_service(name, Path.cwd())))
        return 0

    carry_out(work, debug=False)


def demo(
    *,
    orders: Annotated[
        int, typer.Option("--orders", metavar="N", min=10, help="How many orders are handled.")
    ] = 20_000,
) -> None:
    """Show a small service at work on the in-process log: no server, no network."""
    from ruststream_kinesis.cli.demo import run_demo

    try:
        code = run_demo(orders)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def put(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="Name or ARN.", show_default=False)
    ],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            help="The payload; '-' takes it from standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    lines: Annotated[
        Path | None,
        typer.Option(
            "--lines",
            metavar="FILE",
            help="Put a record for each line of a file, '-' for standard input.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Partition key; without one, records are spread over the shards.",
            show_default=False,
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="NAME",
            help="With --lines: the field of a line, a JSON object, that is its partition key.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="NAME=VALUE",
            help="A header; may be given several times.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The value is the whole record: put it as it is.")
    ] = False,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Put a record into a stream, or one for each line of a file."""
    if (value is None) == (lines is None):
        raise typer.BadParameter("give a VALUE, or --lines FILE")
    if key_field is not None and lines is None:
        raise typer.BadParameter("--key-field is for --lines; --key is the key of one value")

    async def work() -> int:
        from ruststream_kinesis.cli.put import parse_headers, put_many, put_one
        from ruststream_kinesis.cli.putting import Recipe

        recipe = Recipe(stream, key, parse_headers(header or []), key_field, raw)
        async with connected(
            endpoint_url, region, test_credentials=test_credentials, profile=profile
        ) as connection:
            if value is not None:
                return await put_one(connection, recipe, value, as_json=as_json)
            path = None if lines is None or str(lines) == "-" else lines
            return await put_many(connection, recipe, path, as_json=as_json)

    carry_out(work, debug=debug)


def redrive(
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="The dead letter stream, by name or ARN.", show_default=False
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="STREAM", help="Where its records came from.", show_default=False
        ),
    ],
    begin: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="horizon (default) or a time; or SHARD:SEQ, once a shard, to go on behind it.",
            show_default=False,
        ),
    ] = None,
    all_origins: Annotated[
        bool, typer.Option("--all", help="Also what came from another stream.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Put so many at most.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Put dead letters back into the stream that they came from.

    Nothing is taken out of the dead letter stream: a second run puts
    them again, unless it begins where this one says that it ended.
    """

    async def work() -> int:
        from ruststream_kinesis.cli.redrive import order_of, redrive_stream
        from ruststream_kinesis.clock import SystemClock

        order = order_of(
            stream,
            to,
            begin or [],
            SystemClock().time(),
            all_origins=all_origins,
            dry_run=dry_run,
            limit=limit,
        )
        async with connected(
            endpoint_url, region, test_credentials=test_credentials, profile=profile
        ) as connection:
            return await redrive_stream(connection, order, as_json=as_json)

    carry_out(work, debug=debug)


def reset(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="Name or ARN.", show_default=False)
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="horizon, latest, a time (2026-01-31T12:00:00Z, or 15m ago), or SHARD:SEQ.",
            show_default=False,
        ),
    ],
    table: Table,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="The subscription's group, where it has one.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it; else it is only shown.")] = False,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
    table_endpoint_url: TableEndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    debug: Debug = False,
) -> None:
    """Move where a service that does not run reads from next."""

    async def work() -> int:
        from ruststream_kinesis.cli.positions import parse_position
        from ruststream_kinesis.cli.reset import reset_checkpoints
        from ruststream_kinesis.cli.resetting import Resetting
        from ruststream_kinesis.clock import SystemClock
        from ruststream_kinesis.stream import StreamRef

        position = parse_position(to, SystemClock().time())
        store = lease_table(
            table,
            table_endpoint_url,
            region,
            test_credentials=test_credentials,
            profile=profile,
            beside=endpoint_url,
        )
        async with connected(
            endpoint_url,
            region,
            test_credentials=test_credentials,
            profile=profile,
            store=store,
        ) as connection:
            resetting = Resetting(
                StreamRef.parse(stream), group, connection.transport, store, connection.clock
            )
            return await reset_checkpoints(resetting, position, yes=yes, as_json=as_json)

    carry_out(work, debug=debug)
