"""`ruststream-kinesis leases`: a lease table, by subscription: whose shards are whose, who is alive."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console

from ruststream_kinesis.cli.lagging import checkpoint_cell
from ruststream_kinesis.cli.lease_json import lease_as_json
from ruststream_kinesis.cli.lease_view import LeaseLine, LeaseView, MemberLine, Rows, view
from ruststream_kinesis.cli.tables import console, duration, print_json, print_table
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.leases.base import subscription_name
from ruststream_kinesis.wording import instant

__all__ = ["print_leases"]

_MINUTE = 60


async def print_leases(table: str, rows: Rows, clock: Clock, *, wait: float, as_json: bool) -> int:
    """Prints it; returns the exit code.

    Args:
        table: Its name.
        rows: What is in it.
        clock: Time.
        wait: Seconds to watch who is alive, at most.
        as_json: One JSON document and no tables.

    Raises:
        KinesisError: It cannot be read.
    """
    with _watching(wait):
        seen = await view(rows, clock, wait=wait)
    if as_json:
        print_json(_as_json(table, seen))
        return 0
    out = console()
    if not seen.leases and not seen.members:
        out.print(f"{table} holds no leases.")
    for subscription, lines in groupby(seen.leases.values(), _subscription):
        out.print(_heading(subscription, seen), style="bold" if out.is_terminal else "")
        print_table(
            ("shard", "owner", "alive", "renewed", "checkpoint"),
            [_row(line, seen) for line in lines],
            folded=("owner",),
        )
        out.print()
    if seen.members:
        out.print("instances", style="bold" if out.is_terminal else "")
        print_table(
            ("instance", "alive", "shards", "reads"),
            [_member_row(member) for member in seen.members.values()],
            right=("shards",),
            folded=("reads",),
        )
    problems = [line.problem for line in seen.leases.values() if line.problem is not None]
    for problem in (*problems, *seen.problems):
        out.print(problem, soft_wrap=True)
    if seen.foreign:
        out.print(f"{seen.foreign} row(s) of another kind")
    return 0


@contextlib.contextmanager
def _watching(wait: float) -> Iterator[None]:
    """Says what takes so long, where somebody sits before it."""
    out = Console(stderr=True)
    if wait <= 0 or not out.is_terminal or not sys.stdout.isatty():
        yield
        return
    with out.status(f"watching who renews, {wait:g} s at most (--wait 0 does without)"):
        yield


def _subscription(line: LeaseLine) -> str:
    return subscription_name(line.key.stream, line.key.group)


def _heading(subscription: str, seen: LeaseView) -> str:
    group, _, stream = subscription.rpartition("/")
    said = f"stream {stream}" + (f", group {group}" if group else "")
    opening = seen.openings.get(subscription)
    return said if opening is None else f"{said}, first opened {instant(opening.instant)}"


def _row(line: LeaseLine, seen: LeaseView) -> tuple[str, ...]:
    owner, alive = line.owner_id or "-", "-"
    if line.owner is not None:
        alive = "yes" if line.alive else "no"
    elif line.state is not None and line.state.successor is not None and not line.state.finished:
        heir = seen.members.get(line.state.successor)
        owner = f"handed to {line.state.successor if heir is None else heir.member.owner_id}"
    ago = "-" if line.renewed_ago is None else f"{line.renewed_ago:.1f} s ago"
    if (line.renewed_ago or 0.0) >= _MINUTE:
        ago = f"{duration(1_000 * (line.renewed_ago or 0.0))} ago"
    return (line.key.shard_id, owner, alive, ago, checkpoint_cell(line))


def _member_row(line: MemberLine) -> tuple[str, ...]:
    member = line.member
    most = "" if member.max_shards is None else f" of {member.max_shards} at most"
    return (
        member.owner_id,
        {True: "yes", False: "no", None: "not seen"}[line.alive],
        f"{line.shards}{most}",
        ", ".join(member.subscriptions),
    )


def _as_json(table: str, seen: LeaseView) -> dict[str, object]:
    return {
        "table": table,
        "watched_seconds": round(seen.watched, 3),
        "leases": [
            {
                "stream": line.key.stream,
                "group": line.key.group,
                "shard_id": line.key.shard_id,
                **lease_as_json(line),
                "handed_to": None if line.state is None else line.state.successor,
            }
            for line in seen.leases.values()
        ],
        "instances": [
            {
                "nonce": line.member.nonce,
                "owner_id": line.member.owner_id,
                "alive": line.alive,
                "shards": line.shards,
                "max_shards": line.member.max_shards,
                "subscriptions": line.member.subscriptions,
            }
            for line in seen.members.values()
        ],
        "openings": [
            {
                "subscription": name,
                "opened": instant(opening.instant),
                "stream_created": None if opening.created is None else instant(opening.created),
            }
            for name, opening in seen.openings.items()
        ],
        "problems": seen.problems,
        "other_rows": seen.foreign,
    }
