"""The states of a segment's replica on one node, and every way between them, in one table."""

from __future__ import annotations

from enum import Enum

from firnmq.transitions import Transitions


class ReplicaState(Enum):
    OPEN = "open"
    """Grows by the leader's appends, or by what it fetches from the leader."""
    FENCING = "fencing"
    """A fence goes through the lane, behind every write in flight."""
    FENCED = "fenced"
    """The fence is on disk. Changes only by tail copy or by truncation to E."""
    COPYING = "copying"
    """Fenced, and given the tail that it lacks by another replica."""
    TRUNCATING = "truncating"
    """The segment is sealed; a longer replica is truncated to E."""
    REPAIRING = "repairing"
    """The segment is sealed, and longer than this replica: it copies what it lacks."""
    SERVING = "serving"
    """Has the sealed segment, verified."""
    FAILED = "failed"
    """A write failed; nothing is known until the log is reopened."""
    BAD = "bad"
    """Its bytes are not those of the segment. It neither reports nor serves."""


class ReplicaStep(Enum):
    FENCE = "a new fence"
    FENCE_PERSISTED = "a fence on disk"
    COPY = "a tail copy"
    COPIED = "the end of a tail copy"
    SEAL = "a sealed record"
    REPAIR = "a sealed record that is longer"
    VERIFY = "the end of the sealed segment"
    CONDEMN = "bytes that differ"
    FAIL = "a storage failure"
    REOPEN = "the reopening of an unfenced log"
    REOPEN_FENCED = "the reopening of a fenced log"


_State, _Step = ReplicaState, ReplicaStep

REPLICA_TRANSITIONS: Transitions[ReplicaState, ReplicaStep] = Transitions(
    "replica of a segment",
    {
        (_State.OPEN, _Step.FENCE): _State.FENCING,
        (_State.FENCING, _Step.FENCE): _State.FENCING,
        (_State.FENCED, _Step.FENCE): _State.FENCING,
        (_State.COPYING, _Step.FENCE): _State.FENCING,
        (_State.FENCING, _Step.FENCE_PERSISTED): _State.FENCED,
        (_State.FENCED, _Step.COPY): _State.COPYING,
        (_State.COPYING, _Step.COPY): _State.COPYING,
        (_State.COPYING, _Step.COPIED): _State.FENCED,
        (_State.OPEN, _Step.SEAL): _State.TRUNCATING,
        (_State.FENCING, _Step.SEAL): _State.TRUNCATING,
        (_State.FENCED, _Step.SEAL): _State.TRUNCATING,
        (_State.COPYING, _Step.SEAL): _State.TRUNCATING,
        (_State.TRUNCATING, _Step.VERIFY): _State.SERVING,
        (_State.TRUNCATING, _Step.REPAIR): _State.REPAIRING,
        (_State.TRUNCATING, _Step.CONDEMN): _State.BAD,
        (_State.REPAIRING, _Step.VERIFY): _State.SERVING,
        (_State.REPAIRING, _Step.CONDEMN): _State.BAD,
        (_State.FAILED, _Step.REOPEN): _State.OPEN,
        (_State.FAILED, _Step.REOPEN_FENCED): _State.FENCED,
        (_State.FAILED, _Step.CONDEMN): _State.BAD,
        **{(state, _Step.FAIL): _State.FAILED for state in _State if state is not _State.BAD},
    },
)

FENCEABLE = frozenset({_State.OPEN, _State.FENCING, _State.FENCED, _State.COPYING})
"""States in which the end of the segment is not known here."""
UNDER_FENCE = frozenset({_State.FENCED, _State.COPYING})
"""The fence is on disk and the end is not decided: answers are given."""
WRITABLE = frozenset({_State.OPEN, _State.COPYING, _State.REPAIRING})
"""States in which bytes from another node are stored."""
