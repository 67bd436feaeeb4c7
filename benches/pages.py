"""GetRecords pages, rendered once and stamped with their page number when they are sent.

They live apart from the server because three things need the same bytes: the server, the checks
("was every id seen, once?") and the microbenchmarks that parse a page without any network.

A page is a template with two marks: one where the page number goes into each sequence number, one
where it goes into the base64 text of each payload (the id starts on a base64 boundary, so its
leading digits are whole base64 groups). Stamping is two `bytes.replace` calls over the page, so
every record of a run has its own id and its own, growing sequence number, and the server renders
nothing while a client waits.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import msgspec

# Ids are PAGE_BASE + page, then the record's place in the page: six digits each. Starting at
# 100000 keeps the number of digits fixed, and JSON forbids a leading zero.
PAGE_BASE = 100_000
PLACES = 1_000_000
MAX_PAGES = PLACES - PAGE_BASE

# Neither character can occur in base64 text, in a key, or in the JSON around them.
_SEQUENCE_MARK = b"~" * 8
_DATA_MARK = b"^" * 8

# 56 digits in all, as the service's own: a fixed head, the page, the place, a fixed tail.
_SEQUENCE_HEAD = "4966" + "3" * 30
_SEQUENCE_TAIL = "0000000002"

# Prime, so that keys and batch sizes never line up.
KEYS = 97

# 2025-01-01T00:00:00Z: a fixed arrival time, so that two runs send the same bytes.
_ARRIVAL = 1_735_689_600


class Order(msgspec.Struct):
    """The payload: a flat order of the size and field count of an ordinary event."""

    id: int
    total: float
    customer: str
    currency: str
    paid: bool
    items: list[str]
    note: str


@dataclass(frozen=True)
class Spec:
    """What a canned stream holds. The same values on both sides give the same ids."""

    records: int = 1_000
    """Records a page."""
    record_bytes: int = 512
    """Payload bytes a record, exactly."""
    pages: int = 10
    """Full pages a shard; after them every page is empty and caught up."""
    shards: int = 1

    def __post_init__(self) -> None:
        """Refuse what the id layout or the service could not hold."""
        if not 1 <= self.records <= 10_000:
            raise ValueError(f"records a page must be 1 to 10000, not {self.records}")
        if self.pages * self.shards > MAX_PAGES:
            raise ValueError(f"at most {MAX_PAGES} pages over all shards")

    def ids(self, first_page: int, pages: int, shard: int = 0) -> list[int]:
        """The ids of `pages` pages of one shard, in the order in which they are sent."""
        return [
            self.record_id(shard, page, place)
            for page in range(first_page, first_page + pages)
            for place in range(self.records)
        ]

    def record_id(self, shard: int, page: int, place: int) -> int:
        """The id in the payload of one record."""
        return (PAGE_BASE + shard * self.pages + page) * PLACES + place

    def sequence_number(self, shard: int, page: int, place: int) -> str:
        """The sequence number of one record: 56 digits, growing within its shard."""
        number = shard * self.pages + page
        return f"{_SEQUENCE_HEAD}{number:08d}{place:04d}{_SEQUENCE_TAIL}"


def render_payload(order_id: int, size: int) -> bytes:
    """One order as JSON, padded to exactly `size` bytes. The id comes first.

    The other fields depend on the record's place only: the page number is stamped into the id.
    """
    place = order_id % PLACES
    order = Order(
        id=order_id,
        total=place * 3 + 0.25,
        customer=f"customer-{place % 4_999:04d}",
        currency="EUR",
        paid=True,
        items=["book", "lamp", "chair", "umbrella"],
        note="",
    )
    short = size - len(msgspec.json.encode(order))
    if short < 0:
        raise ValueError(f"a payload of {size} bytes is too small for an order")
    order.note = ("left at the door, rang twice; " * (short // 30 + 1))[:short]
    return msgspec.json.encode(order)


class PageTemplate:
    """The records of a page, all but the page number."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        records = (self._record(place) for place in range(spec.records))
        self._body = b'{"Records":[' + b",".join(records) + b"]"

    def _record(self, place: int) -> bytes:
        payload = render_payload(PAGE_BASE * PLACES + place, self.spec.record_bytes)
        # `{"id":` is six bytes and the page part of the id six digits: eight base64 characters
        # each, so the second group of eight is the page and nothing else.
        text = base64.b64encode(payload)
        data = text[:8] + _DATA_MARK + text[16:]
        return (
            b'{"SequenceNumber":"%b%b%04d%b","ApproximateArrivalTimestamp":%d.%03d,'
            b'"Data":"%b","PartitionKey":"customer-%d"}'
            % (
                _SEQUENCE_HEAD.encode(),
                _SEQUENCE_MARK,
                place,
                _SEQUENCE_TAIL.encode(),
                _ARRIVAL + place // 1000,
                place % 1000,
                data,
                place % KEYS,
            )
        )

    def stamp(self, shard: int, page: int) -> bytes:
        """The open JSON of one page: `tail` closes it."""
        number = shard * self.spec.pages + page
        body = self._body.replace(_SEQUENCE_MARK, b"%08d" % number)
        return body.replace(_DATA_MARK, base64.b64encode(b"%06d" % (PAGE_BASE + number)))


def tail(next_iterator: str, lag_ms: int) -> bytes:
    """What follows the records of a page."""
    return b',"NextShardIterator":"%b","MillisBehindLatest":%d}' % (next_iterator.encode(), lag_ms)


def page_body(spec: Spec, page: int = 0) -> bytes:
    """One whole GetRecords response body, for benchmarks without a server."""
    return PageTemplate(spec).stamp(0, page) + tail("0:1", 60_000)


def page_payloads(spec: Spec, page: int = 0) -> list[bytes]:
    """The payloads of that page, as they were before base64."""
    return [
        render_payload(spec.record_id(0, page, place), spec.record_bytes)
        for place in range(spec.records)
    ]


# The page of the CPU figures: 1,000 records of 512 bytes.
ORDINARY = Spec()
# The largest page that the service sends: 10,000 records, 10 MiB of data (10,485,760 / 10,000,
# rounded down).
FULL = Spec(records=10_000, record_bytes=1_048, pages=60)
