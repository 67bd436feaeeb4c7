"""Measuring CPU: the whole process, all threads, interleaved, with its spread.

`time.process_time()` counts user and system time of every thread of this process, so work moved to
a Rust thread or to a renewal thread is paid for like any other. Contenders take turns (a, b, a, b,
…) because a shared machine drifts over a minute by more than the differences of interest; a ratio
is the median of the ratios of neighbours, not the ratio of two medians.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Sample:
    """One run of one contender."""

    cpu: float
    """CPU seconds of the process."""
    wall: float
    """Seconds that passed. Reported, never judged."""
    units: int
    """Records or calls that this time paid for."""

    @property
    def per_unit_us(self) -> float:
        """CPU microseconds a record or call."""
        return self.cpu / self.units * 1e6


class Stopwatch:
    """Both clocks, read at the same two moments."""

    def __init__(self) -> None:
        self._cpu = self._wall = 0.0

    def start(self) -> None:
        """Take the first reading."""
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def stop(self, units: int) -> Sample:
        """Take the second reading: a sample over `units` records or calls."""
        cpu = time.process_time() - self._cpu
        return Sample(cpu=cpu, wall=time.perf_counter() - self._wall, units=units)


def interval(values: list[float]) -> tuple[float, float]:
    """An interval that holds the true median in at least nine of ten cases.

    From order statistics, so it assumes nothing about how noise is distributed. Fewer than five
    values cannot give that certainty; then it is simply the whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut = 0
    outside = 0.0
    while True:
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 0.1 or 2 * (cut + 1) >= count:
            break
        cut += 1
    low = max(cut - 1, 0)
    return ordered[low], ordered[count - 1 - low]


@dataclass
class Series:
    """All runs of one contender."""

    name: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """CPU microseconds a unit, one for each run."""
        return [sample.per_unit_us for sample in self.samples]

    @property
    def median(self) -> float:
        """The middle of the runs, in CPU microseconds a unit."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest run."""
        return min(self.values), max(self.values)

    @property
    def cells(self) -> list[str]:
        """Median and range, for a table."""
        low, high = self.spread
        return [f"{self.median:.3f}", f"{low:.3f} to {high:.3f}"]

    @property
    def rate(self) -> float:
        """Units a second of wall time, median. Tells how busy the machine was, no more."""
        return statistics.median(sample.units / sample.wall for sample in self.samples)


@dataclass(frozen=True)
class Ratio:
    """How many times cheaper one contender is than another."""

    median: float
    low: float
    high: float

    @property
    def indistinguishable(self) -> bool:
        """Whether the difference is inside the noise."""
        return self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        if self.indistinguishable:
            return "indistinguishable"
        return f"1/{self.median:.1f}" if self.median >= 1 else f"{1 / self.median:.2f} x"


def ratio(base: Series, other: Series) -> Ratio:
    """`base` over `other`, pair by pair: 5.0 means that `other` costs a fifth."""
    pairs = [a / b for a, b in zip(base.values, other.values, strict=True)]
    low, high = interval(pairs)
    return Ratio(median=statistics.median(pairs), low=low, high=high)


def interleave(
    contenders: Mapping[str, Callable[[], Sample]],
    rounds: int,
    progress: Callable[[str, Sample], None] | None = None,
) -> dict[str, Series]:
    """Run every contender once a round, in turn.

    The first round is thrown away: it pays for imports, caches and the first growth of the heap.
    """
    series = {name: Series(name) for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            gc.collect()
            sample = run()
            if turn:
                series[name].samples.append(sample)
                if progress is not None:
                    progress(name, sample)
    return series
