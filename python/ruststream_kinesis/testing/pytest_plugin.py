"""The pytest plugin: a fixture that runs an application in process, or on a server if asked to.

pytest imports this at the start of every run, so it imports nothing but pytest. Its fixture needs
no plugin for asyncio in particular: it is a plain one, and what it makes is entered by the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.testing.app import TestApp

__all__ = ["KinesisTest"]


class KinesisTest:
    """Makes a `TestApp`, in process or on the server that the command line names.

    Args:
        endpoint: The server, if any.
    """

    def __init__(self, endpoint: str | None) -> None:
        self.endpoint = endpoint
        """URL of the server that tests run on; `None` in process."""

    def __call__(self, app: RustStream, **options: Any) -> TestApp:
        """A test of `app`: `async with kinesis_test(app) as test`.

        Args:
            app: The application; it must not run.
            options: As `TestApp` takes them.
        """
        from ruststream_kinesis.testing.app import TestApp  # noqa: PLC0415 - see the module

        return TestApp(app, **{"live": self.endpoint, **options})

    def in_process_only(self, reason: str = "it needs manual time") -> None:
        """Skips the test where it would run on a server."""
        if self.endpoint is not None:
            pytest.skip(f"in process only: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which server to use."""
    parser.getgroup("ruststream-kinesis").addoption(
        "--kinesis-endpoint",
        metavar="URL",
        default=None,
        help="run tests that use the kinesis_test fixture on this Kinesis server, not in process",
    )


@pytest.fixture
def kinesis_test(request: pytest.FixtureRequest) -> KinesisTest:
    """Makes the `TestApp` of an application, which the test enters."""
    return KinesisTest(request.config.getoption("--kinesis-endpoint"))
