"""What the driver knows of one shard that has a replica on this node."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from firnmq.cluster.replication.driving.wire import NO_FACTS, Facts
from firnmq.cluster.replication.values import Crc, Point, SegmentId
from firnmq.disk import Notice
from firnmq.engines import ShardSpec
from firnmq.engines.replicas import Checked, Reached, ReplicaId
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.ids import Offset, SegmentSeq, ShardUid
from firnmq.meta.records import SegmentRecord
from firnmq.transitions import Transitions


class LogState(Enum):
    """The shard's log on this node."""

    OPENING = "opening"
    """Being opened from the disk, first or after a failure."""
    OPEN = "open"
    """Its tail is the replica that the core is told about."""
    MOVING = "moving"
    """Its tail is sealed and complete; the next segment is being begun."""
    CLOSED = "closed"
    """The next segment has no replica here, or the shard is deleted."""


class LogStep(Enum):
    OPENED = "the end of an opening"
    FAIL = "a failure"
    COMPLETE = "a complete sealed segment"
    MOVED = "the next segment"
    CLOSE = "the end of the last segment here"


_State, _Step = LogState, LogStep

LOG_TRANSITIONS = Transitions(
    "log of a replicated shard",
    {
        (_State.OPENING, _Step.OPENED): _State.OPEN,
        (_State.OPENING, _Step.FAIL): _State.OPENING,
        (_State.OPEN, _Step.FAIL): _State.OPENING,
        (_State.OPEN, _Step.COMPLETE): _State.MOVING,
        (_State.MOVING, _Step.MOVED): _State.OPEN,
        (_State.MOVING, _Step.FAIL): _State.OPENING,
        **{(state, _Step.CLOSE): _State.CLOSED for state in _State},
    },
)


class Fetched(NamedTuple):
    """What the core passes on from a message to the disk."""

    checked: Checked
    high_watermark: int


@dataclass(slots=True)
class PlannedSeal:
    """A roll that waits for its outcome, in a thread of its own."""

    segment: SegmentId
    seal: Seal
    outcome: Future[Seal]


@dataclass(slots=True)
class ShardReplica:
    """Owned by the network's thread."""

    name: str
    uid: ShardUid
    spec: ShardSpec
    current: SegmentId
    """The log's tail, or what is to become it."""
    state: LogState = LogState.OPENING
    ahead: dict[int, SegmentRecord] = field(default_factory=dict)
    """Records that this node has changed or read, which its cache may not have yet."""
    planned: PlannedSeal | None = None
    facts: tuple[Point, Facts] = (Point(Offset(0), Crc(0)), NO_FACTS)
    """How the tail would be sealed at the last end that was told."""
    leader_mark: int = 0
    """The leader's high watermark, as a follower was told last."""
    told_mark: int = -1
    """What this node has told its followers, as their leader."""
    quorum_mark: int = 0
    held: dict[int, Callable[[], None]] = field(default_factory=dict)
    """The last message of each node that came while the log was being opened."""

    def step(self, step: LogStep) -> None:
        self.state = LOG_TRANSITIONS.next(self.state, step)

    @property
    def is_open(self) -> bool:
        return self.state is LogState.OPEN

    def has_tail(self, segment: SegmentId) -> bool:
        """Whether the open log ends with this segment."""
        return self.is_open and segment == self.current

    def note(self, reached: Reached) -> Point:
        """Keeps how the segment would be sealed where it is now."""
        at = point_of(reached)
        self.facts = at, facts_of(reached)
        return at


def replica_id(segment: SegmentId) -> ReplicaId:
    return ReplicaId(segment.shard, segment.seq)


def segment_id(replica: ReplicaId) -> SegmentId:
    return SegmentId(ShardUid(replica.uid), SegmentSeq(replica.seq))


def point_of(reached: Reached) -> Point:
    return Point(Offset(reached.end.offset), Crc(reached.end.crc))


def facts_of(reached: Reached) -> Facts:
    facts = reached.facts
    return Facts(
        facts.length,
        facts.max_timestamp,
        facts.first_expiry_ms,
        tuple((int(each[0]), int(each[1]), int(each[2])) for each in facts.transactions),
    )


class Outcome(Notice[Reached]):
    """What a lane has done, told in the network's thread."""

    __slots__ = ("_tell",)

    def __init__(
        self, loop: object, tell: Callable[[Reached | None, BaseException | None], None]
    ) -> None:
        super().__init__(loop)  # type: ignore[arg-type]
        self._tell = tell

    def settled(self, value: Reached | None, error: BaseException | None) -> None:
        self._tell(value, error)
