"""What importing the package costs: which modules come with it, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ruststream_kinesis


def _loaded(code: str) -> set[str]:
    script = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stdout.split())


def test_the_package_alone_loads_none_of_its_modules():
    loaded = _loaded("import ruststream_kinesis")
    assert {name for name in loaded if name.startswith("ruststream")} == {"ruststream_kinesis"}
    assert not {"asyncio", "msgspec"} & loaded


def test_an_application_loads_no_client():
    loaded = _loaded(
        "from ruststream_kinesis import KinesisBroker, RustStream\n"
        "RustStream(KinesisBroker(), title='t', version='1')"
    )
    assert "ruststream_kinesis.app" in loaded
    assert not {"aiobotocore", "botocore", "aiohttp", "typer", "rich"} & loaded


@pytest.mark.parametrize("name", ruststream_kinesis.__all__)
def test_every_public_name_is_there(name: str):
    assert getattr(ruststream_kinesis, name).__name__ == name
    assert name in dir(ruststream_kinesis)


def test_a_name_that_is_not_there_is_no_attribute():
    assert not hasattr(ruststream_kinesis, "KinesisStreams")
