"""The roll of a log, event by event."""

import pytest

from firnmq.engines.shardlog.rolling.machine import (
    FREEZE_S_MAX,
    AskDriver,
    AwaitShown,
    Begun,
    CloseLog,
    Decide,
    Decided,
    Event,
    Failed,
    Install,
    LogClosed,
    RollMachine,
    Shown,
    Sync,
    Synced,
    Thaw,
    Wanted,
)
from firnmq.engines.shardlog.rolling.state import (
    FROZEN,
    ROLL_TRANSITIONS,
    UNDER_WAY,
    RollState,
    RollStep,
)
from firnmq.transitions import IllegalTransition

NOW_S = 100.0
BEGUN = Begun(end_offset=7, shown_offset=7)
LAGGING = Begun(end_offset=7, shown_offset=4)
FAILED = Failed(error=OSError(5, "Input/output error"))

PATHS: dict[RollState, list[Event]] = {
    RollState.IDLE: [],
    RollState.WANTED: [Wanted()],
    RollState.CATCHING_UP: [LAGGING],
    RollState.SYNCING: [BEGUN],
    RollState.DECIDING: [BEGUN, Synced()],
    RollState.CLOSING: [BEGUN, LogClosed()],
    RollState.CLOSED: [LogClosed()],
}
"""How to get to each state."""


def machine_in(state: RollState) -> RollMachine:
    machine = RollMachine()
    for event in PATHS[state]:
        machine.handle(event, NOW_S)
    assert machine.state is state
    return machine


def test_a_roll_from_the_wish_to_the_new_segment() -> None:
    machine = RollMachine()
    assert machine.handle(Wanted(), NOW_S) == [AskDriver()]
    assert not machine.is_frozen, "appends go on until the driver begins"
    deadline_s = NOW_S + FREEZE_S_MAX
    assert machine.handle(LAGGING, NOW_S) == [AwaitShown(offset=7, deadline_s=deadline_s)]
    assert machine.is_frozen
    assert machine.handle(Shown(shown_offset=6), NOW_S) == [
        AwaitShown(offset=7, deadline_s=deadline_s)
    ]
    assert machine.handle(Shown(shown_offset=7), NOW_S) == [Sync()]
    assert machine.handle(Synced(), NOW_S) == [Decide()]
    assert machine.handle(Decided(), NOW_S) == [Install()]
    assert (machine.state, machine.is_frozen) == (RollState.IDLE, False)


def test_a_log_that_shows_everything_does_not_wait() -> None:
    assert RollMachine().handle(BEGUN, NOW_S) == [Sync()]


def test_a_wish_is_passed_on_once() -> None:
    for state in RollState:
        machine = machine_in(state)
        if state is RollState.IDLE:
            assert machine.handle(Wanted(), NOW_S) == [AskDriver()]
        elif state is not RollState.CLOSING:
            assert machine.handle(Wanted(), NOW_S) == []
            assert machine.state is state


def test_a_freeze_is_bounded() -> None:
    machine = machine_in(RollState.CATCHING_UP)
    late_s = NOW_S + FREEZE_S_MAX
    assert machine.handle(Shown(shown_offset=6), late_s) == [Thaw()]
    assert (machine.state, machine.is_frozen) == (RollState.IDLE, False)
    assert machine.handle(Wanted(), late_s) == [AskDriver()], "it is tried again"


def test_the_deadline_does_not_matter_once_everything_is_shown() -> None:
    machine = machine_in(RollState.CATCHING_UP)
    assert machine.handle(Shown(shown_offset=7), NOW_S + 2 * FREEZE_S_MAX) == [Sync()]


@pytest.mark.parametrize("state", sorted(FROZEN, key=lambda each: each.value))
def test_a_failed_step_closes_the_log(state: RollState) -> None:
    machine = machine_in(state)
    assert machine.handle(FAILED, NOW_S) == [CloseLog(error=FAILED.error)]
    assert (machine.state, machine.is_under_way) == (RollState.CLOSED, False)


@pytest.mark.parametrize("state", RollState)
def test_a_log_can_be_closed_in_every_state(state: RollState) -> None:
    machine = machine_in(state)
    assert machine.handle(LogClosed(), NOW_S) == []
    assert not machine.is_frozen
    assert machine.is_under_way == (state in UNDER_WAY), "a driver at work is waited for"


@pytest.mark.parametrize("event", [Shown(shown_offset=7), Synced(), Decided(), FAILED])
def test_a_driver_that_comes_back_to_a_closed_log_has_nothing_to_do(event: Event) -> None:
    machine = machine_in(RollState.CLOSING)
    assert machine.handle(event, NOW_S) == []
    assert (machine.state, machine.is_under_way) == (RollState.CLOSED, False)


@pytest.mark.parametrize("state", RollState)
@pytest.mark.parametrize("step", RollStep)
def test_a_step_that_is_not_in_the_table_changes_nothing(state: RollState, step: RollStep) -> None:
    machine = machine_in(state)
    if ROLL_TRANSITIONS.allows(state, step):
        machine._take(step)
        assert machine.state is ROLL_TRANSITIONS.table[state, step]
    else:
        with pytest.raises(IllegalTransition):
            machine._take(step)
        assert machine.state is state
    assert machine.is_frozen == (machine.state in FROZEN)
    assert machine.is_under_way == (machine.state in UNDER_WAY)


def test_only_a_driver_freezes_and_only_it_ends_a_roll() -> None:
    for event in (Synced(), Decided(), FAILED):
        for state in (RollState.IDLE, RollState.WANTED):
            with pytest.raises(IllegalTransition):
                machine_in(state).handle(event, NOW_S)
    with pytest.raises(IllegalTransition):
        machine_in(RollState.DECIDING).handle(BEGUN, NOW_S)
