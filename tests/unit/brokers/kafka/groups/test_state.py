import itertools

import pytest

from firnmq.brokers.kafka.groups.state import (
    TRANSITIONS,
    GroupState,
    IllegalTransition,
    Step,
    next_state,
)
from tests.unit.brokers.kafka.groups.stage import Stage


@pytest.mark.parametrize("state, step", list(itertools.product(GroupState, Step)))
def test_a_step_leads_where_the_table_says_or_nowhere(state: GroupState, step: Step) -> None:
    if (state, step) in TRANSITIONS:
        assert next_state(state, step) is TRANSITIONS[state, step]
    else:
        with pytest.raises(IllegalTransition) as caught:
            next_state(state, step)
        assert (caught.value.state, caught.value.step) == (state, step)


def test_nothing_leads_out_of_dead_and_everything_can_end() -> None:
    assert not any(state is GroupState.DEAD for state, _ in TRANSITIONS)
    own = {GroupState.ASSIGNING, GroupState.RECONCILING}  # Of groups of the other kind.
    for state in set(GroupState) - {GroupState.DEAD} - own:
        assert TRANSITIONS[state, Step.UNLOADED] is GroupState.DEAD


def test_only_saved_assignments_lead_to_stable() -> None:
    into_stable = [pair for pair, state in TRANSITIONS.items() if state is GroupState.STABLE]
    assert into_stable == [(GroupState.COMPLETING, Step.ASSIGNED)]


def test_a_refused_step_changes_nothing() -> None:
    stage = Stage()
    stage.stable_pair()
    before = stage.group.describe()
    with pytest.raises(IllegalTransition):
        stage.group._core.become_stable({}, stage.now_ms)
    assert stage.group.describe() == before
