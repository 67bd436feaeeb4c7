"""The examples of docs/testing.md run as tests."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ruststream_kinesis.testing.pytest_plugin import KinesisTest

PAGE = Path(__file__).parents[1] / "docs" / "testing.md"

_EXAMPLES = re.findall(r"^async def (test_\w+)", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """All code of the page, as one module."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module = types.ModuleType("docs_testing")
    # msgspec looks a class' annotations up in its module.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n".join(blocks), str(PAGE), "exec"), vars(module))
    return module


@pytest.mark.parametrize("name", _EXAMPLES)
async def test_an_example_of_the_page_runs(page: types.ModuleType, name: str) -> None:
    example: Callable[..., Awaitable[Any]] = getattr(page, name)
    fixtures = {"kinesis_test": KinesisTest(None)}
    await example(**{each: fixtures[each] for each in inspect.signature(example).parameters})


def test_the_page_has_examples() -> None:
    assert len(_EXAMPLES) >= 10
