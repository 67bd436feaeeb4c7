"""`ThinTransport`: the calls made for every page and every publish, by a short way.

A call through aiobotocore costs more than a millisecond of CPU, whatever it carries: events, the
walk of a model, endpoint rules, header classes. For the hot calls the core builds the body and the
signature, and the request goes over connections of our own (`exchange.py`) with the settings of this
client, or, where it has a proxy or somebody watches its requests, straight to the HTTP session that
the user's settings made for it. So proxy, CA bundle, time-outs, pool and credentials stay those of
the client, and each route says which of the ways it takes. Everything else takes the client's own way (`aws.py`), and so do the hot calls of a client that this way does
not fit: `aws_internals.py` says which.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import functools
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ruststream_kinesis._core import (
    Signer,
    decode_put_records,
    encode_get_records,
    encode_put_record,
    encode_put_records,
)
from ruststream_kinesis.aws import AwsTransport, put_results
from ruststream_kinesis.aws_client import ERROR_STATUS, Client
from ruststream_kinesis.aws_errors import member, reason, refused, translated
from ruststream_kinesis.aws_internals import TARGET_PREFIX, Insides, Unfit, look_inside
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import NotConnected, RequestError
from ruststream_kinesis.exchange import Exchange, Origin
from ruststream_kinesis.http_connection import Answer
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutEntry, PutResult

__all__ = ["ThinTransport"]

logger = logging.getLogger("ruststream_kinesis")

_OPERATIONS = ("GetRecords", "PutRecord", "PutRecords")
_CONTENT_TYPE = "application/x-amz-json-1.1"
# The service says one of these when our clock and its own are too far apart. A wrong secret gives
# two of them as well; then the clocks agree.
_CLOCK_CODES = frozenset(
    {
        "InvalidSignatureException",
        "RequestExpired",
        "RequestInTheFuture",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
# The service takes five minutes either way. Its `Date` is whole seconds, and as old as its way.
_CLOCKS_AGREE = 60.0
# A page is 10 MiB of records at most, 14 MiB of JSON: what unpacks to more is no page.
_UNPACKED_BYTES = 64 * 1024 * 1024
# A larger body is built and signed in a thread: 10 MiB of records take some 20 ms.
_LARGE_BYTES = 1024 * 1024
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ThinTransport(AwsTransport):
    """Kinesis, with the hot calls on the short way wherever the client allows it."""

    _told = False

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """GetRecords, unparsed."""
        deadline = self._deadline_of("get_records")
        with translated("get_records", stream, shard_id, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient):
                # As in `AwsTransport`: reads take turns, and the deadline starts with the turn.
                async with client.reads, asyncio.timeout(deadline):
                    body = encode_get_records(iterator, limit, stream.arn)
                    return await client.plane.call(_GET_RECORDS, stream, shard_id, body)
        return await super().get_records(stream, shard_id, iterator, limit)

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """PutRecord."""
        deadline = self._deadline_of("put_record")
        with translated("put_record", stream, None, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient):
                async with asyncio.timeout(deadline):
                    body = encode_put_record(
                        stream.name, stream.arn, data, partition_key, explicit_hash_key
                    )
                    answer = _object(await client.plane.call(_PUT_RECORD, stream, None, body))
                return PutResult(
                    member(answer, "ShardId", stream), member(answer, "SequenceNumber", stream)
                )
        return await super().put_record(
            stream, data, partition_key, explicit_hash_key=explicit_hash_key
        )

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """PutRecords: the batch goes into the core in one call, and the answer in another."""
        deadline = self._deadline_of("put_records")
        with translated("put_records", stream, None, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient) and entries:
                async with asyncio.timeout(deadline):
                    size = sum(len(entry[0]) for entry in entries)
                    encode = encode_put_records
                    if size > _LARGE_BYTES:
                        body = await asyncio.to_thread(encode, stream.name, stream.arn, entries)
                    else:
                        body = encode(stream.name, stream.arn, entries)
                    answer = await client.plane.call(_PUT_RECORDS, stream, None, body)
                return put_results(stream, len(entries), _rows(answer, stream))
        return await super().put_records(stream, entries)

    async def _connect(self) -> Client:
        client = await super()._connect()
        try:
            insides = await look_inside(client.kinesis, _OPERATIONS)
        except Unfit as unfit:
            if not self._told:
                self._told = True
                level = logging.INFO if unfit.expected else logging.WARNING
                logger.log(level, "calls to Kinesis take aiobotocore's own, slower way: %s", unfit)
            return client
        except BaseException:
            # Nobody else knows of it yet.
            await client.life.aclose()
            raise
        parts = {each.name: getattr(client, each.name) for each in dataclasses.fields(client)}
        return _ThinClient(**parts, plane=_Plane(client, insides, self._clock))


class _Operation(NamedTuple):
    name: str
    method: str
    """As aiobotocore names it, for messages."""


_GET_RECORDS = _Operation("GetRecords", "get_records")
_PUT_RECORD = _Operation("PutRecord", "put_record")
_PUT_RECORDS = _Operation("PutRecords", "put_records")


@dataclass(frozen=True, slots=True)
class _Route:
    """Where an operation on a stream goes."""

    url: str
    parsed: Any
    """The same as aiohttp takes it without parsing it again."""
    signer: Signer
    origin: Origin
    start: bytes
    """The first lines of a request: what is asked for, and of which host."""
    exchange: Exchange | None
    """Our own connections; `None` where they are not the same as the client's."""
    session: Any
    """The `aiohttp.ClientSession` to ask then; `None` where only the client's HTTP session can."""


