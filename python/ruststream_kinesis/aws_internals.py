"""What we know of aiobotocore beyond its documented surface, and the one check that it is true.

Everything that touches a private name of aiobotocore or botocore is here. `look_inside` is asked
once for each client: it returns what the short way of a call needs (`thin.py`), or says why this
client has to go the client's own way. No other file knows these names.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ruststream_kinesis.exchange import Plain

__all__ = [
    "DYNAMODB",
    "KINESIS",
    "Destination",
    "Insides",
    "JsonService",
    "Unfit",
    "give_credentials",
    "look_inside",
]

# Handlers of these events change or watch a call in ways that the short way does not repeat.
_EVENTS = (
    "provide-client-params",
    "before-parameter-build",
    "before-endpoint-resolution",
    "before-call",
    "request-created",
    "choose-signer",
    "before-sign",
    "before-parse",
    "response-received",
    "needs-retry",
    "after-call",
    "after-call-error",
)
_BUILT_IN = ("botocore", "aiobotocore")
# Of botocore's own, but there only where the user asked for it.
_BY_CHOICE = frozenset(
    {("botocore.handlers", "disable_signing"), ("botocore.monitoring", "Monitor.capture")}
)
_OURS = "ruststream_kinesis"
# The one argument of a connector that aiobotocore sets by itself.
_CONNECTOR_ARGUMENTS = {"keepalive_timeout"}
_SIGNATURE = "v4"
# What a method of another release raises when it is called as this one wants it.
_STRANGE = (AttributeError, TypeError, ValueError, LookupError)


@dataclass(frozen=True, slots=True)
class JsonService:
    """How a service is spoken to."""

    name: str
    """In the names of events."""
    target_prefix: str
    """Its name and version in the header that names the operation."""
    content_type: str


KINESIS = JsonService("kinesis", "Kinesis_20131202", "application/x-amz-json-1.1")
DYNAMODB = JsonService("dynamodb", "DynamoDB_20120810", "application/x-amz-json-1.0")


class Unfit(Exception):
    """This client cannot be used for the short way; the message says why.

    Args:
        expected: Whether the user's own configuration is the reason, not a release of aiobotocore
            that we do not know.
    """

    def __init__(self, why: str, *, expected: bool) -> None:
        super().__init__(why)
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the client's own endpoint rules send a call, and what it is signed for."""

    url: str
    region: str
    service: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Insides:
    """What the short way of a call takes from a client."""

    service: JsonService
    credentials: Any
    """What the client itself signs with."""
    user_agent: str
    send: Callable[[Any], Awaitable[Any]]
    """The client's HTTP session: takes a prepared request, knows proxy, bundle and pool."""
    session: Callable[[str], Awaitable[Any]]
    """The `aiohttp.ClientSession` of that HTTP session for a URL; `None` where there is none, or
    where its use takes more than a request (a proxy)."""
    plain: Callable[[str], Awaitable[Plain | None]]
    """What the same session does for a URL, where that is nothing but requests and answers with
    settings that we can keep too; `None` where it is more."""
    rules: Callable[[str, Mapping[str, Any]], Awaitable[Destination]]
    """The client's endpoint rules, for an operation and its parameters."""
    watched: Callable[[str], bool]
    """Whether somebody wants to see the requests of an operation before they are sent."""
    show: Callable[[str, Any], Awaitable[Any]]
    """Shows such a request to those; the answer of the first that has one, else `None`."""


def give_credentials(session: Any, credentials: Any) -> None:
    """Makes a session sign with these credentials; aiobotocore has no public way to do it."""
    session._credentials = credentials  # noqa: SLF001 - as said


async def look_inside(
    client: Any, operations: tuple[str, ...], service: JsonService = KINESIS
) -> Insides:
    """The insides of a client, once everything that is relied on was seen to be there.

    Args:
        client: A client of aiobotocore.
        operations: Names of the calls that are to take the short way.
        service: Whose client it is.

    Raises:
        Unfit: The user's hooks or settings need the client's own way, or this aiobotocore does not
            have what we know.
    """
    try:
        http = client._endpoint.http_session  # noqa: SLF001 - see the module's header
        resolve = client._resolve_endpoint_ruleset  # noqa: SLF001 - see the module's header
        signer = client._request_signer  # noqa: SLF001 - see the module's header
        signing_name = signer._signing_name  # noqa: SLF001 - see the module's header
        credentials = signer._credentials  # noqa: SLF001 - see the module's header
        user_agent = client.meta.config.user_agent
        _refuse_hooks(client, service, operations)
        models = {name: client.meta.service_model.operation_model(name) for name in operations}
        known = all(map(inspect.iscoroutinefunction, (http.send, resolve)))
        _refuse_settings(client, service, models)
    except AttributeError as missing:
        raise Unfit(f"it has no {missing.name}", expected=False) from missing
    if not known or not isinstance(signing_name, str):
        raise Unfit("its HTTP session or its endpoint rules are others", expected=False)

    async def rules(operation: str, parameters: Mapping[str, Any]) -> Destination:
        context: dict[str, Any] = {
            "client_region": client.meta.region_name,
            "client_config": client.meta.config,
        }
        url, headers, _ = await resolve(models[operation], dict(parameters), context)
        signing = context.get("signing", {})
        return Destination(
            _with_path(url),
            signing.get("region") or client.meta.region_name,
            signing.get("signing_name") or signing_name,
            # The rule engine gives lists of values.
            {name: _joined(value) for name, value in headers.items()},
        )

    def watched(operation: str) -> bool:
        return bool(list(_handlers(client, f"before-send.{service.name}.{operation}")))

    async def show(operation: str, request: Any) -> Any:
        answers = await client.meta.events.emit(
            f"before-send.{service.name}.{operation}", request=request
        )
        return next((answer for _, answer in answers if answer is not None), None)

    # Imported by then; see the header of aws.py.
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as said

    try:
        # Asked once, so that another signature of it is found now and not by the first read.
        await rules(operations[0], {})
    except (*_STRANGE, BotoCoreError) as strange:
        raise Unfit(f"its endpoint rules do not answer: {strange!r}", expected=False) from strange
    session = _session_of(http)
    plain = _plain_of(http, session)
    return Insides(
        service, credentials, user_agent, http.send, session, plain, rules, watched, show
    )


