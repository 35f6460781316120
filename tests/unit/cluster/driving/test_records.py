"""Changes that the core asks for, as transactions of a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.cluster.replication.actions import Change
from firnmq.cluster.replication.driving.records import (
    ReplicationRecords,
    opened_record,
    replicated,
)
from firnmq.cluster.replication.driving.wire import Facts
from firnmq.cluster.replication.events import Outcome
from firnmq.cluster.replication.values import (
    Crc,
    Incarnation,
    LeaderEpoch,
    Member,
    NodeId,
    Placement,
    Point,
    ReplicatedSegment,
    SegmentId,
)
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.errors import StorageFailed
from firnmq.ids import Offset, SegmentSeq, ShardUid
from firnmq.meta.nodes import NodeIdentity, take_incarnation
from firnmq.meta.records import (
    Replica,
    SegmentRecord,
    ShardRecord,
    decode,
    encode,
    segment_key,
    shard_key,
)
from firnmq.testing import FakeClock
from firnmq.testing.held_meta import HeldMetaStore

_ID = SegmentId(ShardUid(7), SegmentSeq(0))
_MEMBERS = tuple(Member(NodeId(node), Incarnation(1)) for node in (1, 2, 3))
_PLACEMENT = Placement(leader=NodeId(1), members=_MEMBERS, in_sync=_MEMBERS)
_END = Point(Offset(10), Crc(99))
_FACTS = Facts(4_096, 1_700, 2**63 - 1, ((5, 0, 9),))


class Records:
    def __init__(self, path: Path) -> None:
        self.store = HeldMetaStore(path)
        self.identity: NodeIdentity = take_incarnation(self.store, 1)
        self.records = ReplicationRecords(self.store, FakeClock(), {7: "t_0"}.get)
        first = ReplicatedSegment.open(_ID, Offset(0), LeaderEpoch(4), _PLACEMENT)
        shard = ShardRecord(name="t_0", uid=7, active=0, epoch=4, leader=1)
        self.store.txn(
            [],
            {
                shard_key("t_0"): encode(shard),
                segment_key("t_0", 0): encode(opened_record(first, 5, Medium.NATIVE)),
            },
        )

    def segment(self, seq: int = 0) -> ReplicatedSegment:
        record = self.records.read(7, seq)
        assert record is not None
        found = replicated(7, seq, record)
        assert found is not None
        return found

    def change(self, *changes: Change) -> Outcome:
        facts = {(_ID, _END): _FACTS}
        return self.records.change(changes, self.identity.guard, facts).outcome


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    made = Records(tmp_path / "meta.db")
    yield made
    made.store.close()


def _isr_change(before: ReplicatedSegment) -> Change:
    return Change(before=before, after=before.with_isr(_MEMBERS[:2]))


def test_a_new_segment_is_read_as_it_was_opened(records: Records) -> None:
    assert records.segment() == ReplicatedSegment.open(_ID, Offset(0), LeaderEpoch(4), _PLACEMENT)


def test_a_segment_with_one_replica_is_none_of_the_cores() -> None:
    record = SegmentRecord(
        state=SegmentState.ACTIVE,
        epoch=0,
        leader=1,
        replicas=(1,),
        isr=(Replica(1, 1),),
        start=0,
        created_ms=0,
    )
    assert replicated(7, 0, record) is None


def test_a_change_is_made_once(records: Records) -> None:
    change = _isr_change(records.segment())
    assert records.change(change) is Outcome.APPLIED
    assert records.segment() == change.after
    assert records.change(change) is Outcome.REFUSED


def test_a_seal_opens_the_next_segment_and_moves_the_shard_to_it(records: Records) -> None:
    before = records.segment()
    after = before.fencing().sealed(_END, _MEMBERS[1:])
    placement = Placement(leader=NodeId(2), members=_MEMBERS, in_sync=_MEMBERS[1:])
    fencing = Change(before=before, after=before.fencing())
    seal = Change(before=before.fencing(), after=after, opened=after.successor(placement))

    assert records.change(fencing) is Outcome.APPLIED
    assert records.change(seal) is Outcome.APPLIED

    assert records.segment() == after
    assert records.segment(1) == after.successor(placement)
    sealed = records.records.read(7, 0)
    assert sealed is not None
    assert (sealed.length, sealed.max_timestamp, sealed.transactions) == (
        4_096,
        1_700,
        ((5, 0, 9),),
    )
    entry = records.store.get(shard_key("t_0"))
    assert entry is not None
    shard = decode(entry, ShardRecord)
    assert (shard.active, shard.leader, shard.epoch) == (1, 2, 5)


def test_no_change_of_several_is_made_if_one_of_them_is_late(records: Records) -> None:
    before = records.segment()
    assert records.change(_isr_change(before)) is Outcome.APPLIED
    again = Change(before=records.segment(), after=records.segment().with_isr(_MEMBERS))
    assert records.change(again, _isr_change(before)) is Outcome.REFUSED
    assert records.segment() == again.before


def test_an_earlier_registration_changes_nothing(records: Records) -> None:
    take_incarnation(records.store, 1)
    before = records.segment()
    assert records.change(_isr_change(before)) is Outcome.DEPOSED
    assert records.segment() == before


def test_without_an_answer_the_outcome_is_unknown(records: Records) -> None:
    change = _isr_change(records.segment())
    records.store.refusal = StorageFailed("the metadata", OSError("no answer"))
    assert records.change(change) is Outcome.UNKNOWN


def test_a_deleted_segment_is_not_changed(records: Records) -> None:
    change = _isr_change(records.segment())
    records.store.txn([], {}, [segment_key("t_0", 0)])
    assert records.change(change) is Outcome.REFUSED
    assert records.records.read(7, 0) is None


def test_a_repaired_replica_is_listed_once(records: Records) -> None:
    before = records.segment()
    after = before.sealed(_END, _MEMBERS[:2])
    records.change(Change(before=before, after=after, opened=after.successor(_PLACEMENT)))
    own, guard = Replica(3, 1), records.identity.guard

    assert records.records.list_verified(7, 0, own, guard)
    assert [member.node for member in records.segment().isr] == [1, 2, 3]
    epoch = records.segment().epoch
    assert records.records.list_verified(7, 0, own, guard)
    assert records.segment().epoch == epoch
    assert not records.records.list_verified(7, 0, Replica(9, 1), guard)
