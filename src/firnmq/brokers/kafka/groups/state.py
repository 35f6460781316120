"""The states of a consumer group and every way from one to another, in one table."""

from __future__ import annotations

import enum
from types import MappingProxyType

from firnmq.errors import FirnError


class GroupState(enum.Enum):
    """The values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    """No members; what is left is the generation and, elsewhere, committed offsets."""

    PREPARING = "PreparingRebalance"
    """Waiting for the members to join again, up to the longest rebalance time-out."""

    COMPLETING = "CompletingRebalance"
    """A generation has begun; waiting for its leader's assignments, then for the store."""

    STABLE = "Stable"
    """Every member has an assignment of the current generation, and it is saved."""

    ASSIGNING = "Assigning"
    """Only of groups that the coordinator assigns: it is not decided yet who gets what."""

    RECONCILING = "Reconciling"
    """Only of those: members still give up or lack partitions."""

    DEAD = "Dead"
    """Deleted or handed over. Nothing leads out of here."""


class Step(enum.Enum):
    """What can happen to a group as a whole."""

    REBALANCE = "a member came, went or changed"
    JOINED = "all that will join have joined"
    EMPTIED = "the last member is gone"
    ASSIGNED = "the assignments are saved"
    DELETED = "the group is erased from the store"
    UNLOADED = "this node no longer coordinates the group"
    CONVERTED = "the coordinator says who reads what from now on"


TRANSITIONS = MappingProxyType(
    {
        (GroupState.EMPTY, Step.REBALANCE): GroupState.PREPARING,
        (GroupState.EMPTY, Step.DELETED): GroupState.DEAD,
        (GroupState.EMPTY, Step.UNLOADED): GroupState.DEAD,
        (GroupState.EMPTY, Step.CONVERTED): GroupState.DEAD,
        (GroupState.PREPARING, Step.JOINED): GroupState.COMPLETING,
        (GroupState.PREPARING, Step.EMPTIED): GroupState.EMPTY,
        (GroupState.PREPARING, Step.UNLOADED): GroupState.DEAD,
        (GroupState.PREPARING, Step.CONVERTED): GroupState.DEAD,
        (GroupState.COMPLETING, Step.ASSIGNED): GroupState.STABLE,
        (GroupState.COMPLETING, Step.REBALANCE): GroupState.PREPARING,
        (GroupState.COMPLETING, Step.UNLOADED): GroupState.DEAD,
        (GroupState.COMPLETING, Step.CONVERTED): GroupState.DEAD,
        (GroupState.STABLE, Step.REBALANCE): GroupState.PREPARING,
        (GroupState.STABLE, Step.UNLOADED): GroupState.DEAD,
        (GroupState.STABLE, Step.CONVERTED): GroupState.DEAD,
    }
)
"""A pair that is not here is a defect of the caller, and is refused."""


class IllegalTransition(FirnError):
    """The group cannot take this step from where it is; nothing was changed."""

    def __init__(self, state: GroupState, step: Step) -> None:
        super().__init__(f"a group that is {state.value} cannot go on because {step.value}")
        self.state = state
        self.step = step


def next_state(state: GroupState, step: Step) -> GroupState:
    """Where `step` leads from `state`; raises IllegalTransition where it leads nowhere."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalTransition(state, step) from None
