"""Seeded schedules of the real replication core lose nothing, and go on once the faults end.

`python -m tests.simulation.cluster --seed N` replays a schedule with its trace;
`--count` runs more of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from firnmq.cluster.replication.values import Acks, Durability
from tests.simulation.cluster.simulation import FAULTS, Result, Simulation
from tests.simulation.cluster.world import Size

SEEDS_PER_PART = 40
PARTS = 5


def run(seed: int) -> Result:
    try:
        return Simulation(seed).run()
    except Exception as error:
        error.add_note(f"replay it with: python -m tests.simulation.cluster --seed {seed}")
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_an_invariant(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        result = run(seed)
        totals.update({acks.value: count for acks, count in result.acknowledged.items()})
        totals["seals"] += result.seals
    # A simulation in which nothing happens proves nothing.
    assert all(totals[acks.value] > 100 for acks in Acks), totals
    assert totals["seals"] > SEEDS_PER_PART


def test_a_schedule_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    Simulation(17, writer=first.append).run()
    Simulation(17, writer=second.append).run()
    assert first == second
    assert len(first) > 500


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_every_fault_with_every_number_of_replicas(replicas: int) -> None:
    durability = Durability.OS
    size = Size(replicas=replicas, spare_nodes=1, min_in_sync=1, durability=durability)
    for number, fault in enumerate(FAULTS):
        Simulation(1_000 + number, size=size, faults=(fault, "roll")).run()
