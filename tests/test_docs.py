"""What the pages show, runs; what they point to, exists.

Every block that is marked `python` is executed, in the order of its page. A block that begins with
`# name.py` is a module of that name, which later blocks may import; one that does not goes on where
the last one ended. Then every `test_…` function of the page is called.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import typer

import ruststream_kinesis
from ruststream_kinesis import (
    DynamoLeaseStore,
    KinesisBroker,
    KinesisPublish,
    KinesisStream,
    RustStream,
    aws,
    errors,
    testing,
)
from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.leases import dynamo_table
from ruststream_kinesis.testing import TestApp
from ruststream_kinesis.testing.pytest_plugin import KinesisTest
from tests.support.aws import PATIENCE
from tests.support.servers import REGION, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(r"^```python\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>\w+)\.py\n")
_LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")
_TARGET = re.compile(r"^(?P<name>[a-z-]+):.*## ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One piece of code of a page."""

    source: str
    line: int
    """Line of the page that it begins at, for tracebacks."""
    name: str | None
    """Of the file that it shows."""


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        file = _FILE.match(found["source"])
        line = text.count("\n", 0, found.start("source"))
        yield Block(found["source"], line, file["name"] if file else None)


# What a reader's pytest would pass to a test function of a page.
_FIXTURES = {"kinesis_test": KinesisTest(None)}

WITH_CODE = [page for page in PAGES if any(blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, monkeypatch):
    module = ModuleType(f"page_{page.stem}")
    modules = [module]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        if block.name is not None:
            module = ModuleType(block.name)
            modules.append(module)
            monkeypatch.setitem(sys.modules, block.name, module)
        exec(compile("\n" * block.line + block.source, str(page), "exec"), vars(module))

    for each in modules:
        for name, value in list(vars(each).items()):
            if name.startswith("test_") and inspect.isfunction(value):
                wanted = inspect.signature(value).parameters
                answer = value(**{each: _FIXTURES[each] for each in wanted})
                if inspect.iscoroutine(answer):
                    asyncio.run(answer)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page: Path):
    targets = [found["target"] for found in _LINK.finditer(page.read_text())]

    assert [each for each in targets if not (page.parent / each).exists()] == []


def test_the_make_targets_that_the_readme_names_exist():
    known = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text()))

    assert {"demo", "test"} <= named <= known


def test_the_make_targets_that_others_name_exist():
    known = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    others = [*PAGES, ROOT / ".ci" / "run", *workflows, ROOT / "mkdocs.yml"]

    for page in others:
        named = re.findall(
            r"(?:\$ |run: |`|^)make ([a-z-]+)(?:`|$| [A-Z])", page.read_text(), re.MULTILINE
        )
        assert set(named) <= known, page


def test_the_changelog_keeps_its_form():
    headings = re.findall(r"^##+ .*$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = r"## \[(Unreleased|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)"
    kind = r"### (Added|Changed|Deprecated|Removed|Fixed|Security)$"

    assert headings[0] == "## [Unreleased]"
    assert [each for each in headings if not re.match(f"{version}|{kind}", each)] == []


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, those of groups too."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_every_option_of_every_command_is_on_its_page():
    text = (ROOT / "docs" / "cli.md").read_text()

    for name, command in commands(typer.main.get_command(cli)):
        assert f"## `{name}" in text
        for parameter in command.params:
            for spelling in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"`{spelling}" in text, spelling
            if parameter.envvar:
                assert f"`{parameter.envvar}`" in text


@pytest.mark.parametrize(
    ("section", "made"),
    [
        ("RustStream(broker", RustStream),
        ("KinesisBroker(", KinesisBroker),
        ("KinesisStream(name", KinesisStream),
        ("app.subscriber(stream", RustStream.subscriber),
        ("KinesisPublish(", KinesisPublish),
        ("DynamoLeaseStore(table", DynamoLeaseStore),
        ("TestApp(app", TestApp),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_option_of_a_class_is_in_the_reference(section: str, made: Any):
    text = (ROOT / "docs" / "reference.md").read_text()
    (table,) = [each for each in text.split("\n## ") if each.startswith(f"`{section}")]
    first = "|".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| "))
    options = inspect.signature(made).parameters.values()

    # A clock is for tests.
    named = [
        each.name for each in options if each.kind is each.KEYWORD_ONLY and each.name != "clock"
    ]
    assert [name for name in named if f"`{name}`" not in first] == []
    assert named


def test_every_error_is_in_the_reference():
    text = (ROOT / "docs" / "reference.md").read_text()

    assert [name for name in errors.__all__ if f"`{name}`" not in text] == []


def test_every_public_name_is_in_the_api_reference():
    shown = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        shown |= set(
            re.findall(r"^::: ruststream_kinesis\.([\w.]+)$", page.read_text(), re.MULTILINE)
        )

    assert set(ruststream_kinesis.__all__) <= shown
    assert {f"testing.{name}" for name in testing.__all__} <= shown
    assert "errors" in shown


def test_the_policy_names_every_call_that_is_made():
    (policy,) = re.findall(
        r"^```json\n(.*?)^```$",
        (ROOT / "docs" / "operating.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    allowed = {action for each in json.loads(policy)["Statement"] for action in each["Action"]}
    called = set()
    for service, module in (("kinesis", aws), ("dynamodb", dynamo_table)):
        # Calls go by the names of the client's methods: `self._call("list_shards", …)`.
        found = re.findall(
            r'\._(?:call|write|persist)\(\s*(?:client, )?"(\w+)"', inspect.getsource(module)
        )
        called |= {f"{service}:{operation_of(name)}" for name in found}

    assert len(called) > 10
    assert allowed == called


def operation_of(method: str) -> str:
    """The operation that a client's method stands for."""
    return "".join(word.capitalize() for word in method.split("_"))


async def test_the_quick_start_works_as_it_is_typed(moto_server: Server, tmp_path):
    for block in blocks(ROOT / "docs" / "quickstart.md"):
        (tmp_path / f"{block.name}.py").write_text(block.source)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = inherited | {
        "AWS_ENDPOINT_URL_KINESIS": moto_server.url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    service = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("ruststream-kinesis")), "run", "service:app"),
        cwd=tmp_path,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    stderr = service.stderr
    assert stderr is not None
    log = ""

    async def logged(part: str) -> None:
        nonlocal log
        while part not in log:
            line = (await stderr.readline()).decode()
            assert line, f"the service ended without {part!r}:\n{log}"
            log += line

    try:
        async with asyncio.timeout(PATIENCE):
            await logged("is reading orders")
            put = await asyncio.create_subprocess_exec(
                *(sys.executable, "put.py"), cwd=tmp_path, env=environment
            )
            assert await put.wait() == 0
            await logged("settled order 2")
            service.terminate()
            await logged("orders: 3 handled, 1 dropped")
            assert await service.wait() == 0
    finally:
        if service.returncode is None:
            service.kill()
        await service.communicate()