def _refuse_hooks(client: Any, service: JsonService, operations: tuple[str, ...]) -> None:
    # Tracers replace this method by one of their own file.
    call = inspect.unwrap(type(client)._make_api_call, stop=_foreign)  # noqa: SLF001 - as above
    if _foreign(call):
        raise Unfit("something wraps the client's calls", expected=True)
    for operation in operations:
        for event in _EVENTS:
            for handler in _handlers(client, f"{event}.{service.name}.{operation}"):
                if not _built_in(handler):
                    raise Unfit(f"a handler is registered for {event}", expected=True)


def _refuse_settings(client: Any, service: JsonService, models: Mapping[str, Any]) -> None:
    if client.meta.config.signature_version != _SIGNATURE:
        raise Unfit(f"its signature version is not {_SIGNATURE}", expected=True)
    for name, model in models.items():
        prefix = model.service_model.metadata.get("targetPrefix")
        if model.endpoint is not None or prefix != service.target_prefix:
            raise Unfit(f"its model of {name} is another", expected=False)


def _handlers(client: Any, event: str) -> Iterator[Any]:
    yield from client.meta.events._emitter._handlers.prefix_search(event)  # noqa: SLF001 - as above


def _built_in(handler: Any) -> bool:
    module = getattr(handler, "__module__", None) or ""
    name = getattr(handler, "__qualname__", "")
    root = module.partition(".")[0]
    return root == _OURS or (root in _BUILT_IN and (module, name) not in _BY_CHOICE)


def _foreign(function: Any) -> bool:
    """Whether a function was written outside of botocore and aiobotocore."""
    # By its globals: a decorator copies the module's name, and a proxy's class, of what it wraps.
    if type(function) is not FunctionType:
        return True
    return str(function.__globals__.get("__name__")).partition(".")[0] not in _BUILT_IN


def _session_of(http: Any) -> Callable[[str], Awaitable[Any]]:
    """How to get at the `aiohttp.ClientSession` below; saves a sixth of a call."""
    import aiohttp  # noqa: PLC0415 - see the header of aws.py
    from aiobotocore.httpsession import AIOHTTPSession  # noqa: PLC0415 - see the header of aws.py

    stock: Any = AIOHTTPSession

    async def session(url: str) -> Any:
        # A session class of the user's own may do anything in its `send`.
        if type(http) is not stock:
            return None
        try:
            if http._proxy_config.proxy_url_for(url) is not None:  # noqa: SLF001 - as above
                return None
            found = await http._get_session(None)  # noqa: SLF001 - as above
        except AttributeError:
            return None
        return found if isinstance(found, aiohttp.ClientSession) else None

    return session


def _plain_of(
    http: Any, session: Callable[[str], Awaitable[Any]]
) -> Callable[[str], Awaitable[Plain | None]]:
    """How to learn what the `aiohttp.ClientSession` is set to."""
    import aiohttp  # noqa: PLC0415 - see the header of aws.py

    async def plain(url: str) -> Plain | None:
        found = await session(url)
        if found is None or _traced(found):
            return None
        try:
            connector, timeout = found.connector, found.timeout
            # The context that the session made; `None` would be aiohttp's own idea of one.
            tls, more = connector._ssl, http._connector_args  # noqa: SLF001 - as above
            options = [tuple(option) for option in http._socket_options]  # noqa: SLF001 - as above
            limit, keepalive = connector.limit, more["keepalive_timeout"]
            waits = (timeout.sock_connect, timeout.sock_read)
        except (*_STRANGE, KeyError):
            return None
        # Every other argument says how connections are made: a resolver, a family, an own context.
        fits = set(more) == _CONNECTOR_ARGUMENTS and isinstance(connector, aiohttp.TCPConnector)
        numbers = all(wait is None or isinstance(wait, int | float) for wait in waits)
        if not (fits and numbers and isinstance(tls, ssl.SSLContext)):
            return None
        return Plain(tls, limit, *waits, keepalive, options)

    return plain


def _traced(session: Any) -> bool:
    """Whether somebody looks at what aiohttp sends: by its own hooks, or by replacing its method."""
    request = type(session)._request  # noqa: SLF001 - as above
    ours = type(request) is FunctionType and request.__globals__.get("__name__") == "aiohttp.client"
    return not ours or bool(getattr(session, "trace_configs", True))


def _with_path(url: str) -> str:
    """The URL as it stands in the request: a path, `/` where there is none."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path or "/"))


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(value)
