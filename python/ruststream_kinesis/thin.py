"""`ThinTransport`: the calls made for every page and every publish, by a short way.

A call through aiobotocore costs more than a millisecond of CPU, whatever it carries: events, the
walk of a model, endpoint rules, header classes. For the hot calls the core builds the body and the
signature, and the request goes straight to the HTTP session that the user's settings made for this
client, so proxy, CA bundle, time-outs, pool and credentials stay those of the client. Everything
else takes the client's own way (`aws.py`), and so do the hot calls of a client that this way does
not fit: `aws_internals.py` says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ruststream_kinesis._core import (
    decode_put_records,
    encode_get_records,
    encode_put_record,
    encode_put_records,
)
from ruststream_kinesis.aws import AwsTransport, put_results
from ruststream_kinesis.aws_client import ERROR_STATUS, Client
from ruststream_kinesis.aws_errors import member, refused, translated
from ruststream_kinesis.aws_internals import Unfit, look_inside
from ruststream_kinesis.errors import NotConnected, RequestError
from ruststream_kinesis.plane import LARGE_BYTES, PackedAnswer, Plane, SessionEnded
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutEntry, PutResult

__all__ = ["ThinTransport"]

logger = logging.getLogger("ruststream_kinesis")

_OPERATIONS = ("GetRecords", "PutRecord", "PutRecords")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ThinTransport(AwsTransport):
    """Kinesis, with the hot calls on the short way wherever the client allows it."""

    _told = False

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """GetRecords, unparsed."""
        deadline = self._deadline_of("get_records")
        with translated("get_records", stream, shard_id, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient):
                # As in `AwsTransport`: reads take turns, and the deadline starts with the turn.
                async with client.reads, asyncio.timeout(deadline):
                    body = encode_get_records(iterator, limit, stream.arn)
                    return await _call(client, _GET_RECORDS, stream, shard_id, body)
        return await super().get_records(stream, shard_id, iterator, limit)

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """PutRecord."""
        deadline = self._deadline_of("put_record")
        with translated("put_record", stream, None, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient):
                async with client.puts, asyncio.timeout(deadline):
                    body = encode_put_record(
                        stream.name, stream.arn, data, partition_key, explicit_hash_key
                    )
                    answer = _object(await _call(client, _PUT_RECORD, stream, None, body))
                return PutResult(
                    member(answer, "ShardId", stream), member(answer, "SequenceNumber", stream)
                )
        return await super().put_record(
            stream, data, partition_key, explicit_hash_key=explicit_hash_key
        )

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """PutRecords: the batch goes into the core in one call, and the answer in another."""
        deadline = self._deadline_of("put_records")
        with translated("put_records", stream, None, deadline):
            client = await self._client()
            if isinstance(client, _ThinClient) and entries:
                async with client.puts, asyncio.timeout(deadline):
                    size = sum([len(entry[0]) for entry in entries])
                    encode = encode_put_records
                    if size > LARGE_BYTES:
                        body = await asyncio.to_thread(encode, stream.name, stream.arn, entries)
                    else:
                        body = encode(stream.name, stream.arn, entries)
                    answer = await _call(client, _PUT_RECORDS, stream, None, body)
                done = _all_put(answer)
                if done is not None and len(done) == len(entries):
                    return done
                return put_results(stream, len(entries), _rows(answer, stream))
        return await super().put_records(stream, entries)

    async def _made(self, kinesis: Any, belongings: contextlib.AsyncExitStack) -> Client:
        client = await super()._made(kinesis, belongings)
        try:
            insides = await look_inside(kinesis, _OPERATIONS)
        except Unfit as unfit:
            if not self._told:
                self._told = True
                level = logging.INFO if unfit.expected else logging.WARNING
                logger.log(level, "calls to Kinesis take aiobotocore's own, slower way: %s", unfit)
            return client
        plane = Plane(insides, insides.credentials, self._clock, belongings)
        return _ThinClient(kinesis, client.reads, client.puts, plane)


class _Operation(NamedTuple):
    name: str
    method: str
    """As aiobotocore names it, for messages."""


_GET_RECORDS = _Operation("GetRecords", "get_records")
_PUT_RECORD = _Operation("PutRecord", "put_record")
_PUT_RECORDS = _Operation("PutRecords", "put_records")


async def _call(
    client: _ThinClient,
    operation: _Operation,
    stream: StreamRef,
    shard_id: str | None,
    body: bytes,
) -> bytes:
    """The body of a good answer.

    Raises:
        RequestError: The answer is a refusal, or packed in a way that cannot be read.
    """
    where = None if stream.arn is None else ("StreamARN", stream.arn)
    try:
        answer = await client.plane.call(operation.name, where, body)
    except SessionEnded as error:
        raise NotConnected("not connected to Kinesis: the service is not running") from error
    except PackedAnswer as error:
        raise RequestError(
            f"cannot {operation.method.replace('_', ' ')}: {error}",
            code="ContentEncodingError",
            status=error.status if error.status >= ERROR_STATUS else None,
            stream=stream.name,
            shard_id=shard_id,
        ) from error
    if answer.status < ERROR_STATUS:
        return answer.body
    raise refused(operation.method, stream, shard_id, answer.status, answer.code, answer.said)


@dataclass(frozen=True, slots=True)
class _ThinClient(Client):
    plane: Plane


class _AllPut(msgspec.Struct):
    """The answer to a batch that was taken as a whole."""

    Records: list[PutResult]
    FailedRecordCount: int = 0


_decode_all_put = msgspec.json.Decoder(_AllPut).decode


def _all_put(body: bytes) -> list[PutResult | RequestError] | None:
    """The results of a batch where none was refused, the usual case; `None` where that is not so."""
    # Most answers do not name it at all, and to look for it costs a third of reading them.
    if b'"ErrorCode"' in body and (b'"ErrorCode":"' in body or b'"ErrorCode": "' in body):
        return None
    try:
        answer = _decode_all_put(body)
    except msgspec.MsgspecError:
        return None
    records: list[Any] = answer.Records
    return None if answer.FailedRecordCount else records


def _object(body: bytes) -> dict[str, Any]:
    """The members of an answer; none for somebody else's body, so that the first is missed."""
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        return {}


def _rows(body: bytes, stream: StreamRef) -> Sequence[tuple[str | None, ...]]:
    try:
        return decode_put_records(body)
    except ValueError as error:
        raise RequestError(
            f"cannot put records: {error}", code="MalformedAnswer", stream=stream.name
        ) from error
