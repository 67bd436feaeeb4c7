"""Failures of publishing that a test asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ruststream_kinesis.errors import AccessDenied, ConfigurationError, KinesisError, RequestError
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, judge

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ruststream_kinesis.testing.clock import LiveClock, ManualClock

__all__ = ["Fault", "Faults", "Kind"]

Kind = Literal["passing", "terminal"]
"""`passing`: the stream is throttled, and asking again helps. `terminal`: access is denied."""

_BAD_REQUEST = 400


class Fault:
    """Attempts to put a record into one stream that fail; as a context manager, until its end."""

    def __init__(self, stream: str, times: int | None, error: Kind | KinesisError) -> None:
        if times is not None and (isinstance(times, bool) or times < 1):
            raise ConfigurationError(f"times must be at least 1, or None for always: {times!r}")
        if not isinstance(error, KinesisError) and error not in ("passing", "terminal"):
            raise ConfigurationError(
                f"error is 'passing', 'terminal' or a KinesisError, not {error!r}"
            )
        self.stream = StreamRef.parse(stream).name
        self.left = times
        """How many more attempts fail; `None`: all of them."""
        self.hits = 0
        """How many have failed."""
        self._error = error

    def end(self) -> None:
        """No further attempt fails because of this."""
        self.left = 0

    def hit(self) -> KinesisError:
        """One more attempt fails, with this."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1
        if self._error == "passing":
            return RequestError(
                "throttled, as the test asked for",
                code="ProvisionedThroughputExceededException",
                status=_BAD_REQUEST,
                stream=self.stream,
            )
        if self._error == "terminal":
            return AccessDenied(
                "access denied, as the test asked for",
                code="AccessDeniedException",
                status=_BAD_REQUEST,
                stream=self.stream,
            )
        assert isinstance(self._error, KinesisError)  # checked by the constructor
        return self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


class Faults:
    """All failures that a test asked for, first come first served."""

    def __init__(self, clock: ManualClock | LiveClock) -> None:
        self._clock = clock
        self.pending: list[Fault] = []
        """What was asked for; ended ones leave at the next check."""

    def add(self, fault: Fault) -> Fault:
        """From now on."""
        self.pending.append(fault)
        return fault

    def check(self, stream: str) -> None:
        """An attempt to put a record into `stream`.

        A passing failure is tried again after a back-off of the publisher's; a manual clock moves
        by it, since a publish of the test waits for that attempt and nobody would move time.

        Raises:
            KinesisError: It fails.
        """
        if not self.pending:
            return
        self.pending = [each for each in self.pending if each.left != 0]
        for fault in self.pending:
            if fault.stream == stream:
                error = fault.hit()
                if judge(error) is Failure.PASSING:
                    self._clock.hasten()
                raise error
