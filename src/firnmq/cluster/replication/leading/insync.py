"""Which replicas a leader wants in the ISR: removed when they lag, let in at both marks."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.cluster.replication.leading.marks import Marks, Progress
from firnmq.cluster.replication.values import (
    Member,
    MonotonicMs,
    NodeId,
    ReplicatedSegment,
    ReplicationConfig,
)
from firnmq.ids import Offset


class InSyncReplicas:
    """Decides, and changes nothing: a change of the ISR is a compare-and-swap of the record."""

    def __init__(self, config: ReplicationConfig, own: NodeId) -> None:
        self._config = config
        self._own = own
        self._caught_up_ms: dict[Member, MonotonicMs] = {}
        """When a member last had everything that the leader had; else when it was listed."""

    def listed(self, isr: Sequence[Member], now: MonotonicMs) -> None:
        known = self._caught_up_ms
        self._caught_up_ms = {member: known.get(member, now) for member in isr}

    def heard(
        self, member: Member, progress: Progress, durable_end: Offset, now: MonotonicMs
    ) -> None:
        """`progress` has the new end, and the leader's end at the fetch before."""
        if member not in self._caught_up_ms:
            return
        if progress.end >= durable_end:
            self._caught_up_ms[member] = now
        elif progress.end >= progress.leader_end_then:
            self._caught_up_ms[member] = max(self._caught_up_ms[member], progress.heard_ms)

    def lagging(self, record: ReplicatedSegment, now: MonotonicMs) -> list[Member]:
        """Members that were not caught up for too long, the worst first."""
        limit_ms = self._config.replica_lag_max_ms
        late = [
            member
            for member in record.isr
            if member.node != self._own and now - self._caught_up_ms[member] > limit_ms
        ]
        return sorted(late, key=lambda member: (self._caught_up_ms[member], member))

    def removal(
        self, record: ReplicatedSegment, lagging: Sequence[Member]
    ) -> tuple[Member, ...] | None:
        """The ISR without those that lag, as far as the minimum allows."""
        removable = max(0, len(record.isr) - record.needed_in_sync(self._config.min_in_sync))
        removed = set(lagging[:removable])
        if not removed:
            return None
        return tuple(member for member in record.isr if member not in removed)

    def admission(
        self, record: ReplicatedSegment, member: Member, marks: Marks
    ) -> tuple[Member, ...] | None:
        """The ISR with a follower that has reached both marks in its present life."""
        if member in record.isr or not marks.has_reached(member, marks.admission_goal()):
            return None
        others = tuple(each for each in record.isr if each.node != member.node)
        return (*others, member)
