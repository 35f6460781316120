"""Which nodes lead new shards, as a function of what there is."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from firnmq.meta.records import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that is there."""

    replica: Replica
    leader_count: int
    """Active segments that it leads."""


def place(count: int, candidates: Sequence[Candidate]) -> list[Replica]:
    """A leader for each of `count` new shards: the node with the fewest, each time; among equals
    the one with the lowest number, so that the outcome is the same wherever it is computed.

    Empty if there is no candidate.
    """
    if not candidates:
        return []
    heap = [(each.leader_count, each.replica.node, each.replica) for each in candidates]
    heapq.heapify(heap)
    chosen = []
    for _ in range(count):
        leader_count, node, replica = heap[0]
        chosen.append(replica)
        heapq.heapreplace(heap, (leader_count + 1, node, replica))
    return chosen
