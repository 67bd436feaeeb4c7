"""The simulation finds bugs that are there: each planted one within a few seeds, and says which."""

from __future__ import annotations

import gc
import re

import pytest

from tests.sim.plants import PLANTS, Plant
from tests.sim.world import simulate

SEEDS = 40


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    said = []
    for seed in range(plant.first, plant.first + SEEDS):
        with plant.planted():
            result = simulate(seed)
        if result.failure is not None:
            if re.search(plant.says, result.failure):
                break
            said.append(f"seed {seed}: {result.failure}")
    else:
        pytest.fail(f"{plant.name} was not found; what was said: {said}")
    gc.collect()
