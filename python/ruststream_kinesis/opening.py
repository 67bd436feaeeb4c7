"""Where a shard opens: where it was rewound to, else at its checkpoint, else by one rule.

Invariant: *the tip is an instant*. Kinesis' `LATEST` means another place every time it is asked, so
it serves only the first readers of an instance that is alone with its leases; everything else that
opens without a checkpoint, children and second tries included, opens at the time that was stored at
the first opening, at the price of the records of the second before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ruststream_kinesis.errors import StreamRecreated
from ruststream_kinesis.leases.base import LeaseState, LeaseStore, Opening
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.transport import StreamInfo
from ruststream_kinesis.wording import short

__all__ = ["OpeningRule", "Place", "check_created"]

# The opening instant is this much before the service's own time, whose `Date` has whole seconds.
_MARGIN = 1.0
# Two services round the creation time differently.
_SAME_CREATION = 1.0


def check_created(stream: str, stored: float | None, found: float | None) -> None:
    """Makes sure that the stream is the one that the leases are of, as far as that is known.

    Raises:
        StreamRecreated: It is a later one of its name.
    """
    if stored is not None and found is not None and abs(stored - found) > _SAME_CREATION:
        raise StreamRecreated(
            f"the stream was deleted and created anew (created {found}, its leases say {stored}): "
            "its checkpoints mean nothing in the new one. Use another group or delete the lease "
            "rows",
            stream=stream,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first read of a shard starts."""

    position: KinesisPosition
    after: bool = False
    """`position` names a record that was handled already."""
    at_tip: bool = False
    """The first iterator may be `LATEST`; any later one is built at `position`."""
    moved: bool = False
    """Not where its row says: to be stored, or it would be forgotten with this holding."""

    def __str__(self) -> str:
        position = self.position
        if self.at_tip:
            return "from the tip"
        if position.kind == "sequence":
            return f"{'after' if self.after else 'at'} {short(position.sequence_number)}"
        return f"from {position}"


@dataclass(frozen=True, slots=True)
class OpeningRule:
    """The rule of one subscription, from its start on."""

    instant: float
    """What the tip means to this application; seconds since the epoch."""
    first: bool
    """This instance was the first to open the stream, and no other reads it."""
    started: float
    """When this instance opened it."""
    start_at: KinesisPosition | None
    rewound: KinesisPosition | None = None
    """Where the last rewind of all shards went, an instant where it was to the tip."""

    @classmethod
    async def agree(
        cls,
        store: LeaseStore,
        info: StreamInfo,
        group: str | None,
        service_time: float,
        start_at: KinesisPosition | None,
    ) -> OpeningRule:
        """Agrees with every other instance on the opening instant.

        Raises:
            StreamRecreated: The leases belong to an earlier stream of this name.
        """
        started = max(0.0, service_time - _MARGIN)
        mine = Opening(started, info.created)
        stored = await store.opening(info.name, group, mine)
        check_created(info.name, stored.created, info.created)
        # Where others may open the stream at the same time, the instant must serve for all: a record
        # put after one of them said that it reads must be behind everybody's opening, and the tip of
        # whoever came first moves until its iterators are there.
        first = stored is mine and not store.shared
        return cls(stored.instant, first, started, start_at)

    @staticmethod
    def tip(service_time: float) -> KinesisPosition:
        """The tip as an instant that does not move; the records of its last second may be in it."""
        return KinesisPosition.timestamp(max(0.0, service_time - _MARGIN))

    def rewind(self, position: KinesisPosition) -> OpeningRule:
        """The rule after a rewind: shards without a checkpoint open there."""
        return replace(self, rewound=position)

    def place(self, lease: LeaseState, *, first_pass: bool) -> Place:
        """Where the shard of `lease` opens.

        Args:
            lease: Its row, as it was taken.
            first_pass: This is the first pass after the start: `start_at` moves the shards that it
                takes, and no others.
        """
        start, shard_id = self.start_at, lease.key.shard_id
        if start is not None and first_pass and self.rewound is None:
            if start.kind == "latest":
                return Place(KinesisPosition.timestamp(self.started), at_tip=True, moved=True)
            if start.kind != "sequence" or start.shard_id == shard_id:
                return Place(start, moved=True)
        if lease.resume_from is not None:
            return Place(lease.resume_from)
        if lease.checkpoint is not None:
            return Place(KinesisPosition.sequence(shard_id, lease.checkpoint), after=True)
        if self.rewound is not None:
            return Place(self.rewound, moved=True)
        if start is not None and start.kind != "sequence":
            # As a tip: the start of this instance, so that a child found later misses nothing.
            latest = start.kind == "latest"
            return Place(KinesisPosition.timestamp(self.started) if latest else start)
        return Place(KinesisPosition.timestamp(self.instant), at_tip=self.first and first_pass)
