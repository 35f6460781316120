"""Segments between the core's form and that of their records, and the changes that the core asks
for, each as one transaction of the meta store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from firnmq.clock import Clock
from firnmq.cluster.replication.actions import Change
from firnmq.cluster.replication.driving.wire import NO_FACTS, Facts
from firnmq.cluster.replication.events import Outcome
from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Incarnation,
    LeaderEpoch,
    Member,
    NodeId,
    Point,
    RecordState,
    ReplicatedSegment,
    SegmentId,
)
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.errors import FirnError
from firnmq.ids import Epoch, Offset, SegmentSeq, ShardUid
from firnmq.meta import Compare, Entry, MetaStore, TxnConflict
from firnmq.meta.records import (
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    decode,
    encode,
    segment_key,
    shard_key,
)

_STATES = {
    SegmentState.ACTIVE: RecordState.ACTIVE,
    SegmentState.FENCING: RecordState.FENCING,
    SegmentState.SEALED: RecordState.SEALED,
    SegmentState.TIERED: RecordState.SEALED,
}


def is_replicated(record: SegmentRecord) -> bool:
    """Whether the segment has, or was opened with, more than one replica."""
    return len(record.opened) > 1


def replicated(uid: int, seq: int, record: SegmentRecord) -> ReplicatedSegment | None:
    """What the core sees of a record; None for a segment that is deleted or has one replica."""
    state = _STATES.get(record.state)
    if state is None or not is_replicated(record):
        return None
    is_sealed = state is RecordState.SEALED
    held = set(record.replicas)
    return ReplicatedSegment(
        segment=SegmentId(ShardUid(uid), SegmentSeq(seq)),
        state=state,
        epoch=Epoch(record.epoch),
        fence=Fence(record.fence),
        leader=NodeId(record.leader),
        leader_epoch=LeaderEpoch(record.leader_epoch),
        replicas=tuple(map(NodeId, record.replicas)),
        isr=tuple(member_of(each) for each in record.isr if each.node in held),
        opened=tuple(map(member_of, record.opened)),
        start=Offset(record.start),
        end=Offset(record.end) if is_sealed else None,
        crc=Crc(record.crc) if is_sealed else None,
        lossy=record.lossy,
    )


def member_of(replica: Replica) -> Member:
    return Member(NodeId(replica.node), Incarnation(replica.incarnation))


def _replicas_of(members: tuple[Member, ...]) -> tuple[Replica, ...]:
    return tuple(Replica(member.node, member.incarnation) for member in members)


def opened_record(segment: ReplicatedSegment, created_ms: int, medium: Medium) -> SegmentRecord:
    """The record of a new segment."""
    return SegmentRecord(
        state=SegmentState.ACTIVE,
        epoch=segment.epoch,
        leader=segment.leader,
        replicas=segment.replicas,
        isr=_replicas_of(segment.isr),
        start=segment.start,
        created_ms=created_ms,
        leader_epoch=segment.leader_epoch,
        medium=medium,
        opened=_replicas_of(segment.opened),
    )


def emptied_record(segment: ReplicatedSegment) -> SegmentRecord:
    """The record that a segment would have that was sealed without any record of its own. It is
    deleted instead, because the next segment begins at the same offset."""
    return msgspec.structs.replace(
        opened_record(segment, 0, Medium.NATIVE),
        state=SegmentState.SEALED,
        epoch=segment.epoch,
        end=segment.start,
    )


class ChangeOutcome(NamedTuple):
    outcome: Outcome
    records: tuple[tuple[SegmentId, SegmentRecord], ...] = ()
    """What the segments are, if the change was made."""
    error: FirnError | None = None
    """Why it is unknown."""


class ReplicationRecords:
    """Reads and changes records. Safe with threads; every call waits for the store."""

    def __init__(
        self, store: MetaStore, clock: Clock, name_of: Callable[[int], str | None]
    ) -> None:
        """`name_of`: a shard's name by its number."""
        self._store = store
        self._clock = clock
        self._name_of = name_of

    def read(self, uid: int, seq: int) -> SegmentRecord | None:
        """The record as the store has it now; None where there is none, or no such shard."""
        entry = self._segment(uid, seq)
        return None if entry is None else decode(entry, SegmentRecord)

    def change(
        self,
        changes: tuple[Change, ...],
        guard: Compare,
        facts: Mapping[tuple[SegmentId, Point], Facts],
    ) -> ChangeOutcome:
        """Makes all changes or none. `facts` has how each segment is sealed."""
        compares, puts, deletes = [guard], dict[str, Record](), list[str]()
        made: list[tuple[SegmentId, SegmentRecord]] = []
        try:
            for change in changes:
                if not self._add(change, facts, compares, puts, made):
                    return ChangeOutcome(Outcome.REFUSED)
                after = change.after
                if after.state is RecordState.SEALED and after.end == after.start:
                    name = self._name_of(after.segment.shard) or ""
                    deletes.append(segment_key(name, after.segment.seq))
            for key in deletes:
                del puts[key]
            written = {key: encode(record) for key, record in puts.items()}
            self._store.txn(compares, written, deletes)
        except TxnConflict as conflict:
            is_deposed = conflict.compare == guard
            return ChangeOutcome(Outcome.DEPOSED if is_deposed else Outcome.REFUSED)
        except FirnError as error:
            return ChangeOutcome(Outcome.UNKNOWN, error=error)
        return ChangeOutcome(Outcome.APPLIED, tuple(made))

    def list_verified(self, uid: int, seq: int, own: Replica, guard: Compare) -> bool:
        """Lists a replica of a sealed segment as one that is verified; False if another change of
        the record came first, or the node is none of its replicas any more."""
        entry = self._segment(uid, seq)
        if entry is None:
            return False
        record = decode(entry, SegmentRecord)
        is_sealed = record.state in (SegmentState.SEALED, SegmentState.TIERED)
        if not is_sealed or own.node not in record.replicas:
            return False
        others = tuple(each for each in record.isr if each.node != own.node)
        if own.node in {each.node for each in record.isr}:
            return True
        changed = msgspec.structs.replace(record, isr=(*others, own), epoch=record.epoch + 1)
        try:
            self._store.txn([guard, Compare.unchanged(entry)], {entry.key: encode(changed)})
        except TxnConflict:
            return False
        return True

    def _add(
        self,
        change: Change,
        facts: Mapping[tuple[SegmentId, Point], Facts],
        compares: list[Compare],
        puts: dict[str, Record],
        made: list[tuple[SegmentId, SegmentRecord]],
    ) -> bool:
        """Adds a change to a transaction; False if its record is not what it was."""
        before, after, opened = change.before, change.after, change.opened
        segment = before.segment
        name = self._name_of(segment.shard)
        entry = self._segment(segment.shard, segment.seq)
        if entry is None or name is None:
            return False
        record = decode(entry, SegmentRecord)
        if record.epoch != before.epoch:
            return False
        compares.append(Compare.unchanged(entry))
        now_ms = self._clock.now_ms()
        changed = puts[entry.key] = _changed(record, after, facts, now_ms)
        made.append((segment, changed))
        if opened is None:
            return True
        shard_entry = self._store.get(shard_key(name))
        if shard_entry is None:
            return False
        shard = decode(shard_entry, ShardRecord)
        if shard.active != segment.seq or shard.uid != segment.shard:
            return False
        compares.append(Compare.unchanged(shard_entry))
        first = opened_record(opened, now_ms, record.medium)
        puts[segment_key(name, opened.segment.seq)] = first
        made.append((opened.segment, first))
        puts[shard_entry.key] = msgspec.structs.replace(
            shard, active=opened.segment.seq, leader=opened.leader, epoch=opened.leader_epoch
        )
        return True

    def _segment(self, uid: int, seq: int) -> Entry | None:
        name = self._name_of(uid)
        return None if name is None else self._store.get(segment_key(name, seq))


def _changed(
    record: SegmentRecord,
    after: ReplicatedSegment,
    facts: Mapping[tuple[SegmentId, Point], Facts],
    now_ms: int,
) -> SegmentRecord:
    changed = msgspec.structs.replace(
        record, epoch=after.epoch, fence=after.fence, isr=_replicas_of(after.isr)
    )
    match after.state:
        case RecordState.ACTIVE:
            return changed
        case RecordState.FENCING:
            return msgspec.structs.replace(changed, state=SegmentState.FENCING)
        case RecordState.SEALED:
            sealed_at = after.sealed_at
            known = facts.get((after.segment, sealed_at))
            if known is None:
                assert sealed_at.end == after.start, "a replica tells its end with its facts"
                known = NO_FACTS
            return msgspec.structs.replace(
                changed,
                state=SegmentState.SEALED,
                end=sealed_at.end,
                crc=sealed_at.crc,
                lossy=after.lossy,
                sealed_ms=now_ms,
                length=known.length,
                max_timestamp=known.max_timestamp,
                first_expiry_ms=known.first_expiry_ms,
                transactions=known.transactions,
            )
