"""The logs of replicated shards on this node: opened, fenced, sealed, moved to the next segment.

One log per shard, with one tail. A segment is told to the core once it is the log's tail, so a
replica that is behind completes one segment after the other. Owned by the network's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.replication.actions import PersistFence, Stage, Truncate
from firnmq.cluster.replication.driving.knowledge import ReplicationKnowledge
from firnmq.cluster.replication.driving.records import (
    ReplicationRecords,
    emptied_record,
    is_replicated,
)
from firnmq.cluster.replication.driving.shards import (
    Fetched,
    LogState,
    LogStep,
    Outcome,
    PlannedSeal,
    ShardReplica,
    facts_of,
    point_of,
    replica_id,
    segment_id,
)
from firnmq.cluster.replication.driving.wire import Facts
from firnmq.cluster.replication.events import (
    Durable,
    FencePersisted,
    RecordSeen,
    ReplicaFound,
    StorageFailed,
    StorageReopened,
    Truncated,
)
from firnmq.cluster.replication.following.state import ReplicaState
from firnmq.cluster.replication.messages import FenceSegment
from firnmq.cluster.replication.node import Node, NodeEvent
from firnmq.cluster.replication.values import (
    EMPTY_CRC,
    NO_FENCE,
    Fence,
    Member,
    Point,
    SegmentId,
)
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.replicas import Reached, ReplicaId, Replicas
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import FirnError, NotLeader, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.ids import Offset, SegmentSeq
from firnmq.meta.conversions import meta_of
from firnmq.meta.records import Replica, SegmentRecord

REOPEN_S = 0.5
"""Between a failure of a log and an attempt to open it again."""
_UNSEALED = (SegmentState.ACTIVE, SegmentState.FENCING)
_log = EventLogger("replication")


class ShardLogs:
    def __init__(
        self,
        own: Member,
        cluster: Cluster,
        replicas: Replicas,
        knowledge: ReplicationKnowledge,
        records: ReplicationRecords,
        give: Callable[[NodeEvent], None],
        in_pool: Callable[[Callable[[], None]], None],
        node: Node,
    ) -> None:
        """`give` tells the core; `in_pool` calls something in a thread that may wait."""
        self._own = own
        self._cluster = cluster
        self._network = cluster.network
        self._replicas = replicas
        self._knowledge = knowledge
        self._records = records
        self._give = give
        self._in_pool = in_pool
        self._node = node
        self.shards: dict[int, ShardReplica] = {}
        self._starts: dict[SegmentId, Offset] = {}
        """Where segments begin that are fenced here, and may not be the tail of a log."""
        self._fenced_facts: dict[SegmentId, tuple[Point, Facts]] = {}

    # Asking -------------------------------------------------------------------------------------

    def of(self, segment: SegmentId) -> ShardReplica | None:
        return self.shards.get(segment.shard)

    def is_tail(self, segment: SegmentId) -> bool:
        shard = self.shards.get(segment.shard)
        return shard is not None and shard.has_tail(segment)

    def facts_at(self, segment: SegmentId, at: Point) -> Facts | None:
        """How a segment would be sealed at an end that its replica here has reported."""
        shard = self.shards.get(segment.shard)
        known = [self._fenced_facts.get(segment)]
        if shard is not None and shard.current == segment:
            known.append(shard.facts)
        return next((each[1] for each in known if each is not None and each[0] == at), None)

    def record(self, segment: SegmentId) -> SegmentRecord | None:
        """The newest record that this node knows."""
        cached = self._knowledge.record(segment)
        shard = self.shards.get(segment.shard)
        changed = None if shard is None else shard.ahead.get(segment.seq)
        if changed is None or (cached is not None and cached.epoch >= changed.epoch):
            return cached
        return changed

    # What the metadata say ----------------------------------------------------------------------

    def ahead(self, segment: SegmentId, record: SegmentRecord) -> None:
        """Takes a record that the cache may not have yet."""
        shard = self.shards.get(segment.shard)
        if shard is not None and segment.seq >= shard.current.seq:
            shard.ahead[segment.seq] = record

    def seen(self, segment: SegmentId, record: SegmentRecord) -> None:
        """A record has changed."""
        shard = self.shards.get(segment.shard)
        if shard is None:
            if self._is_wanted(record):
                self._begin(segment, record)
        elif shard.has_tail(segment):
            self._tell_record(segment)
        elif shard.state is LogState.MOVING and segment.seq > shard.current.seq:
            self._move_on(shard)

    def gone(self, segment: SegmentId) -> None:
        """The record was deleted. If the next segment begins where it did, it was sealed empty."""
        shard = self.shards.get(segment.shard)
        replica = self._node.replicas.get(segment)
        if shard is None or replica is None or not shard.has_tail(segment):
            return
        following, known = self._following(segment), replica.record
        if known is None or following is None or following[1].start != known.start:
            return
        sealed = known.sealed(Point(known.start, EMPTY_CRC), known.isr)
        shard.ahead[segment.seq] = emptied_record(sealed)
        self._give(RecordSeen(record=sealed))

    def _is_wanted(self, record: SegmentRecord) -> bool:
        """Whether this node has a replica that is not complete yet."""
        if self._own.node not in record.replicas:
            return False
        return record.state in _UNSEALED or not any(
            each.node == self._own.node for each in record.isr
        )

    def _tell_record(self, segment: SegmentId) -> None:
        record = self.record(segment)
        found = None if record is None else self._knowledge.core_record(segment, record)
        if found is not None:
            self._give(RecordSeen(record=found))

    def drop(self, uid: int) -> list[SegmentId]:
        """The shard is deleted; its engine removes the log. Returns the core's segments of it."""
        shard = self.shards.pop(uid, None)
        if shard is not None:
            self._end_planned(shard, NotLeader(shard.name, self._own.node, None))
            shard.step(LogStep.CLOSE)
        found = [segment for segment in self._node.replicas if segment.shard == uid]
        for segment in found:
            self._starts.pop(segment, None)
            self._fenced_facts.pop(segment, None)
        return found

    # Opening ------------------------------------------------------------------------------------

    def _begin(self, segment: SegmentId, record: SegmentRecord) -> None:
        spec = self._knowledge.spec(segment.shard, record.leader_epoch)
        if spec is None:
            return  # It was deleted since.
        shard = ShardReplica(spec.name, segment.shard, spec, segment)
        self.shards[segment.shard] = shard
        self._in_pool(partial(self._open, shard, is_first=True))

    def _open(self, shard: ShardReplica, *, is_first: bool) -> None:
        """In the pool."""
        try:
            chain = self._knowledge.chain(shard.uid)
            chain.update(dict(shard.ahead))
            metas = [meta_of(seq, each, self._own.node) for seq, each in sorted(chain.items())]
            self._list_complete(shard, chain, metas)
            meta = self._replicas.tail_of(shard.spec, metas)
            if meta is None:
                self._network.soon(partial(self._is_complete, shard))
                return
            record = chain[meta.seq]
            spec = self._knowledge.spec(shard.uid, record.leader_epoch)
            if spec is None:
                return
            leads = is_first and self._leads(record)
            reached = self._replicas.open(spec, meta, leads=leads)
        except (FirnError, OSError) as error:
            _log.warning("replica_not_opened", shard=shard.name, error=str(error))
            self._network.soon(partial(self._retry_opening, shard, is_first))
            return
        current = SegmentId(shard.uid, SegmentSeq(meta.seq))

        def opened() -> None:
            shard.spec, shard.current = spec, current
            self._opened(shard, reached)

        self._network.soon(opened)

    def _is_complete(self, shard: ShardReplica) -> None:
        """All that this node has of the shard is sealed and complete."""
        if self.shards.get(shard.uid) is shard:
            del self.shards[shard.uid]
            shard.step(LogStep.CLOSE)
            self._list(shard.current)

    def _leads(self, record: SegmentRecord) -> bool:
        """Whether this incarnation opened the segment as its leader."""
        return (
            record.state is SegmentState.ACTIVE
            and record.leader == self._own.node
            and Replica(self._own.node, self._own.incarnation) in record.opened
        )

    def _retry_opening(self, shard: ShardReplica, is_first: bool) -> None:
        if self.shards.get(shard.uid) is shard:
            act = partial(self._in_pool, partial(self._open, shard, is_first=is_first))
            self._network.loop.call_later(REOPEN_S, act)

    def _opened(self, shard: ShardReplica, reached: Reached) -> None:
        if self.shards.get(shard.uid) is not shard:
            return
        shard.step(LogStep.OPENED)
        segment, at, fence = shard.current, shard.note(reached), Fence(reached.fence)
        _log.info("replica_opened", shard=shard.name, seq=segment.seq, end=at.end, fence=fence)
        known = self._node.replicas.get(segment)
        if known is None:
            self._give(ReplicaFound(segment=segment, at=at, fence=fence))
        elif known.state is ReplicaState.FAILED:
            self._give(StorageReopened(segment=segment, at=at, fence=fence))
        self._tell_record(segment)
        held, shard.held = shard.held, {}
        for act in held.values():
            act()

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        """The log has closed itself: it is opened again from what the disk has."""
        self._fail(segment_id(replica), error)

    def _fail(self, segment: SegmentId, error: BaseException) -> None:
        shard = self.shards.get(segment.shard)
        if shard is None or shard.current != segment or shard.state is LogState.OPENING:
            return
        _log.warning("replica_failed", shard=shard.name, seq=segment.seq, error=str(error))
        shard.step(LogStep.FAIL)
        self._end_planned(shard, error)
        if segment in self._node.replicas:
            self._give(StorageFailed(segment=segment))
        self._retry_opening(shard, is_first=False)

    # The lane -----------------------------------------------------------------------------------

    def stage(self, action: Stage) -> None:
        segment = action.segment
        shard = self.shards.get(segment.shard)
        if shard is None or not shard.has_tail(segment):
            self._give(StorageFailed(segment=segment))
            return
        assert isinstance(action.payload, Fetched)
        checked, mark = action.payload
        shard.leader_mark = max(shard.leader_mark, mark)
        outcome = self._outcome(shard, segment, self._staged)
        self._replicas.stage(replica_id(segment), checked, mark, outcome)

    def _staged(self, shard: ShardReplica, segment: SegmentId, reached: Reached) -> None:
        at = shard.note(reached)
        known = self._node.replicas.get(segment)
        if known is not None and at.end > known.durable.end:
            self._give(Durable(segment=segment, at=at))

    def persist_fence(self, action: PersistFence) -> None:
        segment = action.segment
        record = self.record(segment)
        leader_epoch = 0 if record is None else record.leader_epoch
        spec = self._knowledge.spec(segment.shard, leader_epoch)
        if spec is None:
            return  # It was deleted since.
        start = self._starts.get(segment, Offset(0 if record is None else record.start))

        def persisted(reached: Reached | None, error: BaseException | None) -> None:
            if reached is None:
                _log.warning("fence_not_persisted", shard=spec.name, error=str(error))
                self._fail(segment, error or TimedOut("no outcome"))
                return
            at = point_of(reached)
            self._fenced_facts[segment] = at, facts_of(reached)
            self._give(FencePersisted(segment=segment, fence=action.fence, at=at))

        outcome = Outcome(self._network.loop, persisted)
        self._replicas.persist_fence(spec, replica_id(segment), action.fence, start, outcome)

    def truncate(self, action: Truncate) -> None:
        segment = action.segment
        shard = self.shards.get(segment.shard)
        replica = self._node.replicas[segment]
        if shard is None or not shard.has_tail(segment) or self._goes_on(shard):
            # Nothing of it is here, or the log that leads is frozen at this end.
            self._give(Truncated(segment=segment, at=replica.durable))
            return
        outcome = self._outcome(shard, segment, self._truncated)
        self._replicas.truncate(replica_id(segment), action.end, outcome)

    def _truncated(self, shard: ShardReplica, segment: SegmentId, reached: Reached) -> None:
        self._give(Truncated(segment=segment, at=shard.note(reached)))

    def _outcome(
        self,
        shard: ShardReplica,
        segment: SegmentId,
        done: Callable[[ShardReplica, SegmentId, Reached], None],
    ) -> Outcome:
        def tell(reached: Reached | None, error: BaseException | None) -> None:
            if self.shards.get(shard.uid) is not shard or shard.current != segment:
                return
            if reached is None:
                self._fail(segment, error or TimedOut("no outcome"))
            else:
                done(shard, segment, reached)

        return Outcome(self._network.loop, tell)

    def follow_mark(self, segment: SegmentId, mark: Offset) -> None:
        """The leader's high watermark, as it tells its followers."""
        shard = self.shards.get(segment.shard)
        if shard is not None and shard.has_tail(segment) and mark > shard.leader_mark:
            shard.leader_mark = mark
            self._replicas.advance(replica_id(segment), mark)

    def fence(self, fence: FenceSegment, act: Callable[[], None]) -> None:
        """Tells the core of a fence, once it knows what is on the disk."""
        shard = self.shards.get(fence.segment.shard)
        if shard is None:
            return  # The record has not come yet, or goes on without this node.
        if shard.state is LogState.OPENING:
            shard.held[-1] = act
            return
        if fence.segment.seq >= shard.current.seq:
            self._starts[fence.segment] = fence.start
            act()

    # The end of a segment -----------------------------------------------------------------------

    def _goes_on(self, shard: ShardReplica) -> bool:
        """Whether a planned seal was made, and this log goes on with the next segment as leader."""
        planned = shard.planned
        if planned is None or planned.segment != shard.current:
            return False
        sealed = self.record(planned.segment)
        following = self.record(self._knowledge.next_of(planned.segment))
        if sealed is None or following is None or sealed.state in _UNSEALED:
            return False
        end = planned.seal.sealed.end_offset, planned.seal.sealed.crc
        return self._leads(following) and (sealed.end, sealed.crc) == end

    def stop_leading(self, segment: SegmentId) -> None:
        shard = self.shards.get(segment.shard)
        if shard is None or shard.current != segment or self._goes_on(shard):
            return
        refusal = NotLeader(shard.name, self._own.node, None)
        if shard.is_open:
            told = Outcome(self._network.loop, lambda reached, error: None)
            self._replicas.stop_leading(replica_id(segment), refusal, told)
        self._end_planned(shard, refusal)

    def thaw(self, shard: ShardReplica) -> None:
        """A planned seal is given up; nothing has changed."""
        self._end_planned(shard, TimedOut(f"{shard.name} was not rolled: its replicas are behind"))

    def _end_planned(self, shard: ShardReplica, error: BaseException) -> None:
        planned, shard.planned = shard.planned, None
        if planned is not None and not planned.outcome.done():
            planned.outcome.set_exception(error)

    def complete(self, segment: SegmentId) -> None:
        """The sealed segment is here, verified: the log goes on with the next one."""
        shard = self.shards.get(segment.shard)
        if shard is None or not shard.has_tail(segment):
            return
        shard.step(LogStep.COMPLETE)
        self._list(segment)
        self._move_on(shard)

    def _list_complete(
        self, shard: ShardReplica, chain: dict[int, SegmentRecord], metas: list[SegmentMeta]
    ) -> None:
        """In the pool: has the records list replicas that were completed just before this node was
        ended."""
        own = Replica(self._own.node, self._own.incarnation)
        guard = self._cluster.identity.guard
        for meta in metas:
            record = chain[meta.seq]
            is_held = meta.is_sealed and is_replicated(record) and own.node in record.replicas
            if not is_held or any(each.node == own.node for each in record.isr):
                continue
            if self._replicas.is_complete(shard.spec, meta):
                self._records.list_verified(shard.uid, meta.seq, own, guard)

    def _list(self, segment: SegmentId) -> None:
        """Has the record list this replica, where it was completed later."""
        record = self.record(segment)
        if record is None or any(each.node == self._own.node for each in record.isr):
            return
        own = Replica(self._own.node, self._own.incarnation)
        guard = self._cluster.identity.guard

        def ask() -> None:
            try:
                self._records.list_verified(segment.shard, segment.seq, own, guard)
            except FirnError as error:
                _log.warning("replica_not_listed", segment=segment, error=str(error))

        self._in_pool(ask)

    def _move_on(self, shard: ShardReplica) -> None:
        """Begins with the next segment, if its record is known."""
        segment = shard.current
        following = self._following(segment)
        sealed = self.record(segment)
        if following is None or sealed is None:
            return  # Its record is on its way.
        next_segment, record = following
        spec = self._knowledge.spec(shard.uid, record.leader_epoch)
        shard_record = self._knowledge.shard(shard.uid)
        if spec is None or shard_record is None:
            return  # It was deleted since.
        sealed_meta = meta_of(segment.seq, sealed, self._own.node)
        if self._own.node not in record.replicas:
            outcome = Outcome(self._network.loop, partial(self._sealed_last, shard, segment))
            self._replicas.seal_last(sealed_meta, spec, outcome)
            return
        active = meta_of(next_segment.seq, record, self._own.node)
        if self._goes_on(shard):
            planned, shard.planned = shard.planned, None
            assert planned is not None
            at = Point(Offset(record.start), EMPTY_CRC)
            shard.spec = spec
            self._moved(shard, next_segment, at, NO_FENCE)
            # Once the core has made the leader: appends follow at once.
            result = Seal(sealed_meta, active)
            self._network.loop.call_soon(_finish, planned, result)
            return
        outcome = Outcome(
            self._network.loop, partial(self._installed, shard, segment, next_segment, spec)
        )
        self._replicas.install(
            sealed_meta,
            active,
            spec,
            shard_record.start,
            outcome,
            leads=self._leads(record),
        )

    def _following(self, segment: SegmentId) -> tuple[SegmentId, SegmentRecord] | None:
        """The segment after this one; retention may have removed some in between."""
        next_segment = self._knowledge.next_of(segment)
        record = self.record(next_segment)
        if record is not None and record.state is not SegmentState.DELETED:
            return next_segment, record
        for seq, each in self._knowledge.chain(segment.shard).items():
            if seq > segment.seq and each.state is not SegmentState.DELETED:
                return SegmentId(segment.shard, SegmentSeq(seq)), each
        return None

    def _installed(
        self,
        shard: ShardReplica,
        before: SegmentId,
        segment: SegmentId,
        spec: object,
        reached: Reached | None,
        error: BaseException | None,
    ) -> None:
        if self.shards.get(shard.uid) is not shard or shard.current != before:
            return
        if reached is None:
            self._fail(before, error or TimedOut("no outcome"))
            return
        shard.spec = spec  # type: ignore[assignment]
        at = shard.note(reached)
        self._moved(shard, segment, at, Fence(reached.fence))
        shard.note(reached)

    def _moved(self, shard: ShardReplica, segment: SegmentId, at: Point, fence: Fence) -> None:
        before, shard.current = shard.current, segment
        self._forget(before)
        shard.ahead = {seq: each for seq, each in shard.ahead.items() if seq >= segment.seq}
        shard.leader_mark, shard.told_mark, shard.quorum_mark = 0, -1, 0
        shard.step(LogStep.MOVED)
        if segment not in self._node.replicas:
            self._give(ReplicaFound(segment=segment, at=at, fence=fence))
        self._tell_record(segment)

    def _sealed_last(
        self,
        shard: ShardReplica,
        segment: SegmentId,
        reached: Reached | None,
        error: BaseException | None,
    ) -> None:
        if self.shards.get(shard.uid) is not shard or shard.current != segment:
            return
        if reached is None:
            self._fail(segment, error or TimedOut("no outcome"))
            return
        self._forget(segment)
        self._replicas.close_log(shard.uid, NotLeader(shard.name, self._own.node, None))
        shard.step(LogStep.CLOSE)
        del self.shards[shard.uid]

    def _forget(self, segment: SegmentId) -> None:
        self._node.forget(segment)
        self._starts.pop(segment, None)
        self._fenced_facts.pop(segment, None)


def _finish(planned: PlannedSeal, result: Seal) -> None:
    if not planned.outcome.done():
        planned.outcome.set_result(result)
