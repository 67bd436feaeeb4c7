"""The native core: the work that is done once per record.

A page of records is decoded in one call, takes its places in a watermark in one call, and gives its
payloads to the handlers a run at a time. Everything here is synchronous, does no I/O, and may be
used from any thread: objects are immutable or lock inside. Times and durations are seconds,
except where a name of the service says `millis`.

Indices count the records of a page from 0. A negative index, or one beyond the page, is an
`IndexError`: a run that is off by one should be loud, not shorter. An argument of the wrong type
is a `TypeError`.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import Context
from types import GenericAlias
from typing import Any, Generic, Self, TypeVar, final

from typing_extensions import Buffer, disjoint_base

from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Parts, PutEntry, PutResult

__all__ = [
    "MAX_PARTITION_KEY_LENGTH",
    "Aggregator",
    "Batcher",
    "Chunks",
    "HashRanges",
    "Intake",
    "Maker",
    "Page",
    "Pending",
    "Signer",
    "SpreadKeys",
    "Watermark",
    "Way",
    "aggregate_fitting",
    "check_partition_key",
    "decode_aggregate",
    "decode_envelope",
    "decode_put_records",
    "encode_aggregate",
    "encode_envelope",
    "encode_get_records",
    "encode_put_record",
    "encode_put_records",
    "entries_of",
    "hash_key",
    "parse_head",
    "rewrite_envelope",
    "settle",
]

_Run = TypeVar("_Run")

@final
class Page:
    """The records of one `GetRecords` response, decoded.

    Built once by `parse` and immutable. The blobs of all records share one allocation that lives
    as long as the page, so keep a payload (a copy) rather than the page where one record is to
    outlive its neighbours. A page may be weakly referenced.

    What an aggregate of the Kinesis Producer Library holds becomes records of the page, next to each
    other and with the sequence number of the whole, so that a page may be longer than what was asked
    for. A blob is an aggregate when it starts with `F3 89 9A C2`, ends with the MD5 of what stands
    between, and that is a complete message: each record in it has data, and a key that is in the
    table. Any other blob is one record with the blob as its payload. What a record of an aggregate
    holds is looked at for an envelope, not for another aggregate.

    Memory is proportional to the body, whatever an aggregate claims: a key that many of its records
    share is kept once, and a record of it takes at least six bytes there and about 50 here.
    """

    @staticmethod
    def parse(body: bytes) -> Page:
        """Decode the body of a `GetRecords` response.

        The GIL is released while it works (0.4 ms for 1,000 records of 512 bytes), so a large
        page can be decoded in a thread beside the event loop.

        Strict where a record would be lost or misread, lenient about everything that says nothing
        about one: an odd time, an odd lag, and fields that are not known do not fail a page.
        Nothing of `body` is kept.

        Args:
            body: The whole body, JSON as the service sends it.

        Raises:
            PageError: `body` is not a complete response: cut off, not JSON (a proxy's error page),
                an error document of the service, without `Records`, or with a value of the
                wrong type. A record without `Data` or `SequenceNumber`, or whose `Data` is
                not base64, is named by its index.
        """

    def __len__(self) -> int:
        """Number of records, those within aggregates one by one.

        0 is common, also with a lag (`millis_behind_latest`).
        """

    @property
    def last_sequence_number(self) -> str | None:
        """The last sequence number of the response, so that reading goes on after it.

        Of an aggregate without records, too, which yields no record of the page. `None` when the
        response has no records at all.
        """

    @property
    def empty_aggregates(self) -> int:
        """How many aggregates without a record the response has: there is nothing to deliver."""

    @property
    def next_shard_iterator(self) -> str | None:
        """Where to read on. `None` at the end of the shard, however the service spells it."""

    @property
    def millis_behind_latest(self) -> int | None:
        """How far this page is behind the tip, in milliseconds; 0 when caught up.

        `None` when the service did not say, or said what cannot be true: a negative number, or
        more than ten years (records are kept for one at most).
        """

    @property
    def child_shards(self) -> list[str]:
        """Ids of the shards that follow this one. Filled by the last page of a shard only."""

    @property
    def data_bytes(self) -> int:
        """Sum of the sizes of all blobs as they came: with envelopes, aggregates as a whole."""

    def payloads(self, start: int, stop: int) -> list[bytes]:
        """The payloads of a run of records, `start` included and `stop` not.

        A payload is the blob without its envelope. One call for a run costs about half of what a
        call per record does.

        Raises:
            IndexError: The run reaches outside the page, or ends before it starts.
        """

    def payloads_at(self, indices: Sequence[int]) -> list[bytes]:
        """The payloads of these records, in the order of `indices`.

        Raises:
            IndexError: One of them is outside the page.
        """

    def payload(self, index: int) -> bytes:
        """The payload of one record: the blob without its envelope.

        Raises:
            IndexError: There is no such record.
        """

    def data(self, index: int) -> bytes:
        """The blob of one record as it stands in the log, or in its aggregate; with its envelope.

        Raises:
            IndexError: There is no such record.
        """

    def header_block(self, index: int) -> bytes | None:
        """The header block of the record's envelope, byte for byte, as a copy carries it over.

        Returns:
            `None` when the record has no envelope; empty when it has one without headers.

        Raises:
            IndexError: There is no such record.
        """

    def headers(self, index: int) -> dict[str, str]:
        """The headers of the record's envelope, read as `decode_envelope` reads them.

        Decoded anew by each call; empty when the record has no envelope. The headers that every
        delivery has besides (`partition-key` and the like) are not among them.

        Raises:
            IndexError: There is no such record.
        """

    def find_header(self, name: str, start: int, stop: int) -> list[tuple[int, str]]:
        """The records of a run whose envelope has this header: index and value.

        Args:
            name: Header name, as `headers` gives it.
            start: Index of the first record to look at.
            stop: Index behind the last one.

        Raises:
            IndexError: The run is not within the page.
        """

    def partition_key(self, index: int) -> str | None:
        """The record's partition key; `None` when it came without one.

        A record of an aggregate has its own, not that of the whole. A lone surrogate, which JSON can
        express and UTF-8 cannot, is replaced by U+FFFD.

        Raises:
            IndexError: There is no such record.
        """

    def explicit_hash_key(self, index: int) -> str | None:
        """The explicit hash key of a record of an aggregate, a decimal number below 2^128.

        `None` for a record that has none, or one that the service would not take; and for one that
        came alone, as the service tells of none.

        Raises:
            IndexError: There is no such record.
        """

    def sub_sequence_number(self, index: int) -> int | None:
        """Which record of its aggregate it is, from 0; `None` for one that came alone.

        Raises:
            IndexError: There is no such record.
        """

    def sequence_number(self, index: int) -> str:
        """The record's sequence number: opaque text of up to 128 digits, never empty.

        Raises:
            IndexError: There is no such record.
        """

    def last_of_record(self, index: int) -> int:
        """The last delivery out of the same record of the log: of the same aggregate, or itself.

        Raises:
            IndexError: There is no such record.
        """

    def arrival(self, index: int) -> float | None:
        """When the service took the record, in seconds since the epoch.

        `None` when it is missing, not a number, or outside the years 1 to 9999 that a `datetime`
        can show; `datetime.fromtimestamp(arrival, UTC)` works for every other value.

        Raises:
            IndexError: There is no such record.
        """

    def partitions(self, start: int, stop: int, n: int) -> list[list[int]]:
        """Split a run of records over `n` worker partitions.

        A partition key goes to the same partition always: in every call, process and release. The
        order of the run is kept within each partition. Records without a key (none, or an empty
        one) have no affinity and go round.

        Args:
            start: First record of the run.
            stop: One past its last record.
            n: Number of partitions, 1 to 65,536.

        Returns:
            `n` lists of indices, some of them empty.

        Raises:
            IndexError: The run reaches outside the page, or ends before it starts.
            ValueError: `n` is out of range.
        """

def encode_envelope(headers: Mapping[str, str] | None, payload: Buffer) -> bytes:
    """Put headers in front of a payload, exactly or not at all.

    Without headers (`None` or empty) the result is the payload byte for byte; if that is `bytes`
    already, it is the same object. Only a payload that itself begins with `RSK1` gets an envelope
    then, with an empty block, so that it reads back unchanged.

    All of `headers` is written: leave out what travels otherwise, such as `partition-key`.

    Args:
        headers: Names to values, in the order to write them.
        payload: `bytes`, `bytearray`, `memoryview`, or anything with a buffer of bytes.

    Raises:
        EnvelopeError: A header would not read back as it is. A name that is empty or holds `:`; a
            name or value that is not a `str`, holds CR, LF or a lone surrogate, or starts or ends
            with (Unicode) white space. The message names the header and the rule.
    """

def decode_envelope(blob: Buffer) -> tuple[dict[str, str], bytes]:
    """Take an envelope apart: headers and payload. No blob is an error.

    A blob without an envelope is all payload; so is one whose header length reaches beyond it. In
    a block, a line without `:` is skipped, names and values are trimmed, bad UTF-8 is replaced by
    U+FFFD, and the last of two equal names wins.
    """

def rewrite_envelope(
    block: bytes | None, changes: Mapping[str, str | None], payload: Buffer
) -> bytes:
    """Write an envelope with a received header block, some of its headers set or taken out.

    Every other line of the block is carried over byte for byte, odd ones included. A header that is
    set replaces all lines of its name and comes last, so a record that is copied again and again
    does not grow.

    Args:
        block: The block as `Page.header_block` gives it; `None` for a record without an envelope.
        changes: A `dict` from header name to its new value, or to `None` to take it out.
        payload: Bytes behind the block.

    Raises:
        EnvelopeError: A header that is set would not read back unchanged.
    """

def encode_get_records(iterator: str, limit: int, arn: str | None = None) -> bytes:
    """The body of a `GetRecords` request.

    Args:
        iterator: The shard iterator.
        limit: Most records to get.
        arn: The stream's ARN, where the request is to name it.
    """

def encode_put_record(
    stream: str,
    arn: str | None,
    data: bytes,
    partition_key: str,
    explicit_hash_key: str | None = None,
) -> bytes:
    """The body of a `PutRecord` request.

    Args:
        stream: The stream's name; used where there is no ARN.
        arn: The stream's ARN.
        data: The blob, as it is to stand in the log.
        partition_key: Its partition key.
        explicit_hash_key: The hash key that stands in for the partition key's own.
    """

def encode_put_records(
    stream: str, arn: str | None, entries: Sequence[tuple[bytes, str, str | None]]
) -> bytes:
    """The body of a `PutRecords` request, in one call for the whole batch.

    The GIL is released while the bytes are written.

    Args:
        stream: The stream's name; used where there is no ARN.
        arn: The stream's ARN.
        entries: Blob, partition key and explicit hash key (or `None`) of each record.
    """

def decode_put_records(
    body: bytes,
) -> list[tuple[str | None, str | None, str | None, str | None]]:
    """The results in the body of a `PutRecords` answer.

    Returns:
        Shard, sequence number, error code and error message of each record, in the order of the
        request; what the answer leaves out, or has as `null`, is `None`.

    Raises:
        ValueError: The body is no such answer: cut off, not JSON, without `Records`.
    """

@final
class Signer:
    """Signs requests to one endpoint with Signature Version 4.

    Immutable; it keeps no credentials.
    """

    def __new__(
        cls,
        url: str,
        region: str,
        service: str,
        signed: dict[str, str],
        unsigned: dict[str, str],
    ) -> Signer:
        """A signer for `POST` requests to `url`.

        Args:
            url: The whole URL, with its path.
            region: The region to sign for.
            service: The service's name in signatures.
            signed: Headers of every request that the signature covers, beside host and date.
            unsigned: Headers of every request that it does not cover.
        """

    def sign(
        self, body: bytes, access_key: str, secret_key: str, token: str | None, time: float
    ) -> dict[str, str]:
        """All headers of a request, the signature among them.

        The GIL is released for a large body.

        Args:
            body: The request's body.
            access_key: Id of the access key.
            secret_key: The secret access key.
            token: Session token of temporary credentials.
            time: Seconds since the epoch; the service takes a request for five minutes.

        Raises:
            ValueError: HTTP cannot carry what is to be signed, or the time has no date. The message
                holds no credentials.
        """

    def head(
        self,
        start: bytes,
        body: bytes,
        access_key: str,
        secret_key: str,
        token: str | None,
        time: float,
    ) -> bytes:
        """The head of a request as HTTP/1.1 sends it, with its length and the empty line.

        Args:
            start: The request line and the `Host` line.
            body: The request's body.
            access_key: As for `sign`.
            secret_key: As for `sign`.
            token: As for `sign`.
            time: As for `sign`.

        Raises:
            ValueError: As for `sign`.
        """

def parse_head(data: bytes) -> tuple[int, int, int, bool, dict[str, str]] | None:
    """Read the head of an HTTP/1.1 response, passing over interim ones (1xx) before it.

    Args:
        data: What has come so far.

    Returns:
        How many bytes it takes; the status; the length of the body, -1 for chunks, -2 for all that
        comes until the connection is closed; whether another request may follow on the
        connection; the headers, names in lower case. `None` where more bytes are needed.

    Raises:
        ValueError: It is no head, or leaves a doubt about where the body ends.
    """

@final
class Chunks:
    """The body of an HTTP/1.1 response that comes in chunks."""

    def __new__(cls, limit: int) -> Chunks:
        """An empty body that may grow to `limit` bytes."""

    def feed(self, data: bytes) -> int:
        """Take what arrived; return how much of it belongs to this body.

        Raises:
            ValueError: It is no chunk, or the body is over the limit.
        """

    @property
    def done(self) -> bool:
        """Whether the last chunk and the trailers are there."""

    def take(self) -> bytes:
        """The body, once."""

@final
class Watermark:
    """How far the deliveries of one shard are settled.

    Deliveries take *places* in arrival order: consecutive numbers from 0, never given twice by one
    object, not even after `reset`. The watermark is the last record of the unbroken run of settled
    deliveries that starts at the oldest one. Sequence numbers are carried and never compared, as
    text or as numbers.

    A place that is not open (settled before, given before a `reset`, never given, negative) is
    never an error: the call changes nothing and returns `False`.

    Memory follows what is open: a bit, and a share of the page's sequence numbers, for a delivery
    in flight; about 200 bytes for one that stays open while its page is settled around it;
    nothing for settled ones, however many pass an open one. Payloads are never kept.
    """

    def __new__(cls) -> Watermark: ...
    def deliver(self, page: Page) -> int:
        """Give all records of a page their places, in one call.

        Returns:
            The place of record 0; record `i` has that plus `i`. For an empty page, the place that
            the next record will get.

        An aggregate without records takes no place. `position` passes it as soon as everything
        before it is settled, which may be now: here alone it moves without a settlement.
        """

    def deliver_numbers(self, sequence_numbers: Sequence[str]) -> int:
        """The same for records that are not in a page.

        Neighbours with the same number come out of one aggregated record: `position` does not
        reach that number before the last of them is settled.
        """

    def settle(self, place: int) -> bool:
        """Settle a delivery, held or not.

        Returns:
            Whether the watermark moved, which is when a checkpoint is worth writing.
        """

    def settle_range(self, start: int, stop: int) -> bool:
        """Settle all open deliveries of a run of places, `start` included and `stop` not.

        The cost follows what is open in the run, not its length.

        Returns:
            Whether the watermark moved.
        """

    def settle_all(self, places: Sequence[int]) -> bool:
        """Settle the deliveries at some places, one by one, in one call.

        Returns:
            Whether the watermark moved.
        """

    def hold(self, place: int) -> bool:
        """Mark a delivery as refused: it stays open, and does not count against `drained`.

        Returns:
            `False` if it is not open, or held already.
        """

    def reset(self) -> None:
        """Start anew, for a rewind: forget what is open, and the position.

        A late settlement of an older place does nothing.
        """

    @property
    def position(self) -> str | None:
        """Sequence number of the watermark, for a checkpoint; `None` if nothing is settled yet.

        It never goes back between two calls of `reset`.
        """

    @property
    def open(self) -> int:
        """Deliveries that are not settled, held ones included."""

    @property
    def held(self) -> int:
        """Open deliveries that were refused."""

    @property
    def next_place(self) -> int:
        """The place that the next delivery will get."""

    def last_of_record(self, place: int) -> int:
        """The last place that has to be settled before `position` reaches the record of `place`.

        Further than `place` only within an aggregate; `place` itself where nothing of its record
        behind it is open.
        """

    @property
    def oldest_open(self) -> int | None:
        """Place of the oldest open delivery; `None` when nothing is open."""

    @property
    def drained(self) -> bool:
        """Whether nothing is open but what is held."""

@final
class Batcher(Generic[_Run]):
    """Decides when a batch closes: at `size` deliveries, or `window` seconds after its first one.

    Deliveries come in runs, and a batch is a list of slices `(run, start, stop)` of them, oldest
    first: nothing is done per delivery. A run is any object; it is kept until its slices are
    handed out. There is no clock inside: `now` is the caller's, always of the same clock.
    """

    def __new__(cls, size: int, window: float) -> Batcher[_Run]:
        """A batcher with nothing in it.

        Args:
            size: Deliveries in a full batch, at least 1.
            window: Seconds, 0 or more; infinite for batches that close by size only.

        Raises:
            ValueError: `size` or `window` is out of range.
        """

    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    def push(self, run: _Run, count: int, now: float) -> list[list[tuple[_Run, int, int]]]:
        """Add the `count` deliveries of a run that arrive at `now`.

        Only size closes a batch here: deliveries that come after the deadline, but before `due` is
        asked, still join the forming batch.

        Returns:
            The batches that are full now, oldest first. What is left over forms the next one,
            whose window starts at `now`.

        Raises:
            ValueError: `count` is negative.
        """

    @property
    def deadline(self) -> float | None:
        """When the forming batch must close; `None` while there is none."""

    @property
    def pending(self) -> int:
        """Deliveries in the forming batch, always fewer than `size`."""

    def due(self, now: float) -> list[tuple[_Run, int, int]] | None:
        """Close the forming batch if its window is over; `None` if not, or if there is none."""

    def flush(self) -> list[tuple[_Run, int, int]]:
        """Close the forming batch, whatever it holds; an empty list when there is none."""

@final
class Aggregator:
    """Collects records for one aggregate of the Kinesis Producer Library, up to a size.

    Every reader of the stream must know aggregates. The whole goes to the shard of its own key, so
    put records together that belong to one shard (`hash_key` tells): where a reader takes care of
    that, as the Kinesis Client Library does, others are dropped; and with records of their keys that
    come alone they would lose their order.
    """

    def __new__(cls, limit: int) -> Aggregator:
        """An aggregate with nothing in it.

        Args:
            limit: Bytes that the service takes for a record, data and partition key together.

        Raises:
            ValueError: `limit` is negative.
        """

    def add(self, partition_key: str, data: Buffer, explicit_hash_key: str | None = None) -> bool:
        """Add a record, if the aggregate stays within its limit.

        The size of the key is not looked at here: the service takes 1 to 256 characters.

        Args:
            partition_key: The record's own key.
            data: Its blob, with its envelope where it has one.
            explicit_hash_key: Its own, a decimal number.

        Returns:
            Whether it was added. If not: `take` and add again; what does not fit into an empty one
            either is a record that goes alone.

        Raises:
            ValueError: A lone surrogate in the key, or a hash key that the service would not take.
        """

    def size_with(
        self, partition_key: str, data_bytes: int, explicit_hash_key: str | None = None
    ) -> int:
        """What `size` would be with such a record; nothing is added.

        Raises:
            ValueError: As `add`; or a number of bytes that is negative or beyond 4 GiB.
        """

    def __len__(self) -> int:
        """Number of records."""

    @property
    def size(self) -> int:
        """Bytes that the service counts: the blob that `take` would return, and `partition_key`."""

    @property
    def limit(self) -> int:
        """As given."""

    @property
    def partition_key(self) -> str | None:
        """The key of the first record, to put the whole with; `None` while there is none."""

    def take(self) -> bytes:
        """The aggregate of what was added, in order; from here on there is nothing in it."""

def decode_aggregate(blob: Buffer) -> list[tuple[str, str | None, bytes]] | None:
    """The records of an aggregate: partition key, explicit hash key, data. No blob is an error.

    `None` for a blob that is no complete aggregate (see `Page`). Envelopes are not looked at.
    """

def aggregate_fitting(entries: Sequence[tuple[bytes, str, str | None]], limit: int) -> int:
    """How many entries, from the first on, one aggregate of at most `limit` bytes holds.

    At least one: what fits into no aggregate goes alone. So does data that begins as an aggregate
    does, since nobody would take it apart within another one.

    Args:
        entries: Blob, partition key and explicit hash key (or `None`) of each record.
        limit: Bytes of the aggregate and of its first record's partition key.
    """

def encode_aggregate(entries: Sequence[tuple[bytes, str, str | None]]) -> bytes:
    """The aggregate of these records, in one call; the GIL is released while it is written.

    Args:
        entries: Blob, partition key and explicit hash key (or `None`) of each record.
    """

@final
class HashRanges:
    """The ranges of hash keys of a stream's shards."""

    def __new__(cls, ranges: list[tuple[str, str]]) -> HashRanges:
        """Ranges that have no hash key in common.

        Args:
            ranges: The first and the last hash key of each, in decimal digits.

        Raises:
            ValueError: One of them is no number below 2^128.
        """

    def places(self, entries: Sequence[tuple[bytes, str, str | None]]) -> list[int | None]:
        """Which of the ranges, by its index, each record is in; `None` for one in no range.

        Args:
            entries: Blob, partition key and explicit hash key (or `None`) of each record. Where
                there is an explicit hash key it decides, else the hash of the partition key.
        """

def hash_key(partition_key: str) -> int:
    """What the service puts a record into a shard by, where it has no explicit hash key.

    The MD5 of the key's UTF-8, as an unsigned number of 128 bits, the highest byte first.

    Raises:
        ValueError: The key holds a lone surrogate.
    """

MAX_PARTITION_KEY_LENGTH: int
"""Unicode characters, not bytes."""

def check_partition_key(key: object, stream: str | None) -> int:
    """The size of a partition key in bytes of UTF-8.

    Args:
        key: What is to be one.
        stream: For the error.

    Raises:
        InvalidRecord: It is not text, is empty, is longer than 256 characters, or holds a lone
            surrogate, which no UTF-8 can carry.
    """

@final
class SpreadKeys:
    """Partition keys that no two records share: a text and a number, which is another each time."""

    def __new__(cls, nonce: str) -> SpreadKeys:
        """A run of them, unlike the one of any other `nonce`."""

    def take(self) -> str:
        """The next one."""

@final
class Maker:
    """Makes records from values: codec, envelope, key ladder, limits but for the record's size."""

    def __new__(
        cls,
        policy_key: str | Callable[[Any], str] | None,
        encode: Callable[[Any], Buffer],
        *,
        plain: bool,
        spread: SpreadKeys,
        parse: Callable[[str], StreamRef],
        split: Callable[[Mapping[str, str]], tuple[dict[str, str], str | None]],
        check_hash_key: Callable[[str, str], object],
    ) -> Maker:
        """A maker.

        Args:
            policy_key: The key where neither the call nor a header has one.
            encode: The codec.
            plain: The codec leaves exactly `bytes` as it is, and is not asked.
            spread: Where a key comes from where nobody has one.
            parse: From the name or ARN of a stream to its reference; asked once for each.
            split: From the headers of a call to those that travel, and the key that is among them.
            check_hash_key: Refuses an explicit hash key; gets the stream's name, too.
        """

    def parts(
        self,
        value: Any,
        to: str,
        partition_key: str | None,
        headers: Mapping[str, str] | None,
        explicit_hash_key: str | None,
    ) -> Parts:
        """The record.

        Raises:
            ConfigurationError: `to` is neither a stream name nor an ARN.
            InvalidRecord: The partition key, or the explicit hash key, is refused.
            EnvelopeError: A header cannot be carried exactly.
        """

@final
class Pending:
    """One record on its way, and the future that its publisher has.

    It does what a future of asyncio does, for a fifth of what that costs: it may be awaited, given to
    `gather`, `wait` and `wait_for`, cancelled, and have callbacks, on the loop that it belongs to. It
    is no instance of `asyncio.Future`. An error that nobody asks for is reported by asyncio.
    `None` as its result: it was not wanted any more.
    """

    def __new__(
        cls,
        event_loop: AbstractEventLoop,
        entry: tuple[bytes, str, str | None],
        size: int,
        key: str | None = None,
        deadline: float = ...,
        wanted: Callable[[], bool] | None = None,
    ) -> Pending:
        """A record that is not decided; see its attributes."""

    @property
    def entry(self) -> PutEntry:
        """The record; the very object that was given."""

    @property
    def size(self) -> int:
        """Bytes of data and partition key."""

    @property
    def key(self) -> str | None:
        """What it keeps its order by; `None` where no other record has its partition key."""

    @property
    def deadline(self) -> float:
        """When it is not tried again any more, on the monotonic clock; infinity: while it is wanted."""

    @property
    def wanted(self) -> Callable[[], bool] | None:
        """Asked before every attempt whether to go on."""

    @property
    def attempts(self) -> int:
        """That failed."""

    @property
    def error(self) -> Exception | None:
        """Of the last attempt."""

    def failed(self, error: Exception, *, attempt: bool = True) -> None:
        """Note a failure; it is not decided by it.

        Args:
            error: Why.
            attempt: It was tried.
        """

    def done(self) -> bool:
        """Whether it is decided."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def result(self) -> PutResult | None:
        """What it was decided with.

        Raises:
            CancelledError: It was cancelled.
            InvalidStateError: It is not decided.
        """

    def exception(self) -> BaseException | None:
        """The error that it was decided with; raises as `result` does."""

    def set_result(self, result: PutResult | None) -> None:
        """Decide it.

        Raises:
            InvalidStateError: It is decided.
        """

    def set_exception(self, exception: BaseException) -> None:
        """Decide it with an error.

        Raises:
            InvalidStateError: It is decided.
        """

    def cancel(self, msg: object = None) -> bool:
        """Cancel it, if it is not decided; whether it was cancelled by this."""

    def add_done_callback(
        self, callback: Callable[[Pending], object], /, *, context: Context | None = None
    ) -> None:
        """Have something called with it, in a later turn of the loop, when it is decided."""

    def remove_done_callback(self, callback: Callable[[Pending], object]) -> int:
        """Take back all such calls that are equal to this one; how many they were."""

    def get_loop(self) -> AbstractEventLoop:
        """The loop that it belongs to."""

    def _make_cancelled_error(self) -> BaseException: ...
    @property
    def _cancel_message(self) -> Any: ...
    @property
    def _loop(self) -> AbstractEventLoop: ...
    _asyncio_future_blocking: bool
    def __await__(self) -> Generator[Any, None, PutResult | None]: ...
    def __iter__(self) -> Generator[Any, None, PutResult | None]: ...

@disjoint_base
class Intake:
    """The records of one stream that are not decided yet, but for those in requests.

    Of one partition key, at most one record is ready, in a request or waits to be sent again; the next
    one becomes ready when it has left. The service takes the entries of a request one by one and may
    refuse any of them, so that two of one key in a request, or in two requests, may change places.

    A record counts against the room from when it is taken in until it leaves. Records outside, whose
    publishers wait for room, come in by the order in which they came.
    """

    def __new__(
        cls,
        event_loop: AbstractEventLoop,
        stream: StreamRef,
        wake: Callable[[], None],
        *,
        usual_bytes: int,
        batch: int,
        request_bytes: int,
        max_records: int,
        max_bytes: int,
        by_key: bool,
    ) -> Self:
        """An empty one.

        Args:
            event_loop: Whose futures its records are.
            stream: The very reference that the records of a `Way` have.
            wake: Called where a record from a `Way` is the first that is ready, or makes a request full.
            usual_bytes: A larger record does not come by a `Way`.
            batch: Records a request.
            request_bytes: Bytes of data and keys a request.
            max_records: How many it holds.
            max_bytes: How many bytes of data and keys they may have; one record always fits.
            by_key: Whether records of one key wait for each other.
        """

    @property
    def records(self) -> int:
        """Records in it, those in requests included."""

    @property
    def bytes(self) -> int:
        """Their bytes of data and keys."""

    @property
    def outside(self) -> int:
        """Records that wait for room."""

    @property
    def keys(self) -> int:
        """Keys of records that have not left."""

    @property
    def ready_records(self) -> int:
        """Records that may be sent."""

    @property
    def ready_bytes(self) -> int:
        """Their bytes."""

    full_bytes: int
    """Bytes that are ready with which a request is as full as it can be; those of a request at first."""
    waited: bool
    """Some that are ready have waited already: behind their key, or to be sent again."""

    def begin_turn(self, now: float) -> None:
        """Let records come by a `Way`, on this thread, while the loop runs, until `end_turn`.

        Args:
            now: What their deadlines are counted from.
        """

    def end_turn(self) -> None:
        """Let none come by a `Way` any more; from any thread."""

    def turn(self) -> float | None:
        """What was given to `begin_turn`; `None` after `end_turn`."""

    def way(self, maker: Maker, deadline: float) -> Way:
        """The short way of records into it.

        Args:
            maker: Makes them.
            deadline: Seconds after which each is not tried again.
        """

    def offer(self, record: Pending) -> bool | None:
        """Take a record in, unless there is no room or others wait for it already.

        Returns:
            `None` where it was not taken, else whether it is the first that is ready, or makes the
            next request as full as it can be.
        """

    def wait_outside(self, record: Pending) -> None:
        """Keep a record until there is room; its publisher waits."""

    def take_wanted(self) -> list[Pending]:
        """What the next request carries, in order.

        What is not wanted any more, or was cancelled, is decided instead, and leaves.
        """

    def take_all(self) -> list[Pending]:
        """All that is ready, in order."""

    def give_back(self, records: list[Pending]) -> None:
        """These are ready again, in front of all others."""

    def leave(self, records: list[Pending]) -> None:
        """These are decided: their room is free, and what waits behind their keys is ready."""

    def waiting(self) -> list[Pending]:
        """All that were taken by nobody: ready, behind their keys, outside."""

    def drop_decided(self) -> None:
        """Let go of those among them that are decided."""

    def forget(self) -> None:
        """Let go of everything."""

@final
class Way:
    """The short way of a publisher's records into an `Intake`."""

    def publish(
        self,
        value: Any,
        to: str,
        partition_key: str | None,
        headers: Mapping[str, str] | None,
        explicit_hash_key: str | None,
    ) -> Pending | Parts:
        """Make a record, as `Maker.parts` does, and take it in.

        Returns:
            Its parts where it was not taken in: it goes to another stream, is large, there is no room,
            or it is no turn of this loop in which another came already.
        """

def entries_of(records: list[Pending]) -> tuple[list[PutEntry], int]:
    """The entries of a request, and the size of the largest record."""

def settle(
    records: list[Pending],
    results: Sequence[PutResult | KinesisError],
    put: type[PutResult],
) -> list[tuple[Pending, KinesisError]]:
    """Decide what was put of a request.

    Args:
        records: Of the request.
        results: One for each.
        put: The class of a good one. What was cancelled meanwhile stays so.

    Returns:
        The others, with their results.

    Raises:
        ValueError: There are not as many results as records.
    """
