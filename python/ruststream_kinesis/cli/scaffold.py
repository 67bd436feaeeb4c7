"""`ruststream-kinesis new NAME`: the files of a small service, with a test that passes.

Invariant: nothing that is there already is written over.
"""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from string import Template

from ruststream_kinesis.errors import ConfigurationError

__all__ = ["module_name", "new_service"]

# A module of such a name would be imported in place of the package that the service needs.
_TAKEN = frozenset({"ruststream_kinesis", "msgspec", "aiobotocore", "botocore", "pytest"})

_SERVICE = '''"""The service: run it with `ruststream-kinesis run $module:app`."""

import logging

import msgspec
from ruststream_kinesis import KinesisBroker, KinesisStream, Outcome, RustStream, drop

logger = logging.getLogger("$module")


class Order(msgspec.Struct):
    """What a record of the stream holds, as JSON."""

    id: int
    total: float


# Leases and checkpoints are in memory: right for one process, and a restart begins at the tip. For
# more, keep them in a table: KinesisBroker(lease_store=DynamoLeaseStore("$project-leases")).
broker = KinesisBroker()
app = RustStream(broker, title="$project", version="0.1.0")


# create_if_missing makes the stream at the first start, with so many shards.
@app.subscriber(KinesisStream("orders", create_if_missing=1))
async def handle(order: Order) -> Outcome | None:
    """Settles an order; an order for nothing is dropped."""
    if order.total <= 0:
        return drop()
    logger.info("settled order %d", order.id)
    return None
'''

_TEST = '''"""The service on the in-process log: no server, no network."""

import asyncio

from $module import Order, app


def test_an_order_for_nothing_is_dropped(kinesis_test):
    async def scenario():
        async with kinesis_test(app) as test:
            await test.publish(Order(id=1, total=9.95), "orders", partition_key="customer-1")
            await test.publish(Order(id=2, total=0), "orders", partition_key="customer-1")

            orders = test.subscriber("orders")
            assert orders.values == [Order(1, 9.95), Order(2, 0)]
            assert orders.counters.dropped == 1

    asyncio.run(scenario())
'''

_PROJECT = """[build-system]
requires = ["setuptools>=70"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["ruststream-kinesis[cli]>=$version"]

[project.optional-dependencies]
test = ["pytest>=8.2"]

[tool.setuptools]
py-modules = ["$module"]
"""

_README = """# $project

A service on Amazon Kinesis Data Streams.

Test it, without a server, in the environment that has `ruststream-kinesis`:

```console
$$ python -m pip install pytest
$$ python -m pytest
```

Run it on a local server, and again after every change; moto is one that `pip` installs:

```console
$$ pip install 'moto[server]' && moto_server -p 5000
```

In two other terminals:

```console
$$ export RUSTSTREAM_ENDPOINT_URL=http://127.0.0.1:5000
$$ export RUSTSTREAM_REGION=us-east-1 RUSTSTREAM_TEST_CREDENTIALS=1
$$ ruststream-kinesis run $module:app --reload
```

```console
$$ ruststream-kinesis put orders '{"id": 1, "total": 9.95}' --key customer-1
```

On Kinesis, leave the variables out: region and credentials are found as by any AWS tool.
"""

_IGNORED = """.venv/
__pycache__/
.pytest_cache/
*.egg-info/
build/
dist/
"""


def module_name(name: str) -> str:
    """The module that a service of this name is: a Python identifier in lower case.

    Raises:
        ConfigurationError: It cannot be made into one, or would hide another module.
    """
    module = re.sub(r"[-. ]+", "_", name.strip()).lower()
    if not module.isidentifier() or not module.isascii() or keyword.iskeyword(module):
        raise ConfigurationError(
            f"{name!r} is no name for a service: letters, digits, '-' and '_', as in my-orders"
        )
    if module in _TAKEN or module in sys.stdlib_module_names:
        raise ConfigurationError(
            f"a service {name!r} would be a module {module!r}, and hide the one that has that name "
            "already: choose another"
        )
    return module


def new_service(name: str, where: Path) -> list[str]:
    """Writes the files of a new service.

    Args:
        name: Of the service, and of its folder.
        where: The folder is made in here.

    Returns:
        What was written and what to do next, in lines.

    Raises:
        ConfigurationError: The name is none, the folder holds something, or cannot be written.
    """
    module = module_name(name)
    folder = where / name.strip()
    names = {
        "module": module,
        "project": module.replace("_", "-"),
        "version": version("ruststream-kinesis"),
    }
    files = {
        f"{module}.py": _SERVICE,
        f"test_{module}.py": _TEST,
        "pyproject.toml": _PROJECT,
        "README.md": _README,
        ".gitignore": _IGNORED,
    }
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty: choose another name, or empty it")
        for file, text in files.items():
            # "x": somebody else may have had the same idea at the same moment.
            with (folder / file).open("x", encoding="utf-8") as opened:
                opened.write(Template(text).substitute(names))
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror or error}") from error
    return [
        f"{folder.name}/ is written: {', '.join(files)}",
        "Next:",
        f"  cd {shlex.quote(folder.name)}",
        "  python -m pip install pytest && python -m pytest",
        f"  ruststream-kinesis run {module}:app --reload",
    ]
