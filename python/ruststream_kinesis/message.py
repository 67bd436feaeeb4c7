"""`KinesisMessage`: one delivery as a handler may ask for it.

It is made only for handlers that ask, and reads the page when a field is asked for.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic

from ruststream_kinesis.errors import AckUnsupported
from ruststream_kinesis.outcomes import ACK, DROP, RETRY, Outcome
from ruststream_kinesis.position import KinesisPosition

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ruststream_kinesis._core import Page
    from ruststream_kinesis.channel import Run

__all__ = [
    "PARTITION_KEY_HEADER",
    "RETRY_COUNT_HEADER",
    "SEQUENCE_NUMBER_HEADER",
    "SHARD_ID_HEADER",
    "Headers",
    "KinesisMessage",
    "attempt_of",
]

if TYPE_CHECKING:
    # A plain `KinesisMessage` is a `KinesisMessage[Any]`; Python says so from 3.13 on only.
    T = TypeVar("T", default=Any)
else:
    T = typing.TypeVar("T")

Settle = Callable[[Outcome, "Run", int], Coroutine[Any, Any, bool]]
"""Makes an outcome of one delivery come true; whether the record is held open."""

# What every delivery carries beside its envelope's headers; the sibling uses the same names.
PARTITION_KEY_HEADER: Final = "partition-key"
SEQUENCE_NUMBER_HEADER: Final = "kinesis-sequence-number"
SHARD_ID_HEADER: Final = "kinesis-shard-id"
# Earlier deliveries of a copied record.
RETRY_COUNT_HEADER: Final = "x-ruststream-retry-count"
# No record was delivered a billion times: more digits are somebody else's header.
_COUNT_DIGITS = 9


class Headers(dict[str, str]):
    """Headers of a delivery: the envelope's, plus key, sequence number and shard.

    A type of its own, so that a handler can ask for it by annotation.
    """


class KinesisMessage(Generic[T]):
    """One delivery.

    Settling through the message is an alternative to returning an outcome; what is settled first
    counts, and settling twice changes nothing.
    """

    __slots__ = ("_headers", "_loop", "_outcome", "_page", "_settle", "index", "payload", "run")

    def __init__(self, run: Run, index: int, payload: T, settle: Settle) -> None:
        self.run = run
        self._page = run.page
        self.index = index
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._headers: Headers | None = None
        self.payload = payload
        """The decoded payload; the payload's bytes where the handler asked for no other type, or
        where it did not decode."""
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome | None:
        """What was said through this message; `None` while nothing was."""
        return self._outcome

    @property
    def headers(self) -> Headers:
        """The envelope's, plus `partition-key`, `kinesis-sequence-number`, `kinesis-shard-id`."""
        if self._headers is None:
            self._headers = headers = Headers(self._page.headers(self.index))
            headers[PARTITION_KEY_HEADER] = self.partition_key
            headers[SEQUENCE_NUMBER_HEADER] = self.sequence_number
            headers[SHARD_ID_HEADER] = self.shard_id
        return self._headers

    @property
    def stream(self) -> str:
        """Plain name of the stream."""
        return self.run.shard.stream

    @property
    def shard_id(self) -> str:
        """The shard the record was read from."""
        return self.run.shard.shard_id

    @property
    def partition_key(self) -> str:
        """The record's partition key; `""` where it came without one."""
        return self._page.partition_key(self.index) or ""

    @property
    def sequence_number(self) -> str:
        """The record's sequence number, as text: it is longer than any machine integer."""
        return self._page.sequence_number(self.index)

    @property
    def explicit_hash_key(self) -> str | None:
        """What chose its shard in place of the partition key's hash, as a decimal number.

        Only a record out of an aggregate can tell: the service does not give it back. `None` where
        it has none.
        """
        return self._page.explicit_hash_key(self.index)

    @property
    def sub_sequence_number(self) -> int | None:
        """Which record of its aggregate it is, from 0; `None` for one that came alone.

        The records of an aggregate share its sequence number: the two together name one delivery.
        """
        return self._page.sub_sequence_number(self.index)

    @property
    def data(self) -> bytes:
        """The blob as it stands in the stream, or in its aggregate; envelope included."""
        return self._page.data(self.index)

    @property
    def arrival(self) -> datetime | None:
        """Approximate arrival in UTC; `None` where the service sent none that a date can hold."""
        seconds = self._page.arrival(self.index)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @property
    def attempt(self) -> int:
        """1 for the first delivery; a copy counts its earlier ones. A malformed count is none."""
        return attempt_of(self._page, self.index)

    @property
    def position(self) -> KinesisPosition:
        """This record's place: a rewind to it delivers it, or its whole aggregate, again first."""
        return KinesisPosition.sequence(self.shard_id, self.sequence_number)

    async def ack(self) -> None:
        """Settles the delivery now, before the handler returns."""
        await self._say(ACK)

    async def nack(self, *, requeue: bool) -> None:
        """Refuses the delivery.

        Args:
            requeue: `False` settles it like `drop()`; `True` asks for it again, like `retry()`:
                where a cap is declared, this returns when the copy is in its stream.

        Raises:
            AckUnsupported: The subscription declares neither `max_attempts` nor `dead_letter`, and
                Kinesis takes no single record back. The record stays open and holds the
                checkpoint, whether or not the handler lets this error through.
        """
        if await self._say(RETRY if requeue else DROP):
            raise AckUnsupported(
                "the subscription declares neither max_attempts nor dead_letter: the record stays "
                "open and holds the checkpoint of its shard",
                stream=self.stream,
                shard_id=self.shard_id,
                sequence_number=self.sequence_number,
            )

    async def _say(self, outcome: Outcome) -> bool:
        """The first outcome counts; whether the record is held because of it."""
        if self._outcome is not None:
            return False
        self._outcome = outcome
        settled = self._settle(outcome, self.run, self.index)
        try:
            if asyncio.get_running_loop() is self._loop:
                return await settled
            # A plain handler runs in a thread, and can only await by a loop of its own: settling is
            # done on the service's, where checkpoints are written.
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(settled, self._loop))
        except BaseException:
            # Cut off, for example by the handler's own timeout: nothing was said, and what the
            # handler says next counts.
            self._outcome = None
            raise

    def __repr__(self) -> str:
        return (
            f"<KinesisMessage {self.stream}/{self.shard_id} {self.sequence_number} "
            f"key={self.partition_key!r}>"
        )


def attempt_of(page: Page, index: int) -> int:
    """Which delivery of its record this one is."""
    if page.header_block(index) is None:
        return 1
    count = page.headers(index).get(RETRY_COUNT_HEADER, "")
    well_formed = count.isascii() and count.isdigit() and len(count) <= _COUNT_DIGITS
    return 1 + int(count) if well_formed else 1