class _Plane:
    """The short way of one client: signs, sends, and reads what a refusal says."""

    def __init__(self, client: Client, insides: Insides, clock: Clock) -> None:
        self._client = client
        self._insides = insides
        self._clock = clock
        self._skew = 0.0
        """Seconds that the service's clock is ahead of ours, once it refused us for that."""
        self._exchange: Exchange | None = None
        self._routes: dict[tuple[str, str | None], _Route] = {}

    async def call(
        self, operation: _Operation, stream: StreamRef, shard_id: str | None, body: bytes
    ) -> bytes:
        """The body of a good answer.

        Raises:
            RequestError: The answer is a refusal, or packed in a way that cannot be read.
        """
        route = self._routes.get((operation.name, stream.arn)) or await self._find(
            operation, stream
        )
        keys = await self._client.credentials.get_frozen_credentials()
        if keys is None:
            raise _no_credentials()
        time = self._clock.time() + self._skew
        signing = (body, keys.access_key, keys.secret_key, keys.token or None, time)
        large = len(body) > _LARGE_BYTES
        if route.exchange is not None:
            if route.exchange.closed:
                raise _closed()
            signer = functools.partial(route.signer.head, route.start)
            head = await asyncio.to_thread(signer, *signing) if large else signer(*signing)
            answer = await route.exchange.post(route.origin, head, body)
        else:
            sign = route.signer.sign
            headers = await asyncio.to_thread(sign, *signing) if large else sign(*signing)
            answer = await self._send(operation, route, headers, body)
        packing = answer.headers.get("content-encoding")
        if packing is not None and packing != "identity":
            answer = answer._replace(body=_unpacked(answer, operation, stream, shard_id))
        if answer.status < ERROR_STATUS:
            return answer.body
        code, said = reason(answer.headers, answer.body)
        if code in _CLOCK_CODES:
            self._compare_clocks(answer.headers.get("date"))
        raise refused(operation.method, stream, shard_id, answer.status, code, said)

    async def _find(self, operation: _Operation, stream: StreamRef) -> _Route:
        parameters = {} if stream.arn is None else {"StreamARN": stream.arn}
        there = await self._insides.rules(operation.name, parameters)
        signed = {
            "Content-Type": _CONTENT_TYPE,
            "X-Amz-Target": f"{TARGET_PREFIX}.{operation.name}",
            **there.headers,
        }
        unsigned = {
            "User-Agent": self._client.kinesis.meta.config.user_agent,
            # As aiobotocore: unpacking costs more than what it saves inside a region.
            "Accept-Encoding": "identity",
            "Accept": "*/*",
        }
        signer = Signer(there.url, there.region, there.service, signed, unsigned)
        session = exchange = None
        if not self._insides.watched(operation.name):
            session = await self._insides.session(there.url)
            exchange = await self._exchange_for(there.url)
        from yarl import URL  # noqa: PLC0415 - see the header of aws.py

        origin, start = _asked(there.url)
        route = _Route(
            there.url, URL(there.url, encoded=True), signer, origin, start, exchange, session
        )
        self._routes[operation.name, stream.arn] = route
        return route

    async def _exchange_for(self, url: str) -> Exchange | None:
        """The connections of this client, made with its first route that they are fit for."""
        settings = await self._insides.plain(url)
        if settings is None:
            return None
        if self._exchange is None:
            self._exchange = Exchange(settings)
            self._client.belongings.push_async_callback(self._exchange.close)
        return self._exchange

    async def _send(
        self, operation: _Operation, route: _Route, headers: dict[str, str], body: bytes
    ) -> Answer:
        session = route.session
        if session is None:
            return await self._send_shown(operation, route, headers, body)
        if session.closed:
            raise _closed()
        response = await session.request("POST", route.parsed, headers=headers, data=body)
        return Answer(response.status, response.headers, await response.read())

    async def _send_shown(
        self, operation: _Operation, route: _Route, headers: dict[str, str], body: bytes
    ) -> Answer:
        """Shows the request to the user's `before-send` handlers; one of them may answer it."""
        from botocore.awsrequest import (  # noqa: PLC0415 - see the header of aws.py
            AWSPreparedRequest,
            HeadersDict,
        )

        shown: Any = HeadersDict(headers)  # the stubs know only its forerunner
        request = AWSPreparedRequest("POST", route.url, shown, body, False)
        answers = await self._client.kinesis.meta.events.emit(
            f"before-send.kinesis.{operation.name}", request=request
        )
        response = next((answer for _, answer in answers if answer is not None), None)
        if response is None:
            response = await self._insides.send(request)
        return Answer(response.status_code, response.headers, await response.content)

    def _compare_clocks(self, date: str | None) -> None:
        """Takes the service's time where ours is wrong: the next attempt is signed with it."""
        try:
            theirs = email.utils.parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        skew = theirs - self._clock.time()
        self._skew = skew if abs(skew) > _CLOCKS_AGREE else 0.0
        if self._skew:
            logger.warning("our clock is %.0f s off; requests are signed with theirs", skew)


