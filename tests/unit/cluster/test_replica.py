"""A replica: what it stores, how it is fenced, and how it comes to the sealed end."""

from __future__ import annotations

from firnmq.cluster.replication import Replica
from firnmq.cluster.replication.actions import (
    Action,
    PersistFence,
    Send,
    ServeSealed,
    ServeTail,
    Stage,
    Truncate,
)
from firnmq.cluster.replication.events import (
    CopyTailReceived,
    Durable,
    FencePersisted,
    FenceReceived,
    Fetched,
    ReadTailReceived,
    RecordSeen,
    StorageFailed,
    StorageReopened,
    TailReceived,
    Tick,
    Truncated,
)
from firnmq.cluster.replication.following.state import ReplicaState
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswers,
    FetchedSegment,
    ReadTail,
    Tail,
    TailCopied,
)
from firnmq.cluster.replication.values import (
    NO_FENCE,
    Crc,
    Fence,
    Incarnation,
    MonotonicMs,
    NodeId,
    ReplicatedSegment,
)
from firnmq.ids import Offset
from tests.unit.cluster.segments import CONFIG, FIRST, START, at, member, of_kind, record

RECORD = record()
SEGMENT = RECORD.segment


def replica(of: ReplicatedSegment = RECORD, node: int = 2, fence: int = 0) -> Replica:
    machine = Replica(SEGMENT, member(node), FIRST, at(100), Fence(fence), CONFIG)
    machine.handle(RecordSeen(record=of), START)
    return machine


def fetched(start: int, end: int, *, fence: int = 0, incarnation: int = 1) -> Fetched:
    content = FetchedSegment(
        segment=SEGMENT,
        fence=Fence(fence),
        start=Offset(start),
        at=at(end),
        leader_crc=at(end).crc,
        payload=b"batches",
    )
    return Fetched(incarnation=Incarnation(incarnation), content=content)


def fenced(machine: Replica, fence: int, *, end: int | None = None) -> list[Action]:
    event = FenceReceived(segment=SEGMENT, fence=Fence(fence), controller=NodeId(9))
    machine.handle(event, START)
    point = machine.durable if end is None else at(end)
    return machine.handle(FencePersisted(segment=SEGMENT, fence=Fence(fence), at=point), START)


def grown(machine: Replica, end: int) -> None:
    machine.handle(fetched(machine.durable.end, end), START)
    machine.handle(Durable(segment=SEGMENT, at=at(end)), START)


def messages(actions: list[Action], kind: type) -> list:  # type: ignore[type-arg]
    sent = [action.message for action in of_kind(actions, Send)]
    return [message for message in sent if isinstance(message, kind)]


def test_only_contiguous_bytes_of_this_life_and_fence_are_stored() -> None:
    machine = replica()
    for wrong in (
        fetched(101, 105),
        fetched(99, 105),
        fetched(100, 105, incarnation=2),
        fetched(100, 105, fence=1),
    ):
        assert machine.handle(wrong, START) == []
    assert of_kind(machine.handle(fetched(100, 105), START), Stage)
    assert machine.handle(fetched(100, 105), START) == []  # A duplicate.


def test_only_the_durable_end_is_reported() -> None:
    machine = replica()
    machine.handle(fetched(100, 105), START)
    assert machine.wanted() is None  # A write is in flight.
    machine.handle(Durable(segment=SEGMENT, at=at(105)), START)
    wish = machine.wanted()
    assert wish is not None
    assert wish.at == at(105)


def test_bytes_with_another_crc_than_the_leaders_are_not_stored() -> None:
    machine = replica()
    event = fetched(100, 105)
    content = FetchedSegment(
        segment=SEGMENT,
        fence=NO_FENCE,
        start=Offset(100),
        at=at(105),
        leader_crc=Crc(1),
        payload=b"",
    )
    actions = machine.handle(Fetched(incarnation=event.incarnation, content=content), START)
    assert of_kind(actions, Stage) == []


def test_a_fence_is_answered_only_once_it_is_on_disk_behind_writes_in_flight() -> None:
    machine = replica()
    machine.handle(fetched(100, 105), START)
    event = FenceReceived(segment=SEGMENT, fence=Fence(1), controller=NodeId(9))
    actions = machine.handle(event, START)
    assert of_kind(actions, PersistFence)
    assert messages(actions, FenceAnswers) == []
    machine.handle(Durable(segment=SEGMENT, at=at(105)), START)
    done = FencePersisted(segment=SEGMENT, fence=Fence(1), at=at(105))
    (message,) = messages(machine.handle(done, START), FenceAnswers)
    assert (message.answers[0].fence, message.answers[0].at) == (1, at(105))
    assert machine.wanted() is None
    assert machine.handle(fetched(105, 106), START) == []


