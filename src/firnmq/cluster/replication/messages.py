"""What nodes say to each other about segments. Every message names its segment and its fence.

A message may be delayed, lost, repeated, or overtaken by a later one. Bytes are opaque here: a
driver checks each batch, chains the CRC, and tells the machine where the bytes begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Incarnation,
    NodeId,
    Point,
    SegmentId,
)
from firnmq.ids import Offset

# Pull: a follower asks its leader, with many segments in one message.


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSegment:
    """A follower has everything below `at.end` on its disk, and asks for what comes next."""

    segment: SegmentId
    fence: Fence
    continuous_since: Incarnation
    """The incarnation since which nothing durable of this replica was lost. With fsync that is

    the one in which its directory was made, else the first after the last unclean boot, and in
    memory the present one.
    """
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """What a follower says of itself. The reported ends are its acknowledgements."""

    node: NodeId
    incarnation: Incarnation
    segments: tuple[FetchSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSegment:
    segment: SegmentId
    fence: Fence
    start: Offset
    at: Point
    """Where the bytes end. The CRC is chained by the receiver from its own."""
    leader_crc: Crc | None
    """The leader's chained CRC at that end, where the leader knows it."""
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    incarnation: Incarnation
    """The follower's incarnation that asked; a later one must not take the bytes."""
    segments: tuple[FetchedSegment, ...]


# Failover: the controller asks replicas, with many segments in one message.


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSegment:
    segment: SegmentId
    fence: Fence
    start: Offset
    """Where the segment begins, for a replica that has nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRequest:
    controller: NodeId
    segments: tuple[FenceSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAnswer:
    """The fence is on the replica's disk, and nothing below it is in flight any more."""

    segment: SegmentId
    fence: Fence
    node: NodeId
    incarnation: Incarnation
    continuous_since: Incarnation
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAnswers:
    """Many answers of one node, as one message."""

    answers: tuple[FenceAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTail:
    """The controller asks a replica to copy from `source` what it lacks up to `end`."""

    segment: SegmentId
    fence: Fence
    controller: NodeId
    source: NodeId
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCopied:
    segment: SegmentId
    fence: Fence
    node: NodeId
    incarnation: Incarnation
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTail:
    """A replica asks another one for bytes, during a failover or to repair a sealed segment."""

    segment: SegmentId
    fence: Fence
    node: NodeId
    incarnation: Incarnation
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    segment: SegmentId
    fence: Fence
    incarnation: Incarnation
    """The asking replica's incarnation."""
    start: Offset
    at: Point
    """Where the bytes end. The CRC is chained by the receiver from its own."""
    payload: object


class SealReason(Enum):
    """Why a segment is sealed by failover."""

    LEADER_LOST = "leader_lost"
    LEADER_RESTARTED = "leader_restarted"
    STORAGE_FAILED = "storage_failed"
    BELOW_MIN_IN_SYNC = "below_min_in_sync"
    """A member of the ISR is lost and cannot be removed from it."""
    SEAL_INTERRUPTED = "seal_interrupted"
    """An earlier controller began to seal it."""
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRequest:
    """A leader asks the controller to take its segment away."""

    segment: SegmentId
    reason: SealReason


Message = (
    Fetch
    | FetchAnswer
    | FenceRequest
    | FenceAnswers
    | CopyTail
    | TailCopied
    | ReadTail
    | Tail
    | SealRequest
)
