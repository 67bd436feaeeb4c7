"""`Probe`: a small HTTP endpoint beside a service - health, metrics, and a page that shows its state.

Invariants:

* It answers on the service's own loop: where a handler blocks that, there is no answer.
* It reads and changes nothing; whatever it is asked, no request delays the stop.
* It answers from before the first subscription opens until after the last step of the stop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.health import Health, judge_health
from ruststream_kinesis.metrics import app_metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ruststream_kinesis.app import RustStream

__all__ = ["Probe"]

logger = logging.getLogger("ruststream_kinesis")

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]/\s]*)):(?P<port>\d{1,5})")
_LAST_PORT = 65_535
# Whoever reads an answer slowly is cut off at the stop after that, idle connections at once.
_GRACE = 0.1
# A bound for aiohttp's own part of the stop, which has never needed it.
_END_TIMEOUT = 2.0

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class Probe:
    """Where a service answers about itself; nothing listens before it runs.

    `/live` and `/ready` (200 or 503, with the reasons as JSON), `/metrics` (Prometheus), `/state`
    (`app.state()` and `app.health()` as JSON), and `/`, the dashboard.

    Args:
        address: `HOST:PORT`, for example `127.0.0.1:8080` or `[::1]:8080`. Port 0 takes a free one;
            without a host, as in `:8080`, it listens on every interface.
        registry: What `/metrics` shows beside the application's own metrics; by default
            `prometheus_client`'s global one.

    Raises:
        ConfigurationError: The address is none.
    """

    def __init__(self, address: str, *, registry: CollectorRegistry | None = None) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None or int(found["port"]) > _LAST_PORT:
            raise ConfigurationError(
                f"the address of a probe is HOST:PORT, for example 127.0.0.1:8080: {address!r}"
            )
        self._host = found["v6"] or found["host"] or None
        self._port = int(found["port"])
        self._registry = registry
        self.url: str | None = None
        """Where it answers; `None` while it does not."""

    @contextlib.asynccontextmanager
    async def serving(self, app: RustStream) -> AsyncIterator[None]:
        """Answers about `app` within the block.

        Raises:
            ConfigurationError: Nobody can listen at that address.
        """
        # Imports the library now, if it is there, and not while the service is at work.
        with contextlib.suppress(ConfigurationError):
            app_metrics(app)
        runner = web.AppRunner(
            _Answers(app, self._registry).application(),
            handle_signals=False,
            access_log=None,
            shutdown_timeout=_GRACE,
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._host, self._port).start()
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                why = "another process does; choose another port" if taken else error.strerror
                raise ConfigurationError(
                    f"the probe cannot listen at {self._host or '*'}:{self._port}: {why or error}"
                ) from error
            host, port = runner.addresses[0][:2]
            self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            logger.info("health checks, metrics and the dashboard are at %s/", self.url)
            yield
        finally:
            self.url = None
            await _end(runner)


async def _end(runner: web.AppRunner) -> None:
    # The service has stopped by then: what is wrong here must not look like a failure of its own.
    try:
        async with asyncio.timeout(_END_TIMEOUT):
            await runner.cleanup()
    except TimeoutError:
        logger.warning("the probe did not end within %g s", _END_TIMEOUT)


class _Answers:
    """The routes of a probe."""

    def __init__(self, app: RustStream, registry: CollectorRegistry | None) -> None:
        self._app = app
        self._registry = registry
        page = (resources.files("ruststream_kinesis") / "dashboard.html").read_text("utf-8")
        self._page = page.encode()
        # The page runs what stands in it, asks its own server, and nothing else.
        scripts = [_digest(found) for found in _SCRIPT.findall(page)]
        self._policy = (
            f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
        )

    def application(self) -> web.Application:
        routes: dict[str, Callable[[], web.Response | Awaitable[web.Response]]] = {
            "/": self._dashboard,
            "/live": lambda: self._health(lambda health: health.live),
            "/ready": lambda: self._health(lambda health: health.ready),
            "/state": self._state,
            "/metrics": self._metrics,
        }
        application = web.Application()
        for path, answer in routes.items():
            application.router.add_get(path, _handler(answer))
        return application

    def _health(self, good: Callable[[Health], bool]) -> web.Response:
        health = self._app.health()
        return _json(health, status=200 if good(health) else 503)

    def _state(self) -> web.Response:
        state = self._app.state()
        return _json({**msgspec.to_builtins(state), "health": judge_health(state)})

    def _dashboard(self) -> web.Response:
        headers = {"Content-Security-Policy": self._policy}
        return web.Response(
            body=self._page, content_type="text/html", charset="utf-8", headers=headers
        )

    async def _metrics(self) -> web.Response:
        try:
            own = app_metrics(self._app)
        except ConfigurationError as error:
            return web.Response(status=501, text=f"{error}\n")
        from prometheus_client import (  # noqa: PLC0415 - it is there, the line before has seen to it
            CONTENT_TYPE_LATEST,
            REGISTRY,
            generate_latest,
        )

        from ruststream_kinesis.prometheus import text_of  # noqa: PLC0415 - as above

        before, registry = own.scrapes, self._registry or REGISTRY
        state, times = self._app.state(), self._app.handler_times

        def text() -> bytes:
            found = generate_latest(registry)
            # Else the user registered it.
            return found if own.scrapes != before else found + text_of(state, times)

        # The library takes 10 µs a sample, and a shard has six: not on the service's loop.
        body = await asyncio.to_thread(text)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _handler(
    answer: Callable[[], web.Response | Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        del request
        found = answer()
        response = found if isinstance(found, web.Response) else await found
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return handle


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )


def _digest(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
