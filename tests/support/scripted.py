"""Servers that fail on command, on real sockets.

A real server cannot be provoked into a cut connection or a throttle at the third read. Two servers
can: `ScriptedKinesis` has streams of its own (one list of shards, pages as the test writes them),
`FaultProxy` stands before a real server and spoils only what the test chooses.

Both run on the loop of the test. A test that blocks that loop blocks its server too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from tests.support.faults import FaultServer, Rule
from tests.support.replies import (
    LAST_HASH,
    Answer,
    Body,
    Call,
    Next,
    Reply,
    Shard,
    applied_then,
    drop_connection,
    error,
    hang_after_headers,
    held,
    html,
    ok,
    page,
    pass_on,
    raw,
    record,
    truncated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = [
    "Call",
    "FaultProxy",
    "FaultServer",
    "Next",
    "Reply",
    "Rule",
    "ScriptedKinesis",
    "Shard",
    "applied_then",
    "drop_connection",
    "error",
    "hang_after_headers",
    "held",
    "html",
    "ok",
    "page",
    "pass_on",
    "raw",
    "record",
    "truncated",
]

_HOP_BY_HOP = {"connection", "content-length", "content-encoding", "transfer-encoding", "host"}


class ScriptedKinesis(FaultServer):
    """Streams without a log: shards as given, empty pages unless the test writes some.

    Every stream name exists, with the same shards; `missing` names those that do not. What is put
    gets a sequence number, and can be looked up by `calls("PutRecord")`; it is never read back.
    """

    def __init__(self, shards: Sequence[str | Shard] = ("shardId-000000000000",)) -> None:
        super().__init__()
        self.shards = [
            _nth(each, place, len(shards)) if isinstance(each, str) else each
            for place, each in enumerate(shards)
        ]
        """What ListShards tells. Change it at any time: append the children of a split."""
        self.missing: set[str] = set()
        """Names of streams that do not exist."""
        self.page_size = 1000
        """Shards in one response of ListShards."""
        self.created = 1_600_000_000.0
        """The streams' creation time, in epoch seconds: change it for a stream made anew."""
        self._sequence = 10**20

    async def default(self, call: Call) -> Body:
        """Behave like a healthy service with nothing new in its shards."""
        if (name := _stream_of(call.body)) in self.missing:
            return error("ResourceNotFoundException", message=f"Stream {name} not found.")
        match call.target:
            case "ListShards":
                return self._list_shards(call.body)
            case "DescribeStreamSummary":
                return self._describe(name)
            case "GetShardIterator":
                if all(shard.shard_id != call.shard_id for shard in self.shards):
                    return error("ResourceNotFoundException", message=f"no shard {call.shard_id}")
                return ok(ShardIterator=self.iterator(call.shard_id))
            case "GetRecords":
                if call.shard_id is None:
                    return error("InvalidArgumentException", message="Invalid ShardIterator.")
                return page()
            case "PutRecord":
                return ok(self._put())
            case "PutRecords":
                put = [self._put() for _ in call.body["Records"]]
                return ok(FailedRecordCount=0, Records=put)
            case "CreateStream":
                return ok()
            case _:
                return error("UnknownOperationException", message=call.target)

    def _list_shards(self, body: Mapping[str, Any]) -> Answer:
        token = body.get("NextToken")
        if token is not None and "StreamName" in body:
            return error("InvalidArgumentException", message="NextToken and StreamName together")
        first = int(token.rpartition("-")[2]) if token else 0
        end = first + min(self.page_size, body.get("MaxResults", self.page_size))
        members: dict[str, Any] = {"Shards": [each.listed() for each in self.shards[first:end]]}
        if end < len(self.shards):
            members["NextToken"] = f"token-{end}"
        return ok(members)

    def _describe(self, name: str) -> Answer:
        summary = {
            "StreamName": name,
            "StreamARN": f"arn:aws:kinesis:us-east-1:000000000000:stream/{name}",
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": self.created,
            "EnhancedMonitoring": [],
            "OpenShardCount": len([s for s in self.shards if s.ending_sequence_number is None]),
        }
        return ok(StreamDescriptionSummary=summary)

    def _put(self) -> dict[str, str]:
        self._sequence += 1
        return {"ShardId": self.shards[0].shard_id, "SequenceNumber": str(self._sequence)}


class FaultProxy(FaultServer):
    """A real server whose answers a test can spoil.

    Works for any AWS JSON service, so also for DynamoDB on moto. Without a rule every request and
    answer passes unchanged.
    """

    def __init__(self, upstream_url: str) -> None:
        super().__init__()
        self.upstream_url = upstream_url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        try:
            await super().__aexit__(kind, exception, trace)
        finally:
            await self._session.close()

    async def default(self, call: Call) -> Answer:
        """Ask the real server."""
        assert self._session is not None
        async with self._session.post(
            self.upstream_url + call.path, data=call.raw, headers=_end_to_end(call.headers)
        ) as response:
            answer = Answer(response.status, await response.read(), _end_to_end(response.headers))
        self._learn(call, answer)
        return answer

    def _learn(self, call: Call, answer: Answer) -> None:
        """Remember which shard an iterator belongs to, for rules of one shard."""
        if call.target in {"GetShardIterator", "GetRecords"} and answer.status == 200:
            body = json.loads(answer.body)
            following = body.get("ShardIterator") or body.get("NextShardIterator")
            if following:
                self.iterator(call.shard_id, following)


def _nth(shard_id: str, place: int, count: int) -> Shard:
    """Return an open shard with its even part of the hash keys."""
    width = (LAST_HASH + 1) // count
    last = LAST_HASH if place == count - 1 else (place + 1) * width - 1
    return Shard(shard_id, first_hash=place * width, last_hash=last)


def _stream_of(body: Mapping[str, Any]) -> str:
    name: str = body.get("StreamName") or body.get("StreamARN", "").rpartition("/")[2]
    return name


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
