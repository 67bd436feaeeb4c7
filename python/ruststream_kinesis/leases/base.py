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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from ruststream_kinesis.position import KinesisPosition

__all__ = ["SHARD_END", "LeaseKey", "LeaseState", "LeaseStore", "Opening"]

SHARD_END: Final = "SHARD_END"
"""The checkpoint of a shard that was read to its end; shared with the Rust sibling and KCL."""


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
        name = f"{self.stream}:{self.shard_id}"
        return name if self.group is None else f"{self.group}/{name}"


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a store knows of one shard."""

    key: LeaseKey
    owner: str | None
    """`owner_id#token` of the present acquisition, `None` when the lease is free."""
    counter: int
    """Grows by one with every write to the row."""
    checkpoint: str | None
    """Sequence number of the last record of the settled run, or `SHARD_END`."""
    resume_from: KinesisPosition | None = None
    """Where a rewind moved the shard, while nothing was settled since."""

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


class LeaseStore(Protocol):
    """Leases and checkpoints, keyed by stream and shard.

    Every method may raise an `Exception` of the store's own when it cannot reach its storage; the
    caller tries again with back-off and assumes nothing.
    """

    async def acquire(self, key: LeaseKey, owner_id: str, *, duration: float) -> LeaseState | None:
        """Takes the shard when it is free or its lease ran out.

        Args:
            key: The shard.
            owner_id: Who asks; the store appends a token of its own.
            duration: Seconds the lease lives without a renewal.

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
    ) -> None:
        """Gives the shard up, with its final checkpoint or position in the same write.

        Without either, what is stored stays as it is.

        A lease that is lost already is left alone: there is nothing to give up.
        """
        ...

    async def read(self, key: LeaseKey) -> LeaseState | None:
        """The row as it is, whoever holds it."""
        ...

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """All rows of a stream (and group)."""
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
