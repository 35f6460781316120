"""Where segments with several replicas live, as a function of what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firnmq.cluster.replication.values import (
    Incarnation,
    Member,
    NodeId,
    Placement,
    ReplicatedSegment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeThere:
    """A registered node."""

    member: Member
    rack: str
    """Nodes of one rack fail together."""
    leader_count: int
    """Shards that it leads."""


def place_first(count: int, factor: int, nodes: Sequence[NodeThere]) -> list[Placement]:
    """Where `count` new shards begin, each with `factor` replicas on as many nodes.

    The leader is the node that then leads the fewest; the others are those that then have the
    fewest replicas, in other racks as far as there are any. The outcome is the same wherever it is
    computed. There are at least `factor` nodes.
    """
    assert 1 <= factor <= len(nodes)
    leads = {node.member.node: node.leader_count for node in nodes}
    holds = dict.fromkeys(leads, 0)
    placements = []
    for _ in range(count):
        first = min(nodes, key=lambda each: (leads[each.member.node], each.member.node))
        chosen = [first]
        while len(chosen) < factor:
            racks = [each.rack for each in chosen]
            left = [each for each in nodes if each not in chosen]
            chosen.append(
                min(
                    left,
                    key=lambda each: (
                        racks.count(each.rack),
                        holds[each.member.node] + leads[each.member.node],
                        each.member.node,
                    ),
                )
            )
        for each in chosen:
            holds[each.member.node] += 1
        leads[first.member.node] += 1
        members = tuple(each.member for each in chosen)
        placements.append(Placement(leader=first.member.node, members=members, in_sync=members))
    return placements


def place_next(
    record: ReplicatedSegment,
    holders: Sequence[Member],
    alive: Mapping[NodeId, Incarnation],
    last_incarnations: Mapping[NodeId, Incarnation],
    leader_counts: Mapping[NodeId, int],
    wanted: NodeId | None = None,
) -> Placement | None:
    """Where the segment after this one lives: on the same nodes, led by one of the holders.

    `holders` have all of this segment; those that are alive begin in sync. The leader is `wanted`,
    the present leader, or the holder that leads the fewest. None while no holder is alive.
    `last_incarnations` has the nodes that are away, too.
    """
    there = {
        each.node: alive[each.node]
        for each in holders
        if each.node in alive and each.node in record.replicas
    }
    if not there:
        return None
    leader = min(
        there,
        key=lambda node: (
            node != wanted,
            node != record.leader,
            leader_counts.get(node, 0),
            node,
        ),
    )
    members = tuple(
        Member(node, alive[node] if node in alive else last_incarnations[node])
        for node in record.replicas
    )
    in_sync = tuple(Member(node, incarnation) for node, incarnation in sorted(there.items()))
    return Placement(leader=leader, members=members, in_sync=in_sync)
