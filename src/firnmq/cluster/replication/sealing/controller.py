"""The controller: notices lost leaders, and runs many seals with few messages and transactions.

It knows the segments that are not sealed. Every transaction compares the create revision of the
controller's key, so the store refuses those of an earlier controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from firnmq.cluster.replication.actions import Action, Send, Transact
from firnmq.cluster.replication.events import (
    AcceptLoss,
    NextChosen,
    NodeSeen,
    Outcome,
    Received,
    RecordSeen,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.messages import (
    FenceAnswers,
    FenceRequest,
    FenceSegment,
    SealReason,
    SealRequest,
    TailCopied,
)
from firnmq.cluster.replication.sealing.seal import Seal, SealEvent
from firnmq.cluster.replication.sealing.state import SealState
from firnmq.cluster.replication.values import (
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    Revision,
    SegmentId,
)
from firnmq.ids import SegmentSeq, ShardUid

CHANGES_PER_TRANSACTION = 40
"""Each seal takes three puts, and etcd allows 128 operations."""

ControllerEvent = (
    RecordSeen | NodeSeen | Received | TransactionDone | NextChosen | AcceptLoss | Tick
)


class Controller:
    """One term of one controller. A node that is elected again makes another one."""

    seal_class: type[Seal] = Seal

    def __init__(
        self,
        own: NodeId,
        term: Revision,
        alive: Mapping[NodeId, Incarnation],
        config_of: Callable[[SegmentId], ReplicationConfig],
    ) -> None:
        """`alive` must be complete: a leader that is not in it is lost."""
        self.term = term
        self.is_deposed = False
        self.seals: dict[SegmentId, Seal] = {}
        self._own = own
        self._alive = dict(alive)
        self._config_of = config_of
        self._records: dict[SegmentId, ReplicatedSegment] = {}
        """Active and fencing ones only: the work does not grow with sealed segments."""
        self._led_by: dict[NodeId, set[SegmentId]] = {}
        self._last_sealed: dict[ShardUid, SegmentSeq] = {}
        self._number = 0
        self._batches: dict[int, tuple[Transact, ...]] = {}

    def handle(self, event: ControllerEvent, now: MonotonicMs) -> list[Action]:
        if self.is_deposed:
            return []
        match event:
            case RecordSeen():
                actions = self._on_record(event, now)
            case NodeSeen():
                actions = self._on_node(event, now)
            case Received():
                actions = self._on_message(event, now)
            case TransactionDone():
                actions = self._on_transaction(event, now)
            case NextChosen() | AcceptLoss():
                actions = self._tell(event.segment, event, now)
            case Tick():
                actions = []
                for segment in list(self.seals):
                    actions += self._tell(segment, event, now)
        return self._merged(actions)

    # Who leads, and who is lost

    def _on_record(self, event: RecordSeen, now: MonotonicMs) -> list[Action]:
        record = event.record
        segment = record.segment
        if segment.seq <= self._last_sealed.get(segment.shard, -1):
            return []  # An old record of a segment that is sealed.
        known = self._records.get(segment)
        if known is None or known.epoch < record.epoch:
            if record.state is RecordState.SEALED:
                self._forget(record)
            else:
                self._records[segment] = record
                self._led_by.setdefault(record.leader, set()).add(segment)
        if segment in self.seals:
            return self._tell(segment, event, now)
        return self._consider(segment, now)

    def _forget(self, record: ReplicatedSegment) -> None:
        """The controller drops a sealed segment."""
        segment = record.segment
        self._records.pop(segment, None)
        self._led_by.get(record.leader, set()).discard(segment)
        last = self._last_sealed.get(segment.shard, segment.seq)
        self._last_sealed[segment.shard] = max(last, segment.seq)

    def forget(self, segment: SegmentId) -> None:
        """Drops a segment that is deleted, with the seal that may be under way."""
        record = self._records.pop(segment, None)
        if record is not None:
            self._led_by.get(record.leader, set()).discard(segment)
        seal = self.seals.pop(segment, None)
        if seal is not None:
            seal.depose()

    def _on_node(self, event: NodeSeen, now: MonotonicMs) -> list[Action]:
        if event.incarnation is None:
            self._alive.pop(event.node, None)
        else:
            self._alive[event.node] = event.incarnation
        actions: list[Action] = []
        for segment in sorted(self._led_by.get(event.node, ())):
            actions += self._consider(segment, now)
        return actions

    def _consider(self, segment: SegmentId, now: MonotonicMs) -> list[Action]:
        """Seals a segment whose leader is lost, or whose seal an earlier controller began."""
        record = self._records.get(segment)
        if record is None or segment in self.seals:
            return []
        if record.state is RecordState.FENCING or self._is_leader_lost(record):
            return self._begin(record, now)
        return []

    def _is_leader_lost(self, record: ReplicatedSegment) -> bool:
        """A leader in another incarnation than at the opening has resigned, or will."""
        if len(record.replicas) == 1:
            return False  # It goes on by itself, and nothing can be done without it.
        leader = next(member for member in record.opened if member.node == record.leader)
        return self._alive.get(record.leader) != leader.incarnation

    def _on_request(self, request: SealRequest, now: MonotonicMs) -> list[Action]:
        record = self._records.get(request.segment)
        if record is None or request.segment in self.seals:
            return []
        if request.reason is SealReason.BELOW_MIN_IN_SYNC:
            needed = record.needed_in_sync(self._config_of(request.segment).min_in_sync)
            if len(self._alive) < max(needed, record.fence_answer_min):
                return []  # The next segment could not be written either.
        return self._begin(record, now)

    def _begin(self, record: ReplicatedSegment, now: MonotonicMs) -> list[Action]:
        seal = self.seals[record.segment] = self.seal_class(
            record,
            self._own,
            self.term,
            self._config_of(record.segment),
            now,
            self._next_number,
        )
        return seal.take_actions()

    # Seals

    def _tell(self, segment: SegmentId, event: SealEvent, now: MonotonicMs) -> list[Action]:
        seal = self.seals.get(segment)
        if seal is None:
            return []
        actions = seal.handle(event, now)
        if seal.is_over:
            del self.seals[segment]
            if seal.state is SealState.DONE:
                self._forget(seal.record)
        return actions

    def _on_message(self, event: Received, now: MonotonicMs) -> list[Action]:
        match event.message:
            case FenceAnswers(answers=answers):
                actions = []
                for answer in answers:
                    actions += self._tell(answer.segment, answer, now)
                return actions
            case TailCopied() as copied:
                return self._tell(copied.segment, copied, now)
            case SealRequest() as request:
                return self._on_request(request, now)
            case _:
                return []

    # Transactions: several changes in one

    def _on_transaction(self, event: TransactionDone, now: MonotonicMs) -> list[Action]:
        batch = self._batches.pop(event.number, ())
        if event.outcome is Outcome.DEPOSED:
            self.depose()
            return []
        if event.outcome is Outcome.REFUSED and len(batch) > 1:
            # One of them is refused; the others are tried separately.
            return [self._batch((transact,)) for transact in batch]
        actions: list[Action] = []
        for transact in batch:
            done = TransactionDone(owner=None, number=transact.number, outcome=event.outcome)
            actions += self._tell(transact.changes[0].before.segment, done, now)
        return actions

    def depose(self) -> None:
        """Another controller is elected; this term ends for good."""
        self.is_deposed = True
        for seal in self.seals.values():
            seal.depose()
        self.seals.clear()

    def _batch(self, transacts: tuple[Transact, ...]) -> Transact:
        number = self._next_number()
        self._batches[number] = transacts
        changes = tuple(change for each in transacts for change in each.changes)
        return Transact(owner=None, number=number, changes=changes, guard=self.term)

    def _merged(self, actions: Iterable[Action]) -> list[Action]:
        """One fence message per node, and few transactions."""
        merged: list[Action] = []
        fences: dict[NodeId, list[FenceSegment]] = {}
        transacts: list[Transact] = []
        for action in actions:
            match action:
                case Send(node=node, message=FenceRequest(segments=segments)):
                    fences.setdefault(node, []).extend(segments)
                case Transact(number=number) if number not in self._batches:
                    transacts.append(action)
                case _:
                    merged.append(action)
        for node, each in fences.items():
            request = FenceRequest(controller=self._own, segments=tuple(each))
            merged.append(Send(node=node, message=request))
        for at in range(0, len(transacts), CHANGES_PER_TRANSACTION):
            merged.append(self._batch(tuple(transacts[at : at + CHANGES_PER_TRANSACTION])))
        return merged

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def alive(self) -> tuple[Member, ...]:
        return tuple(Member(node, inc) for node, inc in sorted(self._alive.items()))
