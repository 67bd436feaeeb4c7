"""Fair share without a leader: which member reads which shard.

No I/O, no clock, no chance: whoever sees the same survey computes the same plan.

Invariants:

* Every member gets as many shards as every other, or one more, as far as its own limit allows; what
  one cannot take because of its limit is shared by those that can.
* No plan with such numbers moves fewer shards from a member that holds them.
* A plan that is carried out in part, in any order, leaves the rest of it as it was. Members see the
  moves of others at different times; no shard has two successors meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["share"]


def share(shards: Mapping[str, str | None], members: Mapping[str, int | None]) -> dict[str, str]:
    """Who is to read each shard.

    Of a member's excess, the shards with the highest ids move: they are the newest, so that a
    parent that is nearly read to its end stays where it is, and the shards that it keeps do not
    depend on how many of the others are gone already. Shards are taken by their ids and members by
    their nonces in order, each member as many at once as it lacks, for the same reason.

    Args:
        shards: Id, and the nonce of the member that holds the shard or to which it was handed;
            `None`, or somebody who is no member, where it is free.
        members: Nonce, and how many shards the member takes at most; `None` is no limit.

    Returns:
        The member of each shard; without the shards that are beyond all limits together.
    """
    held: dict[str, list[str]] = {nonce: [] for nonce in sorted(members)}
    pool: list[str] = []
    for shard_id in sorted(shards):
        holder = shards[shard_id]
        mine = None if holder is None else held.get(holder)
        (pool if mine is None else mine).append(shard_id)
    limits = {
        nonce: len(shards) if limit is None else min(max(limit, 0), len(shards))
        for nonce, limit in members.items()
    }
    quotas = _quotas({nonce: len(mine) for nonce, mine in held.items()}, limits, len(shards))
    plan: dict[str, str] = {}
    for nonce, mine in held.items():
        plan.update(dict.fromkeys(mine[: quotas[nonce]], nonce))
        pool += mine[quotas[nonce] :]
    pool.sort()
    start = 0
    for nonce, mine in held.items():
        stop = start + max(0, quotas[nonce] - len(mine))
        plan.update(dict.fromkeys(pool[start:stop], nonce))
        start = stop
    return plan


def _quotas(held: Mapping[str, int], limits: Mapping[str, int], count: int) -> dict[str, int]:
    """How many shards each member gets, members in the order of `held`.

    The odd ones go to those who hold more than the common level already, who would have to give
    one away otherwise; then by the order. How much more does not matter: it changes while a plan is
    carried out, whereas nobody crosses the level but those who are meant to.
    """
    level, rest, open_to = 0, count, sorted(limits.values(), reverse=True)
    # Water rises in all vessels alike; each step fills the one with the lowest rim.
    while open_to:
        rise = min(open_to[-1] - level, rest // len(open_to))
        level += rise
        rest -= rise * len(open_to)
        if open_to[-1] > level:
            break
        open_to.pop()
    quotas = {nonce: min(limits[nonce], level) for nonce in held}
    higher = [nonce for nonce in held if limits[nonce] > level]
    higher.sort(key=lambda nonce: held[nonce] <= level)
    for nonce in higher[:rest]:
        quotas[nonce] += 1
    return quotas
