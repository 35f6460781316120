"""The core with one rule of the protocol switched off. The product has no such switch.

Each mutant must break an invariant in some schedule: a simulation that cannot tell proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from firnmq.cluster.replication import Controller, Leader, Node, Replica, Seal
from firnmq.cluster.replication.actions import (
    PersistFence,
    ServeSealed,
    Stage,
    StopLeading,
    Transact,
)
from firnmq.cluster.replication.events import (
    FencePersisted,
    FenceReceived,
    Fetched,
    LeadershipLost,
    Outcome,
    RecordSeen,
    TransactionDone,
)
from firnmq.cluster.replication.following.state import ReplicaState
from firnmq.cluster.replication.leading.insync import InSyncReplicas
from firnmq.cluster.replication.leading.marks import Marks
from firnmq.cluster.replication.leading.state import LeaderState
from firnmq.cluster.replication.messages import FenceAnswer
from firnmq.cluster.replication.sealing.state import SEAL_TRANSITIONS, SealState, SealStep
from firnmq.cluster.replication.values import (
    Durability,
    Fence,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    RecordState,
    ReplicatedSegment,
)
from firnmq.ids import Offset
from tests.simulation.cluster.store import Store
from tests.simulation.cluster.world import Parts, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken core, and the kind of world that shows it soon."""

    parts: Parts
    size: Size
    faults: tuple[str, ...]


def _parts(
    leader: type[Leader] = Leader,
    replica: type[Replica] = Replica,
    seal: type[Seal] = Seal,
    store: type[Store] = Store,
) -> Parts:
    node = type("MutantNode", (Node,), {"leader_class": leader, "replica_class": replica})
    controller = type("MutantController", (Controller,), {"seal_class": seal})
    return Parts(node=node, controller=controller, store=store)


def _with_marks(marks: type[Marks]) -> type[Leader]:
    return type("MutantLeader", (Leader,), {"marks_class": marks})


# The leader


class ProposedIsrOnly(Leader):
    def waits_for(self) -> frozenset[Member]:
        return frozenset(self._proposed or self.record.isr)


class SilentMembersIgnored(Marks):
    def lowest_end(self, members: Any) -> Offset:
        heard = [
            member
            for member in members
            if (progress := self.followers.get(member.node)) is not None
            and progress.incarnation == member.incarnation
        ]
        return super().lowest_end(heard)


class QuorumOfIsr(Marks):
    def majority_end(self, record: ReplicatedSegment) -> Offset:
        ends = [self.durable_end]
        for member in record.isr:
            if member.node in self.followers:
                ends.append(self.followers[member.node].end)
        needed = len(record.isr) // 2 + 1
        ends.sort(reverse=True)
        return ends[needed - 1] if len(ends) >= needed else self._start


class LostTailsCountAtLeader(Marks):
    def majority_end(self, record: ReplicatedSegment) -> Offset:
        ends = [self.durable_end, *(progress.end for progress in self.followers.values())]
        ends.sort(reverse=True)
        return ends[record.quorum - 1] if len(ends) >= record.quorum else self._start


class OneMarkForAdmission(Marks):
    def admission_goal(self) -> Offset:
        return self.high_watermark


class RestartedLeaderGoesOn(Leader):
    def may_lead(self, continuous_since: Incarnation) -> bool:
        return self.record.state is RecordState.ACTIVE


class FailedLeaderGoesOn(Leader):
    def may_go_on_after_storage_failure(self) -> bool:
        return self.state is LeaderState.LEADING


class FencedLeaderGoesOn(Leader):
    def _on_leadership_lost(self, event: LeadershipLost) -> None:
        pass


class OldSessionsGoOn(Leader):
    def is_session_fresh(self, now: MonotonicMs) -> bool:
        return True


class MinInSyncIgnored(Leader):
    def has_enough_in_sync(self) -> bool:
        return True


class ShrinksBelowMin(InSyncReplicas):
    def removal(
        self, record: ReplicatedSegment, lagging: Sequence[Member]
    ) -> tuple[Member, ...] | None:
        return tuple(member for member in record.isr if member not in lagging) if lagging else None


class UnknownSealUnfreezes(Leader):
    def _on_transaction(self, event: TransactionDone) -> None:
        is_mine = self._pending is not None and self._pending.is_of(event)
        if is_mine and event.outcome is Outcome.UNKNOWN and self.state is LeaderState.SEALING:
            self._pending = None
            self._unfreeze()
        else:
            super()._on_transaction(event)