def test_an_answered_fence_is_answered_again_and_a_lower_one_never() -> None:
    machine = replica()
    fenced(machine, 2)
    same = FenceReceived(segment=SEGMENT, fence=Fence(2), controller=NodeId(9))
    lower = FenceReceived(segment=SEGMENT, fence=Fence(1), controller=NodeId(8))
    assert messages(machine.handle(same, START), FenceAnswers)
    assert machine.handle(lower, START) == []


def test_a_tail_is_copied_up_to_the_end_and_reported() -> None:
    machine = replica()
    fenced(machine, 1)
    request = CopyTail(
        segment=SEGMENT,
        fence=Fence(1),
        controller=NodeId(9),
        source=NodeId(3),
        end=Offset(110),
    )
    (read,) = messages(machine.handle(CopyTailReceived(request=request), START), ReadTail)
    assert (read.start, read.end) == (100, 110)
    for start, end in ((100, 105), (105, 110)):
        tail = Tail(
            segment=SEGMENT,
            fence=Fence(1),
            incarnation=FIRST,
            start=Offset(start),
            at=at(end),
            payload=b"",
        )
        assert of_kind(machine.handle(TailReceived(tail=tail), START), Stage)
        actions = machine.handle(Durable(segment=SEGMENT, at=at(end)), START)
    (copied,) = messages(actions, TailCopied)
    assert copied.at == at(110)
    assert machine.state is ReplicaState.FENCED


def test_a_longer_replica_cuts_to_the_end_before_it_serves() -> None:
    machine = replica()
    grown(machine, 110)
    sealed = RECORD.fencing().sealed(at(105), (member(1), member(3)))
    actions = machine.handle(RecordSeen(record=sealed), START)
    assert [action.end for action in of_kind(actions, Truncate)] == [105]
    assert of_kind(actions, ServeSealed) == []
    done = machine.handle(Truncated(segment=SEGMENT, at=at(105)), START)
    assert of_kind(done, ServeSealed)


def test_a_replica_with_other_bytes_at_the_end_never_serves() -> None:
    machine = replica()
    grown(machine, 105)
    point = at(105)
    other = RECORD.fencing().sealed(
        type(point)(point.end, Crc(point.crc + 1)), (member(1), member(3))
    )
    machine.handle(RecordSeen(record=other), START)
    actions = machine.handle(Truncated(segment=SEGMENT, at=at(105)), START)
    assert of_kind(actions, ServeSealed) == []
    assert machine.state is ReplicaState.BAD


def test_a_shorter_replica_of_a_sealed_segment_repairs_itself_from_each_holder_in_turn() -> None:
    machine = replica()
    sealed = RECORD.fencing().sealed(at(105), (member(1), member(3)))
    machine.handle(RecordSeen(record=sealed), START)
    first = machine.handle(Truncated(segment=SEGMENT, at=at(100)), START)
    again = machine.handle(Tick(), MonotonicMs(START + CONFIG.retry_ms))
    asked = [action.node for action in of_kind([*first, *again], Send)]
    assert asked == [1, 3]
    tail = Tail(
        segment=SEGMENT,
        fence=NO_FENCE,
        incarnation=FIRST,
        start=Offset(100),
        at=at(105),
        payload=b"",
    )
    machine.handle(TailReceived(tail=tail), START)
    actions = machine.handle(Durable(segment=SEGMENT, at=at(105)), START)
    assert of_kind(actions, ServeSealed)


def test_a_tail_is_served_under_the_same_fence_only() -> None:
    machine = replica()
    grown(machine, 105)
    fenced(machine, 2)

    def read(fence: int) -> list[Action]:
        request = ReadTail(
            segment=SEGMENT,
            fence=Fence(fence),
            node=NodeId(3),
            incarnation=FIRST,
            start=Offset(100),
            end=Offset(110),
        )
        return machine.handle(ReadTailReceived(request=request), START)

    assert read(1) == []
    (serve,) = of_kind(read(2), ServeTail)
    assert (serve.start, serve.end) == (100, 105)


def test_a_replica_that_lost_what_it_reported_never_reports_again() -> None:
    machine = replica()
    grown(machine, 105)
    machine.handle(StorageFailed(segment=SEGMENT), START)
    machine.handle(StorageReopened(segment=SEGMENT, at=at(100), fence=NO_FENCE), START)
    assert machine.state is ReplicaState.BAD
    assert machine.wanted() is None


def test_a_fence_that_was_persisted_before_a_failure_is_kept() -> None:
    machine = replica()
    event = FenceReceived(segment=SEGMENT, fence=Fence(1), controller=NodeId(9))
    machine.handle(event, START)
    machine.handle(StorageFailed(segment=SEGMENT), START)
    machine.handle(StorageReopened(segment=SEGMENT, at=at(100), fence=Fence(1)), START)
    assert machine.state is ReplicaState.FENCED
    assert messages(machine.handle(event, START), FenceAnswers)
