"""`ruststream-kinesis asyncapi`: the document of an application, as text or as a page.

The application is imported, and connects to nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream

__all__ = ["asyncapi"]

_FAILED = 1
# As for any other argument that cannot be read.
_WRONG = 2

asyncapi = typer.Typer(
    name="asyncapi",
    help="Show the AsyncAPI document of an application. Nothing is connected for it.",
    no_args_is_help=True,
    # As the parser of the other commands.
    rich_markup_mode=None,
)


class Format(StrEnum):
    """What a document is written as."""

    JSON = "json"
    YAML = "yaml"
    HTML = "html"


# What the name of a file says of its format.
_SUFFIXES = {
    ".yaml": Format.YAML,
    ".yml": Format.YAML,
    ".html": Format.HTML,
    ".htm": Format.HTML,
}

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        help="Where the application is, for example 'examples.orders:app'. Modules of the "
        "current directory are found.",
        show_default=False,
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", envvar="RUSTSTREAM_DEBUG", help="Show the traceback of a failure."),
]


@asyncapi.command()
def gen(
    target: Target,
    *,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="json, yaml, or html for a page that needs no server. By default what the name of "
            "the file says, else json.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it there and not to stdout.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the document of an application.

    The same declarations make the same bytes: keep the file in the
    repository, and a change of what a service says is seen in its diff.
    """
    if form is None:
        form = Format.JSON if output is None else _SUFFIXES.get(output.suffix, Format.JSON)
    with _one_line(debug):
        text = _written(_load(target).asyncapi(), form)
        if output is None:
            typer.echo(text.encode(), nl=False)
        else:
            try:
                output.write_bytes(text.encode())
            except OSError as error:
                raise OSError(f"cannot write {output}: {error.strerror}") from error


@asyncapi.command()
def serve(
    target: Target,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", help="Port to listen on; 0 takes a free one.", min=0, max=65_535
        ),
    ] = 8000,
    debug: Debug = False,
) -> None:
    """Show the document of an application in a browser, until Ctrl-C.

    The page needs nothing from the internet. The document is beside it, as
    /asyncapi.json and, where PyYAML is installed, /asyncapi.yaml.
    """
    with _one_line(debug):
        from ruststream_kinesis.asyncapi import page  # noqa: PLC0415 - for this command only
        from ruststream_kinesis.cli.serving import Text, serve_texts  # noqa: PLC0415 - as above

        app = _load(target)
        document = app.asyncapi()
        texts = {
            "/": Text("text/html", page(document)),
            "/asyncapi.json": Text("application/json", _written(document, Format.JSON)),
        }
        with contextlib.suppress(ModuleNotFoundError):
            texts["/asyncapi.yaml"] = Text("application/yaml", _written(document, Format.YAML))
        serve_texts(texts, host, port, lambda url: _say(f"{app.title} {app.version} is at {url}"))


def _load(target: str) -> RustStream:
    from ruststream_kinesis.cli.loading import load_app  # noqa: PLC0415 - `--help` waits for nothing

    return load_app(target)


def _written(document: dict[str, Any], form: Format) -> str:
    from ruststream_kinesis.asyncapi import page, to_json, to_yaml  # noqa: PLC0415 - as above

    return {Format.JSON: to_json, Format.YAML: to_yaml, Format.HTML: page}[form](document)


@contextlib.contextmanager
def _one_line(debug: bool) -> Iterator[None]:
    """Makes a failure one line on stderr and an exit code."""
    from ruststream_kinesis.cli.loading import NoTarget  # noqa: PLC0415 - as above
    from ruststream_kinesis.errors import KinesisError  # noqa: PLC0415 - as above

    try:
        yield
    except Exception as error:
        # Typer's own way out, and the reader of a pipe that went away.
        if debug or isinstance(error, typer.Exit | BrokenPipeError):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == "yaml":
            _say("YAML needs PyYAML: pip install 'ruststream-kinesis[cli]'")
        elif isinstance(error, KinesisError | OSError):
            _say(str(error))
        else:
            _say(f"{type(error).__name__}: {error} (--debug shows where)")
        raise typer.Exit(_WRONG if isinstance(error, NoTarget) else _FAILED) from None


def _say(message: str) -> None:
    """One line on stderr, however many the message has."""
    sys.stderr.write(f"ruststream-kinesis: {' '.join(message.split())}\n")
    sys.stderr.flush()