class UnchangedRecordDecides(Leader):
    def _on_record(self, event: RecordSeen) -> None:
        is_unchanged = event.record.epoch == self.record.epoch
        if is_unchanged and self._pending is not None and self._proposed is not None:
            self._pending = self._proposed = None
        else:
            super()._on_record(event)


class PlannedSealDoesNotWait(Leader):
    def is_whole(self) -> bool:
        return self._pending is None and self.marks.durable_end == self.staged.end

    def _are_crcs_equal(self) -> bool:
        return True


# The replica


class FenceAnsweredBeforePersisted(Replica):
    def _on_fence(self, event: FenceReceived) -> None:
        is_new = event.fence > self.fence
        super()._on_fence(event)
        if is_new and self.state is ReplicaState.FENCING:
            self._actions = [each for each in self._actions if not isinstance(each, PersistFence)]
            self._on_fence_persisted(
                FencePersisted(segment=self.segment, fence=event.fence, at=self.durable)
            )


class FencedReplicasFollow(Replica):
    def may_fetch(self, record: ReplicatedSegment) -> bool:
        is_open = self.state in (ReplicaState.OPEN, ReplicaState.FENCED)
        return is_open and record.leader != self.own.node

    def wanted(self) -> Any:
        wish = super().wanted()
        return wish and replace(wish, fence=Fence(0))

    def _on_fetched(self, event: Fetched) -> None:
        content = event.content
        is_next = content.start == self.staged.end and not self.is_write_in_flight
        if self.state is ReplicaState.FENCED and is_next:
            self.staged = content.at
            self._do(
                Stage(
                    segment=self.segment,
                    start=content.start,
                    at=content.at,
                    payload=content.payload,
                )
            )
        else:
            super()._on_fetched(event)


class GapsAreTaken(Replica):
    def takes(self, fence: Fence, incarnation: Incarnation, start: Offset) -> bool:
        return super().takes(fence, incarnation, self.staged.end)


class ServesWithoutCut(Replica):
    def _truncate(self) -> None:
        self.state = ReplicaState.SERVING
        self._do(StopLeading(segment=self.segment))
        self._do(ServeSealed(segment=self.segment))


# The seal


class NoMajority(Seal):
    def is_answered(self) -> bool:
        return any(member.node in self.counting() for member in self.record.isr)


class NoIsrMember(Seal):
    def is_answered(self) -> bool:
        return len(self.counting()) >= self.record.fence_answer_min


class LostTailsCountInSeal(Seal):
    def counting(self) -> dict[NodeId, FenceAnswer]:
        return self.answers


class EndOfAnIsrMember(Seal):
    def greatest_end(self) -> Offset:
        nodes = [member.node for member in self.record.isr if member.node in self.answers]
        return self.answers[(nodes or sorted(self.answers))[0]].at.end


class OneCopyIsEnough(Seal):
    def _consider_placing(self) -> None:
        if self.state is SealState.COPYING and self.confirmed:
            self.state = SEAL_TRANSITIONS.next(self.state, SealStep.CONFIRM)
            self._choose_next()


class LosesBeforeAllAnswered(Seal):
    def may_lose(self) -> bool:
        return self._config.durability.accepts_loss and bool(self.answers)


class LosesWithoutOperator(Seal):
    def may_lose(self) -> bool:
        return len(self.answers) == len(self.record.replicas)


class CopyNotVerified(Seal):
    """Counts a copy as soon as it is asked for."""

    def _send_copy(self, node: NodeId) -> None:
        super()._send_copy(node)
        self.confirmed[node] = Member(node, self.answers[node].incarnation)


# The store


class BlindStore(Store):
    """Compares nothing of the transactions that `is_blind_to` picks."""

    def is_blind_to(self, transact: Transact) -> bool:
        return True

    def transact(self, transact: Transact) -> Outcome:
        if not self.is_blind_to(transact):
            return super().transact(transact)
        for change in transact.changes:
            self._apply(change)
        return Outcome.APPLIED


class BlindToLeaders(BlindStore):
    def is_blind_to(self, transact: Transact) -> bool:
        return transact.owner is not None


class BlindToControllers(BlindStore):
    def is_blind_to(self, transact: Transact) -> bool:
        return transact.owner is None


class BlindToRegistrations(Store):
    def is_alive(self, member: Member) -> bool:
        return True

    def is_guarded(self, transact: Transact) -> bool:
        return isinstance(transact.guard, Member) or super().is_guarded(transact)


ONE = Size(replicas=1, spare_nodes=0, min_in_sync=1, durability=Durability.FSYNC)
TWO = Size(replicas=2, spare_nodes=0, min_in_sync=1, durability=Durability.OS)
THREE = Size(replicas=3, spare_nodes=0, min_in_sync=2, durability=Durability.OS)
WIDE = Size(replicas=3, spare_nodes=1, min_in_sync=1, durability=Durability.OS)
FIVE = Size(replicas=5, spare_nodes=0, min_in_sync=2, durability=Durability.OS)
SYNCED = replace(THREE, durability=Durability.FSYNC)

