"""`python -m tests.chaos --minutes 10 --seed 1`: a run, with progress and tables."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.chaos.report import Verdict, judge, show
from tests.chaos.run import chaos
from tests.chaos.traffic import read_story
from tests.support import servers


def main() -> int:
    """Run it; 0 where every rule held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the script (default 1)")
    parser.add_argument("--seed", type=int, help="of the script (default: a new one)")
    parser.add_argument("--folder", type=Path, help="for the books of the processes (default: new)")
    parser.add_argument("--judge", type=Path, help="a folder of books: judge that run once more")
    arguments = parser.parse_args()
    # A file is as wide as the tables are.
    console = Console(width=None if sys.stdout.isatty() else 110)
    if arguments.judge is not None:
        return _end(judge(read_story(arguments.judge), 60 * arguments.minutes, []), console)
    seed = time.time_ns() % 100_000 if arguments.seed is None else arguments.seed
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {seed}, {arguments.minutes:g} minute(s), books in {folder}")
    with servers.kinesis_local() as kinesis, servers.dynalite() as dynamodb:
        verdict = asyncio.run(
            chaos(
                seed,
                60 * arguments.minutes,
                kinesis=kinesis.url,
                dynamodb=dynamodb.url,
                folder=folder,
                say=lambda text: console.print(text, markup=False, highlight=False),
            )
        )
    return _end(verdict, console)


def _end(verdict: Verdict, console: Console) -> int:
    show(verdict, console)
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    sys.exit(main())
