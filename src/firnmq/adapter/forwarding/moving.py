"""Moves a shard to another node: its next segment is led there, and nothing is copied.

The shard's leader carries it out. It gives the next leader what the log knows beside its records
before the metadata decides, so that a shard whose earlier leader dies then can be opened.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from time import monotonic

import msgspec

from firnmq.adapter.catalog import TopicCatalog
from firnmq.adapter.forwarding import operations as ops
from firnmq.cluster.nodes.balance import next_leader
from firnmq.cluster.nodes.cluster import PING, Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.config import StorageType
from firnmq.disk import Ticket, call_blocking, run_blocking
from firnmq.engines import Engine, ShardSpec
from firnmq.engines.catalog.segments import Successor
from firnmq.engines.media.snapshots import SnapshotFiles
from firnmq.engines.shardlog.rolling.steps import Move
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.errors import (
    FirnError,
    InvalidArgument,
    NodeUnavailable,
    NotLeader,
    ShardNotFound,
    TimedOut,
)
from firnmq.eventlog import EventLogger
from firnmq.meta.records import ShardRecord, decode, shard_key
from firnmq.meta.shard_records import leads_alone

_log = EventLogger("cluster")

_PING_S = 1.0
_LATE_S = 10.0


class ShardMover:
    """Safe with threads. Its moves block."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: TopicCatalog,
        engines: Mapping[str, Engine],
        snapshots: SnapshotFiles,
        waiting: Executor,
    ) -> None:
        """`waiting`: threads that wait for other nodes."""
        self._cluster = cluster
        self._catalog = catalog
        self._engines = engines
        self._snapshots = snapshots
        self._waiting = waiting
        self._moving = threading.Lock()
        """Held from the beginning of a move by a roll to its end."""
        self._late_until_s: dict[int, float] = {}
        """Nodes that were not ready for a shard, until when they get none by rolls."""
        self.moved_count = 0
        """Shards that this node has given to others."""

    async def move(self, shard: str, node: int) -> None:
        """Gives a shard that this node leads to another node; returns when that one has it. What it
        leads already is no error."""
        await call_blocking(self._waiting, self._move, shard, node)

    def _move(self, shard: str, node: int) -> None:
        self._cluster.check_member(node)
        topic = self._catalog.registered(shard.rpartition("_")[0])
        if topic is None:
            raise ShardNotFound(shard, within="the cluster")
        engine = self._engines[topic.config.storage_type]
        if node == self._cluster.node:
            if not engine.has_shard(shard):
                raise NotLeader(shard, node, None)
            return
        refusal = self.pinned(shard)
        if refusal is not None:
            raise refusal
        # Before the log is frozen, as far as that can be told.
        run_blocking(self._ask(node, PING, b"", timeout_s=_PING_S))
        engine.roll(shard, self._move_to(node))
        self._note_moved(shard, node)
        with suppress(NodeUnavailable, TimedOut):  # It follows as soon as it can.
            self._cluster.catch_up()
            follow = ops.FOLLOW.encode(self._cluster.cache.revision)
            run_blocking(self._ask(node, ops.FOLLOW.name, follow, timeout_s=ops.FOLLOW.timeout_s))

    def pinned(self, shard: str) -> InvalidArgument | None:
        """Why a shard cannot move, if so."""
        topic = self._catalog.registered(shard.rpartition("_")[0])
        storage_type = "" if topic is None else topic.config.storage_type
        if storage_type != StorageType.SEGMENT.value:
            return InvalidArgument("shard", f"shards of {storage_type} stay on their nodes")
        if not self._has_one_replica(shard):
            return InvalidArgument("shard", "it has replicas, one of which leads it")
        return None

    def _has_one_replica(self, shard: str) -> bool:
        cache = self._cluster.cache
        entry = cache.get(shard_key(shard))
        if entry is None:
            return False
        record = decode(entry, ShardRecord)
        return leads_alone(cache, record, record.leader)

    def _move_to(self, node: int) -> Move:
        listed = self._cluster.members.registered.get(node)
        if listed is None:
            raise NodeUnavailable(node, "it is not registered")
        successor = Successor(node, listed.incarnation)
        return Move(self._cluster.node, successor, partial(self._hand_over, node))

    def _note_moved(self, shard: str, node: int) -> None:
        self.moved_count += 1
        _log.info("shard_moved", shard=shard, leader=node)

    # Moves by rolls -------------------------------------------------------------------------------

    def begin(self, spec: ShardSpec) -> Move | None:
        """The move to a node with less to do that a roll becomes; None if the shard stays. There is
        one at a time, so that each is judged by what the last one has left."""
        if self.pinned(spec.name) is not None or not self._moving.acquire(blocking=False):
            return None
        move = None
        try:
            move = self._choose()
        finally:
            if move is None:
                self._moving.release()
        return move

    def _choose(self) -> Move | None:
        """The move to the node with the least to do, if that answers."""
        now_s = monotonic()
        loads = self._cluster.node_loads()
        ready = [each for each in loads if self._late_until_s.get(each.node, 0.0) <= now_s]
        node = next_leader(self._cluster.node, ready)
        if node is None:
            return None
        try:
            run_blocking(self._ask(node, PING, b"", timeout_s=_PING_S))
            return self._move_to(node)
        except (NodeUnavailable, TimedOut):
            self._late_until_s[node] = monotonic() + _LATE_S
            return None

    def end(self, spec: ShardSpec, move: Move, error: FirnError | None) -> None:
        """Notes what became of such a move. A node that was not ready is left alone for a while."""
        node = move.successor.node
        try:
            if error is not None:
                self._late_until_s[node] = monotonic() + _LATE_S
                _log.warning("shard_not_moved", shard=spec.name, leader=node, error=str(error))
                return
            self._note_moved(spec.name, node)
            with suppress(FirnError):
                self._cluster.catch_up()
        finally:
            self._moving.release()

    def _hand_over(self, node: int, spec: ShardSpec, end_offset: int, packed: bytes) -> None:
        """Gives a node the snapshot of a log that it is to lead."""
        arguments = ops.TAKE_SNAPSHOT.encode(spec.name, spec.uid, end_offset)
        timeout_s = ops.TAKE_SNAPSHOT.timeout_s
        run_blocking(
            self._ask(node, ops.TAKE_SNAPSHOT.name, arguments, packed, timeout_s=timeout_s)
        )

    async def _ask(
        self, node: int, operation: str, arguments: bytes, *raw: bytes, timeout_s: float
    ) -> None:
        ticket: Ticket[None] = self._cluster.network.call(
            node, operation, arguments, _nothing, raw=raw, timeout_s=timeout_s
        )
        await ticket

    # Served to other nodes ------------------------------------------------------------------------

    async def serve_move(self, request: Request) -> Awaitable[Served]:
        shard, node = ops.MOVE.decode(request.arguments)

        async def answer() -> Served:
            await self.move(shard, node)
            return Served(msgspec.msgpack.encode(None))

        return answer()

    async def serve_snapshot(self, request: Request) -> Awaitable[Served]:
        """Keeps what a log knows that this node is about to lead."""
        shard, uid, end_offset = ops.TAKE_SNAPSHOT.decode(request.arguments)
        return call_blocking(self._waiting, self._keep, shard, uid, end_offset, request.raw)

    def _keep(self, shard: str, uid: int, end_offset: int, packed: memoryview) -> Served:
        topic = self._catalog.registered(shard.rpartition("_")[0])
        if topic is None:
            raise NodeUnavailable(self._cluster.node, f"it does not know the topic of {shard} yet")
        Snapshot.unpack(packed, uid, end_offset)
        spec = ShardSpec(name=shard, uid=uid, config=topic.config)
        self._snapshots.write_packed(spec, end_offset, bytes(packed))
        return Served(msgspec.msgpack.encode(None))


def _nothing(value: memoryview, raw: memoryview) -> None:
    return None
