"""`ruststream-kinesis run`: one service in this process, and its end as an exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.logging import RichHandler

from ruststream_kinesis.app import RustStream
from ruststream_kinesis.cli.loading import NoTarget, load_app
from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.settlement import Counters

__all__ = ["run_service"]

logger = logging.getLogger("ruststream_kinesis.cli")

_FAILED = 1
# As for any other argument that cannot be read.
_WRONG = 2


def run_service(
    target: str,
    *,
    region: str | None,
    endpoint_url: str | None,
    test_credentials: bool | None,
    log_level: str,
    probe: str | None = None,
    debug: bool,
) -> int:
    """Loads and runs an application until a signal or a failure.

    Args:
        target: `MODULE:APP`.
        region: Replaces the application's; `None` leaves it. So do the next two.
        endpoint_url: See above.
        test_credentials: See above.
        log_level: Name of the least level that is logged.
        probe: Where to answer about the service, as `HOST:PORT`.
        debug: Let an error through as it is, with its traceback.

    Returns:
        The exit code: 0 after a stop that was asked for, 1 after a failure, 2 where `target` is no
        `MODULE:APP`; either is on stderr in one line.
    """
    try:
        app = load_app(target)
        app.broker.override(
            region=region, endpoint_url=endpoint_url, test_credentials=test_credentials
        )
        _log_to_stderr(log_level)
        asyncio.run(_run(app, probe))
    except KinesisError as error:
        if debug:
            raise
        return _say(str(error), _WRONG if isinstance(error, NoTarget) else _FAILED)
    except Exception as error:
        # The application's own: a startup hook, a lease store.
        if debug:
            raise
        return _say(f"{type(error).__name__}: {error} (--debug shows where)")
    return 0


async def _run(app: RustStream, probe: str | None) -> None:
    counters: Mapping[str, Counters] = {}

    def started() -> None:
        nonlocal counters
        counters = app.counters
        if counters:
            logger.info(
                "%s %s is reading %s as instance %s",
                app.title,
                app.version,
                ", ".join(counters),
                app.broker.connection.owner_id,
            )
        else:
            logger.warning("%s %s reads nothing: it declares no subscriber", app.title, app.version)

    try:
        await app.run(started=started, probe=probe)
    finally:
        for name, count in counters.items():
            logger.info("%s: %s", name, _told(count))
    logger.info("%s stopped", app.title)


def _told(count: Counters) -> str:
    """What became of the records, in one line; what did not happen is left out."""
    numbers = (
        (count.failed, "failed"),
        (count.undecodable, "undecodable"),
        (count.dropped, "dropped"),
        (count.held, "held open"),
        (count.retried, "retried"),
        (count.dead_lettered, "dead-lettered"),
        (count.replies, "replies"),
    )
    return ", ".join([f"{count.handled} handled", *(f"{n} {what}" for n, what in numbers if n)])


def _log_to_stderr(level: str) -> None:
    """Logs to stderr, unless the application set up its logging itself."""
    logging.getLogger("ruststream_kinesis").setLevel(level)
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False, highlighter=None)
        layout = "%(message)s"
    else:
        handler = logging.StreamHandler()
        layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    # The debug messages of the AWS client are not what a service is debugged with, and hold
    # payloads and signatures.
    least = max(logging.getLevelNamesMapping()[level], logging.INFO)
    if not logging.getLogger().handlers:
        # Which file credentials were found in is news to nobody but who debugs.
        for name in ("aiobotocore", "botocore"):
            logging.getLogger(name).setLevel(
                logging.INFO if level == "DEBUG" else max(least, logging.WARNING)
            )
    logging.basicConfig(level=least, format=layout, datefmt="%H:%M:%S", handlers=[handler])


def _say(message: str, code: int = _FAILED) -> int:
    """One line on stderr, however many the message has."""
    sys.stderr.write(f"ruststream-kinesis: {' '.join(message.split())}\n")
    return code
