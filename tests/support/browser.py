"""A real browser for the pages of the package: Chromium, by its own protocol over a WebSocket.

It is one process for a whole test module; every test has a page of its own in it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

__all__ = ["Page", "dom_of", "open_page"]

# Seconds until a browser that starts, or a page that loads, must have got there.
PATIENCE = 30.0
_ADDRESS = "DevTools listening on "


def chromium() -> str:
    """Path of the browser; without one the test is skipped, or fails with `REQUIRE_BROWSER=1`."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "chromium is not installed"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def dom_of(url: str, profile: Path) -> str:
    """The document of a page as HTML, after its scripts have run; of a browser of its own.

    Args:
        url: Of the page.
        profile: A folder of its own, which is filled.
    """
    done = subprocess.run(
        [
            chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


class Page:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._loaded = asyncio.Event()
        self.errors: list[str] = []
        """What the page wrote to its console as an error, and what it did not catch."""

    async def ask(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == number:
                    assert "error" not in answer, answer["error"]
                    return answer["result"]
                self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        name, params = event.get("method"), event.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded.set()
        elif name == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]["text"]))

    async def attach(self) -> None:
        """Open an empty page."""
        target = await self.ask("Target.createTarget", url="about:blank")
        attached = await self.ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Page", "Log"):
            await self.ask(f"{domain}.enable")

    async def open(self, url: str) -> None:
        """Go to an address; returns once it is loaded."""
        self._loaded.clear()
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE):
            while not self._loaded.is_set():
                self._note(await self._socket.receive_json())

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and the colours that its user prefers."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """Evaluate an expression, waiting for a promise, and return its value."""
        result = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(PATIENCE):
            # The page's own frames are the clock: it changes in no others.
            await self.run(
                "new Promise((done) => { const look = () => "
                f"({condition}) ? done() : setTimeout(look, 20); look(); }})"
            )

    async def screenshot(self) -> bytes:
        """Return what is seen as PNG."""
        shot = await self.ask("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def open_page() -> AsyncIterator[Page]:
    """Start a browser and open a page in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while line := (await process.stderr.readline()).decode():
                    if line.startswith(_ADDRESS):
                        break
            assert line, "the browser did not start"
            drain = asyncio.ensure_future(process.stderr.read())
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(line.removeprefix(_ADDRESS).strip(), max_msg_size=0) as socket,
            ):
                page = Page(socket)
                await page.attach()
                yield page
                await socket.send_json({"id": 0, "method": "Browser.close"})
                await asyncio.wait({drain}, timeout=5)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
