"""The states of a consumer group and of its members, and every way from one to another."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Final

from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.errors import FirnError


class MemberState(enum.Enum):
    """How far a member is from the partitions that it is to have."""

    STABLE = "stable"
    """It has what it is to have."""

    REVOKING = "revoking"
    """It has to give up partitions first, and to say that it has."""

    WAITING = "waiting"
    """It lacks partitions that other members have not given up yet."""

    AWAY = "away"
    """A static member that has left and will be back; its partitions are kept for it."""


class MemberStep(enum.Enum):
    MUST_REVOKE = "it has partitions that others are to have"
    MUST_WAIT = "others have partitions that it is to have"
    SETTLED = "it has all that it is to have"
    REJOINED = "it has joined again, and has nothing"
    PAUSED = "it has left and will be back"


MEMBER_TRANSITIONS: Final = MappingProxyType(
    {
        (state, step): after
        for state in (MemberState.STABLE, MemberState.REVOKING, MemberState.WAITING)
        for step, after in {
            MemberStep.MUST_REVOKE: MemberState.REVOKING,
            MemberStep.MUST_WAIT: MemberState.WAITING,
            MemberStep.SETTLED: MemberState.STABLE,
            MemberStep.REJOINED: MemberState.STABLE,
            MemberStep.PAUSED: MemberState.AWAY,
        }.items()
    }
    # A member that is away only comes back; until then nothing is asked of it.
    | {
        (MemberState.AWAY, MemberStep.REJOINED): MemberState.STABLE,
        (MemberState.AWAY, MemberStep.PAUSED): MemberState.AWAY,
    }
)


class ConsumerStep(enum.Enum):
    """What can happen to a group as a whole."""

    CHANGED = "members, subscriptions or topics have changed"
    ASSIGNED = "it is decided who is to have which partitions"
    UNSETTLED = "a member lacks what it is to have"
    SETTLED = "every member has what it is to have"
    EMPTIED = "the last member is gone"
    DELETED = "the group is erased from the store"
    UNLOADED = "this node no longer coordinates the group"
    CONVERTED = "the members agree on their partitions among themselves from now on"


TRANSITIONS: Final = MappingProxyType(
    {
        (GroupState.EMPTY, ConsumerStep.CHANGED): GroupState.ASSIGNING,
        (GroupState.EMPTY, ConsumerStep.DELETED): GroupState.DEAD,
        (GroupState.EMPTY, ConsumerStep.UNLOADED): GroupState.DEAD,
        (GroupState.EMPTY, ConsumerStep.CONVERTED): GroupState.DEAD,
        (GroupState.ASSIGNING, ConsumerStep.ASSIGNED): GroupState.RECONCILING,
        (GroupState.ASSIGNING, ConsumerStep.EMPTIED): GroupState.EMPTY,
        (GroupState.ASSIGNING, ConsumerStep.UNLOADED): GroupState.DEAD,
        (GroupState.ASSIGNING, ConsumerStep.CONVERTED): GroupState.DEAD,
        (GroupState.RECONCILING, ConsumerStep.CHANGED): GroupState.ASSIGNING,
        (GroupState.RECONCILING, ConsumerStep.SETTLED): GroupState.STABLE,
        (GroupState.RECONCILING, ConsumerStep.EMPTIED): GroupState.EMPTY,
        (GroupState.RECONCILING, ConsumerStep.UNLOADED): GroupState.DEAD,
        (GroupState.RECONCILING, ConsumerStep.CONVERTED): GroupState.DEAD,
        (GroupState.STABLE, ConsumerStep.CHANGED): GroupState.ASSIGNING,
        (GroupState.STABLE, ConsumerStep.UNSETTLED): GroupState.RECONCILING,
        (GroupState.STABLE, ConsumerStep.EMPTIED): GroupState.EMPTY,
        (GroupState.STABLE, ConsumerStep.UNLOADED): GroupState.DEAD,
        (GroupState.STABLE, ConsumerStep.CONVERTED): GroupState.DEAD,
    }
)
"""A pair that is not here is a defect of the caller, and is refused."""


class IllegalConsumerStep(FirnError):
    """The group or member cannot take this step from where it is; nothing was changed."""

    def __init__(self, state: enum.Enum, step: enum.Enum) -> None:
        super().__init__(f"what is {state.value} cannot go on because {step.value}")
        self.state = state
        self.step = step


def next_group_state(state: GroupState, step: ConsumerStep) -> GroupState:
    """Where `step` leads from `state`; raises IllegalConsumerStep where it leads nowhere."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalConsumerStep(state, step) from None


def next_member_state(state: MemberState, step: MemberStep) -> MemberState:
    """The same of a member."""
    try:
        return MEMBER_TRANSITIONS[state, step]
    except KeyError:
        raise IllegalConsumerStep(state, step) from None
