"""Bytes for other replicas, and from them: read in the pool, judged where they arrive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from firnmq.cluster.peers import PeerNetwork
from firnmq.cluster.replication.actions import ServeFetch, ServeTail
from firnmq.cluster.replication.driving import wire
from firnmq.cluster.replication.driving.knowledge import ReplicationKnowledge
from firnmq.cluster.replication.driving.logs import ShardLogs
from firnmq.cluster.replication.driving.shards import Fetched, replica_id
from firnmq.cluster.replication.driving.wire import FetchedBytes, TailBytes
from firnmq.cluster.replication.messages import (
    FetchAnswer,
    FetchedSegment,
    ReadTail,
    Tail,
)
from firnmq.cluster.replication.node import Node
from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Incarnation,
    Member,
    NodeId,
    Point,
    RecordState,
    SegmentId,
)
from firnmq.config import TopicConfig
from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.replicas import Checked, ReplicaEnd, Replicas, check_batches
from firnmq.errors import Corruption, FirnError
from firnmq.eventlog import EventLogger
from firnmq.ids import Offset

SEGMENT_BYTES_MAX = 1024 * 1024
"""Of one segment in one answer."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of one message; what is longer takes several."""
_log = EventLogger("replication")


class Serving:
    """Owned by the network's thread."""

    def __init__(
        self,
        network: PeerNetwork,
        replicas: Replicas,
        knowledge: ReplicationKnowledge,
        in_pool: Callable[[Callable[[], None]], None],
        node: Node,
        logs: ShardLogs,
    ) -> None:
        self._network = network
        self._replicas = replicas
        self._knowledge = knowledge
        self._in_pool = in_pool
        self._node = node
        self._logs = logs

    # To others ----------------------------------------------------------------------------------

    def serve_fetches(self, member: Member, serves: Sequence[ServeFetch]) -> None:
        """Sends a follower what it waits for, as far as the leader's log has it now."""
        self._in_pool(partial(self._read_fetches, member, tuple(serves)))

    def _read_fetches(self, member: Member, serves: Iterable[ServeFetch]) -> None:
        """In the pool."""
        served: list[tuple[FetchedBytes, int]] = []
        payload: list[Buffer] = []
        size = 0
        for serve in serves:
            found = self._read(serve.segment, serve.start, serve.at.end)
            if found is None:
                continue  # The follower asks again.
            buffers, length = found
            answer = FetchedBytes(
                serve.segment, serve.fence, serve.start, serve.at, Offset(0), memoryview(b"")
            )
            served.append((answer, length))
            payload += buffers
            size += length
            if size >= ANSWER_BYTES_MAX:
                self._network.soon(partial(self._send_fetched, member, served, payload))
                served, payload, size = [], [], 0
        if served:
            self._network.soon(partial(self._send_fetched, member, served, payload))

    def _send_fetched(
        self, member: Member, served: list[tuple[FetchedBytes, int]], payload: list[Buffer]
    ) -> None:
        marked = [
            (each._replace(high_watermark=self._mark_of(each.segment)), length)
            for each, length in served
        ]
        packed = wire.pack_fetched(member.incarnation, marked)
        self._network.send(member.node, packed.operation, packed.arguments, payload)

    def _mark_of(self, segment: SegmentId) -> Offset:
        leader = self._node.leaders.get(segment)
        return Offset(0) if leader is None else leader.high_watermark

    def serve_tail(self, serve: ServeTail) -> None:
        """Sends a replica what it lacks, during a failover or of a sealed segment."""

        def read() -> None:
            found = self._read(serve.segment, serve.start, serve.end)
            if found is not None:
                self._network.soon(partial(self._send_tail, serve, found[0]))

        self._in_pool(read)

    def _send_tail(self, serve: ServeTail, payload: list[Buffer]) -> None:
        packed = wire.pack_tail(serve.segment, serve.fence, serve.to.incarnation, serve.start)
        self._network.send(serve.to.node, packed.operation, packed.arguments, payload)

    def serve_complete(self, request: ReadTail) -> bool:
        """Serves a sealed segment that is complete here and that the core has forgotten; False for
        any other one."""
        segment = request.segment
        if segment in self._node.replicas:
            return False
        record = self._knowledge.record(segment)
        found = None if record is None else self._knowledge.core_record(segment, record)
        if found is None or found.state is not RecordState.SEALED:
            return False
        if not any(member.node == self._node.own.node for member in found.isr):
            return False
        end = min(request.end, found.sealed_at.end)
        if end > request.start:
            self.serve_tail(
                ServeTail(
                    segment=segment,
                    fence=request.fence,
                    to=Member(request.node, request.incarnation),
                    start=request.start,
                    end=end,
                )
            )
        return True

    def _read(self, segment: SegmentId, start: int, end: int) -> tuple[list[Buffer], int] | None:
        """In the pool: whole batches from `start` on; None if they are not here any more."""
        record = self._knowledge.record(segment)
        leader_epoch = 0 if record is None else record.leader_epoch
        spec = self._knowledge.spec(segment.shard, leader_epoch)
        if spec is None:
            return None
        try:
            found = self._replicas.read(spec, replica_id(segment), start, end, SEGMENT_BYTES_MAX)
            return [_in_memory(each) for each in found.buffers], found.size_bytes
        except (FirnError, OSError) as error:
            _log.info("replica_not_read", shard=spec.name, start=start, error=str(error))
            return None

    def tell_watermarks(self) -> None:
        """Tells followers the high watermarks that have moved, in one message for each."""
        told: dict[NodeId, list[tuple[SegmentId, Offset]]] = {}
        for segment, leader in self._node.leaders.items():
            shard = self._logs.of(segment)
            if shard is None or shard.told_mark == leader.high_watermark:
                continue
            shard.told_mark = leader.high_watermark
            for node in leader.record.replicas:
                if node != self._node.own.node:
                    told.setdefault(node, []).append((segment, leader.high_watermark))
        for node, marks in told.items():
            packed = wire.pack_watermarks(marks)
            self._network.send(node, packed.operation, packed.arguments)

    def tell_quorum(self, segments: Iterable[SegmentId]) -> None:
        """Completes what a majority of the replicas has."""
        for segment in segments:
            leader, shard = self._node.leaders.get(segment), self._logs.of(segment)
            if leader is None or shard is None or leader.quorum_mark <= shard.quorum_mark:
                continue
            shard.quorum_mark = leader.quorum_mark
            self._replicas.advance_quorum(replica_id(segment), leader.quorum_mark)

    # From others --------------------------------------------------------------------------------

    def checked(self, fetched: wire.Fetched) -> FetchAnswer:
        """An answer to a fetch with the segments whose bytes are good, and taken now."""
        found = []
        for each in fetched.segments:
            if not len(each.payload):
                self._logs.follow_mark(each.segment, each.high_watermark)
                continue
            checked = self._check(
                each.segment, each.fence, fetched.incarnation, each.start, each.payload
            )
            if checked is None:
                continue
            at = Point(Offset(checked.end.offset), Crc(checked.end.crc))
            is_whole = at.end == each.leader_end.end
            found.append(
                FetchedSegment(
                    segment=each.segment,
                    fence=each.fence,
                    start=each.start,
                    at=at,
                    leader_crc=each.leader_end.crc if is_whole else None,
                    payload=Fetched(checked, each.high_watermark),
                )
            )
        return FetchAnswer(incarnation=fetched.incarnation, segments=tuple(found))

    def checked_tail(self, tail: TailBytes) -> Tail | None:
        checked = self._check(tail.segment, tail.fence, tail.incarnation, tail.start, tail.payload)
        if checked is None:
            return None
        return Tail(
            segment=tail.segment,
            fence=tail.fence,
            incarnation=tail.incarnation,
            start=tail.start,
            at=Point(Offset(checked.end.offset), Crc(checked.end.crc)),
            payload=Fetched(checked, 0),
        )

    def _check(
        self,
        segment: SegmentId,
        fence: Fence,
        incarnation: Incarnation,
        start: Offset,
        payload: memoryview,
    ) -> Checked | None:
        replica, shard = self._node.replicas.get(segment), self._logs.of(segment)
        if replica is None or shard is None or not shard.has_tail(segment):
            return None
        if not replica.takes(fence, incarnation, start):
            return None  # It came twice, or late.
        at = ReplicaEnd(replica.staged.end, replica.staged.crc)
        config: TopicConfig = shard.spec.config
        try:
            return check_batches(payload, at, config, shard.spec.epoch)
        except Corruption as error:
            _log.error("replica_sent_bad_batches", shard=shard.name, error=str(error))
            return None


def _in_memory(buffer: Buffer | FileRange) -> Buffer:
    if not isinstance(buffer, FileRange):
        return buffer
    found = os.pread(buffer.fd, buffer.size_bytes, buffer.position)
    if len(found) != buffer.size_bytes:
        raise OSError(f"a segment's file ends {buffer.size_bytes - len(found):,} bytes early")
    return found
