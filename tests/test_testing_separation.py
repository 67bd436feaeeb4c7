"""The package knows nothing of its test kit."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ruststream_kinesis import KinesisBroker, RustStream
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.dispatch import Dispatcher
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.service import Service
from ruststream_kinesis.subscriber import Subscription
from ruststream_kinesis.testing import TestApp

_SPEC = importlib.util.find_spec("ruststream_kinesis")
assert _SPEC is not None
assert _SPEC.origin is not None
PACKAGE = Path(_SPEC.origin).parent
# Commands that have to do with tests: one runs the in-process log, one writes a test. No service
# loads them, as `test_importing…` sees by leaving them out.
ABOUT_TESTS = {PACKAGE / "cli" / "demo.py", PACKAGE / "cli" / "scaffold.py"}
PRODUCTION = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if "testing" not in path.relative_to(PACKAGE).parts and path not in ABOUT_TESTS
)


def test_importing_the_package_imports_nothing_of_the_test_kit() -> None:
    modules = [
        ".".join(("ruststream_kinesis", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in PRODUCTION
        if path.name != "__main__.py"
    ]
    program = (
        "import importlib, sys\n"
        "import ruststream_kinesis\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name.removesuffix('.__init__'))\n"
        "loaded = [name for name in sys.modules if name.startswith('ruststream_kinesis.testing')]\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(modules) > 20


@pytest.mark.parametrize("path", PRODUCTION, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_outside_mentions_the_test_kit(path: Path) -> None:
    source = path.read_text()
    assert re.search(r"\bTestApp\b|\bManualClock\b|kinesis\.testing\b|\bpytest\b", source) is None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not any("testing" in name.split(".") for name in (*names, module))


async def test_the_objects_at_work_are_the_ones_of_production() -> None:
    app = RustStream(KinesisBroker(), title="orders", version="1.0")

    @app.subscriber("orders", publish="replies")
    async def handle(number: int) -> int:
        return number

    plain = Service(app.broker, app.subscribers)
    fields = [set(vars(each)) for each in (app, app.broker, app.broker.connection)]

    async with TestApp(app):
        service = app._service
        assert type(service) is Service
        assert set(vars(service)) == set(vars(plain))
        (at_work,), (idle,) = service.subscriptions, plain.subscriptions
        assert type(at_work) is Subscription
        assert set(vars(at_work)) == set(vars(idle))
        for name, kind in (("_channel", Channel), ("_dispatcher", Dispatcher)):
            assert type(getattr(at_work, name)) is kind
            assert set(vars(getattr(at_work, name))) == set(vars(getattr(idle, name)))
        assert type(at_work._dispatcher._settlement._publisher) is KinesisPublisher
        assert at_work.subscriber.policies is idle.subscriber.policies
        assert at_work.subscriber.stream is idle.subscriber.stream
        assert [set(vars(each)) for each in (app, app.broker, app.broker.connection)] == fields

    assert [set(vars(each)) for each in (app, app.broker, app.broker.connection)] == fields
