"""What aiobotocore raises, as our errors: by type and by code, never by the text.

aiobotocore is imported late, for the reason that `aws.py` gives.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    KinesisError,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.stream import StreamRef

__all__ = ["member", "reason", "refused", "translated"]

# What the client's own parser raises at JSON of another shape than it expects (a proxy's answer).
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError)
# Enough of a foreign page or message to recognise it by.
_QUOTED = 300
_ACCESS_CODES = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "UnrecognizedClientException",
    }
)


class translated:  # noqa: N801 - reads as what it does, like the standard library's own
    """Turns what aiobotocore raises in a `with` block into our errors.

    A class and no generator: it stands around every call, and costs a tenth.

    Args:
        operation: The client's method, for the message.
        stream: Which stream it is about, where it is about one.
        shard_id: Which shard, where it is about one.
        deadline: Seconds that the block has, for the message.
    """

    __slots__ = ("_deadline", "_operation", "_shard_id", "_stream")

    def __init__(
        self, operation: str, stream: StreamRef | None, shard_id: str | None, deadline: float
    ) -> None:
        self._operation = operation
        self._stream = stream
        self._shard_id = shard_id
        self._deadline = deadline

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Ours already; some are ValueErrors too.
        if error is None or isinstance(error, KinesisError):
            return
        ours = self._ours(error)
        if ours is not None:
            raise ours from error

    def _ours(self, error: BaseException) -> KinesisError | None:
        # Imported by then; here they cost a dictionary look-up.
        import aiohttp  # noqa: PLC0415 - see the module's header
        from botocore.exceptions import (  # noqa: PLC0415 - see the module's header
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            NoRegionError,
        )

        shard_id = self._shard_id
        stream = None if self._stream is None else self._stream.name
        name = self._operation.replace("_", " ")
        if isinstance(error, ClientError):
            said = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return refused(
                self._operation,
                self._stream,
                shard_id,
                status,
                said.get("Code"),
                said.get("Message"),
            )
        if isinstance(error, NoCredentialsError | NoRegionError):
            return ConfigurationError(f"cannot {name}: {error}", stream=stream, shard_id=shard_id)
        # The client's own time-outs are no end of ours.
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError):
            return RequestError(
                f"cannot {name}: no whole answer within {self._deadline:g} s",
                code="Timeout",
                stream=stream,
                shard_id=shard_id,
            )
        if isinstance(error, (BotoCoreError, aiohttp.ClientError, OSError, *_UNREADABLE)):
            return RequestError(
                f"cannot {name}: {type(error).__name__}: {_one_line(str(error))}",
                code=type(error).__name__,
                stream=stream,
                shard_id=shard_id,
            )
        return None


def refused(
    operation: str,
    stream: StreamRef | None,
    shard_id: str | None,
    status: int | None,
    code: Any,
    said: Any,
) -> RequestError:
    """The error for an answer that is a refusal, whichever way it came.

    Args:
        operation: The client's method, for the message.
        stream: Which stream it is about, where it is about one.
        shard_id: Which shard, where it is about one.
        status: HTTP status.
        code: The service's code, where the answer has one.
        said: Its message, where it has one.
    """
    name = operation.replace("_", " ")
    code = str(code or "")
    # Where a body names no code, botocore puts the status in its place.
    if not code or code.isdigit():
        code = f"HTTP{status}"
    said = _one_line(str(said or "no message"))
    kind: type[RequestError] = RequestError
    message = f"cannot {name}: {code}: {said}"
    if code == "ResourceNotFoundException" and shard_id is None:
        kind = StreamNotFound
        message = (
            f"stream {stream} does not exist in this account and region ({said}); create it, or, "
            "where it is subscribed to, pass KinesisStream(..., create_if_missing=SHARDS)"
        )
    elif code in _ACCESS_CODES:
        kind = AccessDenied
    place = None if stream is None else stream.name
    return kind(message, code=code, status=status, stream=place, shard_id=shard_id)


def reason(headers: Mapping[str, str], body: bytes) -> tuple[str | None, str]:
    """Code and message of a refusal: what botocore's parser for JSON services finds in it.

    Args:
        headers: Of the answer, in any case.
        body: The service's JSON, or a foreign page.
    """
    said: Any = None
    with contextlib.suppress(ValueError):
        said = json.loads(body)
    if not isinstance(said, dict):
        return None, body[: 4 * _QUOTED].decode(errors="replace")
    code = said.get("__type") or headers.get("x-amzn-errortype")
    if code is not None:
        # "namespace#Code", "Code:where to read about it".
        code = str(code).partition(":")[0].rpartition("#")[2]
    return code, str(said.get("message") or said.get("Message") or "")


def member(answer: Any, name: str, stream: StreamRef | None, shard_id: str | None = None) -> Any:
    """A member that the service always sends; without it the answer is somebody else's.

    botocore reads a body that is no JSON (a proxy's page with status 200) as an empty answer.
    """
    value = answer.get(name)
    if value is None or value == "":
        raise RequestError(
            f"the answer has no {name}: it does not come from the service",
            code="MalformedAnswer",
            stream=None if stream is None else stream.name,
            shard_id=shard_id,
        )
    return value


def _one_line(said: str) -> str:
    """Somebody else's text for a message of ours: a proxy answers with a whole page."""
    line = " ".join(said.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"
