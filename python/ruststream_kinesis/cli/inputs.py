"""What `put` reads: one value, or a record a line, from a file or from standard input.

Invariant: memory is bounded by what is read at once and by the longest record, whatever the input.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.threads import HandlerThreads

__all__ = ["CHUNK", "Input", "lines", "reading", "whole"]

CHUNK = 256 * 1024
"""Bytes that are read at once."""
# No stream takes a larger record (`MaxRecordSizeInKiB`): what is longer is no record.
_LONGEST = 10 * 1024 * 1024

Input = Callable[[], Awaitable[bytes]]
"""The next piece of the input as it comes, empty at its end."""


def reading(file: BinaryIO, threads: HandlerThreads) -> Input:
    """Reads a file in a thread, since a pipe or a terminal may keep it waiting.

    Args:
        file: Unbuffered: a read gives what there is.
        threads: Of daemons: a read that never ends does not keep the process.
    """
    return lambda: threads.call(lambda: file.read(CHUNK) or b"")


async def lines(read: Input) -> AsyncIterator[list[tuple[int, bytes]]]:
    """The lines that hold something, with their numbers from 1, as many as come at once.

    Raises:
        ConfigurationError: A line is longer than any record.
    """
    number, rest = 1, b""
    while piece := await read():
        *whole_lines, rest = (rest + piece).split(b"\n")
        found = []
        for line in whole_lines:
            text = line.removesuffix(b"\r")
            if text:
                found.append((number, text))
            number += 1
        if len(rest) > _LONGEST:
            raise ConfigurationError(
                f"line {number} is longer than {_LONGEST} bytes, which no record is"
            )
        if found:
            yield found
    if rest:
        yield [(number, rest)]


async def whole(read: Input) -> bytes:
    """All of the input as one value.

    Raises:
        ConfigurationError: It is longer than any record.
    """
    value = b""
    while piece := await read():
        value += piece
        if len(value) > _LONGEST:
            raise ConfigurationError(
                f"the value is longer than {_LONGEST} bytes, which no record is: --lines puts a "
                "record for each line"
            )
    return value
