"""Seeded schedules of a replica: it loses nothing that it reported, shows nothing that may vanish,
and has the bytes of the others.

`python -m tests.simulation.replicas SEED` replays a schedule with its trace.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.replicas.world import World

PARTS = 4
SEEDS_PER_PART = 500
STEPS = 60


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run(STEPS)
    except BaseException as error:
        error.add_note(f"replay it with: python -m tests.simulation.replicas {seed}")
        raise
    return world


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        totals += run(seed).done
    # A simulation in which nothing happens proves nothing.
    for what in ("acknowledged", "cut", "sealed", "installed"):
        assert totals[what] > SEEDS_PER_PART // 4, totals


def test_a_schedule_replays_exactly() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(17, trace.append).run(200)
    assert traces[0] == traces[1]
    assert len(traces[0]) >= 200
