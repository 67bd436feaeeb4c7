"""Publishing values: policies, and the publisher that handlers and applications use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruststream_kinesis.codec import Codec, JsonCodec
from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import ConfigurationError, InvalidRecord
from ruststream_kinesis.limits import check_partition_key, check_seconds
from ruststream_kinesis.records import RecordMaker, send
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutResult

__all__ = ["KinesisPublish", "KinesisPublisher"]

# How long a record that the service refuses for a passing reason is tried again.
_PUBLISH_DEADLINE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisPublish:
    """Publish policy: a pure declaration.

    Raises:
        ConfigurationError: A value is refused.
    """

    to: str | None = None
    """Stream name or ARN, where the policy declares a handler's replies."""
    partition_key: str | Callable[[Any], str] | None = None
    """A key for every record, or a function from the value to its key. It comes after the call's
    argument and the `partition-key` header; without any, a key of this process' own spreads the
    records over the shards."""
    deadline: float | None = None
    """Seconds to go on trying a record that is refused for a passing reason. By default 30; a reply
    is tried until its shard is lost or the service stops, since nobody else would try again."""

    def __post_init__(self) -> None:
        if self.to is not None:
            StreamRef.parse(self.to)
        if isinstance(self.partition_key, str):
            try:
                check_partition_key(self.partition_key, self.to)
            except InvalidRecord as error:
                raise ConfigurationError(error.message, stream=self.to) from error
        elif self.partition_key is not None and not callable(self.partition_key):
            raise ConfigurationError(
                f"partition_key must be text or a function of the value: {self.partition_key!r}"
            )
        if self.deadline is not None:
            check_seconds("deadline", self.deadline)

    @classmethod
    def of(cls, publish: KinesisPublish | str | None) -> KinesisPublish | None:
        """The policy itself, or the one that a plain stream name means."""
        if publish is not None and not isinstance(publish, str | KinesisPublish):
            raise ConfigurationError(f"publish is a stream name or a KinesisPublish: {publish!r}")
        return cls(to=publish) if isinstance(publish, str) else publish


class KinesisPublisher:
    """Publishes values; usable while the service runs, from any event loop.

    Made by `app.publisher()`, or injected into a handler that asks for it.

    Args:
        connection: The service's connection.
        policy: Where keys come from, how long to try.
        codec: Encodes values.
    """

    def __init__(
        self,
        connection: Connection,
        policy: KinesisPublish | None = None,
        codec: Codec | None = None,
    ) -> None:
        self._connection = connection
        self._policy = policy or KinesisPublish()
        self._maker = RecordMaker(self._policy.partition_key, codec or JsonCodec())

    async def publish(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PutResult:
        """Puts one record; when it returns, the record is durably in the stream.

        A record whose answer was lost is sent again, so it may stand in the stream twice: delivery
        is at-least-once on this side too. Cancelling leaves open whether it was put.

        Args:
            value: Anything the codec encodes; `bytes` and `str` travel as they are.
            to: Stream name or ARN.
            partition_key: 1 to 256 characters. By default the `partition-key` header, else the
                policy's, else one that spreads records over the shards.
            headers: They travel in the envelope.

        Returns:
            Shard and sequence number of the record.

        Raises:
            InvalidRecord: Key or size are refused, nothing was sent.
            EnvelopeError: A header cannot be carried exactly, nothing was sent.
            NotConnected: The service is not running.
            PublishError: The service refused it, or went on refusing it past the deadline.
        """
        record = self._maker.make(value, to, partition_key, headers)
        result = await send(self._connection, record, deadline=self._deadline(_PUBLISH_DEADLINE))
        assert result is not None  # it only gives up early where it was asked to
        return result

    async def publish_while(
        self, value: Any, to: str, wanted: Callable[[], bool]
    ) -> PutResult | None:
        """Publishes for as long as `wanted()` says so, and the policy's deadline if it has one.

        For what is part of a settlement: nobody else would try again.

        Returns:
            `None` when it was not wanted any more.
        """
        record = self._maker.make(value, to, None, None)
        return await send(self._connection, record, deadline=self._deadline(None), wanted=wanted)

    def _deadline(self, default: float | None) -> float | None:
        seconds = default if self._policy.deadline is None else self._policy.deadline
        return None if seconds is None else self._connection.clock.monotonic() + seconds

    def publish_nowait(
        self,
        value: Any,
        to: str,
        *,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[PutResult]:
        """The same without waiting: the future ends with the record's own result.

        The caller keeps the future; an error that nobody asks for is reported by asyncio.
        """
        return asyncio.get_running_loop().create_task(
            self.publish(value, to, partition_key=partition_key, headers=headers),
            name=f"publish[{to}]",
        )
