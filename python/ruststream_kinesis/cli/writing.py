"""Commands that write something: a new service, records, checkpoints. What they do is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add_commands"]


def add_commands(cli: typer.Typer) -> None:
    """Adds them to the command line."""
    cli.command()(new)
    cli.command()(demo)


def new(
    name: Annotated[
        str, typer.Argument(help="Name of the service and of its folder.", show_default=False)
    ],
) -> None:
    """Write a small service, with a test that passes, in a folder of its own."""
    from ruststream_kinesis.cli.logs import say  # noqa: PLC0415 - `--help` waits for the parser only
    from ruststream_kinesis.cli.scaffold import new_service  # noqa: PLC0415 - as above
    from ruststream_kinesis.errors import ConfigurationError  # noqa: PLC0415 - as above

    try:
        told = new_service(name, Path.cwd())
    except ConfigurationError as error:
        say(str(error))
        raise typer.Exit(1) from error
    typer.echo("\n".join(told))


def demo(
    *,
    orders: Annotated[
        int, typer.Option("--orders", metavar="N", min=10, help="How many orders are handled.")
    ] = 20_000,
) -> None:
    """Show a small service at work on the in-process log: no server, no network."""
    from ruststream_kinesis.cli.demo import run_demo  # noqa: PLC0415 - as above

    raise typer.Exit(run_demo(orders))
