"""What a fault server can answer: good pages, errors in Kinesis' shape, and broken connections.

Each function builds one reply; a reply knows nothing of the script that chose it (`scripted.py`).
The same replies serve a scripted stream and a proxy before a real server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTENT_TYPE = "application/x-amz-json-1.1"
"""What Kinesis answers with, errors included."""

LAST_HASH = 2**128 - 1
"""The end of the hash key range of a stream."""


class Next(Enum):
    """Special values of a page's `NextShardIterator`."""

    AUTO = "auto"
    """A fresh iterator for the shard that was read."""
    MISSING = "missing"
    """No such member at all: one of the three ways in which a shard ends (null, empty, missing)."""


@dataclass(frozen=True)
class Call:
    """One request, as it arrived."""

    target: str
    """The operation without its prefix: `GetRecords`."""
    body: Mapping[str, Any]
    """The parsed JSON body."""
    at: float
    """`time.monotonic()` of the arrival."""
    count: int
    """1 for the first request to this target, and so on."""
    shard_id: str | None
    """The shard of a read or an iterator request, where the server knows it."""
    headers: Mapping[str, str] = field(repr=False)
    path: str = field(default="/", repr=False)
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Shard:
    """A shard as ListShards tells of it."""

    shard_id: str
    parent: str | None = None
    adjacent_parent: str | None = None
    first_hash: int = 0
    last_hash: int = LAST_HASH
    starting_sequence_number: str = "100"
    ending_sequence_number: str | None = None
    """Set for a closed shard."""

    def listed(self) -> dict[str, Any]:
        """Return the ListShards form."""
        numbers = {"StartingSequenceNumber": self.starting_sequence_number}
        if self.ending_sequence_number is not None:
            numbers["EndingSequenceNumber"] = self.ending_sequence_number
        shard: dict[str, Any] = {
            "ShardId": self.shard_id,
            "HashKeyRange": self._keys(),
            "SequenceNumberRange": numbers,
        }
        if self.parent is not None:
            shard["ParentShardId"] = self.parent
        if self.adjacent_parent is not None:
            shard["AdjacentParentShardId"] = self.adjacent_parent
        return shard

    def as_child(self) -> dict[str, Any]:
        """Return the form in the last page of a closed shard."""
        parents = [each for each in (self.parent, self.adjacent_parent) if each is not None]
        return {"ShardId": self.shard_id, "ParentShards": parents, "HashKeyRange": self._keys()}

    def _keys(self) -> dict[str, str]:
        return {"StartingHashKey": str(self.first_hash), "EndingHashKey": str(self.last_hash)}


class Exchange(Protocol):
    """What a reply may use of the server that sends it."""

    @property
    def http(self) -> web.Request:
        """The request, for its connection."""

    @property
    def call(self) -> Call:
        """The request as it is recorded."""

    @property
    def holding(self) -> set[asyncio.Event]:
        """What the server sets when it is closed, so that nothing waits beyond it."""

    def next_iterator(self, wanted: str | Next) -> str:
        """Return the iterator to answer with, remembering the shard that it belongs to."""

    def now(self) -> float:
        """Return the server's wall clock, for the `Date` header."""

    async def default(self) -> Answer:
        """Return what the server answers without a script."""


class Reply:
    """Something to send back."""

    def __repr__(self) -> str:
        # The name of a test must hold no address: the processes of one run collect the same names.
        return type(self).__name__

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Send it."""
        raise NotImplementedError


class Body(Reply):
    """A reply with a status and a whole body."""

    def render(self, exchange: Exchange) -> Answer:
        """Return the bytes to send."""
        raise NotImplementedError

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Send status, headers and body."""
        answer = self.render(exchange)
        return web.Response(
            status=answer.status, body=answer.body, headers=_headers(answer, exchange)
        )


@dataclass(frozen=True)
class Answer(Body):
    """Fixed bytes."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Beside or instead of the usual ones (`Date`, request id, content type)."""

    def render(self, exchange: Exchange) -> Answer:
        """Return itself."""
        return self


@dataclass(frozen=True)
class Page(Body):
    """A GetRecords response; its iterator is known when it is sent."""

    records: Sequence[Mapping[str, Any]]
    lag: int | None
    next: str | Next | None
    children: Sequence[Shard]
    headers: Mapping[str, str]

    def render(self, exchange: Exchange) -> Answer:
        """Return the JSON of this page."""
        body: dict[str, Any] = {"Records": list(self.records)}
        if self.lag is not None:
            body["MillisBehindLatest"] = self.lag
        if self.next is None:
            body["NextShardIterator"] = None
        elif self.next is not Next.MISSING:
            body["NextShardIterator"] = exchange.next_iterator(self.next) if self.next else ""
        if self.children:
            body["ChildShards"] = [child.as_child() for child in self.children]
        return Answer(200, json.dumps(body).encode(), self.headers)


