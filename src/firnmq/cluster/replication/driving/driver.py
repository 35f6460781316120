"""Runs the replication core of a node: gives it what happens, and does what it asks for.

Everything runs in the network's thread unless it says otherwise: messages arrive and leave there.
What waits for a disk or the metadata is done in a pool, and writes go to the lanes of the engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import assert_never

from firnmq.clock import Clock
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.nodes.registration import monotonic_ms
from firnmq.cluster.peers import PeerMessage
from firnmq.cluster.replication.actions import (
    Action,
    AdvanceHighWatermark,
    ChooseNext,
    Complete,
    Fail,
    Freeze,
    Level,
    LogEvent,
    PersistFence,
    ReadRecord,
    Send,
    SendToController,
    ServeFetch,
    ServeSealed,
    ServeTail,
    Stage,
    StopLeading,
    Transact,
    Truncate,
    Unfreeze,
)
from firnmq.cluster.replication.driving import wire
from firnmq.cluster.replication.driving.control import Control
from firnmq.cluster.replication.driving.knowledge import ReplicationKnowledge
from firnmq.cluster.replication.driving.listening import Ends, Listener
from firnmq.cluster.replication.driving.logs import ShardLogs
from firnmq.cluster.replication.driving.metadata import Metadata
from firnmq.cluster.replication.driving.records import ReplicationRecords
from firnmq.cluster.replication.driving.serving import Serving
from firnmq.cluster.replication.driving.shards import (
    PlannedSeal,
    replica_id,
    segment_id,
)
from firnmq.cluster.replication.driving.wire import NO_FACTS, Facts
from firnmq.cluster.replication.events import (
    AcceptLoss,
    BeginSeal,
    Durable,
    Received,
    RecordSeen,
    SessionRenewed,
    Staged,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.leading.state import LeaderState
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswers,
    FenceRequest,
    Fetch,
    ReadTail,
    SealRequest,
    TailCopied,
)
from firnmq.cluster.replication.node import Node, NodeEvent
from firnmq.cluster.replication.values import (
    Crc,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    Point,
    RecordState,
    SegmentId,
)
from firnmq.config import TopicConfig
from firnmq.engines.replicas import ReplicaId, Replicas
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import NodeUnavailable, NotLeader, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.ids import Offset
from firnmq.meta import Event
from firnmq.meta.records import (
    NODES,
    SEGMENTS,
    SHARDS,
    NodeRecord,
    SegmentRecord,
    decode,
)

TICK_S = 0.25
POOL_THREADS = 8
"""Threads that wait for disks and the metadata: openings, reads for followers, transactions."""
_log = EventLogger("replication")
_LEVELS = {Level.INFO: _log.info, Level.WARNING: _log.warning, Level.ERROR: _log.error}


class ReplicationDriver:
    """Made with the node's cluster; started once other nodes can reach it. Close it when done."""

    def __init__(
        self,
        cluster: Cluster,
        replicas: Replicas,
        config_of: Callable[[str], TopicConfig | None],
        continuous_since: Callable[[TopicConfig], int],
        clock: Clock,
        *,
        session_ttl_s: float,
    ) -> None:
        """`config_of`: a topic's options by its id. `continuous_since`: the incarnation since which
        nothing durable of a topic with these options was lost here."""
        identity = cluster.identity
        self._cluster = cluster
        self._network = cluster.network
        self._replicas = replicas
        self._own = Member(NodeId(identity.node), Incarnation(identity.incarnation))
        self.knowledge = ReplicationKnowledge(cluster.cache, config_of, int(session_ttl_s * 1000))
        records = ReplicationRecords(cluster.store, clock, self.knowledge.name_of)
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="firn-replication")
        self.node = Node(
            self._own,
            lambda segment: Incarnation(continuous_since(self.knowledge.topic_config(segment))),
            self.knowledge.config,
        )
        self.logs = ShardLogs(
            self._own,
            cluster,
            replicas,
            self.knowledge,
            records,
            self.give,
            self._in_pool,
            self.node,
        )
        self.listener = Listener(
            self._own.node,
            self._network.soon,
            self._on_staged,
            self._on_durable,
            self.logs.failed,
            self._on_seal,
            lambda uid: self.knowledge.name_of(uid) or f"number {uid}",
        )
        self.control = Control(
            cluster,
            clock,
            self.knowledge.config,
            self.knowledge.unsealed,
            self._perform,
            self._in_pool,
            ttl_s=session_ttl_s,
        )
        self._metadata = Metadata(
            cluster,
            records,
            self.knowledge,
            self.logs,
            self.node,
            self.control,
            self.give,
            self._in_pool,
        )
        self._serving = Serving(
            self._network, replicas, self.knowledge, self._in_pool, self.node, self.logs
        )
        self._events: deque[NodeEvent] = deque()
        self._is_handling = False
        self._is_closed = False

    # Life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Any thread."""
        self._replicas.begin(self.listener)
        self._network.on_message(self._arrived)
        cache = self._cluster.cache
        cache.listen(SHARDS, self._follow_shards)
        cache.listen(SEGMENTS, self._follow_segments)
        cache.listen(NODES, self._follow_nodes)
        self.control.candidate.start()
        self._network.soon(self._tick)

    @property
    def led_count(self) -> int:
        """Any thread: segments that this node leads."""
        return len(self.node.leaders)

    def lag_records(self) -> int:
        """Any thread: by how much the replica that is furthest behind is behind, of what is led
        here. Those that were never heard of have nothing."""
        lag = 0
        for leader in list(self.node.leaders.values()):
            end = leader.marks.durable_end
            followers = dict(leader.marks.followers)
            for node in leader.record.replicas:
                if node != self._own.node:
                    progress = followers.get(node)
                    has = leader.record.start if progress is None else progress.end
                    lag = max(lag, end - has)
        return lag

    def wait_led(self, timeout_s: float) -> bool:
        """Any thread: returns once this node leads every segment that the cache says it opened;
        False if it does not in time."""
        return self.listener.wait_led(self._to_lead, timeout_s)

    def _to_lead(self) -> list[ReplicaId]:
        return [
            replica_id(record.segment)
            for record in self.knowledge.unsealed()
            if record.state is RecordState.ACTIVE
            and record.leader == self._own.node
            and self._own in record.opened
        ]

    def session_renewed(self, asked_ms: int) -> None:
        """Any thread: the store has prolonged the node's session, as asked at this time."""
        event = SessionRenewed(asked_ms=MonotonicMs(asked_ms))
        self._network.soon(partial(self.give, event))

    def close(self) -> None:
        """Any thread but the network's. Logs stay as they are."""
        self._is_closed = True
        self.control.close()
        self.listener.close()
        self._pool.shutdown(cancel_futures=True)

    def accept_loss(self, uid: int, seq: int) -> NodeId:
        """Any thread: an operator accepts that sealing a segment loses records. Returns the node of
        the controller, which is told; NodeUnavailable while there is none."""
        segment, holder = segment_id(ReplicaId(uid, seq)), self.control.holder
        if holder is None:
            raise NodeUnavailable(self._own.node, "no node controls replication now")
        packed = wire.pack_loss_accepted(segment)
        if holder == self._own.node:
            self._network.soon(partial(self._take, holder, wire.LossAccepted(segment)))
        else:
            send = self._network.send
            self._network.soon(partial(send, holder, packed.operation, packed.arguments))
        return holder

    def _in_pool(self, act: Callable[[], None]) -> None:
        if self._is_closed:
            return
        self._pool.submit(_guarded, act)

    # The metadata, told by the cache's thread ---------------------------------------------------

    def _follow_shards(self, events: list[Event]) -> None:
        gone = self.knowledge.follow_shards(events)
        if gone:
            self._network.soon(partial(self._shards_gone, gone))

    def _follow_segments(self, events: list[Event]) -> None:
        seen = self.knowledge.follow_segments(events)
        if seen:
            self._network.soon(partial(self._segments_seen, seen))

    def _follow_nodes(self, events: list[Event]) -> None:
        for event in events:
            node = int(event.key.rpartition("/")[2])
            record = None if event.entry is None else decode(event.entry, NodeRecord)
            self._network.soon(partial(self.control.node_seen, node, record))

    def _shards_gone(self, uids: list[int]) -> None:
        for uid in uids:
            for segment in self.logs.drop(uid):
                self.node.forget(segment)
        for segment in self.knowledge.forgotten(uids):
            self.control.forget(segment)
        self.listener.follow(self.node.leaders)

    def _segments_seen(self, seen: list[tuple[SegmentId, SegmentRecord | None]]) -> None:
        for segment, record in seen:
            if record is None:
                self.control.forget(segment)
                self.logs.gone(segment)
                continue
            self.logs.seen(segment, record)
            found = self.knowledge.core_record(segment, record)
            if found is not None:
                self.control.record_seen(found)

    # Time ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._is_closed:
            return
        try:
            self.give(Tick())
            self.control.tick()
            self._serving.tell_watermarks()
        except Exception as defect:  # Supervisor: a defect must not end the ticks.
            _log.error("replication_defect", during="a tick", error=repr(defect))
        self._network.loop.call_later(TICK_S, self._tick)

    def now(self) -> MonotonicMs:
        return MonotonicMs(monotonic_ms())

    # Logs that lead -----------------------------------------------------------------------------

    def _on_staged(self, ends: Ends) -> None:
        for replica, end in ends:
            segment = segment_id(replica)
            leader = self.node.leaders.get(segment)
            if leader is not None and leader.state is LeaderState.LEADING:
                self.give(Staged(segment=segment, at=Point(Offset(end.offset), Crc(end.crc))))

    def _on_durable(self, ends: Ends) -> None:
        for replica, end in ends:
            segment = segment_id(replica)
            known = self.node.replicas.get(segment)
            if known is not None and self.logs.is_tail(segment) and end.offset > known.durable.end:
                self.give(Durable(segment=segment, at=Point(Offset(end.offset), Crc(end.crc))))

    def _on_seal(self, replica: ReplicaId, seal: Seal, outcome: Future[Seal]) -> None:
        segment = segment_id(replica)
        shard = self.logs.of(segment)
        leader = self.node.leaders.get(segment)
        if shard is None or leader is None or not shard.has_tail(segment):
            outcome.set_exception(self._not_leader(segment))
            return
        if leader.state is not LeaderState.LEADING:
            outcome.set_exception(TimedOut(f"{shard.name} cannot be rolled now; try again"))
            return
        at = leader.staged
        wanted = self._own.node if seal.successor is None else NodeId(seal.successor.node)
        placement = self._metadata.next_place(leader.record, leader.record.isr, wanted)
        sealed = seal.sealed
        if placement is None or (sealed.end_offset, sealed.crc) != (at.end, at.crc):
            outcome.set_exception(TimedOut(f"{shard.name} cannot be rolled now; try again"))
            return
        shard.facts = (
            at,
            Facts(
                sealed.length,
                sealed.max_timestamp,
                sealed.first_expiry_ms,
                tuple((int(each[0]), int(each[1]), int(each[2])) for each in sealed.transactions),
            ),
        )
        shard.planned = PlannedSeal(segment, seal, outcome)
        self.give(BeginSeal(segment=segment, placement=placement))
        if leader.state is LeaderState.LEADING:
            self.logs.thaw(shard)

    # The core -----------------------------------------------------------------------------------

    def give(self, event: NodeEvent) -> None:
        """Tells the core, after what it is being told already."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                each = self._events.popleft()
                try:
                    self._handle(each)
                except Exception as defect:  # Supervisor: other shards go on.
                    _log.error("replication_defect", during=each, error=repr(defect))
        finally:
            self._is_handling = False

    def _handle(self, event: NodeEvent) -> None:
        self._perform(self.node.handle(event, self.now()))
        match event:
            case RecordSeen() | TransactionDone():
                self.listener.follow(self.node.leaders)
            case Durable(segment=segment):
                self._serving.tell_quorum((segment,))
            case Received(message=Fetch(segments=segments)):
                self._serving.tell_quorum(each.segment for each in segments)
            case _:
                pass

    def _perform(self, actions: list[Action]) -> None:
        fetches: dict[Member, list[ServeFetch]] = {}
        for action in actions:
            match action:
                case Send(node=node, message=message):
                    self._send(node, message)
                case SendToController(message=request):
                    holder = self.control.holder
                    if holder is not None:
                        self._send(holder, request)
                case ServeFetch():
                    fetches.setdefault(action.to, []).append(action)
                case ServeTail():
                    self._serving.serve_tail(action)
                case Stage():
                    self.logs.stage(action)
                case PersistFence():
                    self.logs.persist_fence(action)
                case Truncate():
                    self.logs.truncate(action)
                case Transact():
                    self._metadata.transact(action)
                case ReadRecord():
                    self._metadata.read(action)
                case ChooseNext(record=record, holders=holders):
                    self._metadata.choose(record, holders)
                case AdvanceHighWatermark(segment=segment, offset=offset):
                    self._replicas.advance(replica_id(segment), offset)
                case Unfreeze(segment=segment):
                    shard = self.logs.of(segment)
                    if shard is not None:
                        self.logs.thaw(shard)
                case StopLeading(segment=segment):
                    self.logs.stop_leading(segment)
                case ServeSealed(segment=segment):
                    self.logs.complete(segment)
                case LogEvent():
                    self._write(action)
                case Freeze() | Complete() | Fail():
                    pass  # The roll has frozen the log, and requests wait there.
                case _:
                    assert_never(action)
        for member, serves in fetches.items():
            self._serving.serve_fetches(member, serves)

    def _write(self, event: LogEvent) -> None:
        name = self.knowledge.name_of(event.segment.shard)
        fields = dict(event.fields)
        _LEVELS[event.level](event.name, shard=name, seq=event.segment.seq, **fields)

    def _not_leader(self, segment: SegmentId) -> NotLeader:
        name = self.knowledge.name_of(segment.shard) or str(segment)
        return NotLeader(name, self._own.node, None)

    # Messages -----------------------------------------------------------------------------------

    def _send(self, node: NodeId, message: object) -> None:
        if node == self._own.node:
            self._network.loop.call_soon(self._take, node, self._with_facts(message))
            return
        match self._with_facts(message):
            case Fetch() as fetch:
                packed = wire.pack_fetch(fetch)
            case FenceRequest() as request:
                packed = wire.pack_fence(request)
            case wire.WithFacts(message=FenceAnswers(answers=answers), facts=facts):
                each_facts = [each for _, _, each in facts]
                packed = wire.pack_fenced(list(zip(answers, each_facts, strict=True)))
            case wire.WithFacts(message=TailCopied() as copied, facts=facts):
                packed = wire.pack_tail_copied(copied, facts[0][2])
            case CopyTail() as copy:
                packed = wire.pack_copy_tail(copy)
            case ReadTail() as read:
                packed = wire.pack_read_tail(read)
            case SealRequest() as seal:
                packed = wire.pack_seal_request(seal)
            case other:
                raise AssertionError(f"{other} is not sent by the core")
        self._network.send(node, packed.operation, packed.arguments)

    def _with_facts(self, message: object) -> object:
        """Adds how the segments would be sealed to what a replica reports."""
        match message:
            case FenceAnswers(answers=answers):
                facts = tuple(
                    (each.segment, each.at, self._facts_at(each.segment, each.at))
                    for each in answers
                )
                return wire.WithFacts(message, facts)
            case TailCopied(segment=segment, at=at):
                return wire.WithFacts(message, ((segment, at, self._facts_at(segment, at)),))
            case _:
                return message

    def _facts_at(self, segment: SegmentId, at: Point) -> Facts:
        found = self.logs.facts_at(segment, at)
        if found is None:
            record = self.knowledge.record(segment)
            assert record is None or at.end == record.start, f"{segment} has no facts at {at}"
            return NO_FACTS
        return found

    def _arrived(self, message: PeerMessage) -> None:
        found = wire.unpack(message.operation, message.arguments, message.raw)
        self._take(NodeId(message.node), found)

    def _take(self, node: NodeId, message: object) -> None:
        match message:
            case Fetch(node=asking, segments=segments) if asking == node:
                for each in segments:
                    shard = self.logs.of(each.segment)
                    if shard is not None and not shard.is_open:
                        late = partial(self.give, Received(message=message))
                        shard.held[node] = late
                self.give(Received(message=message))
            case wire.Fetched():
                checked = self._serving.checked(message)
                self.give(Received(message=checked))
            case wire.Watermarks(marks=marks):
                for segment, mark in marks:
                    self.logs.follow_mark(segment, mark)
            case FenceRequest():
                for fence in message.segments:
                    one = FenceRequest(controller=message.controller, segments=(fence,))
                    self.logs.fence(fence, partial(self.give, Received(message=one)))
            case wire.WithFacts() | SealRequest():
                self.control.received(message)
            case wire.LossAccepted(segment=segment):
                _log.warning("loss_accepted", segment=segment, told_by=node)
                self.control.give(AcceptLoss(segment=segment))
            case CopyTail():
                self.give(Received(message=message))
            case ReadTail():
                if not self._serving.serve_complete(message):
                    self.give(Received(message=message))
            case wire.TailBytes():
                tail = self._serving.checked_tail(message)
                if tail is not None:
                    self.give(Received(message=tail))
            case _:
                _log.warning("replication_message_refused", node=node, message=type(message))


def _guarded(act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as defect:  # Supervisor: nothing waits for the pool's futures.
        _log.error("replication_defect", during="work in the pool", error=repr(defect))
