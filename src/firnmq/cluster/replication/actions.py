"""What the machines ask their driver to do. An action with an outcome is answered by an event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from firnmq.cluster.replication.messages import Message, SealRequest
from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Member,
    NodeId,
    Point,
    ReplicatedSegment,
    Revision,
    SegmentId,
    Token,
)
from firnmq.ids import Offset


class FailReason(Enum):
    """Why a waiting append is not acknowledged. All of them mean unknown, not failed."""

    TIMED_OUT = "timed_out"
    LEADERSHIP_LOST = "leadership_lost"
    STORAGE_FAILED = "storage_failed"
    SEALED = "sealed"


# Messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    node: NodeId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToController:
    """Best effort: repeated until the segment's record changes."""

    message: SealRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFetch:
    """Read staged bytes from `start`, up to `at.end` or less, into an answer for the follower."""

    segment: SegmentId
    fence: Fence
    to: Member
    start: Offset
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTail:
    """Read durable bytes in [start, end) into a Tail for the replica that asked."""

    segment: SegmentId
    fence: Fence
    to: Member
    start: Offset
    end: Offset


# The disk. All of it goes through the shard's lane, in the order given.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Append the payload unchanged and sync it; answered by Durable or StorageFailed."""

    segment: SegmentId
    start: Offset
    at: Point
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistFence:
    """Persist the fence after everything staged before; answered by FencePersisted."""

    segment: SegmentId
    fence: Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Truncate the replica to `end`; answered by Truncated."""

    segment: SegmentId
    end: Offset


# The meta store.


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A segment's record before and after. With `opened`, the shard's pointer moves to it."""

    before: ReplicatedSegment
    after: ReplicatedSegment
    opened: ReplicatedSegment | None = None

    def __post_init__(self) -> None:
        assert self.after.epoch == self.before.epoch + 1
        assert self.after.segment == self.before.segment
        assert self.after.leader == self.before.leader, "one leader per segment, ever"
        assert self.opened is None or self.opened.start == self.after.end, "ranges tile the shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """All changes or none. Every `before.epoch` is compared, the pointer where one moves, and

    the guard: the leader's registration, or the create revision of the controller's key.
    Answered by TransactionDone.
    """

    owner: SegmentId | None
    """The segment whose leader asks; None for the controller."""
    number: int
    changes: tuple[Change, ...]
    guard: Member | Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """Read the record from the store, not from a cache; answered by RecordSeen, or not at all."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseNext:
    """Choose where the next segment lives; answered by NextChosen.

    Its leader should be one of the holders; a replica that is not a holder needs the producers'
    snapshot before it may lead.
    """

    record: ReplicatedSegment
    holders: tuple[Member, ...]


# The log, its readers and its writers.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """Show records below `offset` to readers. Comes before the completions that it allows."""

    segment: SegmentId
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Acknowledge these requests."""

    segment: SegmentId
    tokens: list[Token]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Answer these requests: their outcome is unknown."""

    segment: SegmentId
    tokens: list[Token]
    reason: FailReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """Append nothing until Unfreeze; park what comes."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfreeze:
    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLeading:
    """The segment is no longer led here. What was parked goes to the shard's next leader."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSealed:
    """The replica has the sealed segment, verified: it may be read from here."""

    segment: SegmentId


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    """An operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    level: Level
    name: str
    segment: SegmentId
    fields: tuple[tuple[str, object], ...] = ()


Action = (
    Send
    | SendToController
    | ServeFetch
    | ServeTail
    | Stage
    | PersistFence
    | Truncate
    | Transact
    | ReadRecord
    | ChooseNext
    | AdvanceHighWatermark
    | Complete
    | Fail
    | Freeze
    | Unfreeze
    | StopLeading
    | ServeSealed
    | LogEvent
)


def served_crc(at: Point, end: Offset) -> Crc | None:
    """The leader's CRC for an answer that ends at `end`, which may be before `at`."""
    return at.crc if at.end == end else None
