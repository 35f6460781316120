"""One change of a segment's record, from the first attempt until its outcome is known.

A transaction whose answer is lost may have been applied, and may still be applied after a later
read. So an unchanged record decides nothing: the same change is tried again, and never another one
from the same epoch. Once the record has a later epoch, no attempt can be applied any more.
"""

from __future__ import annotations

from enum import Enum

from firnmq.cluster.replication.actions import Action, Change, ReadRecord, Transact
from firnmq.cluster.replication.events import Outcome, TransactionDone
from firnmq.cluster.replication.values import (
    Member,
    MonotonicMs,
    ReplicatedSegment,
    Revision,
    SegmentId,
)
from firnmq.transitions import Transitions


class PendingState(Enum):
    ASKED = "asked"
    """A transaction is under way."""
    READING = "reading"
    """Its outcome is not known; the record is being read."""
    PAUSING = "pausing"
    """The record was unchanged; the same transaction follows."""


class PendingStep(Enum):
    UNDECIDED = "the outcome is not known"
    UNCHANGED = "the record is unchanged"
    RETRY = "time to try again"


_State, _Step = PendingState, PendingStep

PENDING_TRANSITIONS = Transitions(
    "a change of a record",
    {
        (_State.ASKED, _Step.UNDECIDED): _State.READING,
        (_State.READING, _Step.UNCHANGED): _State.PAUSING,
        (_State.READING, _Step.RETRY): _State.READING,
        (_State.PAUSING, _Step.RETRY): _State.ASKED,
    },
)


class PendingChange:
    def __init__(
        self, change: Change, guard: Member | Revision, owner: SegmentId | None, retry_ms: int
    ) -> None:
        self.change = change
        self.state = PendingState.ASKED
        self._guard = guard
        self._owner = owner
        self._retry_ms = retry_ms
        self._retry_at_ms = MonotonicMs(0)
        self._number = 0

    def ask(self, number: int) -> Transact:
        self._number = number
        return Transact(owner=self._owner, number=number, changes=(self.change,), guard=self._guard)

    def is_of(self, event: TransactionDone) -> bool:
        return self.state is PendingState.ASKED and event.number == self._number

    def undecided(self, now: MonotonicMs) -> ReadRecord:
        """The transaction was refused, or its outcome is unknown: the record decides."""
        self.state = PENDING_TRANSITIONS.next(self.state, PendingStep.UNDECIDED)
        self._retry_at_ms = MonotonicMs(now + self._retry_ms)
        return ReadRecord(segment=self.change.before.segment)

    def is_decided_by(self, record: ReplicatedSegment) -> bool:
        """Can no attempt be applied any more, now that the record is this one?"""
        return record.epoch > self.change.before.epoch

    def is_applied_in(self, record: ReplicatedSegment) -> bool:
        return record == self.change.after

    def unchanged(self, now: MonotonicMs) -> None:
        if self.state is PendingState.READING:
            self.state = PENDING_TRANSITIONS.next(self.state, PendingStep.UNCHANGED)
            self._retry_at_ms = MonotonicMs(now + self._retry_ms)

    def tick(self, now: MonotonicMs, next_number: int) -> Action | None:
        """The next read or attempt, once it is time."""
        if self.state is PendingState.ASKED or now < self._retry_at_ms:
            return None
        self._retry_at_ms = MonotonicMs(now + self._retry_ms)
        before = self.state
        self.state = PENDING_TRANSITIONS.next(before, PendingStep.RETRY)
        if before is PendingState.READING:
            return ReadRecord(segment=self.change.before.segment)
        return self.ask(next_number)


def is_final(outcome: Outcome) -> bool:
    """Does the outcome alone decide?"""
    return outcome in (Outcome.APPLIED, Outcome.DEPOSED)
