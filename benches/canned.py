"""A canned Kinesis endpoint in its own process: it sends bytes that were rendered before.

Its own process, because the benchmarks measure the CPU of the whole client process. A raw
`asyncio.Protocol`, because a web framework would make the client wait for the server on a machine
with two cores. The next page of a shard is stamped right after the last one was sent, so an answer
is written in the callback that received the request.

Every iterator opens at the first page, `LATEST` too: in a benchmark all records are published
"after" the subscription opened. An iterator's text carries its state (shard and page), so the
server keeps none and any number of clients can read the same stream from its start.

Run it by itself with `python -m benches.canned --port 4567`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from benches.pages import PageTemplate, Spec, tail

if TYPE_CHECKING:
    from collections.abc import Iterator

# Real iterators are some 220 characters; the client sends each one back, so length counts.
_ITERATOR_PADDING = "." + "A" * 210

# How far behind the tip a full page says it is: anything above zero means "read on at once".
_LAG_MS = 60_000

# The service's request ids are UUIDs; one that never changes is as long and costs nothing.
_REQUEST_ID = b"00000000-0000-4000-8000-000000000000"

_ACCOUNT = "000000000000"
_BAD_REQUEST = b"400 Bad Request"

# Where `python -m benches…` finds this package.
ROOT = Path(__file__).resolve().parent.parent


class _Request(msgspec.Struct):
    """The few members of all requests that this server looks at."""

    StreamName: str | None = None
    StreamARN: str | None = None
    ShardId: str | None = None
    ShardIterator: str | None = None
    ShardIteratorType: str | None = None
    StartingSequenceNumber: str | None = None
    Limit: int = 10_000
    Records: list[msgspec.Raw] = []

    @property
    def stream(self) -> str:
        """The stream's plain name."""
        return self.StreamName or (self.StreamARN or "").rpartition("/")[2] or "orders"


class RefusedError(Exception):
    """A request that the service would refuse, or that this server cannot answer honestly.

    Args:
        message: Why.
        code: The service's error code.
        more: Further members of the answer.
    """

    def __init__(
        self, message: str, *, code: str = "InvalidArgumentException", **more: object
    ) -> None:
        super().__init__(message)
        self.body = {"__type": code, "message": message, **more}


class Answering(Protocol):
    """What answers, without the transport."""

    calls: Counter[str]

    def answer(self, operation: str, body: bytes) -> list[bytes]:
        """The parts of the response body.

        Raises:
            RefusedError: The request is refused.
        """
        ...


def shard_id(shard: int) -> str:
    """The id of the n-th shard, as the service spells it."""
    return f"shardId-{shard:012d}"


def _iterator(shard: int, page: int) -> str:
    return f"{shard:05d}:{page:08d}{_ITERATOR_PADDING}"


class Canned:
    """The answers, without the transport."""

    def __init__(self, spec: Spec, *, any_limit: bool = False) -> None:
        self.spec = spec
        self.calls: Counter[str] = Counter()
        self._any_limit = any_limit
        self._template = PageTemplate(spec)
        # One page ahead for each shard: (page, body).
        self._ahead: dict[int, tuple[int, bytes]] = {}
        self._put = 0
        self._decode = msgspec.json.Decoder(_Request).decode

    def answer(self, operation: str, body: bytes) -> list[bytes]:
        """The parts of the response body; `GetRecords` pages are not joined."""
        self.calls[operation] += 1
        request = self._decode(body)
        if operation == "GetRecords":
            return self._get_records(request)
        method = getattr(self, f"_on_{operation}", None)
        if method is None:
            raise RefusedError(f"the canned server does not know {operation}")
        return [json.dumps(method(request), separators=(",", ":")).encode()]

    def prepare(self, shard: int, page: int) -> None:
        """Stamp a page before it is asked for."""
        if page < self.spec.pages and self._ahead.get(shard, (-1, b""))[0] != page:
            self._ahead[shard] = (page, self._template.stamp(shard, page))

    def _get_records(self, request: _Request) -> list[bytes]:
        text = request.ShardIterator or ""
        try:
            shard, page = int(text[:5]), int(text[6:14])
        except ValueError:
            raise RefusedError(f"invalid ShardIterator {text!r}") from None
        if page >= self.spec.pages:
            return [b'{"Records":[]', tail(_iterator(shard, page), 0)]
        if request.Limit < self.spec.records and not self._any_limit:
            # Half pages would need state; sending more than was asked for would flatter nobody.
            raise RefusedError(f"Limit {request.Limit} is below the canned page")
        self.prepare(shard, page)
        body = self._ahead[shard][1]
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(self.prepare, shard, page + 1)
        return [body, tail(_iterator(shard, page + 1), _LAG_MS)]

    def _on_GetShardIterator(self, request: _Request) -> dict[str, object]:  # noqa: N802 (wire name)
        shard = int((request.ShardId or "").rpartition("-")[2])
        page = 0
        kind = request.ShardIteratorType or ""
        if kind.endswith("_SEQUENCE_NUMBER"):
            number = request.StartingSequenceNumber or ""
            found = int(number[34:42]) - shard * self.spec.pages
            place = int(number[42:46])
            after = kind.startswith("AFTER") and place == self.spec.records - 1
            if not after and place:
                raise RefusedError("the canned server opens between pages only")
            page = found + after
        return {"ShardIterator": _iterator(shard, page)}

    def _on_ListShards(self, _: _Request) -> dict[str, object]:  # noqa: N802 (wire name)
        width = 2**128 // self.spec.shards
        return {
            "Shards": [
                {
                    "ShardId": shard_id(shard),
                    "HashKeyRange": {
                        "StartingHashKey": str(shard * width),
                        "EndingHashKey": str((shard + 1) * width - 1),
                    },
                    "SequenceNumberRange": {
                        "StartingSequenceNumber": self.spec.sequence_number(shard, 0, 0)
                    },
                }
                for shard in range(self.spec.shards)
            ]
        }

    def _on_DescribeStreamSummary(self, request: _Request) -> dict[str, object]:  # noqa: N802 (wire name)
        return {
            "StreamDescriptionSummary": {
                "StreamName": request.stream,
                "StreamARN": f"arn:aws:kinesis:us-east-1:{_ACCOUNT}:stream/{request.stream}",
                "StreamStatus": "ACTIVE",
                "StreamModeDetails": {"StreamMode": "PROVISIONED"},
                "RetentionPeriodHours": 24,
                "StreamCreationTimestamp": 1_735_600_000.0,
                "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
                "EncryptionType": "NONE",
                "OpenShardCount": self.spec.shards,
                "ConsumerCount": 0,
                "MaxRecordSizeInKiB": 1024,
            }
        }

    def _on_PutRecord(self, _: _Request) -> dict[str, object]:  # noqa: N802 (wire name)
        return self._stored()

    def _on_PutRecords(self, request: _Request) -> dict[str, object]:  # noqa: N802 (wire name)
        stored = [self._stored() for _ in request.Records]
        return {"FailedRecordCount": 0, "Records": stored}

    def _stored(self) -> dict[str, object]:
        self._put += 1
        return {"ShardId": shard_id(0), "SequenceNumber": f"4967{self._put:052d}"}


