"""When a batch closes."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis._core import Batcher


def test_a_batch_closes_at_its_size_and_the_rest_forms_the_next() -> None:
    batcher: Batcher[str] = Batcher(4, 0.05)
    assert batcher.push("a", 3, 0.0) == []
    assert batcher.push("b", 6, 1.0) == [[("a", 0, 3), ("b", 0, 1)], [("b", 1, 5)]]
    assert batcher.pending == 1
    assert batcher.deadline == 1.05
    assert batcher.flush() == [("b", 5, 6)]
    assert batcher.pending == 0
    assert batcher.flush() == []


def test_the_window_runs_from_the_first_delivery() -> None:
    batcher: Batcher[str] = Batcher(10, 2.0)
    batcher.push("a", 1, 1.0)
    batcher.push("b", 1, 2.5)
    assert batcher.deadline == 3.0
    assert batcher.due(2.99) is None
    assert batcher.due(3.0) == [("a", 0, 1), ("b", 0, 1)]
    assert batcher.due(99.0) is None


def test_a_full_batch_leaves_no_deadline_behind() -> None:
    batcher: Batcher[str] = Batcher(2, 1.0)
    assert batcher.push("a", 4, 0.0) == [[("a", 0, 2)], [("a", 2, 4)]]
    assert (batcher.deadline, batcher.due(99.0)) == (None, None)


def test_an_empty_run_starts_no_window() -> None:
    batcher: Batcher[str] = Batcher(2, 1.0)
    assert batcher.push("a", 0, 0.0) == []
    assert (batcher.deadline, batcher.pending) == (None, 0)


def test_a_window_of_zero_is_over_at_once_and_an_infinite_one_never() -> None:
    batcher: Batcher[str] = Batcher(2, 0.0)
    batcher.push("a", 1, 5.0)
    assert batcher.due(5.0) == [("a", 0, 1)]
    patient: Batcher[str] = Batcher(2, float("inf"))
    patient.push("a", 1, 5.0)
    assert patient.due(1e300) is None


@pytest.mark.parametrize(
    ("size", "window"), [(0, 1.0), (-1, 1.0), (-(2**70), 1.0), (1, -0.1), (1, float("nan"))]
)
def test_a_batch_that_could_never_close_is_refused(size: int, window: float) -> None:
    with pytest.raises(ValueError, match="batch"):
        Batcher(size, window)


def test_a_negative_count_is_refused() -> None:
    batcher: Batcher[str] = Batcher(2, 1.0)
    with pytest.raises(ValueError, match="0 deliveries or more"):
        batcher.push("a", -1, 0.0)


@given(st.integers(1, 8), st.lists(st.integers(0, 20), max_size=12))
def test_every_delivery_is_in_one_batch_in_arrival_order(size: int, counts: list[int]) -> None:
    batcher: Batcher[int] = Batcher(size, 1.0)
    closed = [batch for run, count in enumerate(counts) for batch in batcher.push(run, count, 0.0)]
    assert all(sum(stop - start for _, start, stop in batch) == size for batch in closed)
    assert batcher.pending == sum(counts) % size
    seen = [
        (run, i) for batch in [*closed, batcher.flush()] for run, a, b in batch for i in range(a, b)
    ]
    assert seen == [(run, i) for run, count in enumerate(counts) for i in range(count)]


class Run:
    """A run that refers to its batcher, as a queue of a worker well may."""

    batcher: Batcher[Run] | None = None


def test_a_run_is_let_go_with_its_slices() -> None:
    batcher: Batcher[Run] = Batcher(2, 1.0)
    run = Run()
    gone = weakref.ref(run)
    closed = batcher.push(run, 3, 0.0)
    assert closed[0][0][0] is run
    del run, closed
    assert gone() is not None, "one delivery is still pending"
    batcher.flush()
    assert gone() is None


def test_a_cycle_through_a_forming_batch_is_collected() -> None:
    run = Run()
    run.batcher = Batcher(2, 1.0)
    run.batcher.push(run, 1, 0.0)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
