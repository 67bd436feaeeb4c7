"""The dashboard in a real browser: what it shows, that it escapes, and what an update takes.

`DASHBOARD_SCREENSHOT=docs/images/dashboard.png` makes the picture of the documentation anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from ruststream_kinesis.probe import Probe
from tests.support.browser import Page, open_page
from tests.support.busy import BusyApp

if TYPE_CHECKING:
    from ruststream_kinesis import RustStream

# Milliseconds that an update may take: a frame that is missed now and then is not seen every 2 s.
UPDATE_MS = 50.0

# Updates one after the other, with the time moved as if they had come every two seconds.
_UPDATES = """(async (count) => {
  const now = performance.now.bind(performance), took = [];
  let later = 0;
  performance.now = () => now() + later;
  clearTimeout(timer);
  for (let i = 0; i < count; i++) {
    later += 2000;
    const state = await (await fetch("state")).json(), began = now();
    render(state);
    took.push(now() - began);
  }
  return took;
})"""


class Shown:
    """A page and the application that it shows."""

    def __init__(self, page: Page, probe: Probe) -> None:
        self.page = page
        self._probe = probe

    @contextlib.asynccontextmanager
    async def of(self, app: BusyApp) -> AsyncIterator[Page]:
        """Show an application, once it was looked at."""
        # A stand-in: all that a probe needs is `state()` and `health()`.
        async with self._probe.serving(cast("RustStream", app)):
            await self.page.size(1280, 1120)
            await self.page.open(f"{self._probe.url}/")
            await self.page.until("document.documentElement.dataset.updates >= 1")
            yield self.page


@pytest.fixture(scope="module")
def browser_loop() -> Any:
    """One loop for the browser of the module: it starts once."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shown(browser_loop: asyncio.Runner) -> Any:
    stack = contextlib.AsyncExitStack()
    page = browser_loop.run(stack.enter_async_context(open_page()))
    yield Shown(page, Probe("127.0.0.1:0"))
    browser_loop.run(stack.aclose())


def test_it_shows_a_busy_application_with_its_problems_first(
    browser_loop: asyncio.Runner, shown: Shown
):
    async def look() -> None:
        async with shown.of(BusyApp(shards=8, held=1, failing=1)) as page:
            await page.run(f"{_UPDATES}(20)")
            text = str(await page.run("document.body.innerText"))
            rows = await page.run(
                "[...document.querySelectorAll('tr.row')].map((row) => row.innerText)"
            )
            assert text.index("things to look at") < text.index("Lag of all shards together")
            assert "Shard shardId-000000000005 of orders holds 1 record back" in text
            assert "its reads fail (RequestError ProvisionedThroughputExceededException)" in text
            assert "8 shards here of 12; shared with 1 other instance" in text
            # What is wrong comes first.
            assert "reads fail" in rows[0]
            assert "holds 1 record back" in rows[1]
            assert len(rows) == 12
            heads = await page.run(
                "[...document.querySelectorAll('.shards th[scope=col]')].map((th) => th.textContent)"
            )
            assert heads[:4] == ["Shard", "Read by", "Status", "Lag"]
            unnamed = await page.run(
                "[...document.querySelectorAll('input, select, button, svg[role=img]')]"
                ".filter((e) => !(e.getAttribute('aria-label') || e.labels?.length ||"
                " e.innerText)).length"
            )
            assert unnamed == 0
            assert page.errors == []

    browser_loop.run(look())


def test_500_shards_are_updated_in_time_sorted_and_filtered(
    browser_loop: asyncio.Runner, shown: Shown
):
    async def look() -> None:
        async with shown.of(BusyApp(shards=500, elsewhere=20, held=12)) as page:
            took = await page.run(f"{_UPDATES}(31)")
            assert statistics.median(took) < UPDATE_MS
            drawn = await page.run("document.querySelectorAll('tr.row').length")
            assert drawn < 60
            # Those further down are drawn when they are scrolled to.
            last = await page.run(
                """new Promise((done) => {
                     const box = document.querySelector(".shards .scroll");
                     box.addEventListener("scroll", () => requestAnimationFrame(() => done(
                       [...document.querySelectorAll("tr.row")].at(-1).innerText)), { once: true });
                     box.scrollTop = box.scrollHeight;
                   })"""
            )
            assert "shardId-000000000519" in last
            await page.run(
                """(() => { const input = document.querySelector("input");
                   input.value = "d-000000000042"; input.dispatchEvent(new Event("input")); })()"""
            )
            found = await page.run(
                "[...document.querySelectorAll('tr.row')].map((row) => row.cells[0].innerText)"
            )
            assert found == ["shardId-000000000042"]
            await page.run("document.querySelectorAll('.shards thead button')[0].click()")
            order = await page.run("document.querySelector('th[aria-sort]').innerText")
            assert order.startswith("Shard")
            assert page.errors == []

    browser_loop.run(look())


def test_whatever_names_and_errors_hold_is_text(browser_loop: asyncio.Runner, shown: Shown):
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

    async def look() -> None:
        app = BusyApp(title=evil, instance=evil, stream=evil, error=evil, held=1, failing=2)
        async with shown.of(app) as page:
            await page.run(f"{_UPDATES}(2)")
            assert await page.run("document.querySelectorAll('img, body script').length") == 1
            assert "owned" not in str(await page.run("document.title")).replace(evil, "")
            assert await page.run("document.querySelector('h1').textContent") == evil
            # Not even markup that got in would run.
            await page.run(
                """document.body.append(document.createRange().createContextualFragment(
                     "<script>document.title = 'owned'<\\/script>"))"""
            )
            assert await page.run("document.title") != "owned"

    browser_loop.run(look())
    # That last attempt is refused out loud.
    assert any("Content Security Policy" in error for error in shown.page.errors)
    shown.page.errors.clear()


def test_a_service_that_does_not_answer_is_said_to_be_silent(
    browser_loop: asyncio.Runner, shown: Shown
):
    async def look() -> None:
        async with shown.of(BusyApp()):
            pass
        await shown.page.run("look()")
        assert await shown.page.run("document.querySelector('#badge').innerText") == "no answer"
        assert "what you see is old" in str(await shown.page.run("document.body.innerText"))
        shown.page.errors.clear()

    browser_loop.run(look())


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(browser_loop: asyncio.Runner, shown: Shown, *, dark: bool):
    async def look() -> None:
        async with shown.of(BusyApp(shards=6, held=1, failing=1)) as page:
            await page.size(390, 844, dark=dark)
            assert await page.run("document.documentElement.scrollWidth") == 390
            assert await page.run(_LEAST_CONTRAST) >= 4.5

    browser_loop.run(look())


# The least contrast of any text with what is behind it, as WCAG counts it.
_LEAST_CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (e) => { for (; e; e = e.parentElement) {
    const found = parts(getComputedStyle(e).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found; } return [255, 255, 255]; };
  let least = 21;
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.offsetParent) continue;
    const a = light(parts(getComputedStyle(e).color)), b = light(behind(e));
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()"""


@pytest.mark.skipif("DASHBOARD_SCREENSHOT" not in os.environ, reason="not asked for")
def test_the_picture_of_the_documentation(browser_loop: asyncio.Runner, shown: Shown):
    async def take() -> bytes:
        async with shown.of(BusyApp()) as page:
            await page.size(1280, 1092)
            await page.run(f"{_UPDATES}(152)")
            return await page.screenshot()

    Path(os.environ["DASHBOARD_SCREENSHOT"]).write_bytes(browser_loop.run(take()))
