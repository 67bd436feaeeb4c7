"""Memory of the watermark: one record is held open while millions after it are settled.

The watermark lives in Rust, where `tracemalloc` sees nothing, so the resident set of a fresh
process is read before and after: in its own process because a heap that other benchmarks have
grown would hide growth. The order of settling matters for a structure that keeps runs, so there
are three: in order, shuffled within a window (what 64 open deliveries with workers can do), and
every other record first.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benches.canned import ROOT
from benches.pages import ORDINARY, page_body
from benches.tally import WrongResultError

if TYPE_CHECKING:
    from collections.abc import Callable

# Before the first reading: allocators and the page itself have reached their size.
WARMUP_PAGES = 200

# Deliveries that can be open at once: the channel holds 64.
WINDOW = 64


@dataclass(frozen=True)
class Growth:
    """What one order of settling cost."""

    order: str
    records: int
    """Settled after the held one."""
    resident_bytes: int
    """Growth of the resident set, in bytes."""


def _in_order(count: int) -> list[int]:
    return list(range(count))


def _shuffled(count: int) -> list[int]:
    places = _in_order(count)
    rng = random.Random(7)
    for start in range(0, count, WINDOW):
        part = places[start : start + WINDOW]
        rng.shuffle(part)
        places[start : start + WINDOW] = part
    return places


def _alternating(count: int) -> list[int]:
    return [*range(1, count, 2), *range(0, count, 2)]


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "in order": _in_order,
    "shuffled in windows of 64": _shuffled,
    "every other first": _alternating,
}


def resident_bytes() -> int:
    """The resident set of this process now (Linux), or its peak where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # noqa: PLC0415 (not on every platform)

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(order: str, records: int) -> Growth:
    """Hold one record, settle `records` after it, and read the resident set around that.

    Raises:
        WrongResultError: The watermark moved past the held record, or did not move to the end once
            that was settled.
    """
    # The subject, imported in the process that is measured only.
    from ruststream_kinesis._core import Page, Watermark  # noqa: PLC0415

    page = Page.parse(page_body(ORDINARY))
    count = len(page)
    places = ORDERS[order](count)
    watermark = Watermark()
    held = watermark.deliver(page)
    for place in range(held + 1, held + count):
        watermark.settle(place)

    def run(pages: int) -> None:
        deliver, settle = watermark.deliver, watermark.settle
        for _ in range(pages):
            first = deliver(page)
            for place in places:
                if settle(first + place):
                    raise WrongResultError("the watermark moved past a held record")

    run(WARMUP_PAGES)
    before = resident_bytes()
    run(records // count)
    growth = resident_bytes() - before
    held_at = watermark.position
    if held_at is not None:
        raise WrongResultError("there is a position although the first record is held")
    last = ORDINARY.sequence_number(0, 0, count - 1)
    if not watermark.settle(held) or watermark.position != last:
        raise WrongResultError("settling the held record did not move the watermark to the end")
    return Growth(order=order, records=records // count * count, resident_bytes=growth)


def run_memory(records: int) -> list[Growth]:
    """Measure every order, each in a process of its own.

    Raises:
        subprocess.CalledProcessError: A check failed there; its traceback is on stderr.
    """
    grown = []
    for order in ORDERS:
        answer = subprocess.run(
            [sys.executable, "-m", "benches.memory", order, str(records)],
            stdout=subprocess.PIPE,
            check=True,
            cwd=ROOT,
            text=True,
        )
        grown.append(Growth(**json.loads(answer.stdout)))
    return grown


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2])))))
