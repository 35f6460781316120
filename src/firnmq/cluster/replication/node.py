"""All segments of one node: gives each event to the replica and the leader that it is about.

A driver may also run the machines of a segment by themselves, each under its shard's lane.
"""

from __future__ import annotations

from collections.abc import Callable

from firnmq.cluster.replication.actions import Action, Send, StopLeading
from firnmq.cluster.replication.events import (
    Awaited,
    BeginSeal,
    CopyTailReceived,
    Durable,
    FencePersisted,
    FenceReceived,
    Fetched,
    FollowerReport,
    LeadershipLost,
    ReadTailReceived,
    Received,
    RecordSeen,
    ReplicaFound,
    SessionRenewed,
    Staged,
    StorageFailed,
    StorageReopened,
    TailReceived,
    Tick,
    TransactionDone,
    Truncated,
)
from firnmq.cluster.replication.following.fetching import FetchLoop
from firnmq.cluster.replication.following.replica import Replica, ReplicaEvent
from firnmq.cluster.replication.following.state import ReplicaState
from firnmq.cluster.replication.leading.leader import Leader, LeaderEvent
from firnmq.cluster.replication.leading.state import LeaderState
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswer,
    FenceAnswers,
    FenceRequest,
    Fetch,
    FetchAnswer,
    Message,
    ReadTail,
    Tail,
)
from firnmq.cluster.replication.values import (
    EMPTY_CRC,
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

NodeEvent = (
    ReplicaFound
    | RecordSeen
    | Received
    | Staged
    | Awaited
    | Durable
    | StorageFailed
    | StorageReopened
    | FencePersisted
    | Truncated
    | TransactionDone
    | SessionRenewed
    | BeginSeal
    | Tick
)

_DONE = frozenset({ReplicaState.SERVING, ReplicaState.BAD})


class Node:
    """One incarnation of one node."""

    replica_class: type[Replica] = Replica
    leader_class: type[Leader] = Leader

    def __init__(
        self,
        own: Member,
        continuous_since: Callable[[SegmentId], Incarnation],
        config_of: Callable[[SegmentId], ReplicationConfig],
    ) -> None:
        """`continuous_since` depends on the durability of the segment's topic."""
        self.own = own
        self.replicas: dict[SegmentId, Replica] = {}
        self.leaders: dict[SegmentId, Leader] = {}
        """Leaders in office or to be deposed; removed once the segment is sealed."""
        self._unfinished: dict[SegmentId, Replica] = {}
        self._loops: dict[NodeId, FetchLoop] = {}
        self._continuous_since = continuous_since
        self._config_of = config_of
        self._session_ms: MonotonicMs | None = None

    def handle(self, event: NodeEvent, now: MonotonicMs) -> list[Action]:
        actions = self._dispatch(event, now)
        for loop in self._loops.values():
            actions += loop.fetch(now)
        return _with_answers_merged(actions)

    def _dispatch(self, event: NodeEvent, now: MonotonicMs) -> list[Action]:
        match event:
            case Received(message=message):
                return self._on_message(message, now)
            case Durable() | StorageFailed() | StorageReopened():
                return [
                    *self._to_leader(event.segment, event, now),
                    *self._to_replica(event.segment, event, now),
                ]
            case Staged() | Awaited() | BeginSeal():
                return self._to_leader(event.segment, event, now)
            case FencePersisted() | Truncated():
                return self._to_replica(event.segment, event, now)
            case TransactionDone():
                assert event.owner is not None
                return self._to_leader(event.owner, event, now)
            case RecordSeen():
                return self._on_record(event, now)
            case SessionRenewed():
                self._session_ms = event.asked_ms
                return self._to_all_leaders(event, now)
            case Tick():
                return self._on_tick(event, now)
            case ReplicaFound():
                self._add_replica(event.segment, event.at, event.fence)
                return []

    def forget(self, segment: SegmentId) -> None:
        """Drops what is known of a segment: it is sealed and complete here, or deleted."""
        self.leaders.pop(segment, None)
        self._unfinished.pop(segment, None)
        replica = self.replicas.pop(segment, None)
        if replica is not None and replica.record is not None:
            self._stop_following(replica.record)

    # Routing

    def _to_leader(self, segment: SegmentId, event: LeaderEvent, now: MonotonicMs) -> list[Action]:
        leader = self.leaders.get(segment)
        if leader is None:
            return []
        actions = leader.handle(event, now)
        if leader.state is LeaderState.RELEASED:
            # The replica gets the record at once: an older record must not bring the leader back.
            del self.leaders[segment]
            actions += self._to_replica(segment, RecordSeen(record=leader.record), now)
        return actions

    def _to_replica(
        self, segment: SegmentId, event: ReplicaEvent, now: MonotonicMs
    ) -> list[Action]:
        replica = self.replicas.get(segment)
        if replica is None:
            return []
        actions: list[Action] = []
        end = replica.durable.end
        for action in replica.handle(event, now):
            if isinstance(action, StopLeading):
                actions += self._to_leader(segment, LeadershipLost(segment=segment), now)
            else:
                actions.append(action)
        if replica.state in _DONE:
            self._unfinished.pop(segment, None)
        else:
            self._unfinished[segment] = replica
        if replica.durable.end != end and replica.record is not None:
            loop = self._loops.get(replica.record.leader)
            if loop is not None:
                loop.progressed(segment)
        return actions

    def _to_all_leaders(self, event: SessionRenewed | Tick, now: MonotonicMs) -> list[Action]:
        actions: list[Action] = []
        for segment in list(self.leaders):
            actions += self._to_leader(segment, event, now)
        return actions

    def _on_tick(self, event: Tick, now: MonotonicMs) -> list[Action]:
        """Costs time for segments that are led or unfinished here, not for sealed ones."""
        actions = self._to_all_leaders(event, now)
        for segment in list(self._unfinished):
            actions += self._to_replica(segment, event, now)
        return actions

    # Messages

    def _on_message(self, message: Message, now: MonotonicMs) -> list[Action]:
        actions: list[Action] = []
        match message:
            case Fetch():
                member = Member(message.node, message.incarnation)
                for wish in message.segments:
                    report = FollowerReport(
                        segment=wish.segment,
                        fence=wish.fence,
                        member=member,
                        continuous_since=wish.continuous_since,
                        at=wish.at,
                    )
                    actions += self._to_leader(wish.segment, report, now)
            case FetchAnswer():
                for content in message.segments:
                    fetched = Fetched(incarnation=message.incarnation, content=content)
                    actions += self._to_replica(content.segment, fetched, now)
            case FenceRequest():
                actions = self._on_fences(message, now)
            case CopyTail():
                event = CopyTailReceived(request=message)
                actions = self._to_replica(message.segment, event, now)
            case ReadTail():
                asked = ReadTailReceived(request=message)
                actions = self._to_replica(message.segment, asked, now)
            case Tail():
                actions = self._to_replica(message.segment, TailReceived(tail=message), now)
            case _:
                pass  # For the controller.
        return actions

    def _on_fences(self, message: FenceRequest, now: MonotonicMs) -> list[Action]:
        actions: list[Action] = []
        for each in message.segments:
            if each.segment not in self.replicas:
                self._add_replica(each.segment, Point(each.start, EMPTY_CRC), NO_FENCE)
            fence = FenceReceived(
                segment=each.segment, fence=each.fence, controller=message.controller
            )
            actions += self._to_replica(each.segment, fence, now)
        return actions

    # Records

    def _on_record(self, event: RecordSeen, now: MonotonicMs) -> list[Action]:
        record = event.record
        if self.own.node not in record.replicas:
            return []
        segment = record.segment
        if segment not in self.replicas:
            self._add_replica(segment, Point(record.start, EMPTY_CRC), NO_FENCE)
        known = self.replicas[segment].record
        if known is not None and known.epoch > record.epoch:
            return []
        actions = self._to_leader(segment, event, now)
        actions += self._to_replica(segment, event, now)
        if record.state is RecordState.ACTIVE:
            actions += self._take_part(record, now)
        else:
            self._stop_following(record)
        return actions

    def _take_part(self, record: ReplicatedSegment, now: MonotonicMs) -> list[Action]:
        replica = self.replicas[record.segment]
        if replica.state is not ReplicaState.OPEN:
            return []
        if record.leader == self.own.node:
            return self._lead(record, replica, now)
        loop = self._loops.get(record.leader)
        if loop is None:
            config = self._config_of(record.segment)
            loop = self._loops[record.leader] = FetchLoop(record.leader, self.own, config)
        loop.follow(replica)
        return []

    def _lead(self, record: ReplicatedSegment, replica: Replica, now: MonotonicMs) -> list[Action]:
        if record.segment in self.leaders:
            return []
        leader = self.leaders[record.segment] = self.leader_class(
            record,
            self.own,
            replica.continuous_since,
            replica.durable,
            self._config_of(record.segment),
            now,
            self._session_ms,
        )
        return leader.take_actions()

    def _stop_following(self, record: ReplicatedSegment) -> None:
        loop = self._loops.get(record.leader)
        if loop is not None:
            loop.forget(record.segment)
            if not len(loop):
                del self._loops[record.leader]

    def _add_replica(self, segment: SegmentId, at: Point, fence: Fence) -> None:
        assert segment not in self.replicas
        self.replicas[segment] = self._unfinished[segment] = self.replica_class(
            segment,
            self.own,
            self._continuous_since(segment),
            at,
            fence,
            self._config_of(segment),
        )


def _with_answers_merged(actions: list[Action]) -> list[Action]:
    """One message with all answers for one controller."""
    answers: dict[NodeId, list[FenceAnswer]] = {}
    merged: list[Action] = []
    for action in actions:
        match action:
            case Send(node=node, message=FenceAnswers(answers=found)):
                answers.setdefault(node, []).extend(found)
            case _:
                merged.append(action)
    for node, each in answers.items():
        merged.append(Send(node=node, message=FenceAnswers(answers=tuple(each))))
    return merged
