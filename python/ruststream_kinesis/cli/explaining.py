"""A failure as the one line that ends a command: what happened, and what to do about it."""

from __future__ import annotations

from ruststream_kinesis.errors import (
    AccessDenied,
    KinesisError,
    LeaseTableDenied,
    LeaseTableError,
    LeaseTableUnreachable,
    RequestError,
    StreamNotFound,
)

__all__ = ["explained"]

# By code, never by the text. Credentials that were good once ...
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
# ... and those that nobody knows, or that do not fit their secret.
_UNKNOWN = frozenset(
    {
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_THROTTLED = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "Throttling",
        "ThrottlingException",
    }
)


def explained(error: BaseException) -> str:
    """The line; advice is added where the error does not give its own."""
    if not isinstance(error, KinesisError):
        return f"{type(error).__name__}: {error} (--debug shows where)"
    advice = _advice(error)
    return str(error) if advice is None else f"{str(error).rstrip('.')}. {advice}"


def _advice(error: KinesisError) -> str | None:
    if not isinstance(error, RequestError | LeaseTableError):
        return None
    if error.code in _EXPIRED:
        return "The credentials have expired: log in again, or get new ones"
    if error.code in _THROTTLED:
        return "Others use the same quota: try again in a minute"
    match error:
        case StreamNotFound() | LeaseTableDenied():
            return None  # says it by itself
        case _ if error.code in _UNKNOWN:
            return "The credentials are wrong: look at --profile and the AWS_… variables"
        case AccessDenied():
            return "Ask for the permission that it names, or use another --profile"
        case _ if error.status is None and error.code != "MalformedAnswer":
            # No answer at all: a made-up host name, a port where nobody listens, no way out.
            option = "--endpoint-url"
            if isinstance(error, LeaseTableUnreachable):
                option = "--table-endpoint-url"
            return f"Is the endpoint reachable from here? {option} and --region say where it is"
    return None
