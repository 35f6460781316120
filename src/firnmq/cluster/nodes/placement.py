"""Which nodes have the replicas of new shards, as a function of what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firnmq.meta.records import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that is there."""

    replica: Replica
    leader_count: int
    """Active segments that it leads."""
    rack: str = ""
    """Nodes of one rack fail together."""


def place(
    count: int, candidates: Sequence[Candidate], factor: int = 1
) -> list[tuple[Replica, ...]]:
    """The replicas of each of `count` new shards. The first one leads: the node with the fewest
    leaders each time. The others are in other racks as far as there are any, and have the fewest
    replicas. Among equals it is the node with the lowest number, so that the outcome is the same
    wherever it is computed.

    There are at least `factor` candidates.
    """
    leads = {each.replica.node: each.leader_count for each in candidates}
    holds = dict.fromkeys(leads, 0)
    placements = []
    for _ in range(count):
        first = min(candidates, key=lambda each: (leads[each.replica.node], each.replica.node))
        chosen = [first]
        while len(chosen) < factor:
            chosen.append(_next(candidates, chosen, leads, holds))
        leads[first.replica.node] += 1
        for each in chosen[1:]:
            holds[each.replica.node] += 1
        placements.append(tuple(each.replica for each in chosen))
    return placements


def _next(
    candidates: Sequence[Candidate],
    chosen: Sequence[Candidate],
    leads: dict[int, int],
    holds: dict[int, int],
) -> Candidate:
    racks = [each.rack for each in chosen]

    def load(each: Candidate) -> tuple[int, int, int]:
        node = each.replica.node
        return racks.count(each.rack), leads[node] + holds[node], node

    return min((each for each in candidates if each not in chosen), key=load)
