"""The half that a scripted stream and a fault proxy share: a socket, a script, a record of calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeAlias

from aiohttp import web

from tests.support.replies import Answer, Body, Call, Next, Reply, pass_on

if TYPE_CHECKING:
    from types import TracebackType

Script: TypeAlias = Reply | Iterable[Reply] | Callable[[Call], Reply | Awaitable[Reply]]
"""One reply for every time, a list of replies one after the other, or a function of the call."""

PATIENCE = 10.0
"""Seconds that `seen` waits: far more than any request that will come at all needs."""

MAX_BODY = 64 * 1024 * 1024
"""A PutRecords request of 10 MiB is 14 MiB of JSON; aiohttp's own limit is 1 MiB."""


@dataclass(eq=False)
class Rule:
    """A part of a server's script."""

    applies: Callable[[Call], bool]
    script: Callable[[Call], Reply | Awaitable[Reply]] | Iterator[Reply]
    rules: list[Rule] = field(repr=False)
    hits: int = 0
    """How many requests it has answered."""

    def remove(self) -> None:
        """Take it out of the script. Idempotent."""
        if self in self.rules:
            self.rules.remove(self)

    async def reply(self, call: Call) -> Reply | None:
        """Return its reply; `None` when the call is not its own, or its list is at its end."""
        if not self.applies(call):
            return None
        if callable(self.script):
            made = self.script(call)
            reply = await made if inspect.isawaitable(made) else made
        else:
            following = next(self.script, None)
            if following is None:
                return None
            reply = following
        self.hits += 1
        return reply


class FaultServer:
    """The common half: a socket, a script, and a record of what came.

    Use it as an async context manager. A mistake in a script (a function that raises) fails the
    test when the server is closed, since the client would see just another HTTP 500.
    """

    def __init__(self) -> None:
        self.url = ""
        """Endpoint, once entered."""
        self.requests: list[Call] = []
        """Everything that arrived, in order."""
        self.clock: Callable[[], float] = time.time
        """Wall clock of the `Date` header: replace it for a service whose time is not ours."""
        self._rules: list[Rule] = []
        self._counts: Counter[str] = Counter()
        self.holding: set[asyncio.Event] = set()
        """Releases of the replies that wait; set when the server is closed."""
        self._arrival = asyncio.Event()
        self._shard_of: dict[str, str] = {}
        self._mistakes: list[Exception] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        for release in self.holding:
            release.set()
        await self._runner.cleanup()
        if self._mistakes and exception is None:
            raise ExceptionGroup("the script of a fault server raised", self._mistakes)

    def on(self, target: str, script: Script, *, shard: str | None = None) -> Rule:
        """Answer requests to `target` (of one shard only, if given) by a script.

        The newest rule that has a reply wins. A list that is at its end is no rule any more: older
        rules and then the server's own behaviour answer.
        """

        def applies(call: Call) -> bool:
            return call.target == target and shard in {None, call.shard_id}

        return self.inject(applies, script)

    def inject(self, applies: Callable[[Call], bool], script: Script) -> Rule:
        """As `on`, for the requests that `applies` chooses (by target, body, count, …)."""
        if isinstance(script, Reply):
            reply = script
            rule = Rule(applies, lambda _: reply, self._rules)
        elif callable(script):
            rule = Rule(applies, script, self._rules)
        else:
            rule = Rule(applies, iter(list(script)), self._rules)
        self._rules.insert(0, rule)
        return rule

    def calls(self, target: str, *, shard: str | None = None) -> list[Call]:
        """Return the requests to `target` so far (of one shard, if given)."""
        return [
            call
            for call in self.requests
            if call.target == target and shard in {None, call.shard_id}
        ]

    async def seen(self, target: str, count: int = 1, *, shard: str | None = None) -> list[Call]:
        """Wait until `count` requests to `target` have come, and return them.

        Raises:
            TimeoutError: Fewer came within `PATIENCE`; says what came instead.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while len(found := self.calls(target, shard=shard)) < count:
                    await self._arrival.wait()
        except TimeoutError:
            came = dict(Counter(call.target for call in self.requests))
            message = f"{target} did not come {count} times within {PATIENCE:g} s, but {came}"
            raise TimeoutError(message) from None
        return found

    async def default(self, call: Call) -> Body:
        """Answer a request for which there is no script."""
        raise NotImplementedError

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        call = self._arrived(http, await http.read())
        exchange = _Exchange(self, http, call)
        try:
            reply = await self._choose(call)
            return await reply.send(exchange)
        except ConnectionError:
            raise  # the client left: no mistake of the script
        except Exception as mistake:
            self._mistakes.append(mistake)
            raise

    def _arrived(self, http: web.Request, raw: bytes) -> Call:
        target = http.headers.get("X-Amz-Target", "").rpartition(".")[2]
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {}
        self._counts[target] += 1
        shard = body.get("ShardId") or self._shard_of.get(body.get("ShardIterator", ""))
        call = Call(
            target,
            body,
            time.monotonic(),
            self._counts[target],
            shard,
            dict(http.headers),
            http.path_qs,
            raw,
        )
        self.requests.append(call)
        # Wakes everybody who waits now; the next to wait gets a new event.
        self._arrival.set()
        self._arrival = asyncio.Event()
        return call

    async def _choose(self, call: Call) -> Reply:
        for rule in list(self._rules):
            if (reply := await rule.reply(call)) is not None:
                return reply
        return pass_on()

    def iterator(self, shard_id: str | None, wanted: str | Next = Next.AUTO) -> str:
        """Return a new iterator (or the wanted one) that reads will be recognised by."""
        iterator = wanted if isinstance(wanted, str) else f"{shard_id}/{len(self._shard_of) + 1}"
        if shard_id is not None:
            self._shard_of[iterator] = shard_id
        return iterator


@dataclass(frozen=True)
class _Exchange:
    """One request on its way through a server, as the replies see it."""

    server: FaultServer
    http: web.Request
    call: Call

    @property
    def holding(self) -> set[asyncio.Event]:
        return self.server.holding

    def next_iterator(self, wanted: str | Next) -> str:
        return self.server.iterator(self.call.shard_id, wanted)

    def now(self) -> float:
        return self.server.clock()

    async def default(self) -> Answer:
        answer = await self.server.default(self.call)
        return answer.render(self)
