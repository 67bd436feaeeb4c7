"""`python -m benches`: every benchmark in one run, then its tables.

Exit status: 0 when everything ran (bounds that were missed are shown, not failed, unless
`--strict`), 1 for a missed bound with `--strict`, 2 when a section could not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
import time
from pathlib import Path

from benches.report import Report
from benches.sections import FULL_SIZE, QUICK_SIZE, RESULTS, SECTIONS, Context


def _say(text: str) -> None:
    print(text, flush=True)


def _loops(choice: str) -> tuple[str, ...]:
    if choice != "both":
        return (choice,)
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    return ("asyncio", "uvloop") if has_uvloop else ("asyncio",)


def main(arguments: list[str] | None = None) -> int:
    """Run, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    parser.add_argument("section", nargs="*", help=f"{', '.join(SECTIONS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="run every check, measure little")
    parser.add_argument("--rounds", type=int, help="interleaved repetitions")
    parser.add_argument(
        "--loop",
        choices=("asyncio", "uvloop", "both"),
        default="both",
        help="event loop of the service section; uvloop is left out of `both` if not installed",
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json", metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there too")
    parser.add_argument("--strict", action="store_true", help="a missed bound is a failure")
    options = parser.parse_args(arguments)
    unknown = set(options.section) - SECTIONS.keys()
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")

    size = QUICK_SIZE if options.quick else FULL_SIZE
    if options.rounds:
        size = dataclasses.replace(size, rounds=options.rounds)
    report = Report(quick=options.quick)
    context = Context(size=size, loops=_loops(options.loop), report=report, say=_say)
    for name, run in SECTIONS.items():
        if options.section and name not in options.section:
            continue
        _say(f"{name}: {(run.__doc__ or '').splitlines()[0]}")
        started = time.monotonic()
        run(context)
        _say(f"{name}: {time.monotonic() - started:.0f} s")
    report.show()
    report.write_json(options.json)
    if options.markdown is not None:
        report.write_markdown(options.markdown)
    if report.missing:
        return 2
    return 1 if options.strict and not all(check.met for check in report.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
