"""Seeded schedules of the real caches, topic changes, registration, placement and forwarding.

`python -m tests.simulation.nodes --seed N` replays a schedule with its trace; `--count` runs more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest

from tests.simulation.nodes.world import Result, World

SEEDS_PER_PART = 60
PARTS = 4


def run(seed: int) -> Result:
    try:
        return World(seed).run()
    except Exception as error:
        error.add_note(f"replay it with: python -m tests.simulation.nodes --seed {seed}")
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_an_invariant(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        totals.update(asdict(run(seed)))
    # A simulation in which nothing happens proves nothing.
    assert totals["made"] > 2 * SEEDS_PER_PART
    assert totals["deleted"] > SEEDS_PER_PART
    assert totals["acknowledged"] > 10 * SEEDS_PER_PART


def test_a_schedule_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    World(17, say=first.append).run()
    World(17, say=second.append).run()
    assert first == second
    assert len(first) > 100
