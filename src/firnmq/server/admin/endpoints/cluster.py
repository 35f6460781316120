"""The cluster over HTTP: its nodes, who leads which shard, and how leaders move."""

from __future__ import annotations

from firnmq.adapter.forwarding.rebalancing import Rebalancer
from firnmq.cluster.nodes.balance import ShardMove
from firnmq.disk import call_blocking
from firnmq.errors import FirnError, InvalidArgument, ShardNotFound
from firnmq.server.admin.parts import NodeParts
from firnmq.server.admin.reports import NodeReports
from firnmq.server.documents import (
    ClusterStatus,
    NewLeader,
    NodeCordon,
    NodeStays,
    Rebalanced,
    RebalanceRequest,
    ShardMoved,
)
from firnmq.server.member import ClusterMember
from firnmq.server.replication_documents import LossAccepted

_MOVES_MAX = 20
"""Of one call, so that it answers soon; commands call again until nothing is left."""
_PINNED_SHOWN_MAX = 100


class ClusterAdmin:
    def __init__(self, parts: NodeParts, reports: NodeReports) -> None:
        self._parts = parts
        self._reports = reports

    async def status(self) -> ClusterStatus:
        return await self._reports.cluster()

    async def move(self, topic: str, shard: str, wanted: NewLeader) -> ShardMoved:
        """Has a node lead a shard; it may do so already."""
        cluster = self._member().cluster
        if not shard.isdecimal():
            raise ShardNotFound(shard, within=f"topic {topic!r}")
        name = self._parts.storage.shard(topic, int(shard))
        driver = self._parts.storage.led_driver(name)
        if driver is None:
            raise InvalidArgument("shard", f"topic {topic!r} is kept by another system")
        led = cluster.leaders.get(name)
        source = wanted.node if led is None else led.leader
        await driver.move(name, wanted.node)
        return self._moved(ShardMove(name, source, wanted.node), None)

    async def accept_loss(self, topic: str, shard: str) -> LossAccepted:
        """Lets the controller seal a shard's active segment although too few replicas are known to
        have kept everything. InvalidArgument unless the seal waits."""
        member = self._member()
        if not shard.isdecimal():
            raise ShardNotFound(shard, within=f"topic {topic!r}")
        name = self._parts.storage.shard(topic, int(shard))
        placed, led = member.cluster.replica_sets.get(name), member.cluster.leaders.get(name)
        if placed is None or led is None or not placed.is_fencing:
            text = (
                f"shard {shard} of {topic!r} does not wait for replicas: there is nothing to accept"
            )
            raise InvalidArgument("shard", text)
        controller = member.replication.accept_loss(led.uid, placed.seq)
        return LossAccepted(topic=topic, shard=int(shard), controller=controller)

    async def rebalance(self, wanted: RebalanceRequest) -> Rebalanced:
        """Spreads leaders evenly, or gives those of one node away; a part of them per call."""
        member = self._member()
        if wanted.node is not None:
            member.cluster.check_member(wanted.node)
        rebalancer = Rebalancer(member.cluster, member.mover, self._parts.storage.led_driver)
        await call_blocking(None, member.cluster.catch_up)
        if wanted.dry_run:
            plan = await call_blocking(None, rebalancer.plan, wanted.node)
            moves = [self._moved(each, None) for each in plan]
            return Rebalanced(moves=moves, left_count=len(plan))
        done = await rebalancer.run(wanted.node, _MOVES_MAX)
        left = await call_blocking(None, rebalancer.plan, wanted.node)
        return Rebalanced(
            moves=[self._moved(each.move, each.error) for each in done], left_count=len(left)
        )

    async def cordon(self, node: str, wanted: NodeCordon) -> NodeStays:
        """Has a node get no shards any more, or get some again. Tells what it has."""
        member = self._member()
        number = int(node) if node.isdecimal() else -1
        member.cluster.check_member(number)
        cordons = member.cluster.cordons
        await call_blocking(None, lambda: cordons.set(number, is_cordoned=wanted.cordoned))
        await call_blocking(None, member.cluster.catch_up)
        rebalancer = Rebalancer(member.cluster, member.mover, self._parts.storage.led_driver)
        stays = await call_blocking(None, rebalancer.stays, number)
        return NodeStays(
            node=number,
            cordoned=number in cordons.nodes,
            movable_count=len(stays.movable),
            pinned_count=len(stays.pinned),
            pinned=[self._shown(each) for each in stays.pinned[:_PINNED_SHOWN_MAX]],
            held_segments=stays.held_segments,
            held_bytes=stays.held_bytes,
            coordinator_slots=member.cluster.coordinators.counts()[number],
        )

    def _moved(self, move: ShardMove, error: FirnError | None) -> ShardMoved:
        topic_id, _, seq = move.shard.rpartition("_")
        topic = self._parts.local.catalog.registered(topic_id)
        return ShardMoved(
            topic=topic_id if topic is None else topic.name,
            shard=int(seq),
            source=move.source,
            target=move.target,
            error=None if error is None else str(error),
        )

    def _shown(self, shard: str) -> str:
        return self._parts.local.catalog.shown(shard)

    def _member(self) -> ClusterMember:
        member = self._parts.local.member
        if member is None:
            raise InvalidArgument("cluster", "the node is alone; see docs/cluster.md")
        return member
