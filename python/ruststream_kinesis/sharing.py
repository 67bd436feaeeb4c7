"""Which shards an instance takes and which it hands over: what the plan means to one member.

Invariants:

* Everybody computes the same plan from the same rows (`plan.py`); a member acts on its own part
  alone: it takes what is free and planned for it, and hands over what it holds and is planned for
  another.
* No shard stays unread because the member that it is planned for does not come: what was free for
  two passes is anybody's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ruststream_kinesis.clock import Clock
from ruststream_kinesis.heartbeat import PASS_INTERVAL
from ruststream_kinesis.leases.base import LeaseState, Member, Survey
from ruststream_kinesis.plan import share

__all__ = ["Decision", "Sharing"]

# What stayed free so long is taken by whoever sees it: its planned owner is ill or on its way out.
_FREE_FOR_ALL = 2 * PASS_INTERVAL
# The member that did not come for a shard does not get it for a while: handed straight to one that
# cannot take it, it would be read by nobody, again and again.
_AVOID = 60.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What a member does in this pass."""

    take: tuple[str, ...]
    """Free shards that it takes."""
    hand_over: Mapping[str, str]
    """Shards that it holds, and the nonce of the member that is to have each."""
    mixed: bool = False
    """Somebody holds shards who plans nothing with us: the Rust sibling, or an older version."""


class Sharing:
    """The fair share of one member in one subscription.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_since: dict[str, float] = {}
        self._avoided: dict[str, tuple[str, float]] = {}
        """Who did not come for a shard that is ours since, and until when it gets it from nobody."""

    def decide(
        self, me: Member, survey: Survey, readable: Iterable[str], held: Collection[str]
    ) -> Decision:
        """What to do now.

        Args:
            me: This member.
            survey: What the store knows.
            readable: Unfinished shards whose parents are finished.
            held: Shards that this member holds.
        """
        now = self._clock.monotonic()
        members = {member.nonce: member.max_shards for member in survey.members}
        # Whatever the store says: who asks is alive.
        members[me.nonce] = me.max_shards
        rows = {row.key.shard_id: row for row in survey.leases}
        pool: dict[str, str | None] = {}
        mixed = False
        for shard_id in {*readable, *held}:
            row = rows.get(shard_id)
            if shard_id in held:
                pool[shard_id] = me.nonce
            elif row is None or row.free:
                pool[shard_id] = None if row is None else row.successor
            elif row.member in members:
                pool[shard_id] = row.member
            else:
                # Held by an owner that plans nothing with us: it leaves the pool. (So does what a
                # member holds that died just now, for the pass until its lease runs out.)
                mixed = mixed or row.member is None
        planned = share(pool, members)
        take = [
            shard_id
            for shard_id, nonce in planned.items()
            if nonce == me.nonce and shard_id not in held and _obtainable(rows.get(shard_id), me)
            # The plan may keep what was handed to us and give away one that we still hold.
        ][: _room(me, len(held))]
        abandoned = self._abandoned(pool, rows, held, now)
        room = _room(me, len(held) + len(take))
        # By id: so that a rush of everybody for the same ones is one write each, and no order of
        # preference leaves some for last everywhere.
        take += [each for each in sorted(abandoned) if each not in take][:room]
        for shard_id in take:
            absent = planned.get(shard_id, me.nonce)
            if absent != me.nonce:
                self._avoided[shard_id] = (absent, now + _AVOID)
        self._avoided = {s: who for s, who in self._avoided.items() if who[1] > now}
        hand_over = {
            shard_id: nonce
            for shard_id, nonce in planned.items()
            if shard_id in held
            and nonce != me.nonce
            and self._avoided.get(shard_id, ("", 0.0))[0] != nonce
        }
        return Decision(tuple(take), hand_over, mixed)

    def _abandoned(
        self,
        pool: Iterable[str],
        rows: Mapping[str, LeaseState],
        held: Collection[str],
        now: float,
    ) -> set[str]:
        """Shards that nobody has taken for two passes."""
        free = {
            shard_id
            for shard_id in pool
            if shard_id not in held and (shard_id not in rows or rows[shard_id].free)
        }
        self._free_since = {shard_id: self._free_since.get(shard_id, now) for shard_id in free}
        return {s for s, since in self._free_since.items() if now - since >= _FREE_FOR_ALL}


def _obtainable(row: LeaseState | None, me: Member) -> bool:
    """Whether a shard that is planned for us can be had: free, or ours without our knowing."""
    return row is None or row.free or row.member == me.nonce


def _room(me: Member, taken: int) -> int | None:
    return None if me.max_shards is None else max(0, me.max_shards - taken)