@dataclass(frozen=True, slots=True)
class _ThinClient(Client):
    plane: _Plane


def _object(body: bytes) -> dict[str, Any]:
    """The members of an answer; none for somebody else's body, so that the first is missed."""
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        return {}


def _rows(body: bytes, stream: StreamRef) -> Sequence[tuple[str | None, ...]]:
    try:
        return decode_put_records(body)
    except ValueError as error:
        raise RequestError(
            f"cannot put records: {error}", code="MalformedAnswer", stream=stream.name
        ) from error


def _unpacked(
    answer: Answer, operation: _Operation, stream: StreamRef, shard_id: str | None
) -> bytes:
    """The body of an answer that somebody on the way has packed, though we asked for none."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        body = unpacking.decompress(answer.body, _UNPACKED_BYTES)
        whole = unpacking.eof
    except zlib.error:
        body, whole = b"", False
    if whole:
        return body
    packing = answer.headers.get("content-encoding")
    raise RequestError(
        f"cannot {operation.method.replace('_', ' ')}: the answer is packed ({packing!r}), which "
        "we did not ask for, and cannot be read",
        code="ContentEncodingError",
        status=answer.status if answer.status >= ERROR_STATUS else None,
        stream=stream.name,
        shard_id=shard_id,
    )


def _asked(url: str) -> tuple[Origin, bytes]:
    """Whom a request goes to, and its first lines."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    usual = 443 if tls else 80
    port = parts.port or usual
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    if port != usual:
        named = f"{named}:{port}"
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return Origin(host, port, tls), f"POST {target} HTTP/1.1\r\nHost: {named}\r\n".encode("ascii")


def _closed() -> NotConnected:
    return NotConnected("not connected to Kinesis: the service is not running")


def _no_credentials() -> Exception:
    from botocore.exceptions import (  # noqa: PLC0415 - see the header of aws.py
        NoCredentialsError,
    )

    error: Exception = NoCredentialsError()
    return error
