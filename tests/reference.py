"""What the native core does, in plain Python: slow, short, and easy to believe.

Tests compare the two. Nothing here is clever on purpose: the reference keeps every delivery and
looks at all of them each time.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The characters that the Unicode property White_Space names. `str.strip` also takes U+001C to
# U+001F, which other languages on the same stream do not.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def encode_envelope(headers: Mapping[str, str] | None, payload: bytes) -> bytes:
    """The bytes of a record, for headers that need no refusal."""
    if not headers and not payload.startswith(b"RSK1"):
        return payload
    block = "".join(f"{name}: {value}\n" for name, value in (headers or {}).items()).encode()
    return b"RSK1" + len(block).to_bytes(4, "big") + block + payload


def decode_envelope(blob: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and payload of a record, read leniently."""
    length = int.from_bytes(blob[4:8], "big")
    if not blob.startswith(b"RSK1") or len(blob) < 8 + length:
        return {}, blob
    headers = {}
    for line in blob[8 : 8 + length].decode(errors="replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip(WHITE_SPACE)] = value.strip(WHITE_SPACE)
    return headers, blob[8 + length :]


def fits_envelope(name: str, value: str) -> bool:
    """Whether a header reads back as it is written."""
    text = name + value
    return (
        name != ""
        and ":" not in name
        and not any(c in "\r\n" or "\ud800" <= c <= "\udfff" for c in text)
        and name == name.strip(WHITE_SPACE)
        and value == value.strip(WHITE_SPACE)
    )


def record(data: bytes = b"", number: str = "1", **fields: Any) -> dict[str, Any]:
    """One record of a response, as JSON has it."""
    return {"Data": base64.b64encode(data).decode(), "SequenceNumber": number, **fields}


def response(records: Iterable[Mapping[str, Any]], **fields: Any) -> bytes:
    """The body of a `GetRecords` response."""
    return json.dumps({"Records": list(records), **fields}).encode()


SubRecord = tuple[str, str | None, bytes]
"""A record of an aggregate: partition key, explicit hash key, data."""


def aggregate(records: Sequence[SubRecord] = ()) -> bytes:
    """An aggregate of the Kinesis Producer Library."""
    keys = list(dict.fromkeys(key for key, _, _ in records))
    hash_keys = list(dict.fromkeys(each for _, each, _ in records if each is not None))
    message = b"".join(_bytes_field(1, key.encode()) for key in keys)
    message += b"".join(_bytes_field(2, each.encode()) for each in hash_keys)
    for key, hash_key, data in records:
        body = b"\x08" + _varint(keys.index(key))
        if hash_key is not None:
            body += b"\x10" + _varint(hash_keys.index(hash_key))
        message += _bytes_field(3, body + _bytes_field(3, data))
    return sealed(message)


def sealed(message: bytes) -> bytes:
    """What marks a message, complete or not, as an aggregate."""
    digest = hashlib.md5(message, usedforsecurity=False).digest()
    return b"\xf3\x89\x9a\xc2" + message + digest


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class Watermark:
    """The watermark by its definition: look at every delivery since the last reset, in order."""

    def __init__(self) -> None:
        self.next_place = 0
        # place -> (number, first place of its run, state), in arrival order.
        self._since_reset: dict[int, tuple[str, int, str]] = {}

    def deliver_numbers(self, numbers: list[str]) -> int:
        base = self.next_place
        start = base
        for i, number in enumerate(numbers):
            if i and numbers[i - 1] != number:
                start = base + i
            self._since_reset[base + i] = (number, start, "open")
        self.next_place += len(numbers)
        return base

    def _change(self, places: Iterable[int], old: tuple[str, ...], new: str) -> bool:
        changed = False
        for place in places:
            number, start, state = self._since_reset.get(place, ("", 0, "unknown"))
            if state in old:
                self._since_reset[place] = (number, start, new)
                changed = True
        return changed

    def settle(self, place: int) -> bool:
        return self.settle_range(place, place + 1)

    def settle_range(self, start: int, stop: int) -> bool:
        before = self.frontier
        known = [place for place in self._since_reset if start <= place < stop]
        self._change(known, ("open", "held"), "settled")
        return self.frontier != before

    def settle_all(self, places: Sequence[int]) -> bool:
        before = self.frontier
        self._change(places, ("open", "held"), "settled")
        return self.frontier != before

    def hold(self, place: int) -> bool:
        return self._change([place], ("open",), "held")

    def reset(self) -> None:
        self._since_reset.clear()

    def _places(self, *states: str) -> list[int]:
        return [place for place, (_, _, state) in self._since_reset.items() if state in states]

    @property
    def frontier(self) -> int:
        """First place of the run that the oldest open delivery is in."""
        oldest = self.oldest_open
        return self.next_place if oldest is None else self._since_reset[oldest][1]

    @property
    def position(self) -> str | None:
        if self.frontier - 1 in self._since_reset:
            return self._since_reset[self.frontier - 1][0]
        return None

    @property
    def open(self) -> int:
        return len(self._places("open", "held"))

    @property
    def held(self) -> int:
        return len(self._places("held"))

    @property
    def oldest_open(self) -> int | None:
        return min(self._places("open", "held"), default=None)

    @property
    def drained(self) -> bool:
        return not self._places("open")
