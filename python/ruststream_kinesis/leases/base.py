"""The lease store protocol: what a store must promise so that no checkpoint is ever undone.

Invariants, for every store:

* Ownership is fenced per acquisition. `acquire` mints a token; `renew`, `checkpoint` and `release`
  apply only while that very token still owns the row, so a stale reader, or a second process with
  the same `owner_id`, can write nothing.
* Within an acquisition a checkpoint write carries a number that grows; a lower one is ignored, so
  a write that arrives late cannot undo a newer one.
* A rewind is stored beside the checkpoint, as `resume_from`. It is valid only until the next
  checkpoint is stored, whatever its value: also where an owner that knows nothing of rewinds
  writes one, so a store that such owners share keeps the checkpoint that it was stored beside.
* Who is alive is judged by the store, in one way for leases and members: by how long it has seen no
  renewal on its own monotonic clock. No wall clock of anybody decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from ruststream_kinesis.position import KinesisPosition

__all__ = [
    "SHARD_END",
    "LeaseKey",
    "LeaseState",
    "LeaseStore",
    "Member",
    "Opening",
    "Survey",
    "member_of",
    "owner_id_of",
    "subscription_name",
    "token",
]

SHARD_END: Final = "SHARD_END"
"""The checkpoint of a shard that was read to its end; shared with the Rust sibling and KCL."""


def subscription_name(stream: str, group: str | None) -> str:
    """What an application's subscription is called in the store: `stream`, or `group/stream`."""
    return stream if group is None else f"{group}/{stream}"


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """One shard of one stream, as one application (and group) sees it."""

    stream: str
    """Plain stream name, also where the subscription names an ARN."""
    shard_id: str
    group: str | None = None

    @property
    def row(self) -> str:
        """The row key that is shared with the Rust sibling: `stream:shard`, `group/stream:shard`."""
        return f"{subscription_name(self.stream, self.group)}:{self.shard_id}"


def token(member: str, unique: str) -> str:
    """The token of an acquisition: who took it, and something that no other acquisition has."""
    return f"{member}.{unique}" if member else unique


def member_of(owner: str | None) -> str | None:
    """The nonce of the member behind an `owner_id#token`; `None` for an owner of another kind."""
    member, dot, _ = ("" if owner is None else owner.rpartition("#")[2]).rpartition(".")
    return member if dot else None


def owner_id_of(owner: str) -> str:
    """The `owner_id` of an `owner_id#token`; an owner of another kind is its own name."""
    return owner.rpartition("#")[0] or owner


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a store knows of one shard."""

    key: LeaseKey
    owner: str | None
    """`owner_id#token` of the present acquisition, or of the last one where it ran out; `None`
    where the lease was released."""
    counter: int
    """Grows by one with every write to the row."""
    checkpoint: str | None
    """Sequence number of the last record of the settled run, or `SHARD_END`."""
    resume_from: KinesisPosition | None = None
    """Where a rewind moved the shard, while nothing was settled since."""
    free: bool = False
    """Whether it may be taken: it was released, or its owner was not seen to renew it for the
    lease's own period."""
    successor: str | None = None
    """Nonce of the member that a free lease was handed to."""

    @property
    def member(self) -> str | None:
        """Nonce of the member that holds it; `None` where it is free, or held by no member."""
        return None if self.free else member_of(self.owner)

    @property
    def finished(self) -> bool:
        """Whether the shard was read to its end, every record of it settled, and not rewound."""
        return self.checkpoint == SHARD_END and self.resume_from is None


@dataclass(frozen=True, slots=True)
class Opening:
    """When an application first opened a stream, and which stream that was.

    Kinesis' `LATEST` means another place every time it is asked. Stored once and used for every
    shard that has no checkpoint, the instant gives the tip one meaning for the application's life.
    """

    instant: float
    """The service's time at the first opening, less a second; seconds since the epoch."""
    created: float | None
    """The stream's creation time, which tells a stream from a later one of the same name."""


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of a service, as the others see it."""

    nonce: str
    """Its name in this protocol, made anew by every process: two with one `owner_id` are two."""
    owner_id: str
    subscriptions: tuple[str, ...]
    """What it reads, sorted: `stream`, or `group/stream`."""
    max_shards: int | None = None
    """Shards of each subscription that it takes at most."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All that a store knows of a subscription, at one moment."""

    leases: tuple[LeaseState, ...]
    members: tuple[Member, ...]
    """Who is alive and reads the same, by nonce."""


class LeaseStore(Protocol):
    """Leases and checkpoints, keyed by stream and shard.

    Every method may raise an `Exception` of the store's own when it cannot reach its storage; the
    caller tries again with back-off and assumes nothing.
    """

    @property
    def shared(self) -> bool:
        """Whether other processes may use the same storage."""
        ...

    async def open(self) -> None:
        """Makes sure that the storage is there; once more does nothing.

        The one call without a deadline of the caller's: making a table takes its time.

        Raises:
            KinesisError: It cannot be used; says why, and what to do.
        """
        ...

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """Takes the shard when it is free or its lease ran out.

        Args:
            key: The shard.
            owner_id: Who asks; the store appends a token of its own (see `token`).
            duration: Seconds the lease lives without a renewal.
            member: Nonce of the member that asks, where there are others. A lease that this very
                member took, and does not know of, is its own: it is taken anew at once.

        Returns:
            The state as it is now held, or `None` when another holds it.
        """
        ...

    async def renew(self, held: LeaseState) -> None:
        """Prolongs the lease.

        Raises:
            LeaseLost: Another acquisition holds it.
        """
        ...

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Stores how far a shard is; a lower `number` than the stored one is ignored.

        Args:
            held: The acquisition that writes.
            checkpoint: The checkpoint, which makes a stored `resume_from` void. `None` keeps the
                stored one.
            number: Grows with each write of an acquisition.
            resume_from: Where the shard was rewound to, stored beside the checkpoint.

        Raises:
            LeaseLost: Another acquisition holds the shard; nothing was written.
        """
        ...

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """Gives the shard up, with its final checkpoint or position in the same write.

        Without either, what is stored stays as it is. `successor` is the nonce of the member that
        is to take it next.

        A lease that is lost already is left alone: there is nothing to give up.
        """
        ...

    async def read(self, key: LeaseKey) -> LeaseState | None:
        """The row as it is, whoever holds it."""
        ...

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """All rows of a stream (and group), as they are now."""
        ...

    async def survey(
        self, stream: str, group: str | None = None, *, max_age: float = 0.0
    ) -> Survey:
        """Rows of a stream (and group), and who shares them.

        Args:
            stream: Plain name.
            group: As in `LeaseKey`.
            max_age: What the store read so many seconds ago will do, with what was written through
                this store since; it lets all subscriptions of a process share one look.
        """
        ...

    async def beat(self, member: Member, *, duration: float) -> None:
        """Writes or renews a member's row; it counts as alive for `duration` seconds."""
        ...

    async def leave(self, nonce: str) -> None:
        """Removes a member's row."""
        ...

    def renewer(self) -> LeaseStore | None:
        """The store for a thread with an event loop of its own, which renews leases and members.

        `None` where that is the main loop's work: the store is bound to it, or nobody else looks.
        """
        ...

    async def close(self) -> None:
        """Lets go of what the running event loop uses; a later call opens it anew."""
        ...

    async def delete(self, key: LeaseKey) -> None:
        """Removes the row of a shard that the stream no longer lists; a held row stays."""
        ...

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        """Stores `first` unless an opening of this stream is stored already.

        Returns:
            The stored one: `first` itself (the same object) when it was the first.
        """
        ...
