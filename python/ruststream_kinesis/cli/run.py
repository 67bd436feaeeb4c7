"""`ruststream-kinesis run`: one service in this process, and its end as an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ruststream_kinesis.app import RustStream
from ruststream_kinesis.cli.connecting import session_of
from ruststream_kinesis.cli.explaining import explained
from ruststream_kinesis.cli.loading import NoTarget, load_app
from ruststream_kinesis.cli.logs import WORKER, LogFormat, log_to_stderr, say
from ruststream_kinesis.settlement import Counters

__all__ = ["RunOptions", "run_service"]

logger = logging.getLogger("ruststream_kinesis.cli")

_FAILED = 1
# As for any other argument that cannot be read.
_WRONG = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `run` was asked for, as far as one process needs it."""

    target: str
    """`MODULE:APP`."""
    region: str | None = None
    """Replaces the application's; `None` leaves it. So do the next three."""
    endpoint_url: str | None = None
    profile: str | None = None
    test_credentials: bool | None = None
    table_endpoint_url: str | None = None
    """That of the application's lease table."""
    log_level: str = "INFO"
    """Name of the least level that is logged."""
    log_format: LogFormat = "text"
    probe: str | None = None
    """Where to answer about the service, as `HOST:PORT`."""
    debug: bool = False
    """Let an error through as it is, with its traceback."""

    @property
    def arguments(self) -> list[str]:
        """The same as a command line, for a process that runs one service."""
        given = ["run", self.target, "--log-level", self.log_level.lower()]
        # Their environment is ours: what it says of several processes is done by us.
        given += ["--log-format", self.log_format, "--workers", "1"]
        if self.region is not None:
            given += ["--region", self.region]
        if self.endpoint_url is not None:
            given += ["--endpoint-url", self.endpoint_url]
        if self.table_endpoint_url is not None:
            given += ["--table-endpoint-url", self.table_endpoint_url]
        if self.profile is not None:
            given += ["--profile", self.profile]
        if self.probe is not None:
            given += ["--probe", self.probe]
        if self.test_credentials:
            given.append("--test-credentials")
        if self.debug:
            given.append("--debug")
        return given


def run_service(options: RunOptions) -> int:
    """Loads and runs an application until a signal or a failure.

    Returns:
        The exit code: 0 after a stop that was asked for, 1 after a failure, 2 where the target is no
        `MODULE:APP`; either is on stderr in one line.
    """
    try:
        if options.profile is not None:
            _use_profile(options.profile)
        app = load_app(options.target)
        app.broker.override(
            region=options.region,
            endpoint_url=options.endpoint_url,
            session=session_of(options.profile),
            test_credentials=options.test_credentials,
        )
        log_to_stderr(options.log_level, options.log_format)
        _override_table(app, options)
        if WORKER in os.environ:
            _end_with_parent()
        asyncio.run(_run(app, options.probe))
    except Exception as error:
        # Ours, or the application's own: a startup hook, a lease store.
        if options.debug:
            raise
        say(explained(error), options.log_format)
        return _WRONG if isinstance(error, NoTarget) else _FAILED
    return 0


def _override_table(app: RustStream, options: RunOptions) -> None:
    """The application's lease table is where its stream is, and reached as whom that is."""
    store = app.broker.lease_store
    # Asked like this, since importing the store's class is for those who have one.
    override = getattr(store, "override", None)
    if override is not None:
        override(
            region=options.region,
            endpoint_url=options.table_endpoint_url,
            test_credentials=options.test_credentials,
        )
    elif options.table_endpoint_url is not None:
        # No error: the variable of that name may be there for other commands.
        logger.warning("--table-endpoint-url is for a lease table, and the application has none")


def _use_profile(name: str) -> None:
    """Makes it the profile of this process, so that the application's own clients have it, too.

    Its lease store is one of them. Keys in the environment give way, as they do to `aws --profile`.
    """
    os.environ["AWS_PROFILE"] = name
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        os.environ.pop(key, None)


def _end_with_parent() -> None:
    """Stops this worker when the process that started it is gone, however that ended.

    Its standard input is a pipe that only the parent holds and never writes to.
    """

    def watch() -> None:
        # Not by `sys.stdin`: its lock, held here, would be missed when the interpreter ends.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


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
