"""Which leaders should be on other nodes, as a function of what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FREE_BYTES_MIN = 1024**3
"""A node with less room on its disk gets no shards as long as another one has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """A node that is there, and what it leads."""

    node: int
    leader_count: int
    """All active segments that it leads, those included that cannot move."""
    movable: Sequence[str] = field(default=())
    """Shards that it leads and could give to another node, in the order in which they would go."""
    stored_bytes: int = 0
    free_bytes: int | None = None
    """None if it has not told."""
    is_cordoned: bool = False
    """It is to lead no other shards than it does."""


class ShardMove(NamedTuple):
    """One shard and the nodes that it goes from and to."""

    shard: str
    source: int
    target: int


def next_leader(node: int, loads: Iterable[NodeLoad]) -> int | None:
    """The node that should lead a shard's next segment in place of `node`, which leads the present
    one; None if it should stay: no other node has at least two leaders less.

    A cordoned node gives what it leads to whichever node has the fewest.
    """
    by_node = {each.node: each for each in loads}
    own = by_node.get(node)
    target = _least(each for each in by_node.values() if each.node != node)
    if own is None or target is None:
        return None
    if own.is_cordoned or own.leader_count - target.leader_count >= 2:
        return target.node
    return None


def plan_moves(
    loads: Sequence[NodeLoad], limit: int, *, source: int | None = None
) -> list[ShardMove]:
    """The moves, at most `limit`, after which leaders are spread as evenly as movable shards allow,
    and cordoned nodes lead none of them. With a source only shards of that node move."""
    counts = {each.node: each.leader_count for each in loads}
    movable = {each.node: list(each.movable) for each in loads}
    by_node = {each.node: each for each in loads}
    moves: list[ShardMove] = []
    while len(moves) < limit:
        target = _least(by_node.values(), counts)
        if target is None:
            break
        sources = [
            each
            for each in loads
            if movable[each.node]
            and each.node != target.node
            and source in (None, each.node)
            and (each.is_cordoned or counts[each.node] - counts[target.node] >= 2)
        ]
        if not sources:
            break
        chosen = max(
            sources, key=lambda each: (each.is_cordoned, counts[each.node], -each.node)
        ).node
        moves.append(ShardMove(movable[chosen].pop(0), chosen, target.node))
        counts[chosen] -= 1
        counts[target.node] += 1
    return moves


def _least(loads: Iterable[NodeLoad], counts: dict[int, int] | None = None) -> NodeLoad | None:
    """The node that should lead the next shard: one with room, then the fewest leaders, the fewest
    bytes, the lowest number. None if all are cordoned."""

    def order(each: NodeLoad) -> tuple[bool, int, int, int]:
        count = each.leader_count if counts is None else counts[each.node]
        is_full = each.free_bytes is not None and each.free_bytes < FREE_BYTES_MIN
        return is_full, count, each.stored_bytes, each.node

    return min((each for each in loads if not each.is_cordoned), key=order, default=None)
