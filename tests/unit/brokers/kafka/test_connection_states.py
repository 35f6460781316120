"""The states of a connection: every pair of state and event leads somewhere or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.brokers.kafka.connections import states
from firnmq.brokers.kafka.connections.states import (
    TRANSITIONS,
    Event,
    IllegalTransition,
    Life,
    Reading,
    Sending,
    Serving,
    State,
    Transitions,
    Writing,
)
from firnmq.brokers.kafka.protocol import ApiKey
from firnmq.brokers.kafka.protocol.messages import groups
from tests.unit.brokers.kafka.stage import Stage, on_stage

FIRST: dict[type[State], State] = {
    Life: Life.NEW,
    Reading: Reading.ON,
    Serving: Serving.IDLE,
    Sending: Sending.AT_ONCE,
    Writing: Writing.FREE,
}
PAIRS = [
    (state, event) for kind in FIRST for state in kind for event in Event if event in TRANSITIONS
]


def test_every_event_has_one_row_of_one_kind_of_state() -> None:
    assert set(TRANSITIONS) == set(Event)
    for transitions in TRANSITIONS.values():
        kinds = {type(state) for state in (*transitions, *transitions.values())}
        assert len(kinds) == 1, transitions.event
    named = {each.event for each in vars(states).values() if type(each) is Transitions}
    assert named == set(Event)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=str)
def test_a_pair_that_is_not_in_the_table_is_refused(state: State, event: Event) -> None:
    transitions = TRANSITIONS[event]
    before = dict(transitions)
    if state in before:
        assert transitions[state] is before[state]
    else:
        with pytest.raises(IllegalTransition) as refused:
            transitions[state]
        assert (refused.value.state, refused.value.event) == (state, event)
        assert state.name in str(refused.value)
    assert dict(transitions) == before, "a question changes nothing"


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
def test_every_state_can_be_reached(kind: type[State]) -> None:
    reached = {FIRST[kind]}
    while True:
        further = {
            after
            for transitions in TRANSITIONS.values()
            for before, after in transitions.items()
            if before in reached
        }
        if further <= reached:
            break
        reached |= further
    assert reached == set(kind)


def test_nothing_leads_out_of_the_ends() -> None:
    for transitions in TRANSITIONS.values():
        assert transitions.get(Life.LOST, Life.LOST) is Life.LOST
        assert transitions.get(Reading.STOPPED, Reading.STOPPED) is Reading.STOPPED


def test_what_a_connection_refuses_changes_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(IllegalTransition):
            stage.connection.may_give_up()  # No request is being carried out.
        with pytest.raises(IllegalTransition):
            stage.connection.connection_made(stage.transport)  # It is made already.
        stage.feed(stage.request(1, ApiKey.LIST_GROUPS, groups.ListGroupsRequest()))
        assert len(await stage.frames(1)) == 1, "the connection goes on"

    on_stage(tmp_path, act)
