"""One segment on one node: how far it is, which fence it has, and what may change it.

The leader's node has one as well: it is fenced, truncated and sealed like every other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firnmq.cluster.replication.actions import (
    Action,
    Level,
    LogEvent,
    PersistFence,
    Send,
    ServeSealed,
    ServeTail,
    Stage,
    StopLeading,
    Truncate,
)
from firnmq.cluster.replication.events import (
    CopyTailReceived,
    Durable,
    FencePersisted,
    FenceReceived,
    Fetched,
    ReadTailReceived,
    RecordSeen,
    StorageFailed,
    StorageReopened,
    TailReceived,
    Tick,
    Truncated,
)
from firnmq.cluster.replication.following.state import (
    FENCEABLE,
    REPLICA_TRANSITIONS,
    UNDER_FENCE,
    WRITABLE,
    ReplicaState,
    ReplicaStep,
)
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswer,
    FenceAnswers,
    FetchSegment,
    ReadTail,
    TailCopied,
)
from firnmq.cluster.replication.values import (
    NO_FENCE,
    Fence,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    Point,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    SegmentId,
)
from firnmq.ids import Offset

ReplicaEvent = (
    Fetched
    | Durable
    | FenceReceived
    | FencePersisted
    | CopyTailReceived
    | ReadTailReceived
    | TailReceived
    | Truncated
    | RecordSeen
    | StorageFailed
    | StorageReopened
    | Tick
)


class Replica:
    def __init__(
        self,
        segment: SegmentId,
        own: Member,
        continuous_since: Incarnation,
        at: Point,
        fence: Fence,
        config: ReplicationConfig,
    ) -> None:
        assert continuous_since <= own.incarnation
        self.segment = segment
        self.own = own
        self.continuous_since = continuous_since
        self.state = ReplicaState.OPEN if fence == NO_FENCE else ReplicaState.FENCED
        self.durable = at
        """On disk. Decreases only by truncation to E; the only end that is reported to others."""
        self.staged = at
        """What the lane was given. Never below `durable.end`; above it, a write is in flight."""
        self.fence = fence
        """On disk. Never decreases; no answer names a fence that is not on disk."""
        self.record: ReplicatedSegment | None = None
        """The newest record seen; None until the first."""
        self._fencing = fence
        """The fence that goes through the lane."""
        self._controller = own.node
        self._copy: CopyTail | None = None
        self._source = 0
        self._retry_at_ms = MonotonicMs(0)
        self._config = config
        self._now = MonotonicMs(0)
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Fetched: self._on_fetched,
            Durable: self._on_durable,
            FenceReceived: self._on_fence,
            FencePersisted: self._on_fence_persisted,
            CopyTailReceived: self._on_copy_tail,
            ReadTailReceived: self._on_read_tail,
            TailReceived: self._on_tail,
            Truncated: self._on_truncated,
            RecordSeen: self._on_record,
            StorageFailed: self._on_storage_failed,
            StorageReopened: self._on_reopened,
            Tick: self._on_tick,
        }

    def handle(self, event: ReplicaEvent, now: MonotonicMs) -> list[Action]:
        self._now = max(self._now, now)
        self._handlers[type(event)](event)
        actions, self._actions = self._actions, []
        return actions

    # What can be asked without changing anything

    @property
    def is_write_in_flight(self) -> bool:
        return self.staged.end > self.durable.end

    def wanted(self) -> FetchSegment | None:
        """The next fetch from the leader; None while there is nothing to report or to fetch."""
        record = self.record
        if record is None or not self.may_fetch(record) or self.is_write_in_flight:
            return None
        return FetchSegment(
            segment=self.segment,
            fence=self.fence,
            continuous_since=self.continuous_since,
            at=self.durable,
        )

    # Rules of the protocol

    def may_fetch(self, record: ReplicatedSegment) -> bool:
        """Only an unfenced replica follows, and only the leader of the record."""
        is_led = record.state is RecordState.ACTIVE and record.leader != self.own.node
        return self.state is ReplicaState.OPEN and self.fence == NO_FENCE and is_led

    def takes(self, fence: Fence, incarnation: Incarnation, start: Offset) -> bool:
        """Whether bytes are for this incarnation, at its fence, and begin at its end."""
        return (
            self.state in WRITABLE
            and self.takes_fence(fence)
            and incarnation == self.own.incarnation
            and start == self.staged.end
            and not self.is_write_in_flight
        )

    def takes_fence(self, fence: Fence) -> bool:
        return fence == self.fence

    # Following

    def _on_fetched(self, event: Fetched) -> None:
        content = event.content
        if self.state is not ReplicaState.OPEN or self.record is None:
            return
        if not self.takes(content.fence, event.incarnation, content.start):
            return
        if content.leader_crc is not None and content.leader_crc != content.at.crc:
            self._log(Level.ERROR, "replica_diverged", end=content.at.end)
            return
        assert self.record.leader != self.own.node
        self._stage(content.at, content.payload)

    def _stage(self, at: Point, payload: object) -> None:
        assert self.state in WRITABLE
        assert at.end > self.staged.end
        start, self.staged = self.staged.end, at
        self._do(Stage(segment=self.segment, start=start, at=at, payload=payload))

    def _on_durable(self, event: Durable) -> None:
        if self.state is ReplicaState.FAILED:
            return
        assert event.at.end >= self.durable.end
        self.durable = event.at
        if event.at.end > self.staged.end:
            self.staged = event.at  # The leader's own log grows without being told here.
        if self.is_write_in_flight:
            return
        if self.state is ReplicaState.COPYING:
            self._go_on_copying()
        elif self.state is ReplicaState.REPAIRING:
            self._go_on_repairing()

    # Fencing

    def _on_fence(self, event: FenceReceived) -> None:
        if event.fence < self.fence or self.state not in FENCEABLE:
            return
        self._controller = event.controller
        if event.fence > max(self.fence, self._fencing):
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.FENCE)
            self._fencing, self._copy = event.fence, None
            self._do(StopLeading(segment=self.segment))
            self._do(PersistFence(segment=self.segment, fence=event.fence))
        elif event.fence == self.fence and self.state in UNDER_FENCE:
            self._answer()

    def _on_fence_persisted(self, event: FencePersisted) -> None:
        if event.fence <= self.fence or self.state is ReplicaState.FAILED:
            return
        self.fence = event.fence
        if self.state is ReplicaState.FENCING:
            self.durable = self.staged = event.at
            if event.fence == self._fencing:
                self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.FENCE_PERSISTED)
                self._answer()

    def _answer(self) -> None:
        """Tells the controller how far this replica is. The fence is on disk."""
        assert self.state in UNDER_FENCE
        answer = FenceAnswer(
            segment=self.segment,
            fence=self.fence,
            node=self.own.node,
            incarnation=self.own.incarnation,
            continuous_since=self.continuous_since,
            at=self.durable,
        )
        self._send(self._controller, FenceAnswers(answers=(answer,)))

    # Tail copy

    def _on_copy_tail(self, event: CopyTailReceived) -> None:
        request = event.request
        if self.state not in UNDER_FENCE or request.fence != self.fence:
            return
        if self.durable.end > request.end or self.is_write_in_flight:
            return
        self._copy = request
        self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.COPY)
        self._go_on_copying()

    def _go_on_copying(self) -> None:
        request = self._copy
        assert request is not None
        if self.durable.end < request.end:
            self._ask_for_tail(request.source, request.end)
            return
        self._copy = None
        self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.COPIED)
        self._send(
            request.controller,
            TailCopied(
                segment=self.segment,
                fence=self.fence,
                node=self.own.node,
                incarnation=self.own.incarnation,
                at=self.durable,
            ),
        )

    def _ask_for_tail(self, source: NodeId, end: Offset) -> None:
        self._retry_at_ms = MonotonicMs(self._now + self._config.retry_ms)
        self._send(
            source,
            ReadTail(
                segment=self.segment,
                fence=self.fence,
                node=self.own.node,
                incarnation=self.own.incarnation,
                start=self.durable.end,
                end=end,
            ),
        )

    def _on_tail(self, event: TailReceived) -> None:
        tail = event.tail
        if not self.takes(tail.fence, tail.incarnation, tail.start):
            return
        if self.state is ReplicaState.COPYING:
            assert self._copy is not None
            limit = self._copy.end
        elif self.state is ReplicaState.REPAIRING:
            assert self.record is not None
            limit = self.record.sealed_at.end
        else:
            return
        if self.staged.end < tail.at.end <= limit:
            self._stage(tail.at, tail.payload)

    def _on_read_tail(self, event: ReadTailReceived) -> None:
        request = event.request
        is_same_fence = self.state in UNDER_FENCE and request.fence == self.fence
        if not is_same_fence and self.state is not ReplicaState.SERVING:
            return
        end = min(request.end, self.durable.end)
        if end > request.start:
            self._do(
                ServeTail(
                    segment=self.segment,
                    fence=request.fence,
                    to=Member(request.node, request.incarnation),
                    start=request.start,
                    end=end,
                )
            )

    # Sealed

    def _on_record(self, event: RecordSeen) -> None:
        record = event.record
        assert record.segment == self.segment
        if self.record is not None and record.epoch <= self.record.epoch:
            return
        assert (
            self.record is None
            or self.record.state is not RecordState.SEALED
            or (record.sealed_at == self.record.sealed_at)
        ), "sealed is immutable"
        self.record = record
        if record.state is RecordState.SEALED and self.state in FENCEABLE:
            self._truncate()

    def _truncate(self) -> None:
        """Truncates to E through the lane, behind every write in flight; never extends."""
        assert self.record is not None
        self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.SEAL)
        self._copy = None
        self._do(StopLeading(segment=self.segment))
        self._do(Truncate(segment=self.segment, end=self.record.sealed_at.end))

    def _on_truncated(self, event: Truncated) -> None:
        if self.state is not ReplicaState.TRUNCATING:
            return
        assert self.record is not None
        assert event.at.end <= self.record.sealed_at.end
        self.durable = self.staged = event.at
        if event.at.end < self.record.sealed_at.end:
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.REPAIR)
            self._go_on_repairing()
        else:
            self._verify()

    def _verify(self) -> None:
        assert self.record is not None
        if self.durable == self.record.sealed_at:
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.VERIFY)
            self._do(ServeSealed(segment=self.segment))
        else:
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.CONDEMN)
            self._log(Level.ERROR, "replica_diverged", end=self.durable.end, crc=self.durable.crc)

    def _go_on_repairing(self) -> None:
        assert self.record is not None
        if self.durable.end >= self.record.sealed_at.end:
            self._verify()
            return
        sources = [member.node for member in self.record.isr if member.node != self.own.node]
        if sources:
            source = sources[self._source % len(sources)]
            self._ask_for_tail(source, self.record.sealed_at.end)

    # Failure and time

    def _on_storage_failed(self, event: StorageFailed) -> None:
        if self.state is not ReplicaState.BAD:
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.FAIL)
            self._copy = None

    def _on_reopened(self, event: StorageReopened) -> None:
        if self.state is not ReplicaState.FAILED:
            return
        if event.at.end < self.durable.end:
            # What was reported is gone: only another incarnation may report again.
            self.state = REPLICA_TRANSITIONS.next(self.state, ReplicaStep.CONDEMN)
            self._log(Level.ERROR, "durable_records_lost", end=event.at.end, had=self.durable.end)
            return
        self.durable = self.staged = event.at
        self.fence = self._fencing = max(self.fence, event.fence)
        step = ReplicaStep.REOPEN if self.fence == NO_FENCE else ReplicaStep.REOPEN_FENCED
        self.state = REPLICA_TRANSITIONS.next(self.state, step)
        if self.record is not None and self.record.state is RecordState.SEALED:
            self._truncate()

    def _on_tick(self, event: Tick) -> None:
        if self._now < self._retry_at_ms or self.is_write_in_flight:
            return
        if self.state is ReplicaState.REPAIRING:
            self._source += 1
            self._go_on_repairing()

    # Actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _send(self, node: NodeId, message: FenceAnswers | TailCopied | ReadTail) -> None:
        self._do(Send(node=node, message=message))

    def _log(self, level: Level, name: str, **fields: object) -> None:
        self._do(
            LogEvent(level=level, name=name, segment=self.segment, fields=tuple(fields.items()))
        )
