"""A client of aiobotocore for Kinesis: its pool, its time-outs, and its shares.

It stands apart from the calls (`aws.py`) because every transport has its clients from here. That
there is one for each event loop, with region and credentials, is in `clients.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

__all__ = ["BODY", "DEFAULTS", "ERROR_STATUS", "Client"]

# From here on an answer is a refusal, as botocore sees it.
ERROR_STATUS = 300
# Under this name the hook below hands the unparsed body through botocore's parsed response.
BODY = "ruststream_body"
# botocore pools ten connections; a service with hundreds of shards would queue behind them.
_POOL_SIZE = 128
# A host that answers at all takes a connection within seconds; botocore would wait a minute.
_CONNECT_TIMEOUT = 5.0
# One connection in so many is kept for everything that is no GetRecords.
_POOL_SHARE = 4
DEFAULTS: dict[str, Any] = {
    "connect_timeout": _CONNECT_TIMEOUT,
    "max_pool_connections": _POOL_SIZE,
    "tcp_keepalive": True,
    # Our request checks are stricter and cheaper than the client's model walk.
    "parameter_validation": False,
}
"""What a client is set to, where the user's configuration says nothing else."""


@dataclass(frozen=True, slots=True)
class Client:
    """One loop's client."""

    kinesis: Any
    reads: asyncio.Semaphore
    """Turns for GetRecords, a part of the pool."""
    puts: asyncio.Semaphore
    """Turns for PutRecord and PutRecords: half of the pool. A put that waits for its turn is not late
    yet; one that waited for a connection with its deadline running would be given up, and sent
    again, though the first may have been taken."""

    @classmethod
    def over(cls, kinesis: Any) -> Client:
        """What a new client of aiobotocore is used through."""
        kinesis.meta.events.register("before-parse.kinesis.GetRecords", _take_body)
        pool = max(1, kinesis.meta.config.max_pool_connections)
        reads = asyncio.Semaphore(max(1, pool - pool // _POOL_SHARE))
        return cls(kinesis, reads, asyncio.Semaphore(max(1, pool // 2)))


def _take_body(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Keeps botocore's parser away from a page of records: it costs 23 µs a record."""
    if response_dict["status_code"] < ERROR_STATUS:
        customized_response_dict[BODY] = response_dict["body"]
        response_dict["body"] = b""
