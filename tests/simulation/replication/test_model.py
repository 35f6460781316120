"""The rules of replication lose nothing in any order of events; without any one of them they do.

Every state of a small world is visited: message delay and loss, restarts with and without the tail,
failed writes, changes of the ISR, controllers that begin again, planned seals. The sizes below are
those that a few seconds allow; `python -m tests.simulation.replication` goes further.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.simulation.replication.explore import Explored, TooManyStates, explore
from tests.simulation.replication.model import Model, Rules, Size

TWO = Size(replicas=2, min_in_sync=1)
THREE = Size(replicas=3, min_in_sync=2)
FOUR = Size(replicas=4, min_in_sync=2)

SAFE = {
    "lost tails": replace(TWO, restarts=2, lost_tails=2, isr_changes=1),
    "a failed write": replace(TWO, records=2, isr_changes=1, write_failures=1, restarts=1),
    "a planned seal": replace(TWO, planned_seals=1, isr_changes=1, fences=2, restarts=1),
    "two segments": replace(TWO, planned_seals=1, restarts=1, lost_tails=1, segments=2),
    "three replicas": replace(THREE, isr_changes=1),
    "an interrupted seal": replace(THREE, fences=2),
    "three replicas, a planned seal": replace(THREE, planned_seals=1, isr_changes=1),
    "three replicas, a lost tail": replace(THREE, restarts=1, lost_tails=1),
}

UNSAFE = {
    "isr_is_maximal": replace(TWO, isr_changes=1),
    "silent_members_count": TWO,
    "quorum_is_of_replicas": replace(FOUR, isr_changes=1),
    "restarted_leader_resigns": replace(TWO, records=2, restarts=1),
    "failed_leader_resigns": replace(TWO, records=2, write_failures=1),
    "lost_tails_do_not_count": replace(TWO, isr_changes=1, restarts=1, lost_tails=1),
    "both_marks_before_isr": replace(THREE, isr_changes=1, restarts=1, lost_tails=1),
    "fence_is_persisted": replace(TWO, restarts=1),
    "majority_answers_fence": THREE,
    "isr_member_answers_fence": replace(TWO, isr_changes=1),
    "end_is_greatest": THREE,
    "seal_compares_fence": replace(TWO, fences=2),
    "fenced_replicas_stop": TWO,
    "messages_name_segment": replace(TWO, segments=2),
    "frozen_until_known": replace(TWO, planned_seals=1),
    "planned_seal_waits_for_isr": replace(TWO, planned_seals=1),
    "planned_seal_compares_epoch": replace(TWO, planned_seals=1),
}


@pytest.mark.parametrize("name", SAFE)
def test_all_rules_together_lose_nothing(name: str) -> None:
    found = explore(Model(SAFE[name]))
    assert found.problem is None, f"\n{found}"
    assert found.states > 100


def test_every_rule_has_a_world_that_needs_it() -> None:
    assert set(UNSAFE) == {field.name for field in fields(Rules)}


@pytest.mark.parametrize("rule", UNSAFE)
def test_a_protocol_without_the_rule_loses_or_diverges(rule: str) -> None:
    weaker = replace(Rules(), **{rule: False})
    found = explore(Model(UNSAFE[rule], weaker))
    assert found.problem is not None, f"{found.states} states, and nothing is wrong with any"
    assert len(found.steps) >= 2


def test_a_model_that_is_too_large_is_said_to_be() -> None:
    with pytest.raises(TooManyStates):
        explore(Model(THREE), most=100)


def test_a_way_to_a_problem_is_told_step_by_step() -> None:
    found = Explored(states=7, problem="lost", steps=("append 1", "leader syncs"))
    assert str(found) == "7 states, lost\n  1 append 1\n  2 leader syncs"
