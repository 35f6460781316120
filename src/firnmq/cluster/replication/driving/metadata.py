"""What the core asks of the meta store: transactions, reads, and where the next segment lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.replication.actions import Change, ReadRecord, Transact
from firnmq.cluster.replication.driving.control import Control
from firnmq.cluster.replication.driving.knowledge import ReplicationKnowledge
from firnmq.cluster.replication.driving.logs import ShardLogs
from firnmq.cluster.replication.driving.placing import place_next
from firnmq.cluster.replication.driving.records import ReplicationRecords
from firnmq.cluster.replication.driving.wire import Facts
from firnmq.cluster.replication.events import NextChosen, Outcome, RecordSeen, TransactionDone
from firnmq.cluster.replication.node import Node, NodeEvent
from firnmq.cluster.replication.values import (
    Incarnation,
    Member,
    NodeId,
    Placement,
    Point,
    RecordState,
    ReplicatedSegment,
    SegmentId,
)
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta.records import Incarnation as IncarnationRecord
from firnmq.meta.records import SegmentRecord, decode, incarnation_key

_log = EventLogger("replication")


class Metadata:
    """Owned by the network's thread; what waits for the store does so in the pool."""

    def __init__(
        self,
        cluster: Cluster,
        records: ReplicationRecords,
        knowledge: ReplicationKnowledge,
        logs: ShardLogs,
        node: Node,
        control: Control,
        give: Callable[[NodeEvent], None],
        in_pool: Callable[[Callable[[], None]], None],
    ) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._records = records
        self._knowledge = knowledge
        self._logs = logs
        self._node = node
        self._control = control
        self._give = give
        self._in_pool = in_pool

    def transact(self, transact: Transact) -> None:
        facts: dict[tuple[SegmentId, Point], Facts] = {}
        for change in transact.changes:
            after = change.after
            if after.state is RecordState.SEALED:
                found = self._facts_for(transact, change)
                if found is not None:
                    facts[after.segment, after.sealed_at] = found
        if isinstance(transact.guard, Member):
            guard = self._cluster.identity.guard
        else:
            term_guard = self._control.guard(transact.guard)
            if term_guard is None:
                done = partial(self._transacted, transact, Outcome.DEPOSED)
                self._network.loop.call_soon(done)
                return
            guard = term_guard

        def ask() -> None:
            made = self._records.change(transact.changes, guard, facts)
            if made.error is not None:
                _log.warning("replication_outcome_unknown", error=str(made.error))
            self._network.soon(partial(self._transacted, transact, made.outcome, made.records))

        self._in_pool(ask)

    def _facts_for(self, transact: Transact, change: Change) -> Facts | None:
        segment, at = change.after.segment, change.after.sealed_at
        if transact.owner is not None:
            return self._logs.facts_at(segment, at)
        return self._control.facts.get(segment, {}).get(at)

    def _transacted(
        self,
        transact: Transact,
        outcome: Outcome,
        records: Iterable[tuple[SegmentId, SegmentRecord]] = (),
    ) -> None:
        for segment, record in records:
            self._logs.ahead(segment, record)
        done = TransactionDone(owner=transact.owner, number=transact.number, outcome=outcome)
        if transact.owner is not None:
            self._give(done)
            return
        controller = self._control.controller
        if controller is not None and controller.term == transact.guard:
            self._control.give(done)

    def read(self, action: ReadRecord) -> None:
        self._in_pool(partial(self._read, action.segment))

    def _read(self, segment: SegmentId) -> None:
        """In the pool."""
        try:
            record = self._records.read(segment.shard, segment.seq)
            following = None
            if record is not None and record.end >= 0:
                following = self._records.read(segment.shard, segment.seq + 1)
        except FirnError as error:
            _log.warning("replication_record_unread", segment=segment, error=str(error))
            return  # The core asks again.
        self._network.soon(partial(self._was_read, segment, record, following))

    def _was_read(
        self, segment: SegmentId, record: SegmentRecord | None, following: SegmentRecord | None
    ) -> None:
        if following is not None:
            self._logs.ahead(self._knowledge.next_of(segment), following)
        found = None if record is None else self._knowledge.core_record(segment, record)
        if record is None or found is None:
            self._control.forget(segment)
            self._logs.gone(segment)
            return
        self._logs.ahead(segment, record)
        if self._logs.is_tail(segment) or segment in self._node.leaders:
            self._give(RecordSeen(record=found))
        self._control.record_seen(found)

    def choose(self, record: ReplicatedSegment, holders: tuple[Member, ...]) -> None:
        placement = self.next_place(record, holders)
        if placement is not None:
            chosen = NextChosen(segment=record.segment, placement=placement)
            self._network.loop.call_soon(self._control.give, chosen)

    def next_place(
        self, record: ReplicatedSegment, holders: tuple[Member, ...], wanted: NodeId | None = None
    ) -> Placement | None:
        members, cache = self._cluster.members, self._cluster.cache
        alive = {
            NodeId(node): Incarnation(found.incarnation)
            for node, found in dict(members.registered).items()
        }
        last = {}
        for node in record.replicas:
            entry = cache.get(incarnation_key(node))
            if entry is None:
                return None
            last[node] = Incarnation(decode(entry, IncarnationRecord).incarnation)
        counts = {node: self._cluster.leaders.count_of(node) for node in alive}
        return place_next(record, holders, alive, last, counts, wanted)
