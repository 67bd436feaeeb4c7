"""The verdict of a run, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from tests.chaos.checks import (
    EXCUSES,
    Repeat,
    Story,
    Takeover,
    Tenures,
    disordered,
    idle,
    lost,
    overlapping,
    repeats,
    slept_away,
    stolen,
    takeovers,
    unfenced,
)

TAKEOVER = 17.0
"""Seconds from SIGKILL to the first record that another process handles: the lease (10), a pass (3)
until the others see its last renewal, another until they see that there was none, and a second to read."""
SLACK = 3.0
"""Seconds more that two busy cores and two servers in one thread each may take for that."""
_SHOWN = 8


@dataclass
class Verdict:
    """What a run has shown."""

    story: Story
    seconds: float
    violations: dict[str, list[str]]
    """By rule; an empty list is a rule that held."""
    repeats: list[Repeat]
    kills: list[Takeover]
    pauses: list[Takeover]
    idle: list[float]
    """Seconds that shards were nobody's, which were handed over or given up at a stop."""
    slept_away: int
    """Shards that others took from a process that slept, before it woke."""

    @property
    def failed(self) -> dict[str, list[str]]:
        """The rules that did not hold."""
        return {rule: found for rule, found in self.violations.items() if found}


def judge(story: Story, seconds: float, failures: Sequence[str]) -> Verdict:
    """Apply every rule."""
    tenures = Tenures(story)
    again = repeats(story, tenures)
    kills = takeovers(story, tenures, "kill")
    late = [
        f"{each.shard_id} of {each.fault.target}: {each.handled:.1f} s"
        for each in kills
        if not each.disturbed and each.handled is not None and each.handled > TAKEOVER + SLACK
    ]
    violations = {
        "every acknowledged record was handled": lost(story),
        "each key in order, but for steps back": disordered(story),
        "no key handled twice at one time": overlapping(story),
        "no delivery starts after another one had the shard": unfenced(story, tenures),
        "records repeat after a kill or a pause only": [
            f"{each.first.key} #{each.first.n} of {each.first.shard_id}, {each.cause}: by "
            f"{each.process} at {each.first.begin:.3f}, by {each.by} at {each.again.begin:.3f}"
            for each in again
            if each.cause not in EXCUSES
        ],
        "a blocked event loop keeps its shards": stolen(story, tenures),
        f"taken over within {TAKEOVER:g} + {SLACK:g} s of a kill": late,
        "no process fails by itself": list(failures),
    }
    return Verdict(
        story,
        seconds,
        violations,
        again,
        kills,
        takeovers(story, tenures, "pause"),
        idle(story, tenures),
        slept_away(story, tenures),
    )


def show(verdict: Verdict, console: Console) -> None:
    """Print the tables."""
    story = verdict.story
    handled = [each for lines in story.handled.values() for each in lines]
    faults = Counter(each.kind for each in story.faults)
    causes = Counter(each.cause for each in verdict.repeats)

    table = Table("what", "count", title="The run", box=box.SIMPLE_HEAD, title_justify="left")
    rows = {
        "seconds": f"{verdict.seconds:.0f}",
        "processes": str(len(story.handled)),
        "shards, closed ones included": str(len({put.shard_id for put in story.puts})),
        "records acknowledged": f"{len(story.puts):,}",
        "handlings": f"{len(handled):,}",
        **{f"{kind}s": str(faults[kind]) for kind in ("kill", "pause", "stop", "start", "block")},
        "splits and merges": str(faults["split"] + faults["merge"]),
        "leases taken": str(sum(map(len, story.acquired.values()))),
        "handed over": str(
            sum(line.handed_over for lines in story.released.values() for line in lines)
        ),
        "taken from a sleeping process": str(verdict.slept_away),
        "seconds from release to taking: median, max": ", ".join(_spread(verdict.idle)),
        "records handled again": str(len(verdict.repeats)),
    }
    rows |= {f"  because of: {cause}": str(count) for cause, count in sorted(causes.items())}
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)

    for title, found in (("a kill", verdict.kills), ("a pause", verdict.pauses)):
        _show_takeovers(found, title, console)

    table = Table("rule", "", title="The rules", box=box.SIMPLE_HEAD, title_justify="left")
    for rule, broken in verdict.violations.items():
        table.add_row(rule, f"[red]{len(broken)} times not[/]" if broken else "[green]held[/]")
    console.print(table)
    for rule, broken in verdict.failed.items():
        console.print(f"[red]{rule}[/]: {len(broken)} times not")
        for line in broken[:_SHOWN]:
            console.print(f"  {line}", markup=False, highlight=False)


def _show_takeovers(found: Sequence[Takeover], title: str, console: Console) -> None:
    table = Table(
        "process",
        "shards",
        "lease: median",
        "max",
        "record: median",
        "max",
        "near it",
        title=f"Seconds from {title} until others have the lease, and begin with a record",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for fault in dict.fromkeys(each.fault for each in found):
        of_it = [each for each in found if each.fault is fault]
        table.add_row(
            fault.target, str(len(of_it)), *_figures(of_it), ", ".join(of_it[0].disturbed)
        )
    alone = [each for each in found if not each.disturbed]
    table.add_section()
    table.add_row("all", str(len(found)), *_figures(found))
    table.add_row("left alone", str(len(alone)), *_figures(alone))
    console.print(table)


def _figures(found: Sequence[Takeover]) -> tuple[str, str, str, str]:
    taken = [each.acquired for each in found if each.acquired is not None]
    begun = [each.handled for each in found if each.handled is not None]
    return (*_spread(taken), *_spread(begun))


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return (f"{median(values):.1f}", f"{max(values):.1f}") if values else ("-", "-")
