"""`ruststream-kinesis put`: many records into a stream, and what became of each.

Invariants:

* Records that are on their way are bounded in number; the publisher bounds their bytes.
* Every line that was read is counted once: as sent, as failed (with its number), or as unknown,
  where somebody did not wait for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ruststream_kinesis.errors import BufferFull, ConfigurationError, KinesisError, PublishError
from ruststream_kinesis.publisher import KinesisPublisher
from ruststream_kinesis.records import outgoing
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutResult
from ruststream_kinesis.wording import shown

__all__ = ["Failure", "Putter", "Recipe", "Told", "put_lines"]

# Enough for as many full requests as are sent at a time, and not too many to be waited for at the end.
_ON_THEIR_WAY = 1_000
# Failures that are kept to be named; there are as many as there are lines where a stream is gone.
_NAMED = 1_000
# So many failures and nothing that was taken since: the rest of the input would fare no better.
_IN_A_ROW = 100
# Seconds to go on trying one that is refused for a passing reason, as a publish by default.
_DEADLINE = 30.0
_MAGIC = b"RSK1"


class Failure(msgspec.Struct):
    """A line that is not in the stream."""

    line: int
    error: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a value becomes a record."""

    stream: str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key_field: str | None = None
    """Which field of a JSON object has the partition key."""
    raw: bool = False
    """The value is the whole blob: it is put as it is, also where it looks like an envelope."""

    def __post_init__(self) -> None:
        if self.raw and self.headers:
            raise ConfigurationError("--raw puts the value as it is: there is no room for --header")
        if self.key is not None and self.key_field is not None:
            raise ConfigurationError("--key and --key-field both say what the partition key is")

    def key_of(self, value: bytes) -> str | None:
        """The partition key of a value.

        Raises:
            ConfigurationError: It is no JSON object with such a field.
        """
        name = self.key_field
        if name is None:
            return self.key
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"no JSON: {error}") from error
        key: Any = found.get(name) if isinstance(found, dict) else None
        if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
            raise ConfigurationError(f"no field {name!r} with text or a whole number in it")
        return str(key)


class Putter:
    """Puts values by a recipe.

    Args:
        publisher: Sends them; with a `batch` for many.
        recipe: What they become.
    """

    def __init__(self, publisher: KinesisPublisher, recipe: Recipe) -> None:
        self._publisher = publisher
        self._recipe = recipe
        self._stream = StreamRef.parse(recipe.stream)

    def start(self, value: bytes) -> asyncio.Future[PutResult]:
        """Starts to put a value; the future ends with its result.

        Raises:
            BufferFull: There is no room just now.
            ConfigurationError: There is no key in it where one should be.
            KinesisError: It is refused locally.
        """
        recipe = self._recipe
        key = recipe.key_of(value)
        if recipe.raw and value.startswith(_MAGIC):
            # A publish would wrap it, so that it reads back as it is; here it *is* the wrapped one.
            return asyncio.ensure_future(self._put_blob(value, key))
        return self._publisher.publish_nowait(
            value, recipe.stream, partition_key=key, headers=recipe.headers or None
        )

    async def _put_blob(self, blob: bytes, key: str | None) -> PutResult:
        now = asyncio.get_running_loop().time
        late = now() + _DEADLINE
        result = await self._publisher.put_while(
            outgoing(self._stream, blob, key), lambda: now() < late
        )
        if result is None:
            raise PublishError(
                f"the service did not take it within {_DEADLINE:g} s", stream=self._stream.name
            )
        return result


class Told(msgspec.Struct):
    """What became of the lines."""

    stream: str
    sent: int = 0
    failed: int = 0
    unknown: int = 0
    """They were on their way when nobody waited for their answers any more."""
    read: int = 0
    """Number of the last line that was read."""
    failures: list[Failure] = []
    stopped: str | None = None
    """Why the rest of the input was not read, where it was not."""

    @property
    def good(self) -> bool:
        """Whether all of the input is in the stream."""
        return not (self.failed or self.unknown or self.stopped)


