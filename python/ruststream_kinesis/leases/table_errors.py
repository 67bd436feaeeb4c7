"""What aiobotocore raises for a lease table, as our errors: by type and by code, never by the text.

aiobotocore is imported late, for the reason that `clients.py` gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ruststream_kinesis.errors import (
    ConfigurationError,
    KinesisError,
    LeaseTableDenied,
    LeaseTableError,
    LeaseTableNotFound,
    LeaseTableUnreachable,
)
from ruststream_kinesis.leases.rows import KEY

__all__ = ["how_to_create", "translated", "unreadable"]

# What the client's own parser raises at JSON of another shape than it expects (a proxy's answer).
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError)
# Enough of a foreign page or message to recognise it by.
_QUOTED = 300
_SERVER_ERROR = 500
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "KMSAccessDeniedException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "UnrecognizedClientException",
    }
)
# Refused before anything was written; it passes.
_PASSING = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestExpired",
        "RequestLimitExceeded",
        "RequestTimeTooSkewed",
        "ReplicatedWriteConflictException",
        "SignatureDoesNotMatch",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionConflictException",
    }
)
# It may have been written all the same.
_UNCERTAIN = frozenset(
    {"InternalFailure", "InternalServerError", "RequestTimeout", "ServiceUnavailable"}
)


def how_to_create(table: str) -> str:
    """How a lease table is made, for messages."""
    name = table.rpartition("/")[2]
    return (
        f"a lease table has one key, the string {KEY!r} (HASH), and no other. Pass create=True, or: "
        f"aws dynamodb create-table --table-name {name} "
        f"--attribute-definitions AttributeName={KEY},AttributeType=S "
        f"--key-schema AttributeName={KEY},KeyType=HASH --billing-mode PAY_PER_REQUEST"
    )


def unreadable(table: str, operation: str, member: str) -> LeaseTableUnreachable:
    """An answer without a member that the service always sends: it is somebody else's."""
    return LeaseTableUnreachable(
        f"lease table {table!r}: cannot {_words(operation)}: the answer has no {member}, so it does "
        "not come from the service",
        table=table,
        code="MalformedAnswer",
        uncertain=True,
    )


@contextlib.asynccontextmanager
async def translated(table: str, operation: str, deadline: float) -> AsyncIterator[None]:
    """Turns what aiobotocore raises in the block into our errors; a failed condition passes.

    Args:
        table: The table's name.
        operation: The client's method, for the message.
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

    cannot = f"lease table {table!r}: cannot {_words(operation)}"
    try:
        yield
    except KinesisError:
        raise  # ours already; some are ValueErrors too
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            raise
        raise _refused(error, table, cannot) from error
    except (NoCredentialsError, NoRegionError) as error:
        raise ConfigurationError(f"{cannot}: {error}") from error
    except TimeoutError as error:
        raise LeaseTableUnreachable(
            f"{cannot}: no whole answer within {deadline:g} s",
            table=table,
            code="Timeout",
            uncertain=True,
        ) from error
    except (BotoCoreError, aiohttp.ClientError, OSError, *_UNREADABLE) as error:
        raise LeaseTableUnreachable(
            f"{cannot}: {type(error).__name__}: {_one_line(str(error))}",
            table=table,
            code=type(error).__name__,
            uncertain=True,
        ) from error


def _refused(error: Any, table: str, cannot: str) -> LeaseTableError:
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(answer.get("Error", {}).get("Code") or "")
    # Where a body names no code, botocore puts the status in its place.
    if not code or code.isdigit():
        code = f"HTTP{status}"
    said = _one_line(answer.get("Error", {}).get("Message") or "no message")
    kind: type[LeaseTableError] = LeaseTableError
    message, uncertain = f"{cannot}: {code}: {said}", False
    if code == "ResourceNotFoundException":
        kind = LeaseTableNotFound
        message = (
            f"lease table {table!r} does not exist in this account and region ({said}): "
            + how_to_create(table)
        )
    elif code in _DENIED:
        kind = LeaseTableDenied
        message += (
            ". A service needs dynamodb:DescribeTable, GetItem, PutItem, UpdateItem, DeleteItem and "
            "Scan on it (CreateTable with create=True)"
        )
    elif code in _PASSING:
        kind = LeaseTableUnreachable
    elif code in _UNCERTAIN or (isinstance(status, int) and status >= _SERVER_ERROR):
        kind, uncertain = LeaseTableUnreachable, True
    return kind(message, table=table, code=code, status=status, uncertain=uncertain)


def _words(operation: str) -> str:
    return operation.replace("_", " ")


def _one_line(said: str) -> str:
    """Somebody else's text for a message of ours: a proxy answers with a whole page."""
    line = " ".join(said.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"
