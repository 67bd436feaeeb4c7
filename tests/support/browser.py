"""A real browser, for what only a browser can tell of a page."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["dom_of"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def dom_of(url: str, profile: Path) -> str:
    """The document of a page as HTML, after its scripts have run.

    Skips the test where there is no browser, unless `REQUIRE_BROWSER=1`.

    Args:
        url: Of the page.
        profile: A folder of its own, which is filled.
    """
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(f"REQUIRE_BROWSER=1, but there is none of {', '.join(_NAMES)}")
        pytest.skip(f"no browser: none of {', '.join(_NAMES)}")
    done = subprocess.run(
        [
            found,
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
