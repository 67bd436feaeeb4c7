"""Fair shares among many instances, and nothing that moves without need (case L6)."""

from __future__ import annotations

import math

import pytest

from tests.sim.scale import INSTANCES, QUIET, SHARDS, Found, measure


def most_moves(found: Found) -> int:
    """What one instance more may get: its share, rounded up."""
    return math.ceil(found.shards / (found.instances + 1))


def check(found: Found) -> None:
    assert found.passes <= 3.0, found
    # Nobody gave away more than was too much: one had everything.
    share = found.shards / found.instances
    assert found.shards - math.ceil(share) <= found.moved <= found.shards - math.floor(share), found
    assert found.next_passes <= 3.0, found
    assert found.next_moved <= most_moves(found), found
    assert found.quiet_moves == 0, found
    assert found.spread[1] - found.spread[0] <= 1, found


def test_twenty_instances_share_a_thousand_shards() -> None:
    """All hundred quiet passes take a minute: `python -m tests.sim --scale`."""
    found = measure(INSTANCES, SHARDS, quiet=5)
    check(found)
    assert most_moves(found) == 48


@pytest.mark.parametrize(("instances", "shards"), [(4, 8), (3, 7), (6, 100)])
def test_nothing_moves_for_a_hundred_passes(instances: int, shards: int) -> None:
    found = measure(instances, shards)
    assert found.quiet == QUIET
    check(found)