async def put_lines(
    putter: Putter,
    told: Told,
    chunks: AsyncIterator[list[tuple[int, bytes]]],
    *,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    advance: Callable[[int], None],
) -> None:
    """Puts every line of the input.

    Args:
        putter: How.
        told: Where it is counted; right at any moment, also where this is cancelled.
        chunks: The input.
        stop: Once it is set nothing more is read; what is on its way is waited for.
        hurry: Once it is set, that neither.
        advance: Told how many more lines are decided.
    """
    flight = _Flight(told, advance)
    reading: asyncio.Future[list[tuple[int, bytes]]] | None = None
    stopping, hurrying = (asyncio.ensure_future(each.wait()) for each in (stop, hurry))
    try:
        while told.stopped is None:
            reading = asyncio.ensure_future(anext(chunks))
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                told.stopped = "interrupted"
                break
            try:
                found = reading.result()
            except StopAsyncIteration:
                break
            for number, line in found:
                if stop.is_set() or told.stopped is not None:
                    told.stopped = told.stopped or "interrupted"
                    break
                await flight.start(putter, number, line, hurrying)
        await flight.landed(hurrying)
    finally:
        for each in (reading, stopping, hurrying):
            if each is not None:
                each.cancel()
        flight.abandon()


class _Flight:
    """The records that are on their way."""

    def __init__(self, told: Told, advance: Callable[[int], None]) -> None:
        self._told = told
        self._advance = advance
        self._flying: set[asyncio.Future[PutResult]] = set()
        self._fewer = asyncio.Event()
        self._in_a_row = 0

    async def start(
        self, putter: Putter, number: int, line: bytes, hurrying: asyncio.Future[Any]
    ) -> None:
        """Sends one, when there is room."""
        self._told.read = number
        if len(self._flying) >= _ON_THEIR_WAY:
            await self._down_to(_ON_THEIR_WAY // 2, hurrying)
        while not hurrying.done():
            try:
                sent = putter.start(line)
            except BufferFull:
                # Large ones: as many bytes are on their way as may be.
                await self._down_to(len(self._flying) - 1, hurrying)
            except KinesisError as error:
                self._failed(number, error)
                return
            else:
                self._flying.add(sent)
                sent.add_done_callback(partial(self._landed, number))
                return
        self._told.read = number - 1

    async def _down_to(self, count: int, hurrying: asyncio.Future[Any]) -> None:
        """Waits until no more than so many are on their way; each has a deadline of its own."""
        while len(self._flying) > count and not hurrying.done():
            await self._one_less(hurrying)

    async def _one_less(self, hurrying: asyncio.Future[Any]) -> None:
        self._fewer.clear()
        fewer = asyncio.ensure_future(self._fewer.wait())
        try:
            await asyncio.wait({fewer, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            fewer.cancel()

    async def landed(self, hurrying: asyncio.Future[Any]) -> None:
        """Waits until none is on its way."""
        await self._down_to(0, hurrying)

    def abandon(self) -> None:
        """Waits for none of them any more."""
        flying, self._flying = self._flying, set()
        self._told.unknown += len(flying)
        for each in flying:
            each.cancel()

    def _landed(self, number: int, sent: asyncio.Future[PutResult]) -> None:
        if sent not in self._flying:
            return  # abandoned, and counted so
        self._flying.discard(sent)
        self._fewer.set()
        error = None if sent.cancelled() else sent.exception()
        if error is not None:
            self._failed(number, error)
            return
        self._told.sent += 1
        self._in_a_row = 0
        self._advance(1)

    def _failed(self, number: int, error: BaseException) -> None:
        told = self._told
        told.failed += 1
        self._in_a_row += 1
        if len(told.failures) < _NAMED:
            told.failures.append(Failure(number, shown(error)))
        if self._in_a_row >= _IN_A_ROW and told.stopped is None:
            told.stopped = f"{_IN_A_ROW} lines in a row failed"
        self._advance(1)
