"""The states of a failover seal, and every way from one to another, in one table."""

from __future__ import annotations

from enum import Enum

from firnmq.transitions import Transitions


class SealState(Enum):
    FENCING = "fencing"
    """The record is being changed: a new fence, and the leadership is gone."""
    COLLECTING = "collecting"
    """Replicas are asked to persist the fence and to tell their ends."""
    COPYING = "copying"
    """E is decided; enough replicas must have everything below it."""
    PLACING = "placing"
    """It is being chosen where the next segment lives."""
    SEALING = "sealing"
    """The transaction: sealed at E, the next segment active from E, the shard's pointer moved."""
    DONE = "done"
    ABANDONED = "abandoned"
    """This node is no longer the controller; the next one begins with the next fence."""


class SealStep(Enum):
    FENCED = "a fence in the record"
    DECIDE = "enough answers"
    CONFIRM = "enough copies"
    PLACE = "a place for the next segment"
    SEALED = "a sealed record"
    BEGIN_AGAIN = "a new beginning"
    DEPOSE = "another controller"


_State, _Step = SealState, SealStep

_RUNNING = (_State.FENCING, _State.COLLECTING, _State.COPYING, _State.PLACING, _State.SEALING)

SEAL_TRANSITIONS = Transitions(
    "seal of a segment",
    {
        (_State.FENCING, _Step.FENCED): _State.COLLECTING,
        (_State.COLLECTING, _Step.DECIDE): _State.COPYING,
        (_State.COPYING, _Step.CONFIRM): _State.PLACING,
        (_State.PLACING, _Step.PLACE): _State.SEALING,
        **{(state, _Step.BEGIN_AGAIN): _State.FENCING for state in _RUNNING},
        **{(state, _Step.SEALED): _State.DONE for state in _RUNNING},
        **{(state, _Step.DEPOSE): _State.ABANDONED for state in _RUNNING},
    },
)

OVER = frozenset({_State.DONE, _State.ABANDONED})
