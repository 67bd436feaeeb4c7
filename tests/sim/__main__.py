"""`python -m tests.sim`: many seeds with progress, or one of them with everything that it says.

`--scale` runs no storm, but 20 instances on 1,000 shards, and tells what moved.
"""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from tests.sim.scale import INSTANCES, SHARDS, measure
from tests.sim.world import Result, simulate

# What a seed leaves behind is in cycles; collected now and then, it costs little.
_COLLECT_EVERY = 20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--seeds", default="200", help="how many, or `seed=N` to replay one (default: 200)"
    )
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not end at the first seed that fails"
    )
    parser.add_argument(
        "--scale", action="store_true", help="how soon shares are fair among many instances"
    )
    return parser.parse_args()


def _replay(seed: int) -> int:
    result = simulate(seed, hashing=True, verbose=True)
    print(result.trace)
    print(f"\nseed {seed}: {result.steps} steps, {result.seconds:.1f} virtual seconds")
    print(f"events: {dict(sorted(result.counts.items()))}")
    print(f"digest of all events: {result.digest:08x}")
    print(result.failure or "nothing is wrong")
    return result.failure is not None


def _report(result: Result) -> None:
    print(f"\nseed {result.seed} FAILED: {result.failure}\n\n{result.trace}\n")
    print(f"replay it: make sim SEEDS=seed={result.seed}")


def main() -> int:
    """Run; 1 where a seed failed."""
    arguments = _arguments()
    if arguments.scale:
        print(measure(INSTANCES, SHARDS))
        return 0
    if arguments.seeds.startswith("seed="):
        return _replay(int(arguments.seeds.removeprefix("seed=")))
    count, first = int(arguments.seeds), arguments.first
    began, steps, failed, seconds = time.monotonic(), 0, 0, 0.0
    counts: Counter[str] = Counter()
    for number, seed in enumerate(range(first, first + count), start=1):
        result = simulate(seed)
        steps, seconds = steps + result.steps, seconds + result.seconds
        counts.update({what: many for what, many in result.counts.items() if what.islower()})
        if result.failure is not None:
            failed += 1
            _report(result)
            if not arguments.keep_going:
                break
        if number % _COLLECT_EVERY == 0:
            gc.collect()
            took = time.monotonic() - began
            print(
                f"{number} of {count} seeds, {steps:,} steps, {took:.0f} s "
                f"({steps / took * 60:,.0f} steps a minute), {failed} failed",
                flush=True,
            )
    took = time.monotonic() - began
    print(
        f"{steps:,} steps of {seconds:,.0f} virtual seconds in {took:.1f} s "
        f"({steps / took * 60:,.0f} steps a minute), {failed} failed"
    )
    print("events: " + ", ".join(f"{what} {many:,}" for what, many in sorted(counts.items())))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
