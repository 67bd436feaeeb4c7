"""Which shards of a stream may be read now.

Invariant: a child is read only after every parent that the stream still lists was read to its end
and settled. That is what keeps the order of a key through splits and merges. A parent that aged out
of the list has nothing left to read and blocks nobody. The other way round, a parent that is to be
read again waits until nobody holds what goes back to it: handlers of those records may run there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from ruststream_kinesis.transport import ShardInfo

__all__ = ["ancestors", "startable"]


def startable(
    shards: Iterable[ShardInfo],
    finished: Container[str],
    held: Iterable[str] = (),
    begun: Iterable[str] = (),
) -> list[str]:
    """The unfinished shards whose listed parents are all finished, in the order listed.

    Args:
        shards: Every shard the stream lists.
        finished: Ids of the shards whose checkpoint is `SHARD_END`.
        held: Ids of shards that somebody holds.
        begun: Ids of shards that have a row and are not finished. What goes back to one of them waits,
            by however many generations: of those in between, some may be finished still when the
            first is to be read again.
    """
    listed = {shard.shard_id: shard for shard in shards}
    waiting = ancestors(held, listed)
    # Nearly always none: only where something is read again, or just now reads to its end.
    first = {parent for each in listed.values() for parent in each.parents}.intersection(begun)
    return [
        shard.shard_id
        for shard in listed.values()
        if shard.shard_id not in finished
        and shard.shard_id not in waiting
        and all(parent in finished or parent not in listed for parent in shard.parents)
        and (not first or first.isdisjoint(ancestors([shard.shard_id], listed)))
    ]


def ancestors(shard_ids: Iterable[str], listed: Mapping[str, ShardInfo]) -> set[str]:
    """Every listed shard that one of `shard_ids` goes back to."""
    found: set[str] = set()
    todo = list(shard_ids)
    while todo:
        info = listed.get(todo.pop())
        for parent in () if info is None else info.parents:
            if parent in listed and parent not in found:
                found.add(parent)
                todo.append(parent)
    return found
