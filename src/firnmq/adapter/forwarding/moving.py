"""Moves a shard to another node: its next segment is led there, and nothing is copied.

The shard's leader carries it out. It gives the next leader what the log knows beside its records
before the metadata decides, so that a shard whose earlier leader dies then can be opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

import msgspec

from firnmq.adapter.catalog import TopicCatalog
from firnmq.adapter.forwarding import operations as ops
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
    InvalidArgument,
    NodeUnavailable,
    NotLeader,
    ShardNotFound,
    TimedOut,
)
from firnmq.eventlog import EventLogger

_log = EventLogger("cluster")

_PING_S = 1.0


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
        if topic.config.storage_type != StorageType.SEGMENT.value:
            reason = (
                f"{shard} is of {topic.config.storage_type}, whose shards stay on their nodes; "
                f"copy the topic into one of {StorageType.SEGMENT.value}"
            )
            raise InvalidArgument("shard", reason)
        listed = self._cluster.members.registered.get(node)
        if listed is None:
            raise NodeUnavailable(node, "it is not registered")
        # Before the log is frozen, as far as that can be told.
        run_blocking(self._ask(node, PING, b"", timeout_s=_PING_S))
        successor = Successor(node, listed.incarnation)
        engine.roll(shard, Move(self._cluster.node, successor, partial(self._hand_over, node)))
        self.moved_count += 1
        _log.info("shard_moved", shard=shard, leader=node)
        with suppress(NodeUnavailable, TimedOut):  # It follows as soon as it can.
            self._cluster.catch_up()
            follow = ops.FOLLOW.encode(self._cluster.cache.revision)
            run_blocking(self._ask(node, ops.FOLLOW.name, follow, timeout_s=ops.FOLLOW.timeout_s))

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
