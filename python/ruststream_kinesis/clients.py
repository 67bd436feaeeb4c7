"""Clients of AWS services, one for each event loop, from one configuration.

Clients belong to an event loop. The first loop that asks owns the credentials and their refresh;
another loop gets a client of its own, which signs with frozen snapshots, since a refreshable
object's lock is bound to one loop.

A snapshot outlives a moment in which the owning loop is busy: what renews leases while a handler
blocks the main loop must not wait for that loop to sign a request.

aiobotocore is imported at the first use: it alone takes half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from ruststream_kinesis.aws_internals import give_credentials
from ruststream_kinesis.errors import ConfigurationError, NotConnected

if TYPE_CHECKING:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

__all__ = [
    "ClientSettings",
    "LoopClients",
    "Way",
    "check_endpoint",
    "check_transport",
    "new_session",
]

Way = Literal["thin", "botocore"]
"""How calls reach a service: by the short way wherever a client allows it, or by the client's own."""
_WAYS = get_args(Way)
# The client of a thread that is busy at the stop is left to the end of its loop.
_CLOSE_DEADLINE = 2.0
# Seconds that a snapshot is used without asking. Credentials are refreshed many minutes before
# they expire, so an older one is still good where the owning loop does not answer.
_SNAPSHOT_AGE = 30.0
# Seconds that the owning loop has to answer where an older snapshot would do.
_SNAPSHOT_PATIENCE = 0.2


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach a service; region and credentials are resolved at the first use."""

    region: str | None = None
    endpoint_url: str | None = None
    session: AioSession | None = None
    config: AioConfig | None = None
    test_credentials: bool = False


def check_endpoint(url: str | None) -> None:
    """Refuses an endpoint that is no URL.

    Raises:
        ConfigurationError: It is none.
    """
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"endpoint_url must start with http(s)://: {url!r}")


def check_transport(way: object) -> None:
    """Refuses what is no `Way`.

    Raises:
        ConfigurationError: It is none.
    """
    if way not in _WAYS:
        raise ConfigurationError(f"transport must be one of {', '.join(map(repr, _WAYS))}: {way!r}")


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class _Client(Generic[C]):
    calls: C
    life: AsyncGenerator[Any, None]


class LoopClients(Generic[C]):
    """The clients of one service.

    Args:
        service: botocore's name of it.
        settings: Where and as whom.
        advice: Whose argument `region` and the like are, for messages.
        options: Whether each has an option of the same name on the command line, too.
        defaults: `AioConfig` values that the settings may override.
        made: Awaited with each new client and a stack of what is to be closed before it, in its
            loop; what it returns is what callers get. What it raises is raised to those who wait,
            and the next caller tries anew.
        bound: They serve for as long as the owning loop runs, and calls that other loops sign with
            its credentials are told so afterwards. Without it the next loop that asks owns them,
            and a client that is there goes on with its last snapshot.
    """

    def __init__(
        self,
        service: str,
        settings: ClientSettings,
        *,
        advice: str,
        options: bool = False,
        defaults: dict[str, Any],
        made: Callable[[Any, contextlib.AsyncExitStack], Awaitable[C]],
        bound: bool = False,
    ) -> None:
        self._service = service
        self._settings = settings
        self._advice = advice
        self._options = options
        self._defaults = defaults
        self._made = made
        self._bound = bound
        self._owner: asyncio.AbstractEventLoop | None = None
        self._session: Any = None
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Task[_Client[C]]] = {}

    async def get(self) -> C:
        """The running loop's client.

        Raises:
            ConfigurationError: No region, or no credentials, anywhere in the configuration.
        """
        loop = asyncio.get_running_loop()
        task = self._clients.get(loop)
        if task is None:
            for other in list(self._clients):
                if other.is_closed():
                    self._clients.pop(other, None)
            if self._owner is None or (self._owner.is_closed() and not self._bound):
                self._owner, self._session = loop, None
            # A task, so that callers that come meanwhile share the one client, and none that is
            # cancelled takes it from the others.
            task = self._clients[loop] = loop.create_task(
                self._connect(loop), name=f"{self._service}-client"
            )
            task.add_done_callback(self._connected)
        elif task.done() and not task.cancelled() and task.exception() is None:
            return task.result().calls
        return (await asyncio.shield(task)).calls

    async def close(self, *, everywhere: bool = True) -> None:
        """Closes the clients of every loop, or of this one; a loop that is gone took its client with it.

        Whoever asks later gets a new one: what these serve may be shared by several applications,
        or serve one that is started again.
        """
        here = asyncio.get_running_loop()
        loops = [loop for loop in list(self._clients) if everywhere or loop is here]
        # Another thread may forget one meanwhile.
        clients = [(loop, self._clients.pop(loop, None)) for loop in loops]
        # Each by itself: a thread whose loop ends at this moment must not keep the others open.
        await asyncio.gather(*(_close_on(loop, task) for loop, task in clients if task is not None))

    def _connected(self, task: asyncio.Task[_Client[C]]) -> None:
        """Forgets a client that did not come to be: the next caller tries anew."""
        loop = task.get_loop()
        failed = task.cancelled() or task.exception() is not None
        if failed and self._clients.get(loop) is task:
            self._clients.pop(loop, None)  # unless another thread closes them at this moment

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Client[C]:
        # Off the loop: a service that hosts us in its own lifespan must not stall for the import.
        await asyncio.to_thread(importlib.import_module, "aiobotocore.session")
        from aiobotocore.config import AioConfig  # noqa: PLC0415 - see the module's header

        settings = self._settings
        config = AioConfig(**self._defaults)
        if settings.config is not None:
            config = config.merge(settings.config)
        # One attempt a call is ours to decide: the callers own the retries.
        config = config.merge(AioConfig(retries={"total_max_attempts": 1, "mode": "standard"}))
        keys: dict[str, Any] = {}
        if self._session is None:
            self._session = settings.session or new_session()
        session = self._session
        if settings.test_credentials:
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        if self._owner is not None and loop is not self._owner:
            session = self._session_elsewhere(self._owner, signed=bool(keys))
        with _resolving():
            # A profile that is not there, also where nothing is asked of it here: it is looked for
            # once more when the client is made, by what says less.
            self._session.get_scoped_config()
            region = settings.region or self._session.get_config_variable("region")
        if region is None and settings.test_credentials:
            region = "us-east-1"
        if region is None:
            raise ConfigurationError(
                "no region: set AWS_REGION or the profile's, or pass "
                + self._how_to("region", "=...", "--region")
            )
        with _resolving():
            found = keys or await session.get_credentials()
        if not found:
            raise ConfigurationError(
                "no credentials: configure a profile, a role or AWS_ACCESS_KEY_ID; for a local "
                "endpoint pass " + self._how_to("test_credentials", "=True", "--test-credentials")
            )
        life = _life(
            session.create_client(
                self._service,
                region_name=region,
                endpoint_url=settings.endpoint_url,
                config=config,
                **keys,
            ),
            self._made,
        )
        return _Client(await anext(life), life)

    def _how_to(self, argument: str, value: str, option: str) -> str:
        said = f"{self._advice}({argument}{value})"
        return f"{said}, on the command line {option}" if self._options else said

    def _session_elsewhere(self, owner: asyncio.AbstractEventLoop, *, signed: bool) -> Any:
        """A session for a loop that does not own the credentials.

        Args:
            owner: The loop that does.
            signed: Its client is given keys of its own.
        """
        session = new_session()
        # The parsed service model: read-only, and the slow part of a new client.
        session.register_component("data_loader", self._session.get_component("data_loader"))
        profile = self._session.get_config_variable("profile")
        if profile is not None:
            session.set_config_variable("profile", profile)
        if not signed:
            give_credentials(session, _snapshots(self._session, owner, bound=self._bound))
        return session


async def _life(
    opening: Any, made: Callable[[Any, contextlib.AsyncExitStack], Awaitable[C]]
) -> AsyncGenerator[C, None]:
    """A client, until it is closed or its loop ends.

    A loop closes the generators that are left open in it (`asyncio.run` does): the sockets of a
    thread that came and went do not wait for the stop of the service.
    """
    async with opening as client, contextlib.AsyncExitStack() as belongings:
        yield await made(client, belongings)


async def _close_on(loop: asyncio.AbstractEventLoop, task: asyncio.Task[_Client[Any]]) -> None:
    """Closes a client where it lives; a loop that is gone, or going, takes its client with it."""
    if loop is asyncio.get_running_loop():
        await _close(task)
        return
    there = _start_on(loop, _close(task))
    if there is not None:
        # Waited for, not awaited: however it ends there, nothing of it is ours. A busy loop may take
        # longer than anybody should wait.
        await asyncio.wait([there], timeout=_CLOSE_DEADLINE)


async def _close(task: asyncio.Task[_Client[Any]]) -> None:
    if not task.done():
        task.cancel()
    # A client that never came to be has nothing to close.
    with contextlib.suppress(asyncio.CancelledError, Exception):
        client = await task
        await client.life.aclose()


def _start_on(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]
) -> asyncio.Future[Any] | None:
    """Starts work on another loop; `None` where that was closed meanwhile."""
    try:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:
        work.close()
        return None


@contextlib.contextmanager
def _resolving() -> Iterator[None]:
    """Says what is wrong with a profile, or with whatever it names, as a matter of configuration."""
    from botocore.exceptions import (  # noqa: PLC0415 - see the module's header
        BotoCoreError,
        HTTPClientError,
        ProfileNotFound,
    )

    try:
        yield
    except ProfileNotFound as error:
        raise ConfigurationError(
            f"{error}: neither in ~/.aws/config nor in ~/.aws/credentials, or the files that "
            "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name"
        ) from error
    except HTTPClientError:
        raise  # whoever gives the credentials did not answer: that may pass
    except BotoCoreError as error:
        raise ConfigurationError(f"no region or credentials: {error}") from error


def new_session(profile: str | None = None) -> Any:
    """A session that takes its region from where every other SDK does.

    Args:
        profile: Its profile; by default the environment's. Keys in the environment give way to it.
    """
    from aiobotocore.session import AioSession  # noqa: PLC0415 - see the module's header

    session = AioSession(profile=profile)
    # The name that every other SDK reads; botocore by itself knows AWS_DEFAULT_REGION only.
    region = os.environ.get("AWS_REGION")
    if region:
        session.set_config_variable("region", region)
    return session


class _Snapshots:
    """Frozen copies of credentials, asked for on the loop that refreshes them.

    Args:
        session: Of that loop.
        owner: That loop.
        bound: Once it has ended, none is good any more, however young.
    """

    def __init__(self, session: Any, owner: asyncio.AbstractEventLoop, *, bound: bool) -> None:
        self._session = session
        self._owner = owner
        self._bound = bound
        self._last: Any = None
        self._taken = 0.0
        self._asking: asyncio.Task[Any] | None = None

    async def newest(self) -> Any:
        """The last one where that is young, or where the owning loop does not answer.

        Raises:
            NotConnected: That loop has ended.
        """
        if (self._bound or self._last is None) and not self._owner.is_running():
            raise _ended()
        now = asyncio.get_running_loop().time()
        if self._last is not None and now - self._taken < _SNAPSHOT_AGE:
            return self._last
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask(now))
        if self._last is None:
            return await asyncio.shield(self._asking)
        await asyncio.wait({self._asking}, timeout=_SNAPSHOT_PATIENCE)
        if self._asking.done():
            # What a refresh raises is told once the last snapshot is really no good any more, by
            # the service.
            self._asking.exception()
        return self._last

    async def _ask(self, now: float) -> Any:
        there = _start_on(self._owner, self._snapshot()) if self._owner.is_running() else None
        if there is not None:
            # Not awaited: a loop that ends cancels what runs in it, and who signs is not meant.
            await asyncio.wait([there])
        if there is None or there.cancelled():
            raise _ended()
        self._last, self._taken = there.result(), now
        return self._last

    async def _snapshot(self) -> Any:
        credentials = await self._session.get_credentials()
        return None if credentials is None else await credentials.get_frozen_credentials()


def _ended() -> NotConnected:
    return NotConnected(
        "not connected: the event loop of the service, which refreshes the credentials, has ended"
    )


def _snapshots(session: Any, owner: asyncio.AbstractEventLoop, *, bound: bool = False) -> Any:
    """Credentials that another loop can sign with; see `_Snapshots`."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - see the module's header

    snapshots = _Snapshots(session, owner, bound=bound)

    class Snapshots(AioCredentials):
        def __init__(self) -> None:
            super().__init__("pending", "pending", method="ruststream-snapshot")

        async def get_frozen_credentials(self) -> Any:  # type: ignore[override]  # as AioCredentials
            return await snapshots.newest()

    return Snapshots()
