"""Which nodes of a cluster have which shards, as the metadata has it."""

from __future__ import annotations

from typing import Final

import msgspec

from firnmq.adapter import Topic
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.disk import call_blocking
from firnmq.errors import InvalidArgument
from firnmq.meta.records import (
    SHARDS,
    SegmentRecord,
    ShardRecord,
    decode,
    segment_key,
)
from firnmq.server.admin.console.listing import Wish
from firnmq.server.admin.endpoint import Call
from firnmq.server.admin.parts import NodeParts

LEADER_SORTS: Final = ("topic", "leader")
STATES: Final = ("all", "behind", "away")


class LedShard(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    shard: int
    leader: int
    replicas: list[int]
    in_sync: list[int]
    """Those that have all that is acknowledged."""
    why: str | None = None
    """Why it is not as it is to be: a node is away, or catching up."""


class LeaderPage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    away: int
    """Shards of the cluster without a leader that is there."""
    behind: int
    """Shards of the cluster with fewer replicas in sync than they are to have."""
    rows: list[LedShard]


class LeaderView:
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    async def page(self, call: Call) -> LeaderPage:
        wish = Wish.of(call, LEADER_SORTS)
        member = self._parts.local.member
        if member is None:
            raise InvalidArgument("cluster", "the node is alone; see docs/cluster.md")
        node, state = call.number("node"), call.query.get("state", "all")
        if state not in STATES:
            raise InvalidArgument("state", f"must be one of {', '.join(STATES)}, not {state!r}")
        topics = {topic.topic_id: topic for topic in self._parts.storage.catalog.topics()}
        cluster = member.cluster

        def gather() -> LeaderPage:
            there = set(cluster.members.registered)
            rows = _rows(cluster, topics, there)
            away = [each for each in rows if each.leader not in there]
            behind = [each for each in rows if len(each.in_sync) < len(each.replicas)]
            chosen = {"all": rows, "away": away, "behind": behind}[state]
            if node is not None:
                chosen = [each for each in chosen if node in (each.leader, *each.replicas)]
            chosen = wish.chosen(chosen, lambda each: each.topic)
            total = len(chosen)
            page = wish.page(
                chosen, lambda each: (getattr(each, wish.sort), each.topic, each.shard)
            )
            return LeaderPage(total=total, away=len(away), behind=len(behind), rows=page)

        return await call_blocking(None, gather)


def _rows(cluster: Cluster, topics: dict[str, Topic], there: set[int]) -> list[LedShard]:
    rows = []
    for entry in cluster.cache.below(SHARDS):
        record = decode(entry, ShardRecord)
        name = entry.key.removeprefix(SHARDS)
        topic_id, _, seq = name.rpartition("_")
        topic = topics.get(topic_id)
        if topic is None:
            continue
        active = cluster.cache.get(segment_key(name, record.active))
        segment = None if active is None else decode(active, SegmentRecord)
        replicas = [record.leader] if segment is None else list(segment.replicas)
        in_sync = replicas if segment is None else [each.node for each in segment.isr]
        rows.append(
            LedShard(
                topic=topic.name,
                shard=int(seq),
                leader=record.leader,
                replicas=replicas,
                in_sync=in_sync,
                why=_why(record.leader, replicas, in_sync, there),
            )
        )
    return rows


def _why(leader: int, replicas: list[int], in_sync: list[int], there: set[int]) -> str | None:
    if leader not in there:
        return f"its leader, node {leader}, is away"
    behind = [node for node in replicas if node not in in_sync]
    if not behind:
        return None
    return "; ".join(
        f"node {node} is {'catching up' if node in there else 'away'}" for node in behind
    )
