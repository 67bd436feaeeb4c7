"""The command `ruststream-kinesis`.

This file imports nothing outside the standard library, so that it can say what is missing where the
extra `[cli]` is not installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]

# What the extra brings.
_EXTRA = ("typer", "rich")


def main() -> None:
    """Entry point of the installed command."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        sys.exit(
            f"ruststream-kinesis: the command line needs {' and '.join(missing)}, not installed "
            "here: pip install 'ruststream-kinesis[cli]'"
        )
    from ruststream_kinesis.cli.commands import cli  # noqa: PLC0415 - see the module's header

    cli(prog_name="ruststream-kinesis")
