"""`KinesisStream`: which stream a subscription reads, and how often."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.limits import check_seconds, check_stream_name

__all__ = ["KinesisStream", "StreamRef"]

# Kinesis refuses more than five reads a second and shard; the floor between two reads.
DEFAULT_READ_INTERVAL = 0.2
# A caught-up shard is asked once a second: the usual trade of latency against empty calls.
DEFAULT_POLL_INTERVAL = 1.0

_ARN = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12})"
    r":stream/(?P<name>[a-zA-Z0-9_.-]{1,128})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream by name or ARN, as every call to the service takes it."""

    name: str
    """The plain stream name, also for an ARN; lease rows and logs use it."""
    arn: str | None = None
    region: str | None = None
    """The ARN's region."""
    account: str | None = None
    """The ARN's account."""

    @classmethod
    def parse(cls, name_or_arn: str) -> StreamRef:
        """Reads a name or an ARN.

        Raises:
            ConfigurationError: It is neither.
        """
        if isinstance(name_or_arn, str) and name_or_arn.startswith("arn:"):
            found = _ARN.fullmatch(name_or_arn)
            if found is None:
                raise ConfigurationError(
                    f"invalid stream ARN {name_or_arn!r}: "
                    "arn:aws:kinesis:REGION:ACCOUNT:stream/NAME"
                )
            return cls(found["name"], name_or_arn, found["region"], found["account"])
        return cls(check_stream_name(name_or_arn))

    def may_be(self, other: StreamRef) -> bool:
        """Whether both name one stream; a name and an ARN do where nothing else can be meant."""
        return self == other or (self.name == other.name and None in (self.arn, other.arn))

    def parameters(self) -> dict[str, str]:
        """The request parameters that name this stream."""
        return {"StreamName": self.name} if self.arn is None else {"StreamARN": self.arn}

    def __str__(self) -> str:
        return self.arn or self.name


@dataclass(frozen=True, slots=True, init=False)
class KinesisStream:
    """Subscription descriptor: a stream, and the pace at which its shards are read.

    Args:
        name_or_arn: Stream name or ARN. A plain `str` given to `subscriber` means
            `KinesisStream(str)`.
        poll_interval: Seconds between reads of a shard that is caught up.
        read_interval: Least seconds between two reads of a shard that lags. Kinesis allows five
            reads a second and shard, for all consumers together; raise it where several
            applications read one stream.
        create_if_missing: Number of shards to create the stream with when it does not exist. By
            default a missing stream stops the service at start.

    Raises:
        ConfigurationError: A value is refused; nothing has been sent.
    """

    ref: StreamRef
    poll_interval: float
    read_interval: float
    create_if_missing: int | None

    def __init__(
        self,
        name_or_arn: str,
        *,
        poll_interval: float = DEFAULT_POLL_INTERVAL,
        read_interval: float = DEFAULT_READ_INTERVAL,
        create_if_missing: int | None = None,
    ) -> None:
        ref = StreamRef.parse(name_or_arn)
        if create_if_missing is not None:
            if isinstance(create_if_missing, bool) or not isinstance(create_if_missing, int):
                raise ConfigurationError(
                    f"create_if_missing must be a number of shards: {create_if_missing!r}"
                )
            if create_if_missing < 1:
                raise ConfigurationError(
                    f"create_if_missing must be at least 1 shard: {create_if_missing}"
                )
            if ref.arn is not None:
                raise ConfigurationError("a stream named by ARN cannot be created: give its name")
        # A frozen dataclass with its own constructor: the fields are set once, here.
        for field, value in (
            ("ref", ref),
            ("poll_interval", check_seconds("poll_interval", poll_interval)),
            ("read_interval", check_seconds("read_interval", read_interval)),
            ("create_if_missing", create_if_missing),
        ):
            object.__setattr__(self, field, value)

    @property
    def name(self) -> str:
        """The plain stream name."""
        return self.ref.name

    @classmethod
    def of(cls, stream: KinesisStream | str) -> KinesisStream:
        """The descriptor itself, or the one a plain name means."""
        return stream if isinstance(stream, KinesisStream) else cls(stream)
