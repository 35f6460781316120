"""The fetches of one node from one leader: many segments in one message."""

from __future__ import annotations

from firnmq.cluster.replication.actions import Action, Send
from firnmq.cluster.replication.following.replica import Replica
from firnmq.cluster.replication.messages import Fetch, FetchSegment
from firnmq.cluster.replication.values import (
    Member,
    MonotonicMs,
    NodeId,
    ReplicationConfig,
    SegmentId,
)

FETCH_SEGMENT_MAX = 1_000
"""Segments in one message, so that its size has a bound."""


class FetchLoop:
    """Collects the segments that have something to report, and sends them together.

    The leader keeps each segment's wish until it has bytes for it, so a fetch needs no answer of
    its own, and a report of one segment never waits for the bytes of another. Every segment is
    sent again after `fetch_interval_ms`, because a fetch or its answer may be lost.
    """

    def __init__(self, leader: NodeId, own: Member, config: ReplicationConfig) -> None:
        self.leader = leader
        self._own = own
        self._config = config
        self._replicas: dict[SegmentId, Replica] = {}
        self._due: dict[SegmentId, None] = {}
        self._next_round_ms = MonotonicMs(0)

    def __len__(self) -> int:
        return len(self._replicas)

    def follow(self, replica: Replica) -> None:
        if replica.segment not in self._replicas:
            self._replicas[replica.segment] = replica
            self._due[replica.segment] = None

    def forget(self, segment: SegmentId) -> None:
        self._replicas.pop(segment, None)
        self._due.pop(segment, None)

    def progressed(self, segment: SegmentId) -> None:
        """The segment's durable end has moved, which the leader waits to hear."""
        if segment in self._replicas:
            self._due[segment] = None

    def fetch(self, now: MonotonicMs) -> list[Action]:
        """One message for everything due; every segment is due once per interval."""
        if now >= self._next_round_ms:
            self._next_round_ms = MonotonicMs(now + self._config.fetch_interval_ms)
            self._due = dict.fromkeys(self._replicas)
        if not self._due:
            return []
        due, self._due = self._due, {}
        wanted = [self._replicas[segment].wanted() for segment in due]
        segments = [each for each in wanted if each is not None]
        return [
            self._message(segments[at : at + FETCH_SEGMENT_MAX])
            for at in range(0, len(segments), FETCH_SEGMENT_MAX)
        ]

    def _message(self, segments: list[FetchSegment]) -> Send:
        fetch = Fetch(
            node=self._own.node,
            incarnation=self._own.incarnation,
            segments=tuple(segments),
        )
        return Send(node=self.leader, message=fetch)
