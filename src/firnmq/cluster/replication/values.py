"""The values of the replication protocol: who, which segment, how far, and the segment's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NewType

from firnmq.ids import Epoch, Offset, SegmentSeq, ShardUid

NodeId = NewType("NodeId", int)
Incarnation = NewType("Incarnation", int)
"""Number that a node gets at each registration; a restarted node is another replica."""
Fence = NewType("Fence", int)
"""Number that data traffic carries; it changes only when leadership is taken away."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leader within its shard, written into batches; one per segment."""
Crc = NewType("Crc", int)
"""CRC32C of a segment's bytes from its start, chained from batch to batch."""
Revision = NewType("Revision", int)
"""Create revision of the controller's key: names one term of one controller."""
MonotonicMs = NewType("MonotonicMs", int)
"""A node's own monotonic clock. Two nodes' values cannot be compared."""
Token = NewType("Token", int)
"""Names one append request until it is answered; the driver knows what it stands for."""

NO_FENCE = Fence(0)
"""The fence of a segment that is led."""
EMPTY_CRC = Crc(0)
"""The chained CRC of no bytes."""


class RecordState(Enum):
    """The states of a segment that replication is about."""

    ACTIVE = "active"
    """Led, and appended to by its leader."""
    FENCING = "fencing"
    """Leadership is taken away for good; its end is not decided."""
    SEALED = "sealed"
    """Immutable, without a leader."""


class Acks(Enum):
    """When an append is acknowledged."""

    ALL = "all"
    """Below the high watermark, with enough replicas in sync."""
    QUORUM = "quorum"
    """Durable on a majority of all replicas."""
    LEADER = "1"
    """Durable on the leader. May vanish when the leader is lost."""


