"""`ruststream-kinesis put`: one value, or a record a line; what was sent is said, whatever happens."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from ruststream_kinesis.cli.inputs import Input, lines, reading, whole
from ruststream_kinesis.cli.logs import say
from ruststream_kinesis.cli.meter import meter
from ruststream_kinesis.cli.putting import Putter, Recipe, Told, put_lines
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import AccessDenied, ConfigurationError
from ruststream_kinesis.publisher import KinesisPublish, KinesisPublisher
from ruststream_kinesis.signals import listening
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.threads import HandlerThreads
from ruststream_kinesis.transport import patiently, record_limit

__all__ = ["INTERRUPTED", "parse_headers", "put_many", "put_one"]

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""

# Failed lines that are said one by one; the others are in the JSON.
_SAID = 10
# Records a request. Four requests are on their way at once, which is ten thousand records a second; a
# local server takes some 10 ms a record, and has to answer before it is asked again.
_BATCH = 100
# A request waits so long for others: the input comes as quickly as it can be read.
_LINGER = 0.01
# Seconds that a record is tried: a stream that is too slow for its input refuses some again and again.
_DEADLINE = 120.0
# What is on its way at once: a shard takes 1 MiB a second.
_BUFFER = 16 * 1024 * 1024


def parse_headers(given: list[str]) -> dict[str, str]:
    """Headers from `NAME=VALUE` texts.

    Raises:
        ConfigurationError: One is no such text.
    """
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--header {text!r}: write NAME=VALUE")
        headers[name] = value
    return headers


async def put_one(connection: Connection, recipe: Recipe, value: str, *, as_json: bool) -> int:
    """Puts one value, `-` for what standard input holds; returns the exit code.

    Raises:
        KinesisError: It was not put.
    """
    await _look(connection, recipe.stream)
    data = value.encode(errors="surrogateescape")
    if value == "-":
        with _opened(None) as file:
            threads = HandlerThreads(1, "input")
            data = await whole(reading(file, threads))
            threads.close()
    result = await Putter(KinesisPublisher(connection), recipe).start(data)
    if as_json:
        line = {
            "stream": recipe.stream,
            "shard_id": result.shard_id,
            "sequence_number": result.sequence_number,
        }
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    else:
        sys.stdout.write(f"{result.shard_id} {result.sequence_number}\n")
    return 0


async def put_many(
    connection: Connection, recipe: Recipe, path: Path | None, *, as_json: bool
) -> int:
    """Puts every line of a file, or of standard input; returns the exit code.

    Raises:
        KinesisError: The stream is not there, or the input cannot be read.
    """
    await _look(connection, recipe.stream)
    told = Told(recipe.stream)
    putter = Putter(
        KinesisPublisher(
            connection,
            KinesisPublish(batch=_BATCH, linger=_LINGER, deadline=_DEADLINE, buffer_bytes=_BUFFER),
        ),
        recipe,
    )
    stop, hurry = asyncio.Event(), asyncio.Event()

    def asked() -> None:
        (hurry if stop.is_set() else stop).set()

    threads = HandlerThreads(1, "input")
    broken: ConfigurationError | None = None
    with _opened(path) as file, listening(asked):
        size = None if path is None else os.fstat(file.fileno()).st_size or None
        with meter(f"putting into {recipe.stream}", size) as shown:
            read = reading(file, threads)

            async def metered() -> bytes:
                piece = await read()
                shown.bytes(len(piece))
                return piece

            source: Input = metered
            try:
                await put_lines(
                    putter, told, lines(source), stop=stop, hurry=hurry, advance=shown.records
                )
            except ConfigurationError as error:
                broken = error
    threads.close()
    _report(told, as_json=as_json)
    if broken is not None:
        raise broken
    if stop.is_set():
        return INTERRUPTED
    return 0 if told.good else 1


def _opened(path: Path | None) -> BinaryIO:
    """A file, or standard input; unbuffered, so that a pipe gives what it has."""
    try:
        # Not by `sys.stdin`: a thread that waits in its buffer would keep the process.
        return open(0, "rb", buffering=0, closefd=False) if path is None else path.open("rb", 0)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path or 'stdin'}: {error.strerror}") from error


async def _look(connection: Connection, stream: str) -> None:
    """Makes sure of the stream before the first record: one that is missing is said once."""
    ref = StreamRef.parse(stream)
    try:
        await patiently(lambda: record_limit(connection, ref), connection.clock)
    except AccessDenied:
        return  # whoever may put need not be allowed to look


def _report(told: Told, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    for failure in told.failures[:_SAID]:
        say(f"line {failure.line}: {failure.error}")
    if told.failed > _SAID:
        say(f"and {told.failed - _SAID} more line(s) that failed (--json names up to 1,000)")
    parts = [f"{told.sent:,} record(s) sent to {told.stream}"]
    if told.failed:
        parts.append(f"{told.failed:,} failed")
    if told.unknown:
        parts.append(f"{told.unknown:,} on their way, and may be there or not")
    sys.stdout.write(", ".join(parts) + "\n")
    if told.stopped is not None:
        sys.stdout.write(f"Stopped ({told.stopped}): nothing behind line {told.read:,} was sent.\n")