_CUTS = ("isolate", "cut_link", "crash", "operator_seal")
_LOSSES = ("lose_tail", "crash", "cut_link", "operator_seal")


def _mutant(parts: Parts, size: Size, *faults: str) -> Mutant:
    return Mutant(parts=parts, size=size, faults=faults)


MUTANTS = {
    "the high watermark waits for the ISR in force": _mutant(
        _parts(ProposedIsrOnly), TWO, "store_messages", "cut_link", "cut_store"
    ),
    "silent members count": _mutant(_parts(_with_marks(SilentMembersIgnored)), TWO, *_CUTS),
    "a quorum is of all replicas": _mutant(_parts(_with_marks(QuorumOfIsr)), FIVE, *_CUTS),
    "a restarted leader resigns": _mutant(_parts(RestartedLeaderGoesOn), THREE, *_CUTS),
    "a failed leader resigns": _mutant(
        _parts(FailedLeaderGoesOn), THREE, "storage_failure", "slow_disk"
    ),
    "a fenced leader stops": _mutant(_parts(FencedLeaderGoesOn), THREE, "operator_seal"),
    "lost tails do not count for a quorum": _mutant(
        _parts(_with_marks(LostTailsCountAtLeader)), THREE, *_LOSSES
    ),
    "lost tails do not count in a seal": _mutant(
        _parts(seal=LostTailsCountInSeal), THREE, *_LOSSES
    ),
    "both marks are reached before the ISR": _mutant(
        _parts(_with_marks(OneMarkForAdmission)), WIDE, "lost_member"
    ),
    "a leader with an old session stops": _mutant(
        _parts(OldSessionsGoOn), THREE, "cut_store", "pause"
    ),
    "enough replicas are in sync": _mutant(
        _parts(MinInSyncIgnored), THREE, "crash", "operator_seal"
    ),
    "the ISR never shrinks below the minimum": _mutant(
        _parts(type("L", (Leader,), {"in_sync_class": ShrinksBelowMin})), THREE, "cut_link"
    ),
    "frozen until the outcome is known": _mutant(
        _parts(UnknownSealUnfreezes), TWO, "roll", "store_messages"
    ),
    "an unchanged record decides nothing": _mutant(
        _parts(UnchangedRecordDecides), TWO, "store_messages", "cut_link"
    ),
    "a planned seal waits for the ISR": _mutant(
        _parts(PlannedSealDoesNotWait), THREE, "roll", "cut_link"
    ),
    "a fence is persisted before its answer": _mutant(
        _parts(replica=FenceAnsweredBeforePersisted), TWO, *_CUTS
    ),
    "fenced replicas stop": _mutant(_parts(replica=FencedReplicasFollow), THREE, *_CUTS),
    "bytes are contiguous": _mutant(_parts(replica=GapsAreTaken), THREE, "messages"),
    "longer replicas are cut before they serve": _mutant(
        _parts(replica=ServesWithoutCut), THREE, *_CUTS
    ),
    "a majority answers the fence": _mutant(_parts(seal=NoMajority), WIDE, *_CUTS, "slow_disk"),
    "a member of the ISR answers the fence": _mutant(_parts(seal=NoIsrMember), TWO, *_CUTS),
    "the end is the greatest": _mutant(_parts(seal=EndOfAnIsrMember), WIDE, *_CUTS, "slow_disk"),
    "the tail is copied to enough replicas": _mutant(_parts(seal=OneCopyIsEnough), THREE, *_CUTS),
    "a copy is verified": _mutant(_parts(seal=CopyNotVerified), THREE, *_CUTS),
    "a loss needs all answers": _mutant(_parts(seal=LosesBeforeAllAnswered), THREE, *_LOSSES),
    "a loss of synced records needs an operator": _mutant(
        _parts(seal=LosesWithoutOperator), SYNCED, "wipe", "operator_seal"
    ),
    "a leader's change compares the record": _mutant(
        _parts(store=BlindToLeaders), THREE, "roll", "cut_link", "operator_seal"
    ),
    "a controller's change compares the record and the controller": _mutant(
        _parts(store=BlindToControllers), THREE, "pause", "crash", "operator_seal", "cut_store"
    ),
    "a leader's change compares its registration": _mutant(
        _parts(store=BlindToRegistrations), ONE, "roll", "crash", "store_messages"
    ),
}
