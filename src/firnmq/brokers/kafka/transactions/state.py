"""The states of a transaction and every way from one to another, in one table."""

from __future__ import annotations

import enum
from types import MappingProxyType

from firnmq.errors import FirnError


class TransactionState(enum.Enum):
    EMPTY = "Empty"
    """The producer has its id and epoch; no transaction has begun with them."""

    ONGOING = "Ongoing"
    """Partitions or group offsets were added. Times out."""

    PREPARE_COMMIT = "PrepareCommit"
    """Committed, and so are the group offsets: what is left is to write the markers."""

    PREPARE_ABORT = "PrepareAbort"
    """Aborted: what is left is to write the markers."""

    COMPLETE_COMMIT = "CompleteCommit"
    """Every marker is written; the next transaction may begin."""

    COMPLETE_ABORT = "CompleteAbort"


class Step(enum.Enum):
    """What can happen to a transaction."""

    INITIALIZE = "the producer was given an epoch"
    ADD = "a partition or a group was added"
    COMMIT = "it was decided to commit"
    ABORT = "it was decided to abort"
    COMPLETE = "every marker is written"


_State = TransactionState

TRANSITIONS = MappingProxyType(
    {
        (_State.EMPTY, Step.INITIALIZE): _State.EMPTY,
        (_State.EMPTY, Step.ADD): _State.ONGOING,
        (_State.ONGOING, Step.ADD): _State.ONGOING,
        (_State.ONGOING, Step.COMMIT): _State.PREPARE_COMMIT,
        (_State.ONGOING, Step.ABORT): _State.PREPARE_ABORT,
        (_State.PREPARE_COMMIT, Step.COMPLETE): _State.COMPLETE_COMMIT,
        (_State.PREPARE_ABORT, Step.COMPLETE): _State.COMPLETE_ABORT,
        (_State.COMPLETE_COMMIT, Step.INITIALIZE): _State.EMPTY,
        (_State.COMPLETE_COMMIT, Step.ADD): _State.ONGOING,
        (_State.COMPLETE_ABORT, Step.INITIALIZE): _State.EMPTY,
        (_State.COMPLETE_ABORT, Step.ADD): _State.ONGOING,
    }
)
"""A pair that is not here is a defect of the caller, and is refused."""

PREPARED = frozenset({_State.PREPARE_COMMIT, _State.PREPARE_ABORT})
"""Decided and not complete: no request changes anything."""


class IllegalTransition(FirnError):
    """The transaction cannot take this step from where it is; nothing was changed."""

    def __init__(self, state: TransactionState, step: Step) -> None:
        super().__init__(f"a transaction that is {state.value} cannot go on because {step.value}")
        self.state = state
        self.step = step


def next_state(state: TransactionState, step: Step) -> TransactionState:
    """Where `step` leads from `state`; raises IllegalTransition where it leads nowhere."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalTransition(state, step) from None