class Durability(Enum):
    """What a replica's disk keeps, by the topic's durability."""

    MEMORY = "memory"
    OS = "os"
    """The operating system decides when to write: a power failure loses a tail."""
    FSYNC = "fsync"

    @property
    def accepts_loss(self) -> bool:
        """May a segment be sealed with a loss without an operator's command?"""
        return self is not Durability.FSYNC


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    shard: ShardUid
    seq: SegmentSeq

    def __str__(self) -> str:
        return f"{self.shard}/{self.seq}"


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A node in one incarnation."""

    node: NodeId
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.node}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Point:
    """An end of a replica's bytes: the next offset, and the chained CRC of everything below it."""

    end: Offset
    crc: Crc


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the next segment lives."""

    leader: NodeId
    members: tuple[Member, ...]
    """All of its replicas with the incarnations they have now."""
    in_sync: tuple[Member, ...]
    """Those that are alive. Every replica of an empty segment has all of it."""

    def __post_init__(self) -> None:
        assert len({member.node for member in self.members}) == len(self.members)
        assert set(self.in_sync) <= set(self.members)
        assert self.leader in {member.node for member in self.in_sync}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedSegment:
    """A segment's record in the meta store, as replication needs it."""

    segment: SegmentId
    state: RecordState
    epoch: Epoch
    """Goes up with every change; a change names the epoch that it was made from."""
    fence: Fence
    """Goes up when leadership is taken away, and when a seal begins again."""
    leader: NodeId
    """One node for the segment's whole life."""
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[Member, ...]
    """While active: in sync. Once sealed: replicas that were verified at the end."""
    opened: tuple[Member, ...]
    """The incarnation of every replica when the segment was opened."""
    start: Offset
    end: Offset | None = None
    crc: Crc | None = None
    """Of all bytes, known once sealed."""
    lossy: bool = False
    """Sealed though too few replicas were known to have kept everything."""

    def __post_init__(self) -> None:
        is_sealed = self.state is RecordState.SEALED
        if not is_sealed:  # Later, other nodes may become its replicas.
            assert {member.node for member in self.opened} == set(self.replicas)
            assert self.leader in self.replicas
        assert {member.node for member in self.isr} <= set(self.replicas)
        assert len({member.node for member in self.isr}) == len(self.isr)
        assert (self.end is not None) == (self.crc is not None) == is_sealed
        assert (self.fence == NO_FENCE) or self.state is not RecordState.ACTIVE

    @classmethod
    def open(
        cls, segment: SegmentId, start: Offset, leader_epoch: LeaderEpoch, placement: Placement
    ) -> ReplicatedSegment:
        return cls(
            segment=segment,
            state=RecordState.ACTIVE,
            epoch=Epoch(0),
            fence=NO_FENCE,
            leader=placement.leader,
            leader_epoch=leader_epoch,
            replicas=tuple(member.node for member in placement.members),
            isr=placement.in_sync,
            opened=placement.members,
            start=start,
        )

    # Thresholds

    @property
    def quorum(self) -> int:
        """How many of all replicas make a majority."""
        return len(self.replicas) // 2 + 1

    @property
    def fence_answer_min(self) -> int:
        """So many fenced replicas that no quorum is left, and every quorum has one of them."""
        return len(self.replicas) - self.quorum + 1

    def needed_in_sync(self, min_in_sync: int) -> int:
        """The topic's minimum, which cannot be more than there are replicas."""
        return min(min_in_sync, len(self.replicas))

    # Which replicas count

    def listed(self, node: NodeId) -> Incarnation:
        """The newest incarnation of a replica that is known to have had everything durable.

        At the opening every replica had everything, since there was nothing. A replica that was
        let into the ISR had fetched everything before.
        """
        known = [member.incarnation for member in (*self.opened, *self.isr) if member.node == node]
        return max(known)

    def counts(self, node: NodeId, continuous_since: Incarnation) -> bool:
        """Has this replica kept everything durable since it was listed?"""
        return continuous_since <= self.listed(node)

    # Changes. Each is the record after one compare-and-swap.

    def with_isr(self, isr: Sequence[Member]) -> ReplicatedSegment:
        assert self.state is RecordState.ACTIVE
        return replace(self, isr=tuple(sorted(isr)), epoch=Epoch(self.epoch + 1))

    def fencing(self) -> ReplicatedSegment:
        assert self.state is not RecordState.SEALED
        return replace(
            self,
            state=RecordState.FENCING,
            fence=Fence(self.fence + 1),
            epoch=Epoch(self.epoch + 1),
        )

    def sealed(
        self, at: Point, holders: Sequence[Member], *, lossy: bool = False
    ) -> ReplicatedSegment:
        assert self.state is not RecordState.SEALED
        assert at.end >= self.start
        return replace(
            self,
            state=RecordState.SEALED,
            epoch=Epoch(self.epoch + 1),
            isr=tuple(sorted(holders)),
            end=at.end,
            crc=at.crc,
            lossy=lossy,
        )

    def successor(self, placement: Placement) -> ReplicatedSegment:
        """The segment after this one, which is sealed."""
        assert self.end is not None
        return ReplicatedSegment.open(
            SegmentId(self.segment.shard, SegmentSeq(self.segment.seq + 1)),
            self.end,
            LeaderEpoch(self.leader_epoch + 1),
            placement,
        )

    @property
    def sealed_at(self) -> Point:
        assert self.end is not None
        assert self.crc is not None
        return Point(self.end, self.crc)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Times and limits. Milliseconds are of the node's own monotonic clock."""

    min_in_sync: int = 2
    durability: Durability = Durability.FSYNC
    session_ttl_ms: int = 4_000
    """etcd's own failover takes up to 1.5 s, which a session must outlive."""
    replica_lag_max_ms: int = 10_000
    """A member of the ISR that was not caught up for this long is removed from it."""
    fetch_interval_ms: int = 500
    """A follower asks again after this time, in case a fetch or its answer was lost."""
    freeze_max_ms: int = 5_000
    """A planned seal that is not asked for within this time is given up."""
    retry_ms: int = 500
    """Between two attempts at the same thing: fence, tail copy, transaction."""
    copy_timeout_ms: int = 10_000
    """A seal whose tail cannot be copied for this long starts again with the next fence."""
    waiting_request_max: int = 100_000
    """Requests per segment that wait for replicas; above that, appends are refused."""

    @property
    def session_age_max_ms(self) -> int:
        """Older than this, a leader stops: before the store may give its session up."""
        return self.session_ttl_ms * 3 // 4
