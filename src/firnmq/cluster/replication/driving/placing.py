"""Where the next segment of a shard with several replicas lives, as a function of what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firnmq.cluster.replication.values import (
    Incarnation,
    Member,
    NodeId,
    Placement,
    ReplicatedSegment,
)


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
