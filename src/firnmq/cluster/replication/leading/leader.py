"""The leader of one segment: acknowledges appends, serves followers, and seals as planned.

It leads the segment for the segment's whole life and is never followed by another leader of the
same segment. Everything it knows is gone with its process; with more than one replica it then
resigns, because it cannot know what it has promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firnmq.cluster.replication.actions import (
    Action,
    AdvanceHighWatermark,
    Change,
    Complete,
    Fail,
    FailReason,
    Freeze,
    Level,
    LogEvent,
    SendToController,
    ServeFetch,
    StopLeading,
    Unfreeze,
)
from firnmq.cluster.replication.events import (
    Awaited,
    BeginSeal,
    Durable,
    FollowerReport,
    LeadershipLost,
    Outcome,
    RecordSeen,
    SessionRenewed,
    Staged,
    StorageFailed,
    StorageReopened,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.leading.insync import InSyncReplicas
from firnmq.cluster.replication.leading.marks import Marks, Progress
from firnmq.cluster.replication.leading.state import (
    IN_OFFICE,
    LEADER_TRANSITIONS,
    OVER,
    LeaderState,
    LeaderStep,
    Refusal,
)
from firnmq.cluster.replication.leading.waiting import WaitingRequests
from firnmq.cluster.replication.messages import SealReason, SealRequest
from firnmq.cluster.replication.pending import PendingChange, PendingState
from firnmq.cluster.replication.values import (
    NO_FENCE,
    Acks,
    Crc,
    Incarnation,
    Member,
    MonotonicMs,
    Placement,
    Point,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    Token,
)
from firnmq.ids import Offset

LeaderEvent = (
    Staged
    | Awaited
    | Durable
    | FollowerReport
    | Tick
    | SessionRenewed
    | BeginSeal
    | TransactionDone
    | RecordSeen
    | StorageFailed
    | StorageReopened
    | LeadershipLost
)

_POINTS_MAX = 1_024
"""Ends of recent appends whose CRC is kept, to compare with what followers report."""


class Leader:
    """`handle` is the only way to change it. The driver calls `refusal` before each append."""

    marks_class: type[Marks] = Marks
    in_sync_class: type[InSyncReplicas] = InSyncReplicas

    def __init__(
        self,
        record: ReplicatedSegment,
        own: Member,
        continuous_since: Incarnation,
        at: Point,
        config: ReplicationConfig,
        now: MonotonicMs,
        session_ms: MonotonicMs | None,
    ) -> None:
        """`session_ms`: when the node's session was last prolonged, None if that is not known."""
        assert record.leader == own.node
        self.record = record
        """The newest record seen. `epoch` never decreases."""
        self.own = own
        self.state = LeaderState.LEADING
        self.marks = self.marks_class(record, at.end)
        self.staged = at
        """End of the log. Followers may fetch below it; never below `marks.durable_end`."""
        self._config = config
        self._now = now
        self._session_ms = session_ms
        self._waiting = {acks: WaitingRequests() for acks in Acks}
        self._points: dict[Offset, Crc] = {at.end: at.crc}
        self._in_sync = self.in_sync_class(config, own.node)
        self._in_sync.listed(record.isr, now)
        self._pending: PendingChange | None = None
        self._proposed: tuple[Member, ...] | None = None
        """The ISR that is asked for. It may be in force already, or come into force later."""
        self._placement: Placement | None = None
        self._freeze_until_ms = now
        self._seal_reason: SealReason | None = None
        """Set once the controller is asked to take the segment away."""
        self._seal_asked_ms = MonotonicMs(0)
        self._number = 0
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Staged: self._on_staged,
            Awaited: self._on_awaited,
            Durable: self._on_durable,
            FollowerReport: self._on_report,
            Tick: self._on_tick,
            SessionRenewed: self._on_session,
            BeginSeal: self._on_begin_seal,
            TransactionDone: self._on_transaction,
            RecordSeen: self._on_record,
            StorageFailed: self._on_storage_failed,
            StorageReopened: self._on_reopened,
            LeadershipLost: self._on_leadership_lost,
        }
        if not self.may_lead(continuous_since):
            self._resign(SealReason.LEADER_RESTARTED)
        else:
            self._move_marks()

    def take_actions(self) -> list[Action]:
        """What the construction asks for; `handle` returns its own."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: LeaderEvent, now: MonotonicMs) -> list[Action]:
        self._now = max(self._now, now)
        self._handlers[type(event)](event)
        return self.take_actions()

    # What can be asked without changing anything

    @property
    def high_watermark(self) -> Offset:
        return self.marks.high_watermark

    @property
    def quorum_mark(self) -> Offset:
        return self.marks.quorum_mark

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def maximal_isr(self) -> frozenset[Member]:
        """Every replica that may be in the ISR by the record as it is now."""
        return frozenset((*self.record.isr, *(self._proposed or ())))

    @property
    def needed_in_sync(self) -> int:
        """How many replicas must be in sync for appends with acks=all."""
        return self.record.needed_in_sync(self._config.min_in_sync)

    def refusal(self, acks: Acks, now: MonotonicMs) -> Refusal | None:
        """Why an append cannot be taken now; None if it can."""
        if self.state in (LeaderState.FREEZING, LeaderState.SEALING):
            return Refusal.FROZEN
        if self.state is not LeaderState.LEADING:
            return Refusal.NOT_LEADING
        if not self.is_session_fresh(now):
            return Refusal.SESSION_TOO_OLD
        if acks is Acks.ALL and not self.has_enough_in_sync():
            return Refusal.NOT_ENOUGH_IN_SYNC
        if self.waiting_count >= self._config.waiting_request_max:
            return Refusal.TOO_MANY_WAITING
        return None

    # Rules of the protocol

    def may_lead(self, continuous_since: Incarnation) -> bool:
        """A leader that restarted never goes on, unless it is the only replica and lost nothing."""
        if self.record.state is not RecordState.ACTIVE:
            return False
        if len(self.record.replicas) == 1:
            return self.record.counts(self.own.node, continuous_since)
        return self.own in self.record.opened and self.staged.end == self.record.start

    def may_go_on_after_storage_failure(self) -> bool:
        return len(self.record.replicas) == 1 and self.state is LeaderState.LEADING

    def is_session_fresh(self, now: MonotonicMs) -> bool:
        """Older than this, the store may have given the session up, and another node may lead."""
        if self._session_ms is None:
            return False
        return max(self._now, now) - self._session_ms <= self._config.session_age_max_ms

    def has_enough_in_sync(self) -> bool:
        count = len(self.record.isr)
        if self._proposed is not None:
            count = min(count, len(self._proposed))
        return count >= self.needed_in_sync

    def waits_for(self) -> frozenset[Member]:
        """The replicas that the high watermark waits for."""
        return self.maximal_isr

    def is_whole(self) -> bool:
        """Has every member of the ISR everything, and is nothing of it undecided?"""
        end = self.staged.end
        members = [member for member in self.record.isr if member.node != self.own.node]
        return (
            self._pending is None
            and self.marks.durable_end == end
            and self.marks.high_watermark == end
            and all(self.marks.has_reached(member, end) for member in members)
        )

    # Appends

    def _on_staged(self, event: Staged) -> None:
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.APPEND)
        assert event.at.end > self.staged.end
        self.staged = event.at
        self._points[event.at.end] = event.at.crc
        if len(self._points) > _POINTS_MAX:
            del self._points[next(iter(self._points))]
        for request in event.requests:
            assert request.end <= event.at.end
            self._waiting[request.acks].add(request)
        for node, progress in self.marks.followers.items():
            if progress.wants is not None:
                self._serve(Member(node, progress.incarnation), progress)

    def _on_awaited(self, event: Awaited) -> None:
        """Takes retries of what is in the log; they are acknowledged by the same marks."""
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.APPEND)
        for request in event.requests:
            assert request.end <= self.staged.end
            self._waiting[request.acks].join(request)
        self._move_marks()

    def _on_durable(self, event: Durable) -> None:
        if self.state not in IN_OFFICE:
            return
        assert self.marks.durable_end <= event.at.end <= self.staged.end
        self.marks.durable_end = event.at.end
        self._move_marks()
        self._consider_seal()

    def _move_marks(self) -> None:
        """Moves both marks; shows and acknowledges what they cover. Costs what it acknowledges."""
        marks = self.marks
        if marks.move(self.record, self.waits_for()):
            self._do(AdvanceHighWatermark(segment=self.record.segment, offset=marks.high_watermark))
        assert marks.quorum_mark <= self.staged.end
        tokens: list[Token] = []
        if self.has_enough_in_sync():
            self._waiting[Acks.ALL].pop_below(marks.high_watermark, tokens)
        self._waiting[Acks.QUORUM].pop_below(marks.quorum_mark, tokens)
        if self.is_session_fresh(self._now):
            self._waiting[Acks.LEADER].pop_below(marks.durable_end, tokens)
        if tokens:
            self._do(Complete(segment=self.record.segment, tokens=tokens))

    # Followers

    def _on_report(self, event: FollowerReport) -> None:
        if not self._is_believed(event):
            return
        member, followers = event.member, self.marks.followers
        progress = followers.get(member.node)
        if progress is None or progress.incarnation < member.incarnation:
            progress = followers[member.node] = Progress(
                incarnation=member.incarnation,
                continuous_since=event.continuous_since,
                end=event.at.end,
                crc=event.at.crc,
                wants=None,
                heard_ms=self._now,
                leader_end_then=self.staged.end,
            )
        elif progress.incarnation > member.incarnation or event.at.end < progress.end:
            return  # Overtaken by a later fetch.
        progress.end, progress.crc = event.at.end, event.at.crc
        self._in_sync.heard(member, progress, self.marks.durable_end, self._now)
        progress.leader_end_then, progress.heard_ms = self.staged.end, self._now
        progress.wants = progress.end
        self._move_marks()
        if self.staged.end > progress.end:
            self._serve(member, progress)
        self._consider_admission(member)
        self._consider_seal()

    def _is_believed(self, event: FollowerReport) -> bool:
        if self.state not in IN_OFFICE or event.fence != self.record.fence:
            return False
        if event.member.node not in self.record.replicas or event.member.node == self.own.node:
            return False
        known = self._points.get(event.at.end)
        if event.at.end > self.staged.end or (known is not None and known != event.at.crc):
            self._log(Level.ERROR, "replica_diverged", node=event.member.node, end=event.at.end)
            return False
        return True

    def _serve(self, member: Member, progress: Progress) -> None:
        """Answers a waiting fetch; the follower asks again once it has stored the answer."""
        progress.wants = None
        self._do(
            ServeFetch(
                segment=self.record.segment,
                fence=self.record.fence,
                to=member,
                start=progress.end,
                at=self.staged,
            )
        )

    # In-sync replicas

    def _consider_admission(self, member: Member) -> None:
        if self.state is LeaderState.LEADING and self._pending is None:
            proposal = self._in_sync.admission(self.record, member, self.marks)
            if proposal is not None:
                self._propose(proposal, "isr_expands")

    def _consider_removal(self) -> None:
        if self._pending is not None or self.state not in (
            LeaderState.LEADING,
            LeaderState.FREEZING,
        ):
            return
        lagging = self._in_sync.lagging(self.record, self._now)
        proposal = self._in_sync.removal(self.record, lagging)
        if proposal is not None:
            self._propose(proposal, "isr_shrinks")
        elif lagging and self._is_time_to_ask():
            self._ask_controller(SealReason.BELOW_MIN_IN_SYNC)

    def _propose(self, isr: tuple[Member, ...], name: str) -> None:
        after = self.record.with_isr(isr)
        self._proposed = after.isr
        self._ask(Change(before=self.record, after=after))
        self._log(Level.INFO, name, isr=_text(after.isr), was=_text(self.record.isr))

    # Planned seals

    def _on_begin_seal(self, event: BeginSeal) -> None:
        if self.state is not LeaderState.LEADING:
            return
        if not self.has_enough_in_sync():
            self._ask_controller(SealReason.BELOW_MIN_IN_SYNC)
            return
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.FREEZE)
        self._placement = event.placement
        self._freeze_until_ms = MonotonicMs(self._now + self._config.freeze_max_ms)
        self._do(Freeze(segment=self.record.segment))
        self._consider_seal()

    def _consider_seal(self) -> None:
        """Asks for the seal once every member of the ISR has all, with the same chained CRC."""
        if self.state is not LeaderState.FREEZING or not self.is_whole():
            return
        assert self._placement is not None
        if not self._are_crcs_equal() or not self.has_enough_in_sync():
            return
        holders = [member for member in self.record.isr if member.node != self.own.node]
        after = self.record.sealed(self.staged, (self.own, *holders))
        change = Change(before=self.record, after=after, opened=after.successor(self._placement))
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.ASK_SEAL)
        self._ask(change)

    def _are_crcs_equal(self) -> bool:
        """A report that differs at a known end was not believed, so this compares what is left."""
        followers = self.marks.followers
        members = [member.node for member in self.record.isr if member.node != self.own.node]
        return all(followers[node].crc == self.staged.crc for node in members)

    def _unfreeze(self) -> None:
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.UNFREEZE)
        self._placement = None
        self._do(Unfreeze(segment=self.record.segment))

    # The record

    def _ask(self, change: Change) -> None:
        assert self._pending is None
        self._pending = PendingChange(change, self.own, self.record.segment, self._config.retry_ms)
        self._do(self._pending.ask(self._next_number()))

    def _on_transaction(self, event: TransactionDone) -> None:
        pending = self._pending
        if pending is None or not pending.is_of(event):
            return
        if event.outcome is Outcome.APPLIED:
            self._obey(pending.change.after)
        elif event.outcome is Outcome.DEPOSED:
            if self.state not in OVER:
                self._resign(SealReason.LEADER_RESTARTED)
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
        """The record is what it is, no matter what this leader has asked for."""
        assert record.epoch > self.record.epoch
        assert record.leader == self.own.node, "one leader per segment, ever"
        self.record = record
        self._in_sync.listed(record.isr, self._now)
        if self._pending is not None and self._pending.is_decided_by(record):
            self._pending = self._proposed = None
        if record.state is RecordState.SEALED:
            self._release()
        elif record.state is RecordState.FENCING:
            if self.state not in OVER:
                self._lose_office(FailReason.LEADERSHIP_LOST)
        elif self.state in IN_OFFICE:
            if self.state is LeaderState.SEALING:
                self._unfreeze()
            self._move_marks()
            self._consider_seal()

    def _release(self) -> None:
        was_over = self.state in OVER
        if self.state is not LeaderState.RELEASED:
            self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.SEAL)
        self._fail_all(FailReason.SEALED)
        if not was_over:
            self._do(StopLeading(segment=self.record.segment))
            self._log(Level.INFO, "segment_sealed", end=self.record.end, crc=self.record.crc)

    # Failure

    def _on_storage_failed(self, event: StorageFailed) -> None:
        if self.state in OVER:
            return
        self._fail_all(FailReason.STORAGE_FAILED)
        if self.may_go_on_after_storage_failure():
            self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.CLOSE)
        else:
            self._resign(SealReason.STORAGE_FAILED)

    def _on_reopened(self, event: StorageReopened) -> None:
        if self.state is not LeaderState.REOPENING:
            return
        if event.at.end < self.marks.durable_end:
            self._log(
                Level.ERROR, "durable_records_lost", end=event.at.end, had=self.marks.durable_end
            )
            self._resign(SealReason.STORAGE_FAILED)
            return
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.REOPEN)
        self.staged = event.at
        self._points = {event.at.end: event.at.crc}
        self.marks.durable_end = event.at.end
        self._move_marks()

    def _on_leadership_lost(self, event: LeadershipLost) -> None:
        if self.state not in OVER:
            self._lose_office(FailReason.LEADERSHIP_LOST)

    def _resign(self, reason: SealReason) -> None:
        self._log(Level.WARNING, "leader_resigns", reason=reason.value)
        self._lose_office(FailReason.LEADERSHIP_LOST)
        self._ask_controller(reason)

    def _lose_office(self, reason: FailReason) -> None:
        self.state = LEADER_TRANSITIONS.next(self.state, LeaderStep.RESIGN)
        self._pending = self._proposed = None
        self._fail_all(reason)
        self._do(StopLeading(segment=self.record.segment))

    def _fail_all(self, reason: FailReason) -> None:
        tokens = [token for queue in self._waiting.values() for token in queue.pop_all()]
        if tokens:
            self._do(Fail(segment=self.record.segment, tokens=tokens, reason=reason))

    def _ask_controller(self, reason: SealReason) -> None:
        """Repeated by ticks as long as the reason lasts, because the request may be lost."""
        self._seal_reason = reason
        self._seal_asked_ms = self._now
        request = SealRequest(segment=self.record.segment, reason=reason)
        self._do(SendToController(message=request))

    def _is_time_to_ask(self) -> bool:
        return self._now - self._seal_asked_ms >= self._config.retry_ms

    # Time

    def _on_session(self, event: SessionRenewed) -> None:
        self._session_ms = max(self._session_ms or event.asked_ms, event.asked_ms)
        if self.state in IN_OFFICE:
            self._move_marks()

    def _on_tick(self, event: Tick) -> None:
        expired = [
            token for queue in self._waiting.values() for token in queue.pop_expired(self._now)
        ]
        if expired:
            self._do(Fail(segment=self.record.segment, tokens=expired, reason=FailReason.TIMED_OUT))
        if self._pending is not None:
            action = self._pending.tick(self._now, self._number + 1)
            if action is not None:
                if self._pending.state is PendingState.ASKED:
                    self._number += 1
                self._do(action)
        is_unheard = self.state is LeaderState.RESIGNED and self.record.fence == NO_FENCE
        if is_unheard and self._seal_reason is not None and self._is_time_to_ask():
            self._ask_controller(self._seal_reason)
        if self.state is LeaderState.FREEZING and self._now >= self._freeze_until_ms:
            self._unfreeze()
        self._consider_removal()

    # Actions

    def _next_number(self) -> int:
        self._number += 1
        return self._number

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


def _text(members: tuple[Member, ...]) -> str:
    return " ".join(str(member) for member in members)
