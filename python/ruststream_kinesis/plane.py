"""`Plane`: the short way of a call to a JSON service of AWS, signed in the core.

It knows neither streams nor tables: who calls it makes the body, and reads the answer. The request
goes over connections of our own (`exchange.py`) with the settings of a client, or, where that has a
proxy or somebody watches its requests, straight to the HTTP session that the user's settings made for
it: proxy, CA bundle, time-outs, pool and credentials stay those of the client. What is taken from
inside of that client is in `aws_internals.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ruststream_kinesis._core import Signer
from ruststream_kinesis.aws_client import ERROR_STATUS
from ruststream_kinesis.aws_errors import reason
from ruststream_kinesis.aws_internals import Insides
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.exchange import Exchange, Origin

__all__ = ["LARGE_BYTES", "Answer", "PackedAnswer", "Plane", "SessionEnded"]

logger = logging.getLogger("ruststream_kinesis")

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
LARGE_BYTES = 1024 * 1024
"""A larger body is built and signed in a thread: 10 MiB of records take some 20 ms."""


class SessionEnded(RuntimeError):
    """The client's HTTP session was closed."""


class PackedAnswer(ValueError):
    """Somebody on the way has packed an answer, though we asked for none, and it cannot be read.

    Args:
        packing: How, as the answer says.
        status: Of the answer.
    """

    def __init__(self, packing: str | None, status: int) -> None:
        super().__init__(
            f"the answer is packed ({packing!r}), which we did not ask for, and cannot be read"
        )
        self.status = status


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case, or of any case alike."""
    body: bytes
    code: str | None = None
    """Of a refusal."""
    said: str = ""
    """Of a refusal."""


@dataclass(frozen=True, slots=True)
class _Route:
    """Where an operation goes."""

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


class Plane:
    """The short way of one client: signs, sends, and reads what a refusal says.

    Args:
        insides: Of the client.
        credentials: Whose `get_frozen_credentials` it signs with.
        clock: For signatures.
        belongings: What is closed with the client, in its loop; without it there are no connections
            of our own.
    """

    def __init__(
        self,
        insides: Insides,
        credentials: Any,
        clock: Clock,
        belongings: contextlib.AsyncExitStack | None = None,
    ) -> None:
        self._insides = insides
        self._belongings = belongings
        self._exchange: Exchange | None = None
        self._credentials = credentials
        self._clock = clock
        self._skew = 0.0
        """Seconds that the service's clock is ahead of ours, once it refused us for that."""
        self._routes: dict[tuple[str, tuple[str, str] | None], _Route] = {}

    async def call(self, operation: str, where: tuple[str, str] | None, body: bytes) -> Answer:
        """One request and its answer, good or a refusal.

        Args:
            operation: The service's name of it.
            where: The parameter that the endpoint depends on, and its value.
            body: The request as JSON.

        Raises:
            PackedAnswer: The answer cannot be read.
            SessionEnded: The client was closed.
        """
        route = self._routes.get((operation, where)) or await self._find(operation, where)
        keys = await self._credentials.get_frozen_credentials()
        if keys is None:
            raise _no_credentials()
        time = self._clock.time() + self._skew
        signing = (body, keys.access_key, keys.secret_key, keys.token or None, time)
        large = len(body) > LARGE_BYTES
        if route.exchange is not None:
            if route.exchange.closed:
                raise SessionEnded("the client was closed")
            signer = functools.partial(route.signer.head, route.start)
            head = await asyncio.to_thread(signer, *signing) if large else signer(*signing)
            got = await route.exchange.post(route.origin, head, body)
            answer = Answer(got.status, got.headers, got.body)
        else:
            sign = route.signer.sign
            headers = await asyncio.to_thread(sign, *signing) if large else sign(*signing)
            answer = await self._send(operation, route, headers, body)
        packing = answer.headers.get("content-encoding")
        if packing is not None and packing != "identity":
            answer = answer._replace(body=_unpacked(answer))
        if answer.status < ERROR_STATUS:
            return answer
        code, said = reason(answer.headers, answer.body)
        if code in _CLOCK_CODES:
            self._compare_clocks(answer.headers.get("date"))
        return answer._replace(code=code, said=said)

    async def _find(self, operation: str, where: tuple[str, str] | None) -> _Route:
        insides = self._insides
        there = await insides.rules(operation, {} if where is None else dict([where]))
        signed = {
            "Content-Type": insides.service.content_type,
            "X-Amz-Target": f"{insides.service.target_prefix}.{operation}",
            **there.headers,
        }
        unsigned = {
            "User-Agent": insides.user_agent,
            # As aiobotocore: unpacking costs more than what it saves inside a region.
            "Accept-Encoding": "identity",
            "Accept": "*/*",
        }
        signer = Signer(there.url, there.region, there.service, signed, unsigned)
        session = exchange = None
        if not insides.watched(operation):
            session = await insides.session(there.url)
            exchange = await self._exchange_for(there.url)
        from yarl import URL  # noqa: PLC0415 - see the header of aws.py

        origin, start = _asked(there.url)
        route = _Route(
            there.url, URL(there.url, encoded=True), signer, origin, start, exchange, session
        )
        self._routes[operation, where] = route
        return route

    async def _exchange_for(self, url: str) -> Exchange | None:
        """The connections of this client, made with its first route that they are fit for."""
        settings = None if self._belongings is None else await self._insides.plain(url)
        if settings is None or self._belongings is None:
            return None
        if self._exchange is None:
            self._exchange = Exchange(settings)
            self._belongings.push_async_callback(self._exchange.close)
        return self._exchange

    async def _send(
        self, operation: str, route: _Route, headers: dict[str, str], body: bytes
    ) -> Answer:
        session = route.session
        if session is None:
            return await self._send_shown(operation, route, headers, body)
        if session.closed:
            raise SessionEnded("the client was closed")
        response = await session.request("POST", route.parsed, headers=headers, data=body)
        return Answer(response.status, response.headers, await response.read())

    async def _send_shown(
        self, operation: str, route: _Route, headers: dict[str, str], body: bytes
    ) -> Answer:
        """Shows the request to the user's `before-send` handlers; one of them may answer it."""
        from botocore.awsrequest import (  # noqa: PLC0415 - see the header of aws.py
            AWSPreparedRequest,
            HeadersDict,
        )

        shown: Any = HeadersDict(headers)  # the stubs know only its forerunner
        request = AWSPreparedRequest("POST", route.url, shown, body, False)
        response = await self._insides.show(operation, request)
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


def _unpacked(answer: Answer) -> bytes:
    """The body of an answer that somebody on the way has packed, though we asked for none."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        body = unpacking.decompress(answer.body, _UNPACKED_BYTES)
        whole = unpacking.eof
    except zlib.error:
        body, whole = b"", False
    if not whole:
        raise PackedAnswer(answer.headers.get("content-encoding"), answer.status)
    return body


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


def _no_credentials() -> Exception:
    from botocore.exceptions import (  # noqa: PLC0415 - see the header of aws.py
        NoCredentialsError,
    )

    error: Exception = NoCredentialsError()
    return error
