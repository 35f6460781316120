"""What drivers tell the machines. Times are in `handle(event, now)`, never in an event,

except where a time was taken before the event: when a session was renewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from firnmq.cluster.replication.messages import (
    CopyTail,
    FetchedSegment,
    Message,
    ReadTail,
    Tail,
)
from firnmq.cluster.replication.values import (
    Acks,
    Fence,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    Placement,
    Point,
    ReplicatedSegment,
    SegmentId,
    Token,
)
from firnmq.ids import Offset


@dataclass(frozen=True, slots=True)
class Request:
    """An append that waits for its acknowledgement. Its bytes are in the log already."""

    token: Token
    end: Offset
    """The offset after its last record."""
    acks: Acks
    deadline_ms: MonotonicMs


# The disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The leader's log has grown to `at`; followers may fetch it, its disk need not have it."""

    segment: SegmentId
    at: Point
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Requests whose records are in the log already: retries of an idempotent producer."""

    segment: SegmentId
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The disk has everything below `at.end`. Preallocated zeros are never part of it."""

    segment: SegmentId
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """A write or sync failed: what is on the disk is not known until the log is reopened."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReopened:
    """What the disk has, after everything that was not durable is truncated."""

    segment: SegmentId
    at: Point
    fence: Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class FencePersisted:
    """The fence is on disk, after every turn that was in flight; `at` is durable."""

    segment: SegmentId
    fence: Fence
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    segment: SegmentId
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFound:
    """A replica that the node's disk has, told once at the start."""

    segment: SegmentId
    at: Point
    fence: Fence


# Messages that arrived, whole and taken apart by segment.


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerReport:
    """One segment of a Fetch."""

    segment: SegmentId
    fence: Fence
    member: Member
    continuous_since: Incarnation
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One segment of a FetchAnswer, whose batches the driver has checked."""

    incarnation: Incarnation
    content: FetchedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReceived:
    segment: SegmentId
    fence: Fence
    controller: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTailReceived:
    request: CopyTail


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTailReceived:
    request: ReadTail


@dataclass(frozen=True, slots=True, kw_only=True)
class TailReceived:
    tail: Tail


# The meta store.


class Outcome(Enum):
    APPLIED = "applied"
    REFUSED = "refused"
    """A compare did not hold: a record or a pointer has changed."""
    DEPOSED = "deposed"
    """The guard did not hold: another registration or another controller."""
    UNKNOWN = "unknown"
    """It may have been applied, or may still be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDone:
    owner: SegmentId | None
    """As in the Transact that it answers."""
    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSeen:
    """A record as a read or a watch shows it; it may be older than what the machine knows."""

    record: ReplicatedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenewed:
    """The store has prolonged the node's session."""

    asked_ms: MonotonicMs
    """When the node asked, which is not later than when the store prolonged it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChosen:
    segment: SegmentId
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node's registration as the store has it."""

    node: NodeId
    incarnation: Incarnation | None
    """None: its session has lapsed, or was closed."""


# Orders.


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginSeal:
    """Seal as planned: size, age, drain or rebalance. `placement` is for the next segment."""

    segment: SegmentId
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptLoss:
    """An operator accepts that a seal loses records that were acknowledged."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost:
    """A fence has reached this node."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; every machine gets one a few times per second."""
