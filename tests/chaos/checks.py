"""What must be true of a run, from what its processes wrote down.

Pure functions of a `Story`. A *tenure* is one acquisition of a shard by a process; it lasts until the
next acquisition of that shard, whoever makes it.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.book import Acquired, Fault, Handled, Put, Released
from tests.chaos.script import ALONE_AFTER, ALONE_BEFORE

EXCUSES = ("kill", "pause")
"""What may lead to a record being handled twice."""
_BLOCK_MARGIN = 1.5
"""Seconds at either end of a block that are not looked at: it begins with the next record."""
_WAKING = 5.0
"""Seconds after a pause in which a process has seen what it lost: a pass, and a busy machine."""


@dataclass
class Story:
    """All that is known of a run."""

    puts: list[Put] = field(default_factory=list)
    handled: dict[str, list[Handled]] = field(default_factory=dict)
    """By process, as in the next two."""
    acquired: dict[str, list[Acquired]] = field(default_factory=dict)
    released: dict[str, list[Released]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def of(self, kind: str) -> list[Fault]:
        """The faults of a kind, in order."""
        return sorted((each for each in self.faults if each.kind == kind), key=lambda f: f.at)


@dataclass(frozen=True)
class Tenure:
    """A shard in the hands of a process."""

    shard_id: str
    process: str
    begin: float
    end: float
    """When the next acquisition of the shard was known; infinite for the last one."""


@dataclass(frozen=True)
class Repeat:
    """A record that was handled once more."""

    first: Handled
    again: Handled
    process: str
    """Of the first."""
    by: str
    """Of the second."""
    cause: str
    """`kill` or `pause`, which excuse it; anything else does not."""


@dataclass(frozen=True)
class Takeover:
    """A shard of a process that was killed or paused."""

    fault: Fault
    shard_id: str
    acquired: float | None
    """Seconds from the fault until another process had the lease; `None`: nobody took it."""
    handled: float | None
    """Seconds until another process began with a record; `None`: there was none left."""
    disturbed: tuple[str, ...]
    """Faults of other processes near it."""


class Tenures:
    """Who had which shard when."""

    def __init__(self, story: Story) -> None:
        taken: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for process, lines in story.acquired.items():
            for line in lines:
                taken[line.shard_id].append((line.at, process))
        self.by_shard: dict[str, list[Tenure]] = {}
        for shard_id, points in taken.items():
            points.sort()
            ends = [at for at, _ in points[1:]] + [float("inf")]
            self.by_shard[shard_id] = [
                Tenure(shard_id, process, at, end)
                for (at, process), end in zip(points, ends, strict=True)
            ]

    def __iter__(self) -> Iterator[Tenure]:
        for tenures in self.by_shard.values():
            yield from tenures

    def of(self, process: str, shard_id: str, at: float) -> Tenure | None:
        """The newest tenure of the shard that the process had got by then, over or not."""
        tenures = self.by_shard.get(shard_id, [])
        for tenure in reversed(tenures[: bisect.bisect(tenures, at, key=lambda t: t.begin)]):
            if tenure.process == process:
                return tenure
        return None


def lost(story: Story) -> list[str]:
    """Records that the service answered for and nobody handled."""
    seen = {(each.key, each.n) for lines in story.handled.values() for each in lines}
    return [
        f"{put.key} #{put.n} ({put.shard_id} {put.sequence_number}) was never handled"
        for put in story.puts
        if (put.key, put.n) not in seen
    ]


def disordered(story: Story) -> list[str]:
    """Steps of a key that are no step: after a number comes the next, or an earlier one."""
    found = []
    for key, handlings in _by_key(story).items():
        previous = -1
        for process, each in handlings:
            if each.n > previous + 1:
                found.append(
                    f"{key}: #{each.n} after #{previous}, by {process} at {each.begin:.3f}"
                )
            previous = each.n
    return found


def overlapping(story: Story) -> list[str]:
    """Handlings of one key at the same time, unless one of the processes slept through it."""
    pauses = story.of("pause")
    found = []
    for key, handlings in _by_key(story).items():
        newest = handlings[0]
        for process, each in handlings[1:]:
            other, earlier = newest
            if each.begin < earlier.end and not (
                process != other and _during(pauses, other, earlier.begin, earlier.end)
            ):
                found.append(
                    f"{key}: #{earlier.n} by {other} and #{each.n} by {process} at {each.begin:.3f}"
                )
            if each.end > earlier.end:
                newest = (process, each)
    return found


def unfenced(story: Story, tenures: Tenures) -> list[str]:
    """Handlers that were started for a shard when another acquisition of it was known already."""
    found = []
    for process, lines in story.handled.items():
        for each in lines:
            late = _late(tenures, process, each)
            if late:
                found.append(
                    f"{process} began {each.key} #{each.n} of {each.shard_id} "
                    f"{late:.3f} s after another one had it"
                )
    return found


def _late(tenures: Tenures, process: str, handling: Handled) -> float:
    """Seconds since the tenure was over when the handler was started; 0 while it lasted."""
    tenure = tenures.of(process, handling.shard_id, handling.begin)
    if tenure is None:
        return float("inf")  # it never had the shard
    return max(0.0, handling.begin - tenure.end)


def repeats(story: Story, tenures: Tenures) -> list[Repeat]:
    """Every handling of a record but its first, with what it comes from."""
    # Records of an aggregate share its sequence number.
    records: dict[tuple[str, str, int], list[tuple[str, Handled]]] = defaultdict(list)
    for process, lines in story.handled.items():
        for each in lines:
            records[each.shard_id, each.sequence_number, each.n].append((process, each))
    found = []
    for handlings in records.values():
        handlings.sort(key=lambda pair: pair[1].begin)
        for (process, first), (by, again) in pairwise(handlings):
            cause = _cause(story, tenures, process, first, again)
            if _late(tenures, by, again):
                cause = "not fenced"
            found.append(Repeat(first, again, process, by, cause))
    return found


def _cause(story: Story, tenures: Tenures, process: str, first: Handled, again: Handled) -> str:
    """What ended the tenure that the record was first handled in."""
    tenure = tenures.of(process, first.shard_id, first.begin)
    if tenure is None:
        return "no tenure"
    if tenure.end > again.begin:
        return "same tenure"
    if _slept_away(story, tenure):
        return "pause"
    let_go = _let_go(story, tenure)
    if _during(story.of("kill"), process, first.begin, tenure.end):
        # Killed while it released: whether that was stored, nobody knows.
        return "kill"
    if let_go and let_go[0].handed_over:
        return "hand-over"
    if _during(story.of("stop"), process, tenure.begin, tenure.end):
        return "stop"
    return "released" if let_go else "unexplained"


def stolen(story: Story, tenures: Tenures) -> list[str]:
    """Shards of a process whose event loop a handler held, that another one took meanwhile."""
    found = []
    for fault in story.of("block"):
        begin, end = fault.at + _BLOCK_MARGIN, fault.until - _BLOCK_MARGIN
        found += [
            f"{tenure.shard_id} of {fault.target} was taken while it was blocked, "
            f"{tenure.end - fault.at:.1f} s after that began"
            for tenure in tenures
            # What it gave up had been on its way before: while it is blocked, it gives up nothing.
            if tenure.process == fault.target
            and begin < tenure.end < end
            and not _let_go(story, tenure)
        ]
    return found


def takeovers(story: Story, tenures: Tenures, kind: str) -> list[Takeover]:
    """Every shard that a killed (or paused) process held, and when another one went on with it."""
    found = []
    for fault in story.of(kind):
        near = tuple(
            f"{each.kind} {each.target}"
            for each in sorted(story.faults, key=lambda f: f.at)
            if each is not fault
            and each.kind in ALONE_BEFORE
            and each.at < fault.at + ALONE_AFTER
            and each.until > fault.at - ALONE_BEFORE[each.kind]
        )
        for tenure in held_at(story, tenures, fault.target, fault.at):
            later = [each for each in tenures.by_shard[tenure.shard_id] if each.begin > fault.at]
            # One that woke in time may have gone on: its lease was renewed, or had once more.
            if kind == "pause" and not _ended_by(fault, story, tenure):
                continue
            if later and later[0].process == fault.target:
                continue
            begun = [
                each.begin
                for process, lines in story.handled.items()
                for each in lines
                if process != fault.target
                and each.shard_id == tenure.shard_id
                and each.begin > fault.at
            ]
            found.append(
                Takeover(
                    fault,
                    tenure.shard_id,
                    later[0].begin - fault.at if later else None,
                    min(begun) - fault.at if begun else None,
                    near,
                )
            )
    return found


def idle(story: Story, tenures: Tenures) -> list[float]:
    """Seconds in which shards that were handed over, or given up at a stop, had nobody."""
    found = []
    for tenure in tenures:
        let_go = _let_go(story, tenure)
        if let_go and tenure.end < float("inf") and not _slept_away(story, tenure):
            found.append(tenure.end - let_go[0].at)
    return found


def slept_away(story: Story, tenures: Tenures) -> int:
    """How many shards a process lost while it was paused: what it may start nothing of."""
    return sum(
        1
        for pause in story.of("pause")
        for each in held_at(story, tenures, pause.target, pause.at)
        if pause.at < each.end < pause.until
    )


def held_at(story: Story, tenures: Tenures, process: str, at: float) -> list[Tenure]:
    """The shards that a process held, and had not begun to give up."""
    return [
        tenure
        for tenure in tenures
        if tenure.process == process
        and tenure.begin <= at < tenure.end
        and not any(line.at <= at for line in _let_go(story, tenure))
    ]


def _let_go(story: Story, tenure: Tenure) -> list[Released]:
    """Where its process gave the shard up before another one had it."""
    return [
        line
        for line in story.released.get(tenure.process, [])
        if line.shard_id == tenure.shard_id and tenure.begin <= line.at <= tenure.end
    ]


def _slept_away(story: Story, tenure: Tenure) -> bool:
    """Whether a pause of its process ended it."""
    return any(_ended_by(pause, story, tenure) for pause in story.of("pause"))


def _ended_by(pause: Fault, story: Story, tenure: Tenure) -> bool:
    """Whether others had the shard by the end of the pause, or its process gave it up then.

    Not every pause does that: where nobody took the shard, it may be renewed on waking.
    """
    given_up = min([line.at for line in _let_go(story, tenure)] + [tenure.end])
    asleep = pause.target == tenure.process and tenure.begin <= pause.at
    return asleep and pause.at <= given_up <= pause.until + _WAKING


def _by_key(story: Story) -> Mapping[str, list[tuple[str, Handled]]]:
    keys: dict[str, list[tuple[str, Handled]]] = defaultdict(list)
    for process, lines in story.handled.items():
        for each in lines:
            keys[each.key].append((process, each))
    for handlings in keys.values():
        handlings.sort(key=lambda pair: pair[1].begin)
    return keys


def _during(faults: Iterable[Fault], process: str, begin: float, end: float) -> bool:
    """Whether one of the faults befell the process in that time."""
    return any(
        fault.target == process and fault.at <= end and fault.until >= begin for fault in faults
    )
