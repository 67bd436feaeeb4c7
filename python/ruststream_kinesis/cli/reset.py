"""`ruststream-kinesis checkpoint reset`: shows what it would write, and writes it where it is told to."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from ruststream_kinesis.cli.logs import say
from ruststream_kinesis.cli.resetting import Plan, Resetting
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.wording import listing, short

__all__ = ["reset_checkpoints"]


async def reset_checkpoints(
    resetting: Resetting, position: KinesisPosition, *, yes: bool, as_json: bool
) -> int:
    """Shows the plan, carries it out with `yes`, and returns the exit code.

    Raises:
        KinesisError: It is refused, or cannot be done; says what was written.
    """
    if yes:
        await resetting.wait_until_quiet(_waiting)
    plan = await resetting.plan(position)
    alive = [] if yes else await resetting.busy()
    if not as_json:
        _show(plan)
    if yes:
        await resetting.apply(plan)
    if as_json:
        _print_json(plan, alive, written=yes)
        return 0
    if yes:
        sys.stdout.write(f"{len(plan.moves)} shard(s) moved: the next start reads from there.\n")
        return 0
    if alive:
        say(f"{len(alive)} instance(s) may be alive ({listing(alive)}): stop them first")
    sys.stdout.write("Nothing was written: --yes does it.\n")
    return 0


def _waiting(alive: Sequence[str]) -> None:
    say(f"waiting some 12 s to see whether {listing(alive)} is alive, or has crashed")


def _show(plan: Plan) -> None:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in ("shard", "now", "then"):
        table.add_column(name)
    for move in plan.moves:
        table.add_row(move.shard_id, move.old, _place(move.to))
    for shard_id in plan.finished:
        table.add_row(shard_id, "finished", "finished")
    Console(highlight=False).print(table)


def _place(position: KinesisPosition) -> str:
    if position.kind == "sequence":
        return f"at {short(position.sequence_number)}"
    return f"from {position}"


def _print_json(plan: Plan, alive: list[str], *, written: bool) -> None:
    shards = [
        {
            "shard_id": move.shard_id,
            "checkpoint": None if move.stored is None else move.stored.checkpoint,
            "resume_from": None
            if move.stored is None or move.stored.resume_from is None
            else move.stored.resume_from.to_text(),
            "to": move.to.to_text(),
        }
        for move in plan.moves
    ]
    told = {
        "written": written,
        "shards": shards,
        "finished": list(plan.finished),
        "alive": alive,
    }
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
