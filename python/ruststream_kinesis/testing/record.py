"""`LogRecord`: a record as it stands in its stream, whichever log that is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ruststream_kinesis._core import Page
from ruststream_kinesis.codec import Codec, JsonCodec

__all__ = ["LogRecord"]

_CODEC = JsonCodec()


class LogRecord:
    """A record as it stands in its stream."""

    __slots__ = ("index", "page", "partition_key", "sequence_number", "shard_id", "stream")

    def __init__(
        self,
        stream: str,
        shard_id: str,
        partition_key: str,
        sequence_number: str,
        page: Page,
        index: int = 0,
    ) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.partition_key = partition_key
        self.sequence_number = sequence_number
        self.page = page
        self.index = index

    @classmethod
    def of(cls, stream: str, shard_id: str, page: Page, index: int) -> LogRecord:
        """The record at `index` of a page that was read."""
        key = page.partition_key(index) or ""
        return cls(stream, shard_id, key, page.sequence_number(index), page, index)

    @property
    def data(self) -> bytes:
        """The blob, envelope included."""
        return self.page.data(self.index)

    @property
    def payload(self) -> bytes:
        """The blob without its envelope."""
        return self.page.payload(self.index)

    @property
    def headers(self) -> dict[str, str]:
        """The headers in its envelope."""
        return self.page.headers(self.index)

    @property
    def arrival(self) -> datetime:
        """When it was appended, in UTC: by the test's clock, or by the server's."""
        return datetime.fromtimestamp(self.page.arrival(self.index) or 0.0, UTC)

    def decode(self, kind: Any, codec: Codec | None = None) -> Any:
        """The payload as a value of type `kind`, as a handler would get it."""
        return (codec or _CODEC).decoder(kind)(self.payload)

    def __repr__(self) -> str:
        return (
            f"<record {self.sequence_number} of stream {self.stream} "
            f"key={self.partition_key!r} payload={self.payload!r}>"
        )
