"""What a leader knows of its followers, and the two marks that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firnmq.cluster.replication.values import (
    Crc,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    ReplicatedSegment,
)
from firnmq.ids import Offset


@dataclass(slots=True, kw_only=True)
class Progress:
    """A follower in its present life, as its fetches tell."""

    incarnation: Incarnation
    continuous_since: Incarnation
    end: Offset
    """Everything below is on the follower's disk. Never decreases within an incarnation."""
    crc: Crc
    """The follower's chained CRC at `end`."""
    wants: Offset | None
    """It waits for records from here on; None: it was answered since its last fetch."""
    heard_ms: MonotonicMs
    leader_end_then: Offset
    """The leader's end when this follower was last heard from."""


class Marks:
    """High watermark and quorum mark of one segment at its leader.

    `high_watermark`: every record below is durable on every member of the ISR in force, and of the
    one proposed. It never decreases, and is never above `durable_end`.

    `quorum_mark`: every record below is durable on a majority of all replicas, counting only those
    that have lost nothing since they were listed. It never decreases and is never above the end of
    the leader's log. It may be on either side of the high watermark, and above `durable_end`:
    followers may have synced what the leader has only staged.
    """

    def __init__(self, record: ReplicatedSegment, durable_end: Offset) -> None:
        self._start = record.start
        self.own = record.leader
        self.durable_end = durable_end
        """Everything below is on the leader's own disk. Never decreases."""
        self.high_watermark = record.start
        self.quorum_mark = record.start
        self.followers: dict[NodeId, Progress] = {}

    def move(self, record: ReplicatedSegment, members: Iterable[Member]) -> bool:
        """Moves both marks as far as the reports allow; returns whether the first one moved.

        `members` is the maximal ISR: in force, and proposed.
        """
        before = self.high_watermark
        self.high_watermark = max(before, self.lowest_end(members))
        self.quorum_mark = max(self.quorum_mark, self.majority_end(record))
        assert self._start <= self.high_watermark <= self.durable_end
        assert self._start <= self.quorum_mark
        return self.high_watermark > before

    def lowest_end(self, members: Iterable[Member]) -> Offset:
        """The end that all members have; one that was never heard from has nothing."""
        lowest = self.durable_end
        for member in members:
            if member.node == self.own:
                continue
            progress = self.followers.get(member.node)
            if progress is None or progress.incarnation != member.incarnation:
                return self._start
            lowest = min(lowest, progress.end)
        return lowest

    def majority_end(self, record: ReplicatedSegment) -> Offset:
        """The greatest end that a quorum of the replicas has."""
        ends = [self.durable_end]
        for node, progress in self.followers.items():
            if record.counts(node, progress.continuous_since):
                ends.append(progress.end)
        if len(ends) < record.quorum:
            return self._start
        ends.sort(reverse=True)
        return ends[record.quorum - 1]

    def admission_goal(self) -> Offset:
        """How far a follower must be to be let into the ISR: at both marks.

        A replica that lost its tail and is let in below the quorum mark would count again, and a
        failover could end below what a quorum has acknowledged.
        """
        return max(self.high_watermark, self.quorum_mark)

    def has_reached(self, member: Member, goal: Offset) -> bool:
        progress = self.followers.get(member.node)
        return (
            progress is not None
            and progress.incarnation == member.incarnation
            and progress.end >= goal
        )
