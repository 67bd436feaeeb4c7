"""The calls this package makes to Kinesis, as a protocol, and what their failures mean.

The readers, the coordinator and the publisher know only `Transport`. `aws.py` is the one that talks
to the service. Each call is one attempt: who asks decides whether to ask again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import AccessDenied, KinesisError, PageError, RequestError
from ruststream_kinesis.limits import DEFAULT_MAX_RECORD_BYTES
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.wording import fields_of

__all__ = [
    "Failure",
    "Link",
    "Parts",
    "PutEntry",
    "PutResult",
    "ShardInfo",
    "ShardListing",
    "StreamInfo",
    "Transport",
    "judge",
    "patiently",
    "record_limit",
]

logger = logging.getLogger("ruststream_kinesis")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What DescribeStreamSummary says of a stream."""

    name: str
    status: str
    """`CREATING`, `ACTIVE`, `UPDATING` or `DELETING`."""
    created: float | None
    """Creation time, seconds since the epoch."""
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    mode: str | None = None
    """`PROVISIONED` or `ON_DEMAND`; `None`, as the next two, where the service does not say."""
    open_shards: int | None = None
    retention_hours: int | None = None


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as ListShards names it."""

    shard_id: str
    parents: tuple[str, ...] = ()
    """None, one (split) or two (merge)."""
    starting_sequence_number: str | None = None
    """No record of the shard has a lower one."""
    hash_keys: tuple[str, str] | None = None
    """The first and the last hash key of its records, in decimal digits."""
    ended: bool = False
    """It takes no records any more: it was split or merged."""


@dataclass(frozen=True, slots=True)
class ShardListing:
    """All shards of a stream, and the service's own time when it listed them."""

    shards: tuple[ShardInfo, ...]
    service_time: float
    """Seconds since the epoch, from the response's `Date`; the local clock where there is none."""


class PutResult(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Where a published record stands; as it is answered, since one is made for every record."""

    shard_id: str
    sequence_number: str
    sub_sequence_number: int | None = None
    """Which record of its aggregate, from 0; `None` for one that came alone."""


class PutEntry(NamedTuple):
    """One record of a batch; a plain tuple, as the core takes it."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None
    """The hash key that stands in for the partition key's own, in decimal digits."""


Parts = tuple[StreamRef, PutEntry, int, str | None]
"""A checked record in plain tuples, which are quicker to make and soon forgotten by the collector of
garbage: its stream, its entry of a request, bytes of data and partition key, and the partition key
again where other records may have it."""


class Transport(Protocol):
    """One attempt at each call, with a deadline.

    Every method raises `RequestError` (or one of its kinds) when the service refuses or does not
    answer, and `NotConnected` after `close`.
    """

    async def describe_stream(self, stream: StreamRef) -> StreamInfo:
        """Raises `StreamNotFound` when there is none."""
        ...

    async def create_stream(self, stream: StreamRef, shards: int) -> None:
        """Asks for a new stream; one that exists already is no error."""
        ...

    async def list_shards(self, stream: StreamRef) -> ShardListing:
        """Every shard that the service still lists, closed ones included, all pages."""
        ...

    async def get_shard_iterator(
        self, stream: StreamRef, shard_id: str, position: KinesisPosition, *, after: bool = False
    ) -> str:
        """An iterator at `position`; with `after`, behind the record that a `sequence` names."""
        ...

    async def get_records(
        self, stream: StreamRef, shard_id: str, iterator: str, limit: int
    ) -> bytes:
        """The body of the response, unparsed."""
        ...

    async def put_record(
        self,
        stream: StreamRef,
        data: bytes,
        partition_key: str,
        *,
        explicit_hash_key: str | None = None,
    ) -> PutResult:
        """Puts one record; the answer means that it is durably in the stream.

        The shard is chosen by the explicit hash key where there is one, else by the hash of the
        partition key.
        """
        ...

    async def put_records(
        self, stream: StreamRef, entries: Sequence[PutEntry]
    ) -> list[PutResult | RequestError]:
        """Puts up to 500 records in one request; none at all make none.

        The service takes each by itself, so one that is refused says nothing of its neighbours, and
        those that were taken need not stand in the order of `entries`.

        Returns:
            One result for each entry, in their order. An entry that was refused has the error that
            its own put would have raised.

        Raises:
            RequestError: The request as a whole was refused or not answered.
        """
        ...

    async def close(self) -> None:
        """Closes every client; later calls raise `NotConnected`."""
        ...


class Link(Protocol):
    """What sending needs of a service's connection."""

    clock: Clock
    max_record_bytes: dict[StreamRef, int]
    """Record limit of the streams that were looked at."""

    @property
    def transport(self) -> Transport:
        """Raises `NotConnected` before the start and after the stop."""
        ...


async def record_limit(link: Link, stream: StreamRef) -> int:
    """The largest record that a stream takes, data and partition key together; asked for once."""
    limit = link.max_record_bytes.get(stream)
    if limit is None:
        info = await link.transport.describe_stream(stream)
        limit = link.max_record_bytes[stream] = info.max_record_bytes
    return limit


class Failure(Enum):
    """What to do about a failed request."""

    PASSING = "passing"
    """Ask again, later: nothing is wrong with the request."""
    ITERATOR = "iterator"
    """The iterator is of no use any more: make a new one at the same position."""
    TERMINAL = "terminal"
    """Asking again cannot help until somebody changes something."""


# By code, as the API reference and the common errors page name them; a message is never looked at.
_ITERATOR = frozenset({"ExpiredIteratorException", "InvalidArgumentException"})
_PASSING = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "KMSThrottlingException",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "SlowDown",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "InternalFailure",
        "InternalServerError",
        "InternalFailureException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "RequestTimeout",
        "RequestTimeoutException",
        "PriorRequestNotComplete",
        # The stream is being created, updated or deleted; if it goes, ResourceNotFound follows.
        "ResourceInUseException",
        # Credentials that ran out are refreshed by the client; a clock that is off is corrected.
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "RequestInTheFuture",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
    }
)
# No answer at all, an answer of the server's own making (5xx), or an answer cut off.
_SERVER_ERROR = 500
# … or one of the two that ask for another try: 408 (a balancer's), 429.
_TRY_AGAIN = frozenset({408, 429})
_START_RETRIES = 6


def judge(error: KinesisError) -> Failure:
    """Sorts a failure by its code and status."""
    if isinstance(error, PageError):
        return Failure.PASSING
    if not isinstance(error, RequestError) or isinstance(error, AccessDenied):
        return Failure.TERMINAL
    if error.code in _ITERATOR:
        return Failure.ITERATOR
    if (
        error.code in _PASSING
        or error.status is None
        or error.status >= _SERVER_ERROR
        or error.status in _TRY_AGAIN
    ):
        return Failure.PASSING
    return Failure.TERMINAL


async def patiently(call: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of `call`, asked for again while its failure is passing.

    For what a service needs at its start: it gives up after some tries (about ten seconds), since a
    service that cannot start must say so instead of waiting in silence.
    """
    backoff = Backoff(first=0.2, cap=5.0)
    while True:
        try:
            return await call()
        except RequestError as error:
            if judge(error) is not Failure.PASSING or backoff.failures >= _START_RETRIES:
                raise
            # Without it a wrong endpoint would look like a service that hangs.
            logger.warning("trying again: %s", error, extra=fields_of(error))
        await clock.sleep(backoff.next())
