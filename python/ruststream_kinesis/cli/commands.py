"""The commands and their options; what they do is in a module each.

Those modules are imported by the command that needs them: `--help` waits for nothing but the parser.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ruststream_kinesis.cli.asyncapi import asyncapi

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
    endpoint_url: Annotated[
        str | None,
        typer.Option(
            envvar="RUSTSTREAM_ENDPOINT_URL",
            metavar="URL",
            help="Talk to this endpoint, for example of a local server.",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            envvar="RUSTSTREAM_REGION",
            metavar="NAME",
            help="AWS region, whatever the application names. Where neither names one, AWS_REGION "
            "and the profile do.",
            show_default=False,
        ),
    ] = None,
    test_credentials: Annotated[
        bool,
        typer.Option(
            "--test-credentials",
            envvar="RUSTSTREAM_TEST_CREDENTIALS",
            help="Sign with made-up credentials: for a local server, which checks none.",
        ),
    ] = False,
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
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="RUSTSTREAM_DEBUG", help="Show the traceback of a failure."),
    ] = False,
) -> None:
    """Run a service until Ctrl-C or SIGTERM.

    The first signal stops it gracefully: running handlers finish, then
    checkpoints are written. The second one waits for no handler.

    An option that is not given leaves what the application says.
    """
    from ruststream_kinesis.cli.run import run_service  # noqa: PLC0415 - see the module's header

    code = run_service(
        target,
        region=region,
        endpoint_url=endpoint_url,
        # A flag can only add them: without it, the application decides.
        test_credentials=test_credentials or None,
        log_level=log_level.upper(),
        probe=probe,
        debug=debug,
    )
    raise typer.Exit(code)
