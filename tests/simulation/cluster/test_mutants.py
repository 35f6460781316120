"""Each rule of the protocol is needed: the core without it fails in one of a few schedules."""

from __future__ import annotations

import pytest

from firnmq.transitions import IllegalTransition
from tests.simulation.cluster.mutants import MUTANTS
from tests.simulation.cluster.simulation import Simulation

SCHEDULES_MAX = 200


@pytest.mark.parametrize("rule", MUTANTS)
def test_the_core_without_the_rule_fails(rule: str) -> None:
    mutant = MUTANTS[rule]
    for seed in range(SCHEDULES_MAX):
        simulation = Simulation(seed, mutant.parts, size=mutant.size, faults=mutant.faults)
        try:
            simulation.run()
        except (AssertionError, IllegalTransition):
            # The same schedule is no trouble for the core with all of its rules.
            Simulation(seed, size=mutant.size, faults=mutant.faults).run()
            return
    pytest.fail(f"{SCHEDULES_MAX} schedules, and nothing is wrong with any")
