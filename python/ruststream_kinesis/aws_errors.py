"""What aiobotocore raises, as our errors: by type and by code, never by the text.

aiobotocore is imported late, for the reason that `aws.py` gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ruststream_kinesis.errors import (
    AccessDenied,
    ConfigurationError,
    KinesisError,
    RequestError,
    StreamNotFound,
)
from ruststream_kinesis.stream import StreamRef

__all__ = ["member", "translated"]

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


@contextlib.asynccontextmanager
async def translated(
    operation: str, stream: StreamRef, shard_id: str | None, deadline: float
) -> AsyncIterator[None]:
    """Turns what aiobotocore raises in the block into our errors.

    Args:
        operation: The client's method, for the message.
        stream: Which stream it is about.
        shard_id: Which shard, where it is about one.
        deadline: Seconds that the block has, for the message.
    """
    # Imported by then; here they cost a dictionary look-up.
    import aiohttp  # noqa: PLC0415 - see the module's header
    from botocore.exceptions import (  # noqa: PLC0415 - see the module's header
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
    )

    name = operation.replace("_", " ")
    try:
        yield
    except KinesisError:
        raise  # ours already; some are ValueErrors too
    except ClientError as error:
        raise _refused(error, name, stream, shard_id) from error
    except (NoCredentialsError, NoRegionError) as error:
        raise ConfigurationError(
            f"cannot {name}: {error}", stream=stream.name, shard_id=shard_id
        ) from error
    except TimeoutError as error:
        raise RequestError(
            f"cannot {name}: no whole answer within {deadline:g} s",
            code="Timeout",
            stream=stream.name,
            shard_id=shard_id,
        ) from error
    except (BotoCoreError, aiohttp.ClientError, OSError, *_UNREADABLE) as error:
        raise RequestError(
            f"cannot {name}: {type(error).__name__}: {_one_line(str(error))}",
            code=type(error).__name__,
            stream=stream.name,
            shard_id=shard_id,
        ) from error


def member(answer: Any, name: str, stream: StreamRef, shard_id: str | None = None) -> Any:
    """A member that the service always sends; without it the answer is somebody else's.

    botocore reads a body that is no JSON (a proxy's page with status 200) as an empty answer.
    """
    value = answer.get(name)
    if value is None or value == "":
        raise RequestError(
            f"the answer has no {name}: it does not come from the service",
            code="MalformedAnswer",
            stream=stream.name,
            shard_id=shard_id,
        )
    return value


def _refused(error: Any, name: str, stream: StreamRef, shard_id: str | None) -> RequestError:
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(answer.get("Error", {}).get("Code") or "")
    # Where a body names no code, botocore puts the status in its place.
    if not code or code.isdigit():
        code = f"HTTP{status}"
    said = _one_line(answer.get("Error", {}).get("Message") or "no message")
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
    return kind(message, code=code, status=status, stream=stream.name, shard_id=shard_id)


def _one_line(said: str) -> str:
    """Somebody else's text for a message of ours: a proxy answers with a whole page."""
    line = " ".join(said.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"
