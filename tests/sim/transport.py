"""The transport of one process to the stream, and to where its subscriptions put what they cause.

Subscriptions name the one stream in different ways, by name and by ARN: that tells whose a call is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ruststream_kinesis import KinesisPosition
from ruststream_kinesis._core import decode_envelope
from ruststream_kinesis.errors import NotConnected, RequestError, StreamNotFound
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import (
    PutEntry,
    PutResult,
    ShardListing,
    StreamInfo,
    Transport,
)
from tests.sim.fleet import Fleet
from tests.sim.kinesis import STREAM, Kinesis
from tests.sim.network import Link
from tests.sim.process import Process

__all__ = ["SimTransport", "dead_letters", "replies"]

_CREATED = 1_600_000_000.0
# How many entries of a request are refused one by one, while the service is ill.
_REFUSED = 0.2


def dead_letters(group: str | None) -> str:
    """Return the dead letter stream of a subscription."""
    return f"dead.{group or ''}"


def replies(group: str | None) -> str:
    """Return the stream of a subscription's replies."""
    return f"replies.{group or ''}"


class SimTransport:
    """`Transport` of one process.

    Args:
        kinesis: The service.
        fleet: Told of reads and puts.
        process: Who calls.
    """

    def __init__(self, kinesis: Kinesis, fleet: Fleet, process: Process) -> None:
        self._kinesis = kinesis
        self._fleet = fleet
        self._process = process
        self._closed = False

    def _link(self) -> Link:
        if self._closed:
            raise NotConnected("the process has closed its transport")
        return self._kinesis.link

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """Describe a stream."""
        name = stream.name
        groups = self._fleet.monitors
        if name != STREAM and not any(name in (dead_letters(g), replies(g)) for g in groups):
            raise StreamNotFound("no such stream", code="ResourceNotFoundException", status=400)
        return await self._link().call(lambda: StreamInfo(name, "ACTIVE", _CREATED))

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        """Do nothing: it is there."""

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """List the shards."""
        return await self._link().call(self._kinesis.list_shards)

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """Return an iterator."""
        return await self._link().call(lambda: self._kinesis.iterator(shard_id, position, after))

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """Return a page."""

        def read() -> bytes:
            self._fleet.monitor_of(stream).readers.read(shard_id)
            return self._kinesis.page(iterator, limit)

        return await self._link().call(read)

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Put a copy, a dead letter or a reply."""
        self._sends(stream, data)
        return await self._link().call(lambda: self._put(stream, data, partition_key))

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """Put some of them; each may be refused by itself."""
        for data, _, _ in entries:
            self._sends(stream, data)
        kinesis = self._kinesis

        def put_all() -> list[PutResult | RequestError]:
            results: list[PutResult | RequestError] = []
            for data, key, _ in entries:
                if not kinesis.link.weather.fair and kinesis.rng.random() < _REFUSED:
                    results.append(kinesis.refused())
                else:
                    results.append(self._put(stream, data, key))
            return results

        return await self._link().call(put_all)

    def _sends(self, stream: StreamRef, data: bytes) -> None:
        monitor = self._fleet.monitor_of(stream)
        headers, payload = decode_envelope(data)
        outgoing, process = monitor.outgoing, self._process
        if stream.name == STREAM:
            outgoing.sends(process, "copy", int(payload))
        elif stream.name == dead_letters(monitor.group):
            number = int(headers["x-ruststream-origin-sequence-number"])
            outgoing.sends(process, "dead letter", number)
        else:
            outgoing.sends(process, "reply", _numbers(payload))

    def _put(self, stream: StreamRef, data: bytes, key: str) -> PutResult:
        monitor = self._fleet.monitor_of(stream)
        headers, payload = decode_envelope(data)
        if stream.name == STREAM:
            record = self._kinesis.put(key, int(payload), data)
            self._fleet.put(record)
            monitor.outgoing.copied(self._process, record)
            return PutResult(record.shard.shard_id, str(record.number))
        if stream.name == dead_letters(monitor.group):
            monitor.outgoing.buried(self._process, headers, payload, key)
        else:
            monitor.outgoing.replied(self._process, _numbers(payload))
        return PutResult("shardId-000000000000", "1")

    async def close(self) -> None:
        """Answer nothing any more."""
        self._closed = True


def _numbers(payload: bytes) -> tuple[int, ...]:
    return msgspec.json.decode(payload, type=dict[str, tuple[int, ...]])["of"]


def _protocol(transport: SimTransport) -> Transport:
    """Let mypy compare the fake with the protocol it stands for."""
    return transport
