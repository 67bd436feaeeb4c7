"""`ruststream-kinesis lag`: how far a service is behind, a shard a line, once or again and again."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from rich.console import Group
from rich.live import Live

from ruststream_kinesis.cli.asking import asked
from ruststream_kinesis.cli.lagging import ShardLag, checkpoint_cell, lags
from ruststream_kinesis.cli.lease_json import lease_as_json
from ruststream_kinesis.cli.lease_view import LeaseLine, Rows, view
from ruststream_kinesis.cli.logs import say
from ruststream_kinesis.cli.tables import console, duration, print_json, print_table, table
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import KinesisError, LeaseTableUnreachable, RequestError
from ruststream_kinesis.leases.base import subscription_name
from ruststream_kinesis.opening import check_created
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Failure, Transport, judge, patiently
from ruststream_kinesis.wording import fields, instant, label, listing

__all__ = ["Subject", "lag_cell", "owner_cell", "print_lag", "watch_lag"]

_COLUMNS = ("shard", "state", "lag", "checkpoint", "owner")
_RIGHT = ("lag",)
_FOLDED = ("owner",)


logger = logging.getLogger("ruststream_kinesis")


@dataclass(slots=True)
class Subject:
    """Whose lag it is."""

    transport: Transport
    clock: Clock
    stream: StreamRef
    rows: Rows
    group: str | None
    _told: bool = False

    @property
    def label(self) -> str:
        """For headings."""
        return label(self.stream.name, self.group)

    async def measure(self) -> list[ShardLag]:
        """Looks at stream and table, and reads each shard once.

        Raises:
            KinesisError: One of them cannot be read, or the rows are of an earlier stream.
        """
        info = await asked(lambda: self.transport.describe_stream(self.stream), self.clock)
        listed = await patiently(lambda: self.transport.list_shards(self.stream), self.clock)
        seen = await view(self.rows, self.clock)
        opening = seen.openings.get(subscription_name(self.stream.name, self.group))
        if opening is not None:
            check_created(self.stream.name, opening.created, info.created)
        leases = seen.subscription(self.stream.name, self.group)
        if not leases and not self._told:
            # Most likely another table or group is meant.
            self._told = True
            known = sorted({label(key.stream, key.group) for key in seen.leases})
            logger.warning(
                "the lease table has no row of %s; it has rows of: %s",
                self.label,
                listing(known) or "nothing",
                extra=fields(self.stream.name),
            )
        return await lags(
            self.transport,
            self.clock,
            self.stream,
            listed.shards,
            leases,
            None if opening is None else opening.instant,
        )


async def print_lag(subject: Subject, *, as_json: bool) -> int:
    """Prints it once; returns the exit code.

    Raises:
        KinesisError: See `Subject.measure`.
    """
    _print(subject, await subject.measure(), as_json=as_json)
    return 0


def _print(subject: Subject, found: list[ShardLag], *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(subject, found))
        return
    print_table(_COLUMNS, [_row(each) for each in found], right=_RIGHT, folded=_FOLDED)
    out = console()
    out.print(_sum(found))
    for each in found:
        if each.problem is not None:
            out.print(f"{each.shard.shard_id}: {each.problem}", soft_wrap=True)


async def watch_lag(subject: Subject, every: float, *, as_json: bool) -> int:
    """Prints it again and again: in place on a terminal, else one after the other.

    Raises:
        KinesisError: See `Subject.measure`; once it has worked, only what cannot pass.
    """
    out = console()
    found = await subject.measure()
    if as_json or not out.is_terminal:
        while True:
            if not as_json:
                out.print(instant(subject.clock.time()))
            _print(subject, found, as_json=as_json)
            await subject.clock.sleep(every)
            while isinstance(again := await _again(subject), KinesisError):
                say(str(again))
                await subject.clock.sleep(every)
            found = again
    # It redraws when there is something new, and not in between.
    with Live(console=out, auto_refresh=False) as live:
        said = ""
        while True:
            when = instant(round(subject.clock.time()))
            rows = map(_row, _worst(found))
            # What a low terminal has no room for is cut off at the end: the worst comes first.
            live.update(
                Group(
                    f"{subject.label} at {when}",
                    said or _sum(found),
                    "",
                    table(_COLUMNS, rows, right=_RIGHT, folded=_FOLDED),
                ),
                refresh=True,
            )
            await subject.clock.sleep(every)
            match await _again(subject):
                case KinesisError() as error:
                    said = f"not measured: {error}"
                case found:
                    said = ""


async def _again(subject: Subject) -> list[ShardLag] | KinesisError:
    """Measures once more; a failure that may pass is waited out."""
    try:
        return await subject.measure()
    except LeaseTableUnreachable as error:
        return error
    except RequestError as error:
        if judge(error) is Failure.TERMINAL:
            raise
        return error


def lag_cell(each: ShardLag) -> str:
    """The lag in a table."""
    if each.progress == "finished" or (each.progress == "not-started" and each.lag_ms is None):
        return "-"
    return "?" if each.lag_ms is None else duration(each.lag_ms)


def owner_cell(lease: LeaseLine | None) -> str:
    """Who holds a shard, in a table."""
    if lease is None or lease.owner_id is None:
        return "-"
    return lease.owner_id if lease.alive else f"{lease.owner_id} (dead)"


def _row(each: ShardLag) -> tuple[str, ...]:
    return (
        each.shard.shard_id,
        "closed" if each.shard.ended else "open",
        lag_cell(each),
        checkpoint_cell(each.lease),
        owner_cell(each.lease),
    )


def _worst(found: list[ShardLag]) -> list[ShardLag]:
    """What is not finished, the one that is furthest behind first."""
    left = [each for each in found if each.progress != "finished"]
    return sorted(left, key=lambda each: -(each.lag_ms or 0))


def _sum(found: list[ShardLag]) -> str:
    """All of it in one line."""
    if not found:
        return "The stream lists no shard."
    known = [each for each in found if each.lag_ms is not None]
    parts = []
    if known:
        worst = max(known, key=lambda each: each.lag_ms or 0)
        total = sum(each.lag_ms or 0 for each in known)
        where = f" ({worst.shard.shard_id})" if worst.lag_ms else ""
        parts.append(f"worst {duration(worst.lag_ms or 0)}{where}, total {duration(total)}")
    else:
        parts.append("nothing to measure")
    counts = Counter(each.progress for each in found if each.progress != "reading")
    parts += [f"{count} {what.replace('-', ' ')}" for what, count in sorted(counts.items())]
    return ", ".join(parts)


def _as_json(subject: Subject, found: list[ShardLag]) -> dict[str, object]:
    known = [each.lag_ms for each in found if each.lag_ms is not None]
    return {
        "time": instant(subject.clock.time()),
        "stream": subject.stream.name,
        "group": subject.group,
        "worst_ms": max(known, default=None),
        "total_ms": sum(known) if known else None,
        "shards": [
            {
                "shard_id": each.shard.shard_id,
                "open": not each.shard.ended,
                "progress": each.progress,
                "lag_ms": each.lag_ms,
                **lease_as_json(each.lease),
            }
            for each in found
        ],
    }
