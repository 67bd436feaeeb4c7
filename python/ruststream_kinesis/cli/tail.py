"""`ruststream-kinesis tail`: the records of a stream as they come, for people or as JSON lines."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from ruststream_kinesis._core import Page
from ruststream_kinesis.cli.asking import asked
from ruststream_kinesis.cli.following import follow
from ruststream_kinesis.cli.logs import say
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Transport
from ruststream_kinesis.wording import instant

__all__ = ["Wanted", "parse_wanted", "payload_text", "tail_stream"]

# Of a larger payload only the beginning is for people; `--json` has all of it.
_SHOWN_CHARACTERS = 8_000
_SHOWN_BYTES = 1_000
# What a terminal would obey instead of showing it. Line ends and tabs do no harm.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Counted from the beginning.
_BYTES_A_GROUP = -2


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are shown."""

    key: str | None = None
    """Partition key."""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    """Headers that it has, and their values where those matter."""
    limit: int | None = None
    """How many at most."""


class _Line(msgspec.Struct):
    """A record as JSON; the field names are documented."""

    stream: str
    shard_id: str
    sequence_number: str
    sub_sequence_number: int | None
    partition_key: str | None
    arrival: str | None
    headers: dict[str, str]
    payload: str
    encoding: str


def parse_wanted(key: str | None, headers: list[str], limit: int | None) -> Wanted:
    """What the options ask for.

    Args:
        key: Partition key.
        headers: `NAME` or `NAME=VALUE`.
        limit: How many at most.

    Raises:
        ConfigurationError: A header has no name.
    """
    wanted: dict[str, str | None] = {}
    for text in headers:
        name, equals, value = text.partition("=")
        if not name:
            raise ConfigurationError(f"--header {text!r}: write NAME or NAME=VALUE")
        wanted[name] = value if equals else None
    return Wanted(key, wanted, limit)


async def tail_stream(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    position: KinesisPosition,
    wanted: Wanted,
    *,
    endless: bool,
    as_json: bool,
) -> int:
    """Prints records until there are enough, or somebody ends it; returns the exit code.

    Args:
        transport: Makes the calls.
        clock: Time.
        stream: Which stream.
        position: Where to begin.
        wanted: Which records.
        endless: Wait for more at the tip.
        as_json: A JSON object a line.

    Raises:
        KinesisError: The stream cannot be read.
    """
    # It says what a missing stream is called, and where it was looked for.
    await asked(lambda: transport.describe_stream(stream), clock)
    left = wanted.limit
    colours = sys.stdout.isatty()
    if colours and sys.stderr.isatty() and endless:
        say(f"waiting for records of {stream.name} from {position} on; Ctrl-C ends it")
    following = follow(transport, clock, stream, position, endless=endless)
    async with aclosing(following):
        async for shard_id, page in following:
            for index in _chosen(page, wanted):
                if as_json:
                    sys.stdout.write(_json(stream, shard_id, page, index))
                else:
                    sys.stdout.write(_block(shard_id, page, index, colours=colours))
                if left is not None:
                    left -= 1
                    if not left:
                        return 0
            # A page at a time: whoever reads it through a pipe waits for the next one as we do.
            sys.stdout.flush()
    return 0


def _chosen(page: Page, wanted: Wanted) -> Iterator[int]:
    for index in range(len(page)):
        if wanted.key is not None and page.partition_key(index) != wanted.key:
            continue
        if wanted.headers:
            headers = page.headers(index)
            if not all(
                name in headers and value in (None, headers[name])
                for name, value in wanted.headers.items()
            ):
                continue
        yield index


def _json(stream: StreamRef, shard_id: str, page: Page, index: int) -> str:
    payload, encoding = page.payload(index), "utf-8"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(payload).decode(), "base64"
    arrival = page.arrival(index)
    line = _Line(
        stream.name,
        shard_id,
        page.sequence_number(index),
        page.sub_sequence_number(index),
        page.partition_key(index),
        None if arrival is None else instant(arrival),
        page.headers(index),
        text,
        encoding,
    )
    return msgspec.json.encode(line).decode() + "\n"


def _block(shard_id: str, page: Page, index: int, *, colours: bool) -> str:
    """A record for people: where it stands, its headers, its payload, an empty line."""
    arrival, key, sub = (
        page.arrival(index),
        page.partition_key(index),
        page.sub_sequence_number(index),
    )
    # As `--from` takes it.
    place = f"{shard_id}:{page.sequence_number(index)}"
    if sub is not None:
        place += f" ({sub} of its aggregate)"
    when = "" if arrival is None else f"{instant(arrival)}  "
    said = f"{when}key {'-' if key is None else _harmless(key)}"
    lines = [_dim(place, colours), _dim(said, colours)]
    for name, value in page.headers(index).items():
        lines.append(_dim(f"{_harmless(name)}: {_harmless(value)}", colours))
    lines.append(payload_text(page.payload(index)))
    return "\n".join(lines) + "\n\n"


def payload_text(payload: bytes) -> str:
    """A payload for people: text as it is, but nothing that a terminal obeys; else hexadecimal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        shown = payload[:_SHOWN_BYTES].hex(" ", _BYTES_A_GROUP)
        return shown + _rest(len(payload), _SHOWN_BYTES, "bytes")
    return _harmless(text[:_SHOWN_CHARACTERS]) + _rest(len(text), _SHOWN_CHARACTERS, "characters")


def _rest(size: int, shown: int, what: str) -> str:
    return f" … ({size:,} {what}; --json has all)" if size > shown else ""


def _harmless(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _dim(text: str, colours: bool) -> str:
    return f"\x1b[2m{text}\x1b[0m" if colours else text
