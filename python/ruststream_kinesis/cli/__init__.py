"""The command `ruststream-kinesis`.

This file imports nothing outside the standard library, so that it can say what is missing where the
extra `[cli]` is not installed.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

# What the extra brings; anything else that does not import is a fault, and shown as one.
_EXTRA = ("typer", "rich", "click")


def main() -> None:
    """Entry point of the installed command."""
    try:
        from ruststream_kinesis.cli.commands import cli  # noqa: PLC0415 - see the module's header
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(
            f"ruststream-kinesis: the command line needs {error.name}, which is not installed: "
            "pip install 'ruststream-kinesis[cli]'"
        )
    cli(prog_name="ruststream-kinesis")