class Connection(asyncio.Protocol):
    """HTTP/1.1, kept alive, bodies with a Content-Length: what an AWS client sends."""

    def __init__(self, canned: Answering) -> None:
        self._canned = canned
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            headers = dict(_header(line) for line in head.split(b"\r\n")[1:])
            length = int(headers.get(b"content-length", b"0"))
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._respond(head, headers, body)

    def _respond(self, head: bytes, headers: dict[bytes, bytes], body: bytes) -> None:
        status = b"200 OK"
        if head.startswith(b"GET /calls"):
            parts = [json.dumps(self._canned.calls).encode()]
        else:
            operation = headers.get(b"x-amz-target", b"").rpartition(b".")[2].decode()
            try:
                parts = self._canned.answer(operation, body or b"{}")
            except RefusedError as refused:
                status, parts = _BAD_REQUEST, [json.dumps(refused.body).encode()]
            except (ValueError, msgspec.MsgspecError) as error:
                status = _BAD_REQUEST
                parts = [json.dumps(RefusedError(str(error)).body).encode()]
        size = sum(map(len, parts))
        self._transport.writelines(
            [
                b"HTTP/1.1 %b\r\nx-amzn-RequestId: %b\r\nDate: %b\r\n"
                b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
                % (status, _REQUEST_ID, formatdate(time.time(), usegmt=True).encode(), size),
                *parts,
            ]
        )


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


@dataclass(frozen=True)
class Server:
    """A running canned server."""

    url: str
    spec: Spec


@contextlib.contextmanager
def serving(spec: Spec, *, any_limit: bool = False) -> Iterator[Server]:
    """Start a canned server in its own process; it is gone when the block ends.

    Args:
        spec: What the stream holds.
        any_limit: Send whole pages although the client asked for fewer records. Only for the
            full page, whose 10,000 records are above what a plain subscription asks for.
    """
    command = ["benches.canned", "--port", "0", "--until-stdin-ends"]
    for name, value in asdict(spec).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    if any_limit:
        command.append("--any-limit")
    with spawned(*command) as url:
        yield Server(url=url, spec=spec)


@contextlib.contextmanager
def spawned(module: str, *arguments: str) -> Iterator[str]:
    """Run a server module in its own process; yields its URL.

    It ends when its standard input does, so it does not outlive a killed benchmark.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{module} did not start")
            yield str(json.loads(line)["url"])
        finally:
            process.stdin.close()
            process.wait(timeout=10)


async def _serve(options: argparse.Namespace) -> None:
    names = ("records", "record_bytes", "pages", "shards")
    spec = Spec(**{name: getattr(options, name) for name in names})
    canned = Canned(spec, any_limit=options.any_limit)
    for shard in range(min(spec.shards, 8)):
        canned.prepare(shard, 0)
    await serve(canned, options.host, options.port, until_stdin_ends=options.until_stdin_ends)


async def serve(answering: Answering, host: str, port: int, *, until_stdin_ends: bool) -> None:
    """Listen, say where on standard output, and answer for ever."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answering), host, port)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    print(json.dumps({"url": f"http://{bound_host}:{bound_port}"}), flush=True)
    if until_stdin_ends:
        threading.Thread(target=_exit_with_stdin, daemon=True).start()
    await server.serve_forever()


def calls(url: str) -> Counter[str]:
    """How often each operation was asked for so far; for a thread, not for an event loop."""
    with contextlib.closing(urllib.request.urlopen(f"{url}/calls")) as answer:
        return Counter(json.load(answer))


def _exit_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve until interrupted."""
    default = Spec()
    parser = argparse.ArgumentParser(prog="python -m benches.canned", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4567)
    parser.add_argument("--records", type=int, default=default.records, help="a page")
    parser.add_argument("--record-bytes", type=int, default=default.record_bytes)
    parser.add_argument("--pages", type=int, default=default.pages, help="a shard")
    parser.add_argument("--shards", type=int, default=default.shards)
    parser.add_argument("--any-limit", action="store_true", help="ignore a smaller Limit")
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
