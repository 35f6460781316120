"""The controller's seal of one segment whose leader is lost, or must be taken away.

Fence, collect ends, decide E, copy the tail, compare CRCs, seal by one transaction. Answers belong
to one fence number and are never used for another; a controller that changes midway, or a tail that
cannot be copied, makes the seal begin again with the next fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firnmq.cluster.replication.actions import (
    Action,
    Change,
    ChooseNext,
    Level,
    LogEvent,
    Send,
)
from firnmq.cluster.replication.events import (
    AcceptLoss,
    NextChosen,
    Outcome,
    RecordSeen,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswer,
    FenceRequest,
    FenceSegment,
    TailCopied,
)
from firnmq.cluster.replication.pending import PendingChange, PendingState
from firnmq.cluster.replication.sealing.state import OVER, SEAL_TRANSITIONS, SealState, SealStep
from firnmq.cluster.replication.values import (
    Member,
    MonotonicMs,
    NodeId,
    Placement,
    Point,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    Revision,
)
from firnmq.ids import Offset

SealEvent = FenceAnswer | TailCopied | NextChosen | AcceptLoss | TransactionDone | RecordSeen | Tick


class Seal:
    def __init__(
        self,
        record: ReplicatedSegment,
        controller: NodeId,
        term: Revision,
        config: ReplicationConfig,
        now: MonotonicMs,
        next_number: Callable[[], int],
    ) -> None:
        """`next_number` names transactions, uniquely within the controller."""
        assert record.state is not RecordState.SEALED
        self.record = record
        """The newest record seen. `epoch` never decreases."""
        self.state = SealState.FENCING
        self.answers: dict[NodeId, FenceAnswer] = {}
        """To the fence of `record`, and to no other."""
        self.end: Point | None = None
        """E and the chained CRC there; None until decided. Never changes under one fence."""
        self.confirmed: dict[NodeId, Member] = {}
        """Replicas that have everything below E, with this CRC."""
        self.is_lossy = False
        self._controller = controller
        self._term = term
        self._config = config
        self._now = now
        self._next_number = next_number
        self._is_loss_accepted = False
        self._pending: PendingChange | None = None
        self._retry_at_ms = now
        self._copy_until_ms = now
        self._is_waiting_logged = False
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            FenceAnswer: self._on_answer,
            TailCopied: self._on_copied,
            NextChosen: self._on_next,
            AcceptLoss: self._on_accept_loss,
            TransactionDone: self._on_transaction,
            RecordSeen: self._on_record,
            Tick: self._on_tick,
        }
        self._ask_for_fence()

    def take_actions(self) -> list[Action]:
        """What the construction asks for; `handle` returns its own."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: SealEvent, now: MonotonicMs) -> list[Action]:
        self._now = max(self._now, now)
        if self.state not in OVER:
            self._handlers[type(event)](event)
        return self.take_actions()

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    # Rules of the protocol

    def counting(self) -> dict[NodeId, FenceAnswer]:
        """The answers of replicas that have kept everything durable since they were listed."""
        return {
            node: answer
            for node, answer in self.answers.items()
            if self.record.counts(node, answer.continuous_since)
        }

    def is_answered(self) -> bool:
        """A counting member of the ISR, and so many counting replicas that every quorum has one."""
        counting = self.counting()
        in_sync = [member for member in self.record.isr if member.node in counting]
        return bool(in_sync) and len(counting) >= self.record.fence_answer_min

    def may_lose(self) -> bool:
        """Every replica has answered and too few count: nothing better can be had."""
        is_allowed = self._config.durability.accepts_loss or self._is_loss_accepted
        return is_allowed and len(self.answers) == len(self.record.replicas)

    def greatest_end(self) -> Offset:
        """All answers are prefixes of one log, so the longest has everything promised."""
        return max(answer.at.end for answer in self.answers.values())

    def takes_answer(self, answer: FenceAnswer) -> bool:
        return answer.fence == self.record.fence and answer.node in self.record.replicas

    # The fence

    def _ask_for_fence(self) -> None:
        self.answers, self.confirmed, self.end, self.is_lossy = {}, {}, None, False
        self._ask(Change(before=self.record, after=self.record.fencing()))

    def _begin_again(self) -> None:
        self.state = SEAL_TRANSITIONS.next(self.state, SealStep.BEGIN_AGAIN)
        self._ask_for_fence()

    def _become_fenced(self) -> None:
        self.state = SEAL_TRANSITIONS.next(self.state, SealStep.FENCED)
        self._log(Level.WARNING, "segment_fenced", fence=self.record.fence)
        self._send_fences()

    def _send_fences(self) -> None:
        self._retry_at_ms = MonotonicMs(self._now + self._config.retry_ms)
        fence = FenceSegment(
            segment=self.record.segment, fence=self.record.fence, start=self.record.start
        )
        request = FenceRequest(controller=self._controller, segments=(fence,))
        for node in self.record.replicas:
            if node not in self.answers:
                self._do(Send(node=node, message=request))

    # Answers and E

    def _on_answer(self, answer: FenceAnswer) -> None:
        if self.state not in (SealState.COLLECTING, SealState.COPYING):
            return
        if not self.takes_answer(answer):
            return
        known = self.answers.get(answer.node)
        if known is not None and known.incarnation > answer.incarnation:
            return
        if self.state is SealState.COLLECTING:
            self.answers[answer.node] = answer
            self._consider_end()
        elif self.end is not None and answer.at.end <= self.end.end:
            self.answers[answer.node] = answer
            self._confirm_or_copy(answer)
            self._consider_placing()

    def _consider_end(self) -> None:
        is_answered = self.is_answered()
        if not is_answered and not self.may_lose():
            return
        self.is_lossy = not is_answered
        if self.is_lossy:
            self._log(Level.ERROR, "seal_loses_records", end=self.greatest_end())
        self.end = self._best_point(self.greatest_end())
        self.state = SEAL_TRANSITIONS.next(self.state, SealStep.DECIDE)
        self._copy_until_ms = MonotonicMs(self._now + self._config.copy_timeout_ms)
        for answer in self.answers.values():
            self._confirm_or_copy(answer)
        self._consider_placing()

    def _best_point(self, end: Offset) -> Point:
        """The CRC at E that most replicas have, those that count before others.

        They are equal unless bytes were damaged; a replica that differs is not confirmed.
        """
        counting = self.counting()
        in_sync = {member.node for member in self.record.isr}
        votes: dict[Point, tuple[int, int, int]] = {}
        for node, answer in sorted(self.answers.items()):
            if answer.at.end == end:
                counted, listed, all_of = votes.get(answer.at, (0, 0, 0))
                votes[answer.at] = (
                    counted + (node in counting),
                    listed + (node in in_sync),
                    all_of + 1,
                )
        return max(votes, key=lambda point: votes[point])

    # Tail copy

    def _confirm_or_copy(self, answer: FenceAnswer) -> None:
        assert self.end is not None
        if answer.at == self.end:
            self.confirmed[answer.node] = Member(answer.node, answer.incarnation)
        elif answer.at.end < self.end.end:
            self._send_copy(answer.node)
        elif answer.at.end == self.end.end:
            self._log(Level.ERROR, "replica_diverged", node=answer.node, end=answer.at.end)

    def _send_copy(self, node: NodeId) -> None:
        assert self.end is not None
        sources = [each for each, answer in self.answers.items() if answer.at == self.end]
        sources.extend(each for each in self.confirmed if each not in sources)
        sources.sort()
        if not sources:
            return
        # Another source at every attempt, because one of them may be gone.
        source = sources[self._now // self._config.retry_ms % len(sources)]
        copy = CopyTail(
            segment=self.record.segment,
            fence=self.record.fence,
            controller=self._controller,
            source=source,
            end=self.end.end,
        )
        self._do(Send(node=node, message=copy))

    def _on_copied(self, copied: TailCopied) -> None:
        if self.state is not SealState.COPYING or copied.fence != self.record.fence:
            return
        assert self.end is not None
        answer = self.answers.get(copied.node)
        if answer is None or answer.incarnation > copied.incarnation:
            return
        if copied.at == self.end:
            self.confirmed[copied.node] = Member(copied.node, copied.incarnation)
            self._consider_placing()
        elif copied.at.end == self.end.end:
            self._log(Level.ERROR, "replica_diverged", node=copied.node, end=copied.at.end)

    def _consider_placing(self) -> None:
        needed = self.record.needed_in_sync(self._config.min_in_sync)
        if self.state is SealState.COPYING and len(self.confirmed) >= needed:
            self.state = SEAL_TRANSITIONS.next(self.state, SealStep.CONFIRM)
            self._choose_next()

    # The transaction

    def _choose_next(self) -> None:
        self._retry_at_ms = MonotonicMs(self._now + self._config.retry_ms)
        holders = tuple(sorted(self.confirmed.values()))
        self._do(ChooseNext(record=self.record, holders=holders))

    def _on_next(self, event: NextChosen) -> None:
        if self.state is SealState.PLACING:
            self.state = SEAL_TRANSITIONS.next(self.state, SealStep.PLACE)
            self._ask_for_seal(event.placement)

    def _ask_for_seal(self, placement: Placement) -> None:
        assert self.end is not None
        holders = tuple(self.confirmed.values())
        after = self.record.sealed(self.end, holders, lossy=self.is_lossy)
        self._ask(Change(before=self.record, after=after, opened=after.successor(placement)))

    def _ask(self, change: Change) -> None:
        self._pending = PendingChange(change, self._term, None, self._config.retry_ms)
        self._do(self._pending.ask(self._next_number()))

    def _on_transaction(self, event: TransactionDone) -> None:
        pending = self._pending
        if pending is None or not pending.is_of(event):
            return
        if event.outcome is Outcome.APPLIED:
            self._obey(pending.change.after)
        elif event.outcome is Outcome.DEPOSED:
            self.depose()
        else:
            self._do(pending.undecided(self._now))

    def _on_record(self, event: RecordSeen) -> None:
        record = event.record
        assert record.segment == self.record.segment
        if record.epoch > self.record.epoch:
            self._obey(record)
        elif self._pending is not None and record.epoch == self.record.epoch:
            self._pending.unchanged(self._now)

    def _obey(self, record: ReplicatedSegment) -> None:
        """The record has changed, by this seal or by another change."""
        pending, self._pending = self._pending, None
        self.record = record
        if record.state is RecordState.SEALED:
            self.state = SEAL_TRANSITIONS.next(self.state, SealStep.SEALED)
            fields = {"end": record.end, "crc": record.crc, "lossy": record.lossy}
            self._log(Level.ERROR if record.lossy else Level.INFO, "segment_sealed", **fields)
        elif pending is not None and pending.is_applied_in(record):
            self._become_fenced()
        else:
            self._begin_again()

    def depose(self) -> None:
        """Another controller has taken over, and begins with the next fence."""
        if self.state not in OVER:
            self.state = SEAL_TRANSITIONS.next(self.state, SealStep.DEPOSE)
            self._pending = None

    # Operators and time

    def _on_accept_loss(self, event: AcceptLoss) -> None:
        self._is_loss_accepted = True
        if self.state is SealState.COLLECTING:
            self._consider_end()

    def _on_tick(self, event: Tick) -> None:
        if self._pending is not None:
            self._tick_pending(self._pending)
        elif self.state is SealState.COPYING and self._now >= self._copy_until_ms:
            self._begin_again()
        elif self._now >= self._retry_at_ms:
            self._retry()

    def _tick_pending(self, pending: PendingChange) -> None:
        is_pausing = pending.state is PendingState.PAUSING
        action = pending.tick(self._now, self._next_number() if is_pausing else 0)
        if action is not None:
            self._do(action)

    def _retry(self) -> None:
        if self.state is SealState.COLLECTING:
            if not self._is_waiting_logged and self.answers:
                self._is_waiting_logged = True
                answered = sorted(self.answers)
                self._log(Level.WARNING, "seal_waits_for_replicas", answered=answered)
            self._send_fences()
        elif self.state is SealState.COPYING:
            self._send_fences()
            for answer in self.answers.values():
                if answer.node not in self.confirmed:
                    self._confirm_or_copy(answer)
        elif self.state is SealState.PLACING:
            self._choose_next()

    # Actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _log(self, level: Level, name: str, **fields: object) -> None:
        self._do(
            LogEvent(
                level=level,
                name=name,
                segment=self.record.segment,
                fields=tuple(fields.items()),
            )
        )
