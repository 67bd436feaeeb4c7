"""Whether an installed wheel works: run it by the interpreter that has it, from an empty folder.

It imports nothing but the package, so that it runs wherever a wheel was built. Exit code 0 means that a
service ran on the in-process log, and that what belongs into a wheel is in it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.resources
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

import ruststream_kinesis
from ruststream_kinesis import KinesisBroker, KinesisMessage, Outcome, RustStream, drop, retry
from ruststream_kinesis.testing import TestApp


class Order(msgspec.Struct):
    """What comes in."""

    id: int


class Confirmation(msgspec.Struct):
    """What goes out."""

    order_id: int


app = RustStream(KinesisBroker(), title="smoke", version="1.0")


@app.subscriber("orders", publish="confirmations", max_attempts=2)
async def confirm(message: KinesisMessage[Order]) -> Confirmation | Outcome:
    """The first attempt at order 2 fails; order 0 is for nothing."""
    order = message.payload
    if order.id == 0:
        return drop()
    return retry() if order.id == 2 and message.attempt == 1 else Confirmation(order.id)


async def run() -> None:
    """Decoding, headers, a copy, replies: each crosses into the native module."""
    async with TestApp(app) as test:
        for number in range(3):
            await test.publish(Order(number), "orders", headers={"trace": str(number)})
        replies = [each.decode(Confirmation).order_id for each in test.published("confirmations")]
        assert replies == [1, 2], replies
        assert app.counters["orders"].retried == 1
        assert app.counters["orders"].dropped == 1


def look() -> None:
    """What is installed is what was built, with types, license and command."""
    package = Path(ruststream_kinesis.__file__).parent
    assert "site-packages" in package.parts, package
    assert importlib.resources.files(ruststream_kinesis).joinpath("py.typed").is_file()
    files = {Path(str(each)).name for each in importlib.metadata.files("ruststream-kinesis") or ()}
    assert {"LICENSE", "_core.pyi", "py.typed"} <= files, files
    assert importlib.metadata.metadata("ruststream-kinesis")["License-Expression"] == "Apache-2.0"
    command = shutil.which("ruststream-kinesis", path=str(Path(sys.executable).parent))
    assert command is not None
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)


if __name__ == "__main__":
    look()
    asyncio.run(asyncio.wait_for(run(), 60))
    version = importlib.metadata.version("ruststream-kinesis")
    print(f"ruststream-kinesis {version} works on {sys.platform}, Python {sys.version.split()[0]}")
