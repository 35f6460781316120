"""Spreads the leaders of shards over the nodes of a cluster, by moves that copy nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from firnmq.adapter.forwarding.driver import ClusterDriver
from firnmq.adapter.forwarding.moving import ShardMover
from firnmq.cluster.nodes.balance import ShardMove, plan_moves
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.disk import call_blocking
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import FirnError
from firnmq.meta.records import SEGMENTS, SegmentRecord, decode

MOVES_MAX = 100
"""Of one call, which answers when they are done."""


class Moved(NamedTuple):
    """A move and why it has not happened, if so."""

    move: ShardMove
    error: FirnError | None


class Stays(NamedTuple):
    """What is left on a node."""

    movable: list[str]
    """Shards that it leads and can give away."""
    pinned: list[str]
    """Shards that it leads and that cannot move."""
    held_segments: int
    """Sealed segments of which no other node has the bytes."""
    held_bytes: int


class Rebalancer:
    """Any node can have it done. Used from the node's event loop."""

    def __init__(
        self,
        cluster: Cluster,
        mover: ShardMover,
        driver_of: Callable[[str], ClusterDriver | None],
    ) -> None:
        """`driver_of` gives the driver of a shard; None if its topic is not known."""
        self._cluster = cluster
        self._mover = mover
        self._driver_of = driver_of

    def plan(self, source: int | None = None, limit: int = MOVES_MAX) -> list[ShardMove]:
        """The moves that would spread leaders evenly; with a source, those of its shards."""
        movable = {node: self._led(node)[0] for node in list(self._cluster.members.registered)}
        return plan_moves(self._cluster.node_loads(movable), limit, source=source)

    async def run(self, source: int | None = None, limit: int = MOVES_MAX) -> list[Moved]:
        """Carries out the plan, one move after the other. A move that fails does not end it; what
        is left is planned again by the next call."""
        done = []
        for move in await call_blocking(None, self.plan, source, limit):
            driver = self._driver_of(move.shard)
            if driver is None:
                continue  # Its topic was deleted since.
            try:
                await driver.move(move.shard, move.target)
            except FirnError as error:
                done.append(Moved(move, error))
            else:
                done.append(Moved(move, None))
        return done

    def stays(self, node: int) -> Stays:
        """What a node leads and holds, by this node's cache. Looks at every segment."""
        movable, pinned = self._led(node)
        records = (decode(each, SegmentRecord) for each in self._cluster.cache.below(SEGMENTS))
        lengths = [
            record.length
            for record in records
            if record.holders == (node,)
            and record.state not in (SegmentState.ACTIVE, SegmentState.DELETED)
        ]
        return Stays(movable, pinned, len(lengths), sum(lengths))

    def _led(self, node: int) -> tuple[list[str], list[str]]:
        """The shards that a node leads, those that can move and those that cannot."""
        movable: list[str] = []
        pinned: list[str] = []
        for shard, _ in self._cluster.leaders.led_by(node):
            (movable if self._mover.pinned(shard) is None else pinned).append(shard)
        return movable, pinned
