"""Every error of the package, in one tree under `KinesisError`.

It lives at the bottom of the house: everything may import it and it imports nothing of ours, so the
native module can raise these types too.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDenied",
    "AckUnsupported",
    "BufferFull",
    "ConfigurationError",
    "EnvelopeError",
    "HandlerError",
    "HandlerFailed",
    "InvalidRecord",
    "KinesisError",
    "LeaseLost",
    "LeaseRowError",
    "LeaseTableDenied",
    "LeaseTableError",
    "LeaseTableMismatch",
    "LeaseTableNotFound",
    "LeaseTableUnreachable",
    "NotConnected",
    "PageError",
    "PayloadDecodeError",
    "PublishError",
    "RequestError",
    "StopTimeout",
    "StreamNotFound",
    "StreamRecreated",
    "TransactionsUnsupported",
]


class KinesisError(Exception):
    """Base of every error that this package raises on purpose.

    The place of the failure is appended to the message, so that a log line alone says where to
    look; the same three values are attributes for code that handles the error.

    Args:
        message: What went wrong and what to do about it.
        stream: Stream name, where one is concerned.
        shard_id: Shard id, where one is concerned.
        sequence_number: Sequence number of the record, where one is concerned.
    """

    def __init__(
        self,
        message: str = "",
        *,
        stream: str | None = None,
        shard_id: str | None = None,
        sequence_number: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stream = stream
        self.shard_id = shard_id
        self.sequence_number = sequence_number

    def __reduce__(self) -> tuple[Any, ...]:
        # `BaseException` would be made anew from its positional arguments alone, and some of ours
        # cannot be: a process pool or `copy` would fail with another error than this one.
        return _remade, (type(self), self.args), vars(self)

    def __str__(self) -> str:
        named = (
            ("stream", self.stream),
            ("shard", self.shard_id),
            ("sequence number", self.sequence_number),
        )
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return f"{self.message} [{place}]" if place else self.message


def _remade(kind: type[KinesisError], args: tuple[Any, ...]) -> KinesisError:
    return kind.__new__(kind, *args)


class ConfigurationError(KinesisError, ValueError):
    """A value of the configuration is refused, before any I/O: name, ARN, interval, position."""


class HandlerError(KinesisError, TypeError):
    """A handler cannot be registered: its signature or a parameter cannot be resolved."""


class TransactionsUnsupported(KinesisError):
    """Kinesis has no transactions and no reply address; a handler or publisher asked for one."""


class EnvelopeError(KinesisError, ValueError):
    """Headers that the envelope cannot carry exactly; refused at publish."""


class InvalidRecord(KinesisError, ValueError):
    """A record that the service would refuse (key, size, stream name); refused before sending."""


class PageError(KinesisError):
    """A GetRecords response that cannot be read: not JSON, cut off, a field of another type.

    The reader keeps its iterator and reads again, so no record is lost by it.
    """


class PayloadDecodeError(KinesisError, ValueError):
    """A payload that is not of the type the handler asks for."""


class NotConnected(KinesisError):
    """A handle was used before the service started or after it stopped."""


class RequestError(KinesisError):
    """A request that the service answered with an error, or did not answer.

    Args:
        code: The service's error code, `"HTTP<status>"` where the answer named none, or the name of
            the transport's exception where there was no answer. Decisions are made on it, never on
            the text.
        status: HTTP status, or `None` where there was no answer.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str,
        status: int | None = None,
        stream: str | None = None,
        shard_id: str | None = None,
        sequence_number: str | None = None,
    ) -> None:
        super().__init__(message, stream=stream, shard_id=shard_id, sequence_number=sequence_number)
        self.code = code
        self.status = status


class StreamNotFound(RequestError):
    """The stream does not exist (or not in this account and region)."""


class AccessDenied(RequestError):
    """The credentials do not allow the call; no retry can help."""


class PublishError(KinesisError):
    """A record that could not be put in its stream; it is not there as far as we know."""


class BufferFull(PublishError):
    """`publish_nowait` found the buffer of its stream full; nothing of the record is kept.

    Await `publish` instead, which waits for room, or some of the futures that you have.
    """


class AckUnsupported(KinesisError):
    """`retry()` on a subscription that declares neither `max_attempts` nor `dead_letter`.

    Kinesis cannot take a single record back: the record stays open and holds the checkpoint.
    """


class LeaseLost(KinesisError):
    """Another acquisition holds the shard now: this one may neither renew nor write."""


class LeaseRowError(KinesisError):
    """A row of the lease table that cannot be understood; its shard is not read."""


class LeaseTableError(KinesisError):
    """A request to the lease table that was answered with an error, or not answered.

    Args:
        table: The table's name.
        code: The service's error code, `"HTTP<status>"` where the answer named none, or the name of
            the transport's exception where there was no answer.
        status: HTTP status, or `None` where there was no answer.
        uncertain: A write may have been applied all the same: its answer was lost.
    """

    def __init__(
        self,
        message: str = "",
        *,
        table: str,
        code: str,
        status: int | None = None,
        uncertain: bool = False,
        stream: str | None = None,
        shard_id: str | None = None,
        sequence_number: str | None = None,
    ) -> None:
        super().__init__(message, stream=stream, shard_id=shard_id, sequence_number=sequence_number)
        self.table = table
        self.code = code
        self.status = status
        self.uncertain = uncertain


class LeaseTableNotFound(LeaseTableError):
    """The lease table does not exist (or not in this account and region)."""


class LeaseTableMismatch(LeaseTableError):
    """The table has another key than a lease table: it belongs to something else."""


class LeaseTableDenied(LeaseTableError):
    """The credentials do not allow the call; no retry can help."""


class LeaseTableUnreachable(LeaseTableError):
    """Throttled, failing, or not answering, for as long as a call may take; it may work later."""


class StreamRecreated(KinesisError):
    """The stream was deleted and created anew under its name; old checkpoints mean nothing."""


class HandlerFailed(KinesisError):
    """A handler raised and `on_error="stop"` asked for the service to stop."""


class StopTimeout(KinesisError):
    """The stop ran out of its time; the message names what did not finish."""
