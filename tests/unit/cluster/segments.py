"""Records and small steps that the tests of the replication core share."""

from __future__ import annotations

from collections.abc import Iterable

from firnmq.cluster.replication import Leader, ReplicationConfig
from firnmq.cluster.replication.actions import Action
from firnmq.cluster.replication.events import Durable, FollowerReport, Request, Staged
from firnmq.cluster.replication.values import (
    EMPTY_CRC,
    NO_FENCE,
    Acks,
    Crc,
    Incarnation,
    LeaderEpoch,
    Member,
    MonotonicMs,
    NodeId,
    Placement,
    Point,
    ReplicatedSegment,
    SegmentId,
    Token,
)
from firnmq.ids import Offset, SegmentSeq, ShardUid

CONFIG = ReplicationConfig(min_in_sync=2)
START = MonotonicMs(10_000)
FIRST = Incarnation(1)


def member(node: int, incarnation: int = 1) -> Member:
    return Member(NodeId(node), Incarnation(incarnation))


def placement(nodes: Iterable[int] = (1, 2, 3)) -> Placement:
    members = tuple(member(node) for node in nodes)
    return Placement(leader=members[0].node, members=members, in_sync=members)


def record(nodes: Iterable[int] = (1, 2, 3), shard: int = 7) -> ReplicatedSegment:
    segment = SegmentId(ShardUid(shard), SegmentSeq(0))
    return ReplicatedSegment.open(segment, Offset(100), LeaderEpoch(0), placement(nodes))


def at(end: int) -> Point:
    """Every end has its own CRC here, and the start that of no bytes."""
    return Point(Offset(end), EMPTY_CRC if end == 100 else Crc(end * 31))


def leader(of: ReplicatedSegment | None = None, own: Member | None = None) -> Leader:
    of = of or record()
    own = own or member(of.leader)
    return Leader(of, own, FIRST, at(100), CONFIG, START, START)


def stage(
    machine: Leader, end: int, acks: Acks = Acks.ALL, *, token: int = 0, wait_ms: int = 1_000
) -> list[Action]:
    """Appends up to `end`, with one request that is named by its end unless told otherwise."""
    deadline = MonotonicMs(START + wait_ms)
    request = Request(Token(token or end), Offset(end), acks, deadline)
    segment = machine.record.segment
    return machine.handle(Staged(segment=segment, at=at(end), requests=(request,)), START)


def sync(machine: Leader, end: int) -> list[Action]:
    return machine.handle(Durable(segment=machine.record.segment, at=at(end)), START)


def report(
    machine: Leader,
    node: int,
    end: int,
    *,
    incarnation: int = 1,
    since: int = 1,
    now: int = START,
    point: Point | None = None,
) -> list[Action]:
    event = FollowerReport(
        segment=machine.record.segment,
        fence=NO_FENCE,
        member=member(node, incarnation),
        continuous_since=Incarnation(since),
        at=point or at(end),
    )
    return machine.handle(event, MonotonicMs(now))


def of_kind(actions: list[Action], kind: type) -> list:  # type: ignore[type-arg]
    return [action for action in actions if isinstance(action, kind)]
