"""What the processes of a run write down, a line each, and how it is read again.

Every line is appended with one `write` to a file of its own process, opened with `O_APPEND`: a
process that is killed loses nothing that it wrote, and tears no line of another. Times are
`CLOCK_MONOTONIC`, which all processes of a machine share.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Numbered(msgspec.Struct):
    """The payload: the numbers of a key are 0, 1, 2, … without a gap."""

    key: str
    n: int


class Put(msgspec.Struct, frozen=True, tag="put"):
    """A record that the service answered for."""

    key: str
    n: int
    shard_id: str
    sequence_number: str
    acked: float


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Every subscription of the process is open."""

    at: float


class Handled(msgspec.Struct, frozen=True, tag="handled"):
    """One run of the handler that came to its end."""

    key: str
    n: int
    shard_id: str
    sequence_number: str
    attempt: int
    begin: float
    end: float
    wall: float
    pid: int


class Acquired(msgspec.Struct, frozen=True, tag="acquired"):
    """The process was told that a lease is its own."""

    shard_id: str
    at: float


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The process is about to give a lease up."""

    shard_id: str
    at: float
    handed_over: bool


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """Something that was done to a process or to the stream."""

    kind: str
    """`start`, `kill`, `pause`, `stop`, `block`, `split` or `merge`."""
    target: str
    """Name of the process, or id of the shard."""
    at: float
    until: float
    """When a paused process went on, a stopped one had exited; else `at`."""


Line = Put | Started | Handled | Acquired | Released | Fault

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Pen:
    """Appends lines to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: Line) -> None:
        """One line, in the file when this returns."""
        os.write(self._file, _ENCODER.encode(line) + b"\n")


class Book:
    """Reads a file of lines while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lines: list[Line] = []
        """What was read so far."""

    def read(self) -> list[Line]:
        """Reads on; returns all lines."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read += len(whole) + 1
                self.lines += map(_DECODER.decode, whole.split(b"\n"))
        return self.lines
