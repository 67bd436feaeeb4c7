"""`Buffer`: records on their way into one stream, those in requests among them.

Which of them may share the next request, and how many there are, the core decides (`Intake`). Here is
what becomes of a request: a record that is in one, or rests until it is tried again, is in the buffer,
counts against its room, and keeps others of its key behind it, until it is decided.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Self

from ruststream_kinesis._core import Intake, Pending
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES, MAX_PUT_RECORDS_BYTES
from ruststream_kinesis.stream import StreamRef

__all__ = ["Buffer", "Pending"]


class Buffer(Intake):
    """The records of one stream that are not decided yet.

    Args:
        loop: Whose futures its records are.
        stream: Where they go.
        wake: Called where a record is the first that is ready, or fills the next request.
        batch: Records a request.
        max_records: How many it holds.
        max_bytes: How many bytes of data and keys they may have; one record always fits.
    """

    _by_key = True
    """Whether records of one partition key wait for each other."""

    def __new__(  # noqa: D102 - see the class
        cls,
        loop: asyncio.AbstractEventLoop,
        stream: StreamRef,
        wake: Callable[[], None],
        batch: int,
        max_records: int,
        max_bytes: int,
    ) -> Self:
        return super().__new__(
            cls,
            loop,
            stream,
            wake,
            usual_bytes=DEFAULT_MAX_RECORD_BYTES,
            batch=batch,
            request_bytes=MAX_PUT_RECORDS_BYTES,
            max_records=max_records,
            max_bytes=max_bytes,
            by_key=cls._by_key,
        )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - of `__new__`, as the next two
        stream: StreamRef,  # noqa: ARG002
        wake: Callable[[], None],  # noqa: ARG002
        batch: int,
        max_records: int,  # noqa: ARG002 - as above
        max_bytes: int,  # noqa: ARG002
    ) -> None:
        self._batch = batch
        self._held: dict[int, list[Pending]] = {}
        """What is in requests, or rests until tried again."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Records in it, and those that wait for room."""
        return self.records + self.outside

    def __iter__(self) -> Iterator[Pending]:
        """All that are not decided; first those that were tried."""
        for group in self._held.values():
            yield from group
        yield from self.waiting()

    @property
    def closes(self) -> bool:
        """Whether the next request is as full as it can be."""
        return self.ready_records >= self._batch or self.ready_bytes >= self.full_bytes

    @property
    def ready(self) -> int:
        """Records that may be sent."""
        return self.ready_records

    def take(self) -> tuple[int, list[Pending]]:
        """The next request: what is ready, in order, as much as fits.

        What is not wanted any more, or was cancelled, is decided instead.

        Returns:
            A number for `put_back` and `rest`, and the records; there may be none.
        """
        batch = self.take_wanted()
        number = next(self._numbers)
        if batch:
            self._held[number] = batch
        return number, batch

    def rest(self, number: int, left: list[Pending]) -> None:
        """Of a request, these were refused and will be sent again; the others are decided."""
        batch = self._held.pop(number, None)
        if batch is None:
            return  # everything was given up meanwhile
        if left:
            self._held[number] = left
            refused = set(map(id, left))
            batch = [each for each in batch if id(each) not in refused]
        self.leave(batch)

    def put_back(self, number: int) -> None:
        """Those of a request that rest are ready again, in front of all others."""
        self.give_back(self._held.pop(number, []))
        self.waited = True

    def sweep(self, expired: Callable[[Pending], bool]) -> None:
        """Lets go of those that wait, untried, and have expired or were cancelled meanwhile.

        Args:
            expired: Decides a record whose time is over, and says whether it is.
        """
        for record in self.waiting():
            if not record.done():
                expired(record)
        self.drop_decided()

    def clear(self) -> list[tuple[Pending, bool]]:
        """Forgets everything.

        Returns:
            What was not decided, and of each, whether it was tried or is on its way.
        """
        tried = sum(map(len, self._held.values()))
        left = [(each, at < tried) for at, each in enumerate(self) if not each.done()]
        self._held.clear()
        self.forget()
        return left
