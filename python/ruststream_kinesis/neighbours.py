"""The other instances of a subscription, by the names that an operator knows them by.

For the log and for `app.state()` alone: nothing is decided here (that is `sharing.py`). Invariant:
who is gone is said once, for as long as it stays away.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping

from ruststream_kinesis.leases.base import LeaseState, Survey, member_of, owner_id_of
from ruststream_kinesis.state import ShardOwner
from ruststream_kinesis.wording import fields, listing, stream_of

__all__ = ["Neighbours"]

logger = logging.getLogger("ruststream_kinesis")


class Neighbours:
    """Who shares a subscription, as the last looks at the store said.

    Args:
        label: The subscription, for the log.
        me: Nonce of this member.
    """

    def __init__(self, label: str, me: str) -> None:
        self._label = label
        self._me = me
        self._present: dict[str, str] = {}
        """Owner ids of the others, by nonce."""
        self._owners: dict[str, str] = {}
        """Owner that each shard had last, as stored."""
        self._rows: dict[str, LeaseState] = {}
        self._checkpoints: dict[str, str | None] = {}
        """Of each shard, as stored."""

    def look(self, survey: Survey, listed: Container[str]) -> None:
        """Notes who is there, and says who is not any more, and which checkpoint is lost.

        Args:
            survey: What the store says.
            listed: Shards of the stream: the row of another one may go.
        """
        self._look_at_checkpoints(survey, listed)
        self._rows = {row.key.shard_id: row for row in survey.leases}
        present = {each.nonce: each.owner_id for each in survey.members if each.nonce != self._me}
        gone = self._present.keys() - present.keys()
        if gone:
            # Also of leases that ran out, which still say whose they were.
            left = Counter(member_of(row.owner) for row in survey.leases)
            for nonce in sorted(gone):
                if not left[nonce]:
                    logger.info(
                        "instance %s of %s has left",
                        self._present[nonce],
                        self._label,
                        extra=fields(stream_of(self._label)),
                    )
                    continue
                logger.info(
                    "instance %s of %s has left, or died: the %d shard(s) that it holds still are "
                    "shared out when it lets go of them, or their leases run out",
                    self._present[nonce],
                    self._label,
                    left[nonce],
                    extra=fields(stream_of(self._label)),
                )
        self._present = present
        self._owners = {
            row.key.shard_id: owner
            for row in survey.leases
            if (owner := row.owner or self._owners.get(row.key.shard_id)) is not None
        }

    def _look_at_checkpoints(self, survey: Survey, listed: Container[str]) -> None:
        stored = {row.key.shard_id: row.checkpoint for row in survey.leases}
        lost = [
            f"{shard_id} (was {checkpoint})"
            for shard_id, checkpoint in self._checkpoints.items()
            if checkpoint is not None and stored.get(shard_id) is None and shard_id in listed
        ]
        if lost:
            logger.error(
                "%d checkpoint(s) of %s are gone from the lease table, which somebody has emptied, "
                "restored or made anew: their shards are read as if they had none. %s",
                len(lost),
                self._label,
                listing(lost),
                extra=fields(stream_of(self._label)),
            )
        self._checkpoints = stored

    @property
    def members(self) -> tuple[str, ...]:
        """Owner ids of the others, sorted."""
        return tuple(sorted(self._present.values()))

    def owners(
        self, listed: Iterable[str], held: Mapping[str, str | None], why: Mapping[str, str], me: str
    ) -> tuple[ShardOwner, ...]:
        """Whose every shard is, as of the last look, but for what is held here, which is known.

        Args:
            listed: Shards of the stream.
            held: Those that are held here, and their checkpoints.
            why: What reading them failed with here, of those that were given up.
            me: Owner id of this instance.
        """
        found = []
        for shard_id in listed:
            row = self._rows.get(shard_id)
            mine = shard_id in held
            owner = None if row is None or row.free or row.owner is None else row.owner
            if owner is not None and member_of(owner) == self._me:
                owner = None  # let go of since then
            found.append(
                ShardOwner(
                    shard_id=shard_id,
                    owner=me if mine else None if owner is None else owner_id_of(owner),
                    mine=mine,
                    finished=not mine and row is not None and row.finished,
                    checkpoint=(held.get(shard_id) if mine else None)
                    or (None if row is None else row.checkpoint),
                    error=why.get(shard_id),
                )
            )
        return tuple(found)

    def name(self, nonce: str) -> str:
        """The owner id of a member."""
        return self._present.get(nonce, nonce)

    def previous(self, lease: LeaseState) -> str | None:
        """Who had the shard before it was taken here; `None` where nobody is known."""
        owner = self._owners.get(lease.key.shard_id)
        return None if owner is None or member_of(owner) == self._me else owner_id_of(owner)
