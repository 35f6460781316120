"""The states of a segment's leader, and every way from one to another, in one table."""

from __future__ import annotations

from enum import Enum

from firnmq.transitions import Transitions


class LeaderState(Enum):
    LEADING = "leading"
    FREEZING = "freezing"
    """A planned seal has begun: nothing is appended, the ISR catches up."""
    SEALING = "sealing"
    """The planned seal is asked for; nothing is appended until its outcome is known."""
    REOPENING = "reopening"
    """The only replica's storage failed; it goes on from what its disk has."""
    RESIGNED = "resigned"
    """Leads no more: restarted, failed or fenced. The controller seals the segment."""
    RELEASED = "released"
    """The segment is sealed."""


class LeaderStep(Enum):
    APPEND = "an append"
    FREEZE = "a planned seal"
    ASK_SEAL = "the transaction of a planned seal"
    UNFREEZE = "the end of a freeze"
    CLOSE = "a storage failure of the only replica"
    REOPEN = "the reopening of its log"
    RESIGN = "the loss of leadership"
    SEAL = "a sealed record"


_State, _Step = LeaderState, LeaderStep

LEADER_TRANSITIONS = Transitions(
    "leader of a segment",
    {
        (_State.LEADING, _Step.APPEND): _State.LEADING,
        (_State.LEADING, _Step.FREEZE): _State.FREEZING,
        (_State.FREEZING, _Step.ASK_SEAL): _State.SEALING,
        (_State.FREEZING, _Step.UNFREEZE): _State.LEADING,
        (_State.SEALING, _Step.UNFREEZE): _State.LEADING,
        (_State.LEADING, _Step.CLOSE): _State.REOPENING,
        (_State.REOPENING, _Step.REOPEN): _State.LEADING,
        (_State.LEADING, _Step.RESIGN): _State.RESIGNED,
        (_State.FREEZING, _Step.RESIGN): _State.RESIGNED,
        (_State.SEALING, _Step.RESIGN): _State.RESIGNED,
        (_State.REOPENING, _Step.RESIGN): _State.RESIGNED,
        (_State.LEADING, _Step.SEAL): _State.RELEASED,
        (_State.FREEZING, _Step.SEAL): _State.RELEASED,
        (_State.SEALING, _Step.SEAL): _State.RELEASED,
        (_State.REOPENING, _Step.SEAL): _State.RELEASED,
        (_State.RESIGNED, _Step.SEAL): _State.RELEASED,
    },
)

IN_OFFICE = frozenset({_State.LEADING, _State.FREEZING, _State.SEALING})
"""Followers are heard and answered, marks move, requests are acknowledged."""
OVER = frozenset({_State.RESIGNED, _State.RELEASED})


class Refusal(Enum):
    """Why an append is not taken. Nothing was written."""

    NOT_LEADING = "not_leading"
    FROZEN = "frozen"
    """Park the request: it is a matter of milliseconds."""
    SESSION_TOO_OLD = "session_too_old"
    """The store may have given this node up; another leader may be appending."""
    NOT_ENOUGH_IN_SYNC = "not_enough_in_sync"
    TOO_MANY_WAITING = "too_many_waiting"