@dataclass(frozen=True)
class Truncated(Body):
    """A body that ends before its announced length."""

    whole: Body
    keep: int | None

    def render(self, exchange: Exchange) -> Answer:
        """Return the answer with what will be sent of its body."""
        answer = self.whole.render(exchange)
        keep = len(answer.body) // 2 if self.keep is None else self.keep
        return replace(answer, body=answer.body[:keep])

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Announce one byte more than comes, send it, close the connection."""
        answer = self.render(exchange)
        response = await _start(answer, exchange, len(answer.body) + 1)
        await response.write(answer.body)
        # Close, not abort: what was written still arrives.
        _transport(exchange).close()
        return response


class Drop(Reply):
    """The connection breaks without an answer."""

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Reset the connection."""
        _transport(exchange).abort()
        return web.Response()  # goes nowhere: the handler has to return one


class Held(Reply):
    """Answers only when the test says so. `reached` is set as soon as a request is held."""

    def __init__(self, reply: Reply) -> None:
        self.reached = asyncio.Event()
        self._released = asyncio.Event()
        self._reply = reply

    def release(self) -> None:
        """Let held requests go, and every later one pass. Idempotent."""
        self._released.set()

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Wait for the release, then answer."""
        await self._hold(exchange)
        return await self._reply.send(exchange)

    async def _hold(self, exchange: Exchange) -> None:
        exchange.holding.add(self._released)
        self.reached.set()
        await self._released.wait()


class HeadersOnly(Held):
    """Status and headers, then silence."""

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Send the headers, wait for the release, and break the connection."""
        response = await _start(Answer(), exchange, 1000)
        await self._hold(exchange)
        _transport(exchange).abort()
        return response


class PassOn(Reply):
    """The server's own behaviour: a place in a list of replies that is no fault."""

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Answer as if there were no script."""
        return await (await exchange.default()).send(exchange)


@dataclass(frozen=True)
class AppliedThen(Reply):
    """The request takes effect, and its true answer is lost."""

    reply: Reply

    async def send(self, exchange: Exchange) -> web.StreamResponse:
        """Carry out the request, then send the other reply."""
        await exchange.default()
        return await self.reply.send(exchange)


def record(
    sequence_number: int | str,
    data: bytes = b"{}",
    key: str | None = "key",
    *,
    arrival: float | None = 1_700_000_000.0,
) -> dict[str, Any]:
    """Return one record of a page. `None` leaves the member out; `arrival` is epoch seconds."""
    result: dict[str, Any] = {
        "SequenceNumber": str(sequence_number),
        "Data": base64.b64encode(data).decode(),
    }
    if key is not None:
        result["PartitionKey"] = key
    if arrival is not None:
        result["ApproximateArrivalTimestamp"] = arrival
    return result


def page(
    records: Sequence[Mapping[str, Any]] = (),
    lag: int | None = 0,
    next: str | Next | None = Next.AUTO,  # noqa: A002 (reads as the member it sets)
    children: Sequence[Shard] = (),
    *,
    headers: Mapping[str, str] | None = None,
) -> Page:
    """Answer GetRecords. `lag=None` leaves it out; `next=None` (or "") ends the shard."""
    return Page(records, lag, next, children, headers or {})


def ok(body: Mapping[str, Any] | None = None, **members: Any) -> Answer:
    """Answer 200 with a JSON object."""
    return Answer(200, json.dumps({**(body or {}), **members}).encode())


def error(
    code: str,
    status: int = 400,
    message: str = "made by a test",
    *,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Answer with an error of the service."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return Answer(status, body, headers or {})


def raw(body: bytes, status: int = 200) -> Answer:
    """Answer with any bytes, as if they were JSON."""
    return Answer(status, body)


def html(status: int = 503) -> Answer:
    """Answer as a load balancer does that has lost its backend."""
    text = b"<html><body><h1>Service Unavailable</h1></body></html>"
    return Answer(status, text, {"Content-Type": "text/html"})


def truncated(whole: Body | bytes, *, keep: int | None = None) -> Truncated:
    """Send the first `keep` bytes (half by default) of a longer body, then end the connection."""
    return Truncated(raw(whole) if isinstance(whole, bytes) else whole, keep)


def drop_connection() -> Drop:
    """Break the connection instead of answering."""
    return Drop()


def hang_after_headers() -> HeadersOnly:
    """Send status and headers, then nothing until `release()` (or the end of the server)."""
    return HeadersOnly(PassOn())


def held(reply: Reply | None = None) -> Held:
    """Hold the request until `release()`, then answer with `reply` (the default behaviour)."""
    return Held(reply or PassOn())


def pass_on() -> PassOn:
    """Behave as without a script."""
    return PassOn()


def applied_then(reply: Reply) -> AppliedThen:
    """Let the request take effect, and answer with something else."""
    return AppliedThen(reply)


def _headers(answer: Answer, exchange: Exchange) -> dict[str, str]:
    return {
        "Date": formatdate(exchange.now(), usegmt=True),
        "x-amzn-RequestId": str(uuid.uuid4()),
        "Content-Type": CONTENT_TYPE,
        **answer.headers,
    }


async def _start(answer: Answer, exchange: Exchange, length: int) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer, exchange))
    response.content_length = length
    await response.prepare(exchange.http)
    return response


def _transport(exchange: Exchange) -> asyncio.Transport:
    transport = exchange.http.transport
    if not isinstance(transport, asyncio.Transport):
        # The client went away first, which is what this reply wanted from its own side.
        raise ConnectionResetError
    return transport
