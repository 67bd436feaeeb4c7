"""Which shards of a stream may be read now.

Invariant: a child is read only after every parent that the stream still lists was read to its end
and settled. That is what keeps the order of a key through splits and merges. A parent that aged out
of the list has nothing left to read and blocks nobody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ruststream_kinesis.transport import ShardInfo

__all__ = ["startable"]


def startable(shards: Iterable[ShardInfo], finished: Container[str]) -> list[str]:
    """The unfinished shards whose listed parents are all finished, in the order listed.

    Args:
        shards: Every shard the stream lists.
        finished: Ids of the shards whose checkpoint is `SHARD_END`.
    """
    listed = {shard.shard_id: shard for shard in shards}
    return [
        shard.shard_id
        for shard in listed.values()
        if shard.shard_id not in finished
        and all(parent in finished or parent not in listed for parent in shard.parents)
    ]
