"""Fair shares among many instances, and nothing that moves without need (case L6)."""

from __future__ import annotations

import math

import pytest

from tests.sim.scale import INSTANCES, QUIET, SHARDS, Found, measure


def check(found: Found) -> None:
    """Nobody gave away more than was too much: not one shard moved without need."""
    assert found.passes <= 3.0, found
    # One had everything, and keeps its share, the larger one where shares differ.
    assert found.moved == found.shards - math.ceil(found.shards / found.instances), found
    assert found.next_passes <= 3.0, found
    # The newcomer gets its share, the smaller one where shares differ.
    assert found.next_moved == found.shards // (found.instances + 1), found
    assert found.quiet_moves == 0, found
    assert found.spread[1] - found.spread[0] <= 1, found


def test_twenty_instances_share_a_thousand_shards() -> None:
    """All hundred quiet passes take a minute: `python -m tests.sim --scale`."""
    found = measure(INSTANCES, SHARDS, quiet=5)
    check(found)
    assert found.next_moved <= 48


@pytest.mark.parametrize(("instances", "shards"), [(4, 8), (4, 10), (3, 7), (6, 100)])
def test_nothing_moves_for_a_hundred_passes(instances: int, shards: int) -> None:
    found = measure(instances, shards)
    assert found.quiet == QUIET
    check(found)
