"""The commands and their options; what they do is in a module each.

Those modules are imported by the command that needs them: `--help` waits for nothing but the parser.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ruststream_kinesis.cli.asyncapi import asyncapi
from ruststream_kinesis.cli.connecting import (
    Debug,
    EndpointUrl,
    Profile,
    Region,
    TableEndpointUrl,
    TestCredentials,
)
from ruststream_kinesis.cli.reading import add_commands as add_reading
from ruststream_kinesis.cli.writing import add_commands as add_writing

__all__ = ["cli"]

cli = typer.Typer(
    help="Services on Amazon Kinesis Data Streams.",
    no_args_is_help=True,
    add_completion=False,
    # Plain text: the parser's panels triple the time that `--help` takes.
    rich_markup_mode=None,
    # A failure is one line, or with --debug a traceback as Python prints it.
    pretty_exceptions_enable=False,
)
cli.add_typer(asyncapi)


class LogFormat(StrEnum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """What is logged, and everything above it."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - see the module's header

        typer.echo(version("ruststream-kinesis"))
        raise typer.Exit


@cli.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Services on Amazon Kinesis Data Streams."""


@cli.command()
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="Where the application is, for example 'examples.orders:app'. Modules of the "
            "current directory are found.",
            show_default=False,
        ),
    ],
    *,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    test_credentials: TestCredentials = False,
    table_endpoint_url: TableEndpointUrl = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            envvar="RUSTSTREAM_LOG_LEVEL",
            metavar="LEVEL",
            help="Least level that is logged: debug, info, warning or error.",
        ),
    ] = LogLevel.INFO,
    probe: Annotated[
        str | None,
        typer.Option(
            envvar="RUSTSTREAM_PROBE",
            metavar="HOST:PORT",
            help="Answer health checks and metrics there, and show a dashboard, for example "
            "127.0.0.1:8080.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="RUSTSTREAM_LOG_FORMAT",
            metavar="FORMAT",
            help="How a line of the log looks: text, or json for one object a line.",
        ),
    ] = LogFormat.TEXT,
    workers: Annotated[
        int,
        typer.Option(
            envvar="RUSTSTREAM_WORKERS",
            metavar="N",
            min=1,
            help="Processes, each an instance of its own; needs a lease store that they share.",
        ),
    ] = 1,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="For development: start again when a *.py below here changes."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a service until Ctrl-C or SIGTERM.

    The first signal stops it gracefully: running handlers finish, then
    checkpoints are written. The second one waits for no handler.

    An option that is not given leaves what the application says.
    """
    from ruststream_kinesis.cli.run import RunOptions, run_service  # noqa: PLC0415 - see above

    options = RunOptions(
        target,
        region=region,
        endpoint_url=endpoint_url,
        profile=profile,
        # A flag can only add them: without it, the application decides.
        test_credentials=test_credentials or None,
        table_endpoint_url=table_endpoint_url,
        log_level=log_level.upper(),
        log_format=log_format.value,
        probe=probe,
        debug=debug,
    )
    if reload and workers > 1:
        raise typer.BadParameter("--reload is for one process: leave out --workers")
    if probe and workers > 1:
        raise typer.BadParameter("--probe is for one process: leave out --workers")
    if reload:
        from ruststream_kinesis.cli.reload import run_reloading  # noqa: PLC0415 - see above

        raise typer.Exit(run_reloading(options))
    if workers > 1:
        from ruststream_kinesis.cli.workers import run_workers  # noqa: PLC0415 - see above

        raise typer.Exit(run_workers(options, workers))
    raise typer.Exit(run_service(options))


add_reading(cli)
add_writing(cli)
