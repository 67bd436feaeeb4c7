"""The log of a service that the command line runs: lines to read, or one JSON object a line.

What a log record says of its place (`stream`, `shard_id`, `sequence_number`) is an `extra` of the
package's own log calls; an application may pass the same.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

__all__ = ["WORKER", "JsonLines", "LogFormat", "log_to_stderr", "say"]

WORKER = "RUSTSTREAM_WORKER"
"""Environment variable of a process that `--workers` or `--reload` started: the worker's number,
empty where there is one only."""

# Where a record stands, as errors and log calls name it; left out where a log record has none.
_PLACE = ("stream", "shard_id", "sequence_number")


LogFormat = Literal["text", "json"]
"""How a line of the log looks."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, place, exception."""

    def __init__(self) -> None:
        super().__init__()
        self._worker = _worker()

    def format(self, record: logging.LogRecord) -> str:
        """The line; text that is no UTF-8 is replaced, an exception is one string."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, str] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        for name in _PLACE:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = str(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:  # lone surrogates, as of a file name
            clean = {name: text.encode(errors="replace").decode() for name, text in line.items()}
            return msgspec.json.encode(clean).decode()


def log_to_stderr(level: str, form: LogFormat) -> None:
    """Logs to stderr, unless the application set up its logging itself.

    Args:
        level: Name of the least level that is logged.
        form: How a line looks.
    """
    logging.getLogger("ruststream_kinesis").setLevel(level)
    # The debug messages of the AWS client are not what a service is debugged with, and hold
    # payloads and signatures.
    least = max(logging.getLevelNamesMapping()[level], logging.INFO)
    root = logging.getLogger()
    if root.handlers:
        return
    # Which file credentials were found in is news to nobody but who debugs.
    for name in ("aiobotocore", "botocore"):
        logging.getLogger(name).setLevel(
            logging.INFO if level == "DEBUG" else max(least, logging.WARNING)
        )
    root.addHandler(_handler(form))
    root.setLevel(least)


def _handler(form: LogFormat) -> logging.Handler:
    handler: logging.Handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JsonLines())
        return handler
    worker = _worker()
    mark = "" if worker is None else f"[{worker}] "
    if not sys.stderr.isatty():
        layout = f"%(asctime)s %(levelname)s {mark}%(name)s: %(message)s"
    else:
        from rich.console import Console  # noqa: PLC0415 - a tenth of a second, for terminals
        from rich.logging import RichHandler  # noqa: PLC0415 - as above

        handler = RichHandler(console=Console(stderr=True), show_path=False, highlighter=None)
        layout = f"{mark}%(message)s"
    handler.setFormatter(logging.Formatter(layout, datefmt="%H:%M:%S"))
    return handler


def _worker() -> str | None:
    return os.environ.get(WORKER) or None


def say(message: str, form: LogFormat = "text") -> None:
    """One line on stderr, however many the message has: what ends a command."""
    line = " ".join(message.split())
    if form == "json":
        record = logging.LogRecord(
            "ruststream_kinesis.cli", logging.ERROR, __file__, 0, line, None, None
        )
        sys.stderr.write(f"{JsonLines().format(record)}\n")
        return
    worker = _worker()
    mark = "" if worker is None else f"[{worker}] "
    sys.stderr.write(f"ruststream-kinesis: {mark}{line}\n")
