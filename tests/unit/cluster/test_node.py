"""One node: many segments in one fetch, and work that does not grow with sealed segments."""

from __future__ import annotations

from firnmq.cluster.replication import Node
from firnmq.cluster.replication.actions import Send, Transact, Truncate
from firnmq.cluster.replication.events import (
    BeginSeal,
    Durable,
    Outcome,
    Received,
    RecordSeen,
    SessionRenewed,
    Tick,
    TransactionDone,
    Truncated,
)
from firnmq.cluster.replication.messages import Fetch, FetchAnswer, FetchedSegment
from firnmq.cluster.replication.values import MonotonicMs
from tests.unit.cluster.segments import CONFIG, FIRST, START, at, member, of_kind, placement, record


def follower() -> Node:
    return Node(member(2), lambda segment: FIRST, lambda segment: CONFIG)


def fetches(actions) -> list[Fetch]:  # type: ignore[no-untyped-def]
    sent = [action.message for action in of_kind(actions, Send)]
    return [message for message in sent if isinstance(message, Fetch)]


def test_all_segments_of_a_leader_are_fetched_by_one_message() -> None:
    node = follower()
    for shard in range(500):
        node.handle(RecordSeen(record=record(shard=shard)), START)
    (fetch,) = fetches(node.handle(Tick(), MonotonicMs(START + CONFIG.fetch_interval_ms)))
    assert len(fetch.segments) == 500


def test_a_durable_write_is_reported_at_once_and_alone() -> None:
    node = follower()
    records = [record(shard=shard) for shard in range(3)]
    for each in records:
        node.handle(RecordSeen(record=each), START)
    content = FetchedSegment(
        segment=records[1].segment,
        fence=records[1].fence,
        start=records[1].start,
        at=at(105),
        leader_crc=None,
        payload=b"",
    )
    answer = FetchAnswer(incarnation=FIRST, segments=(content,))
    assert fetches(node.handle(Received(message=answer), START)) == []
    (fetch,) = fetches(node.handle(Durable(segment=records[1].segment, at=at(105)), START))
    assert [(each.segment, each.at) for each in fetch.segments] == [(records[1].segment, at(105))]


def test_sealed_segments_cost_nothing() -> None:
    node = follower()
    for shard in range(100):
        sealed = record(shard=shard).fencing().sealed(at(100), (member(1), member(2)))
        node.handle(RecordSeen(record=sealed), START)
        node.handle(Truncated(segment=sealed.segment, at=at(100)), START)
    assert node._unfinished == {}
    assert node.handle(Tick(), MonotonicMs(START + 60_000)) == []


def test_an_old_record_does_not_bring_a_sealed_segment_back() -> None:
    """1. The only replica leads. 2. Its planned seal is applied. 3. A late read shows it active."""
    of = record((2,))
    node = follower()
    node.handle(SessionRenewed(asked_ms=START), START)
    node.handle(RecordSeen(record=of), START)
    begin = BeginSeal(segment=of.segment, placement=placement((2,)))
    (transact,) = of_kind(node.handle(begin, START), Transact)
    done = TransactionDone(owner=of.segment, number=transact.number, outcome=Outcome.APPLIED)
    assert of_kind(node.handle(done, START), Truncate)  # The replica knows at once.
    node.handle(RecordSeen(record=of), START)
    assert node.leaders == {}
