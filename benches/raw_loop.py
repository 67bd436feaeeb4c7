"""What a user would write without this package, and what no service can go below.

Three loops over the same canned pages, each with a typed msgspec decode of every payload and an
awaited handler:

- `stock`: aiobotocore's `get_records` as documented. The base of the ratios.
- `hook`: the same loop with the response taken before botocore parses it, in pure Python. No
  envelope, watermark, dispatch or settlement: how far a careful user gets alone.
- `floor`: an unsigned POST over the same HTTP client, then only the payload decode, of payloads
  that somebody else had already cut out of the page.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from benches.pages import Order, page_payloads
from benches.tally import Plan, Tally

if TYPE_CHECKING:
    from benches.canned import Server
    from benches.cpu import Sample

REGION = "us-east-1"
STREAM = "orders"
LIMIT = 1_000

Handler = Callable[[Order], Awaitable[None]]


class _Record(msgspec.Struct):
    Data: bytes


class _Response(msgspec.Struct):
    Records: list[_Record]
    NextShardIterator: str | None = None
    MillisBehindLatest: int = 0


def kinesis_client(url: str) -> Any:
    """A client context as a user would open it. Retries are off so that a failure shows."""
    return get_session().create_client(
        "kinesis",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=AioConfig(retries={"max_attempts": 0}),
    )


async def _first_iterator(client: Any) -> str:
    shards = await client.list_shards(StreamName=STREAM)
    answer = await client.get_shard_iterator(
        StreamName=STREAM,
        ShardId=shards["Shards"][0]["ShardId"],
        ShardIteratorType="TRIM_HORIZON",
    )
    return str(answer["ShardIterator"])


async def stock(url: str, handle: Handler) -> None:
    """The documented loop, until the stream is read up."""
    decode = msgspec.json.Decoder(Order).decode
    async with kinesis_client(url) as client:
        iterator = await _first_iterator(client)
        behind = True
        while behind:
            page = await client.get_records(ShardIterator=iterator, Limit=LIMIT)
            for record in page["Records"]:
                await handle(decode(record["Data"]))
            iterator = page["NextShardIterator"]
            behind = page["MillisBehindLatest"] > 0


async def hook(url: str, handle: Handler) -> None:
    """The loop with the response taken before botocore parses it."""
    decode = msgspec.json.Decoder(Order).decode
    decode_page = msgspec.json.Decoder(_Response).decode

    def take(
        response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
    ) -> None:
        if response_dict["status_code"] < 300:
            customized_response_dict["Page"] = decode_page(response_dict["body"])
            response_dict["body"] = b""

    async with kinesis_client(url) as client:
        client.meta.events.register("before-parse.kinesis.GetRecords", take)
        iterator = await _first_iterator(client)
        behind = True
        while behind:
            answer = await client.get_records(ShardIterator=iterator, Limit=LIMIT)
            page: _Response = answer["Page"]
            for record in page.Records:
                await handle(decode(record.Data))
            iterator = page.NextShardIterator or ""
            behind = page.MillisBehindLatest > 0


async def floor(url: str, handle: Handler, payloads: list[list[bytes]]) -> None:
    """Fetch each page, decode payloads that were cut out before."""
    decode = msgspec.json.Decoder(Order).decode
    async with kinesis_client(url) as client:
        iterator = await _first_iterator(client)
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "Kinesis_20131202.GetRecords",
    }
    state, _, padding = iterator.partition(".")
    shard = state.partition(":")[0]
    async with aiohttp.ClientSession() as session:
        for number, page in enumerate(payloads):
            request = {"ShardIterator": f"{shard}:{number:08d}.{padding}", "Limit": LIMIT}
            async with session.post(url, data=json.dumps(request), headers=headers) as response:
                body = await response.read()
            if response.status != 200 or len(body) < 100 * len(page):
                raise RuntimeError(f"not a full page: {response.status}, {len(body)} bytes")
            for payload in page:
                await handle(decode(payload))


def run_stock(server: Server, plan: Plan) -> Sample:
    """One checked run of the documented loop."""
    return _run(plan, lambda handle: stock(server.url, handle))


def run_hook(server: Server, plan: Plan) -> Sample:
    """One checked run of the loop with the `before-parse` hook."""
    return _run(plan, lambda handle: hook(server.url, handle))


def run_floor(server: Server, plan: Plan) -> Sample:
    """One checked run of fetch and decode alone."""
    payloads = [page_payloads(plan.spec, page) for page in range(plan.spec.pages)]
    return _run(plan, lambda handle: floor(server.url, handle, payloads))


def _run(plan: Plan, loop: Callable[[Handler], Awaitable[None]]) -> Sample:
    async def main() -> Sample:
        tally = Tally(plan)
        await loop(tally.handler())
        return tally.checked()

    return plan.run(main())
