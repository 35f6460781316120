"""The meta store: records with compare-and-swap, registrations, sessions, the controller key."""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.cluster.replication.actions import Change, Transact
from firnmq.cluster.replication.events import Outcome
from firnmq.cluster.replication.values import (
    Incarnation,
    Member,
    NodeId,
    RecordState,
    ReplicatedSegment,
    Revision,
    SegmentId,
)
from firnmq.ids import ShardUid
from tests.simulation.cluster.judge import Judge


@dataclass(slots=True)
class Registration:
    incarnation: Incarnation
    expires_ms: int


class Store:
    """What is applied is applied at once; the network in front of it may lose either way."""

    def __init__(self, judge: Judge, ttl_ms: int) -> None:
        self._judge = judge
        self._ttl_ms = ttl_ms
        self.records: dict[SegmentId, ReplicatedSegment] = {}
        self.pointers: dict[ShardUid, SegmentId] = {}
        self.nodes: dict[NodeId, Registration] = {}
        self.incarnations: dict[NodeId, Incarnation] = {}
        self.controller: tuple[NodeId, Incarnation, Revision] | None = None
        self.changes: list[ReplicatedSegment | tuple[NodeId, Incarnation | None]] = []
        self._revision = 0

    def create(self, record: ReplicatedSegment) -> None:
        self.records[record.segment] = record
        self.pointers[record.segment.shard] = record.segment
        self.changes.append(record)

    def register(self, node: NodeId, last: int, now: int) -> Incarnation | None:
        """None if the node's last incarnation is another one: an earlier request came late."""
        if self.incarnations.get(node, 0) != last:
            return None
        incarnation = Incarnation(last + 1)
        self.incarnations[node] = incarnation
        self._drop_controller(node)
        self.nodes[node] = Registration(incarnation, now + self._ttl_ms)
        self.changes.append((node, incarnation))
        return incarnation

    def keep_alive(self, member: Member, now: int) -> bool:
        found = self.nodes.get(member.node)
        if found is None or found.incarnation != member.incarnation:
            return False
        found.expires_ms = now + self._ttl_ms
        return True

    def is_alive(self, member: Member) -> bool:
        found = self.nodes.get(member.node)
        return found is not None and found.incarnation == member.incarnation

    def expire(self, now: int) -> None:
        for node, found in list(self.nodes.items()):
            if found.expires_ms <= now:
                del self.nodes[node]
                self._drop_controller(node)
                self.changes.append((node, None))

    def _drop_controller(self, node: NodeId) -> None:
        if self.controller is not None and self.controller[0] == node:
            self.controller = None

    def campaign(self, member: Member) -> Revision | None:
        """The term of a new controller; None if there is one, or the session is gone."""
        if self.controller is not None:  # Its own, if the answer was lost.
            node, incarnation, term = self.controller
            return term if Member(node, incarnation) == member else None
        if not self.is_alive(member):
            return None
        self._revision += 1
        self.controller = (member.node, member.incarnation, Revision(self._revision))
        return Revision(self._revision)

    def transact(self, transact: Transact) -> Outcome:
        if not self.is_guarded(transact):
            return Outcome.DEPOSED
        for change in transact.changes:
            before = change.before
            if self.records[before.segment].epoch != before.epoch:
                return Outcome.REFUSED
            is_last = self.pointers[before.segment.shard] == before.segment
            if change.opened is not None and not is_last:
                return Outcome.REFUSED
        for change in transact.changes:
            self._apply(change)
        return Outcome.APPLIED

    def is_guarded(self, transact: Transact) -> bool:
        """Is the node registered as it believes, or the controller the one that asks?"""
        if isinstance(transact.guard, Member):
            return self.is_alive(transact.guard)
        return self.controller is not None and self.controller[2] == transact.guard

    def _apply(self, change: Change) -> None:
        self._judge.changed(self.records[change.before.segment], change)
        self.records[change.after.segment] = change.after
        self.changes.append(change.after)
        if change.opened is not None:
            self.create(change.opened)

    def active(self, shard: ShardUid) -> ReplicatedSegment:
        return self.records[self.pointers[shard]]

    def unsealed(self) -> list[ReplicatedSegment]:
        return [each for each in self.records.values() if each.state is not RecordState.SEALED]
