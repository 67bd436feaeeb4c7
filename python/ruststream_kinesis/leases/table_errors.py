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

__all__ = ["FAILED_CONDITION", "how_to_create", "translated", "unreadable"]

FAILED_CONDITION = "ConditionalCheckFailedException"
"""The code of a write whose condition was not met: an answer, not an error."""
# Enough of a foreign page or message to recognise it by.
_QUOTED = 300
_SERVER_ERROR = 500
# Whoever it is, it is nobody whom the service knows.
_UNKNOWN = frozenset(
    {
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_DENIED = _UNKNOWN | frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "KMSAccessDeniedException",
        "NotAuthorized",
        "OptInRequired",
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
        f"a lease table has one key, the string {KEY!r} (HASH), and no other. "
        "Start the service with create=True, or: "
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
    try:
        yield
    except KinesisError:
        raise  # ours already; some are ValueErrors too
    except Exception as error:
        ours = _ours(error, table, f"lease table {table!r}: cannot {_words(operation)}", deadline)
        if ours is None:
            raise
        raise ours from error


def _ours(error: Exception, table: str, cannot: str, deadline: float) -> KinesisError | None:
    # Imported by then, since they are raised; before that they would cost half a second.
    import aiohttp  # noqa: PLC0415 - as said
    from botocore.exceptions import (  # noqa: PLC0415 - as said
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
    )

    match error:
        case ClientError():
            code = error.response.get("Error", {}).get("Code")
            return None if code == FAILED_CONDITION else _refused(error, table, cannot)
        case NoCredentialsError() | NoRegionError():
            return ConfigurationError(f"{cannot}: {error}")
        case TimeoutError():
            code, said = "Timeout", f"no whole answer within {deadline:.2g} s"
        # A client that another application closed at this moment raises a RuntimeError.
        case BotoCoreError() | aiohttp.ClientError() | OSError() | RuntimeError():
            code = type(error).__name__
            said = f"{code}: {_one_line(str(error))}"
        case ValueError() | TypeError() | AttributeError() | LookupError():
            # What the client's own parser raises at JSON of another shape than it expects.
            code = type(error).__name__
            said = f"unreadable answer: {code}: {_one_line(str(error))}"
        case _:
            return None
    return LeaseTableUnreachable(f"{cannot}: {said}", table=table, code=code, uncertain=True)


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
        message = message.rstrip(".") + (
            ". The credentials are wrong, not their rights: look at where the service has them from"
            if code in _UNKNOWN
            else ". A service needs dynamodb:DescribeTable, GetItem, PutItem, UpdateItem, DeleteItem and "
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
