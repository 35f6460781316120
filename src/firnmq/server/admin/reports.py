"""What a node tells of itself, to its own clients and to other nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Final

import msgspec

from firnmq.cluster.peers import Served
from firnmq.disk import call_blocking
from firnmq.errors import FirnError, InvalidArgument
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.admin.replication import replication_status
from firnmq.server.documents import (
    ClusterNode,
    ClusterStatus,
    NodeStatus,
    Readiness,
    StorageProblem,
)

_REPORT: Final = "report"
_PROBLEMS_SHOWN_MAX = 100
_TIMEOUT_S = 5.0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    status: NodeStatus
    readiness: Readiness
    stored_bytes: int


class NodeReports:
    """Used from the node's event loop."""

    def __init__(self, parts: NodeParts, others: OtherNodes | None) -> None:
        self._parts = parts
        self._others = others
        if others is not None:
            others.serve(_REPORT, self._serve)

    async def own(self) -> NodeReport:
        parts = self._parts
        stored_bytes = await call_blocking(None, parts.local.stored_bytes)
        return NodeReport(
            status=node_status(parts), readiness=readiness(parts), stored_bytes=stored_bytes
        )

    async def of(
        self, nodes: Iterable[int], *, timeout_s: float = _TIMEOUT_S
    ) -> dict[int, NodeReport | FirnError]:
        """Reports of nodes of the cluster, or why there is none."""
        assert self._others is not None
        own = self._others.node
        wanted = list(nodes)
        asked = [node for node in wanted if node != own]
        found = await self._others.ask_all(asked, _REPORT, _report, timeout_s=timeout_s)
        if own in wanted:
            found[own] = await self.own()
        return found

    async def cluster(self) -> ClusterStatus:
        return await _cluster_status(self._parts, self)

    async def _serve(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(await self.own()))


def _report(value: memoryview, raw: memoryview) -> NodeReport:
    return msgspec.msgpack.decode(value, type=NodeReport)


def readiness(parts: NodeParts) -> Readiness:
    if not parts.broker.is_serving:
        return Readiness(status="stopping")
    reasons = parts.local.health.summary()
    return Readiness(status="failing" if reasons else "ready", reasons=reasons)


def node_status(parts: NodeParts) -> NodeStatus:
    kafka, broker = parts.config.kafka, parts.broker
    topics = parts.local.catalog.topics()
    pool = parts.local.pool_statistics()
    return NodeStatus(
        version=version("firnmq"),
        node_id=kafka.node_id,
        cluster_id=(
            kafka.cluster_id if parts.local.member is None else parts.local.member.cluster_id
        ),
        kafka=f"{broker.address.host}:{broker.address.port}",
        tls=parts.config.security.tls_certificate is not None,
        sasl_mechanisms=list(parts.config.security.sasl_mechanisms),
        data=str(parts.local.path.resolve()),
        durability=kafka.topic_defaults.durability.value,
        started_ms=parts.started_ms,
        topic_count=len(topics),
        shard_count=sum(topic.shard_count for topic in topics),
        group_count=len(parts.coordinator.group_ids()),
        connection_count=broker.connection_count,
        bytes_in_flight=broker.budget.used_bytes,
        queued_requests=pool.queued_requests,
        queued_bytes=pool.queued_bytes,
        disk_free_bytes=parts.local.guard.free_bytes,
        problems=[
            StorageProblem.of(each) for each in parts.local.health.problems()[:_PROBLEMS_SHOWN_MAX]
        ],
        tiering=None if parts.local.tier is None else parts.local.tier.mover.store_state,
    )


async def _cluster_status(parts: NodeParts, reports: NodeReports) -> ClusterStatus:
    member = parts.local.member
    if member is None:
        raise InvalidArgument("cluster", "the node is alone; see docs/cluster.md")
    cluster = member.cluster
    there = dict(cluster.members.registered)
    found = await reports.of(there)
    slots = cluster.coordinators.counts()
    told = dict(cluster.loads.by_node)
    nodes = []
    for number in sorted(cluster.members.known):
        record = there.get(number)
        state = "here" if number == cluster.node else "registered"
        report = found.get(number)
        nodes.append(
            ClusterNode(
                node=number,
                state="away" if record is None else state,
                incarnation=0 if record is None else record.incarnation,
                registered_ms=0 if record is None else record.registered_ms,
                leaders=cluster.leaders.count_of(number),
                stored_bytes=report.stored_bytes if isinstance(report, NodeReport) else None,
                coordinator_slots=slots[number],
                cordoned=number in cluster.cordons.nodes,
                free_bytes=None if number not in told else told[number].free_bytes,
                kafka="" if record is None else record.kafka,
                http="" if record is None else record.http,
            )
        )
    return ClusterStatus(
        cluster_id=member.cluster_id,
        meta="etcd" if member.config.meta_file is None else "sqlite",
        revision=cluster.cache.revision,
        shard_count=len(cluster.leaders),
        nodes=nodes,
        replication=replication_status(cluster, member.replication, parts.local.catalog),
    )
