"""`ruststream-kinesis shards`: the shards of a stream as a tree, and who is how far in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ruststream_kinesis.cli.asking import asked
from ruststream_kinesis.cli.lag import Subject, lag_cell, owner_cell
from ruststream_kinesis.cli.lagging import ShardLag, checkpoint_cell
from ruststream_kinesis.cli.lease_json import lease_as_json
from ruststream_kinesis.cli.lease_view import Rows
from ruststream_kinesis.cli.tables import console, print_json, print_table
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, Transport, patiently

__all__ = ["Branch", "print_shards", "tree"]

# Hash keys are below it: the space that the shards share.
_SPACE = 2**128


@dataclass(frozen=True, slots=True)
class Branch:
    """A shard at its place in the tree."""

    shard: ShardInfo
    drawn: str
    """What stands before its name: the lines of the tree."""


def tree(shards: Iterable[ShardInfo]) -> list[Branch]:
    """All shards, each below the first of its listed parents, in the order to print them."""
    listed = {shard.shard_id: shard for shard in shards}
    below: dict[str, list[ShardInfo]] = {}
    roots = []
    for shard in listed.values():
        parent = next((each for each in shard.parents if each in listed), None)
        if parent is None:
            roots.append(shard)
        else:
            below.setdefault(parent, []).append(shard)

    drawn = []
    # No recursion: a shard that was split a thousand times has as many generations.
    left = [(root, "", "") for root in reversed(roots)]
    while left:
        shard, mark, follow = left.pop()
        drawn.append(Branch(shard, mark))
        children = below.get(shard.shard_id, [])
        for child in reversed(children):
            last = child is children[-1]
            lines = ("└ ", "  ") if last else ("├ ", "│ ")
            left.append((child, follow + lines[0], follow + lines[1]))
    return drawn


async def print_shards(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    *,
    rows: Rows | None,
    group: str | None,
    as_json: bool,
) -> int:
    """Prints them; returns the exit code.

    Args:
        transport: Makes the calls.
        clock: Time.
        stream: Which stream.
        rows: The lease table, where one is named.
        group: Whose leases.
        as_json: One JSON document and no table.

    Raises:
        KinesisError: The stream or the table cannot be read.
    """
    found: dict[str, ShardLag] = {}
    if rows is not None:
        measured = await Subject(transport, clock, stream, rows, group).measure()
        found = {each.shard.shard_id: each for each in measured}
        shards = tuple(each.shard for each in measured)
    else:
        # It says what a missing stream is called, and where it was looked for.
        await asked(lambda: transport.describe_stream(stream), clock)
        shards = (await patiently(lambda: transport.list_shards(stream), clock)).shards
    if as_json:
        print_json(
            {
                "stream": stream.name,
                "group": group,
                "shards": [_as_json(shard, found.get(shard.shard_id)) for shard in shards],
            }
        )
        return 0
    columns = ["shard", "state", "hash %"]
    if rows is not None:
        columns += ["lag", "checkpoint", "owner"]
    print_table(
        columns,
        [_row(branch, found.get(branch.shard.shard_id)) for branch in tree(shards)],
        right=("lag",),
        folded=("owner",),
    )
    opened = sum(not shard.ended for shard in shards)
    out = console()
    out.print(f"{opened} open, {len(shards) - opened} closed")
    for shard in shards:
        if len(shard.parents) > 1:
            out.print(f"* {shard.shard_id} is also a child of {shard.parents[1]}", soft_wrap=True)
    return 0


def _row(branch: Branch, lag: ShardLag | None) -> list[str]:
    shard = branch.shard
    name = branch.drawn + shard.shard_id
    if len(shard.parents) > 1:
        name += " *"
    row = [name, "closed" if shard.ended else "open", _share(shard.hash_keys)]
    if lag is not None:
        row += [lag_cell(lag), checkpoint_cell(lag.lease), owner_cell(lag.lease)]
    return row


def _share(hash_keys: tuple[str, str] | None) -> str:
    """Which part of the hash keys it has: 39 digits say less than a percentage."""
    if hash_keys is None:
        return "?"
    low, high = (int(key) for key in hash_keys)
    first, behind = (f"{100 * edge / _SPACE:.4g}" for edge in (low, high + 1))
    return f"{first}-{behind}"


def _as_json(shard: ShardInfo, lag: ShardLag | None) -> dict[str, object]:
    made: dict[str, object] = {
        "shard_id": shard.shard_id,
        "parents": shard.parents,
        "open": not shard.ended,
        "hash_key_range": shard.hash_keys,
        "starting_sequence_number": shard.starting_sequence_number,
    }
    if lag is not None:
        made |= {"progress": lag.progress, "lag_ms": lag.lag_ms, **lease_as_json(lag.lease)}
    return made
