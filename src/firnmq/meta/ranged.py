"""Shards of ranges in the meta store: they have records of their own only once they need them.

A topic's shards that share files are one record of a range. Until one of them rolls, or its start
moves, all that its records would say follows from the range. Reads give entries that say so, with
revision 0: a transaction that compares such an entry compares that the record is absent, and
makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firnmq.engines.catalog.ranges import ShardRange, ShardRanges, remaining
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.errors import ShardNotFound
from firnmq.meta.api import Compare, Entry, MetaStore, Snapshot, TxnConflict
from firnmq.meta.cache import MetaCache
from firnmq.meta.nodes import NodeIdentity
from firnmq.meta.records import (
    NEXT_UID,
    RANGES,
    SEGMENTS,
    SHARDS,
    Counter,
    RangeRecord,
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    decode,
    encode,
    range_key,
    segment_key,
    segment_seq_of,
    shard_key,
    shard_of_segment,
)

_OPS_ADDED = 2
"""The range among the compares, and the record of a first segment among the puts."""


class RangedStore:
    """The part of a MetaStore that holds the records of shards, with those that follow from
    ranges. Safe with threads; one process changes the store."""

    def __init__(self, store: MetaStore, cache: MetaCache, node: NodeIdentity) -> None:
        self.store = self._store = store
        self._cache = cache
        self._node = node
        self.ranges = ShardRanges(
            _range_of(decode(entry, RangeRecord)) for entry in cache.below(RANGES)
        )
        self._recorded: set[int] = set()
        """Uids of shards of ranges that may have records of their own."""

    @property
    def txn_ops_max(self) -> int:
        return self._store.txn_ops_max - _OPS_ADDED

    def note_recorded(self, name: str) -> bool:
        """Notes that there is a record of a shard; False if the shard is in no range."""
        found = self.ranges.find(name)
        if found is None:
            return False
        self._recorded.add(found[1])
        return True

    def add(
        self, wanted: Sequence[tuple[str, range]], medium: Medium, created_ms: int
    ) -> tuple[int, list[ShardRange]]:
        """Registers ranges of topics' seqs in one transaction; returns its revision. TxnConflict if
        one is there, or the node was registered again."""
        while True:
            counter = self._store.get(NEXT_UID)
            uid = 1 if counter is None else decode(counter, Counter).value
            compares = [
                self._node.guard,
                Compare.absent(NEXT_UID) if counter is None else Compare.unchanged(counter),
            ]
            puts = {}
            added = []
            for topic_id, seqs in wanted:
                new = ShardRange(
                    topic_id=topic_id, first_seq=seqs.start, first_uid=uid, count=len(seqs)
                )
                key = range_key(topic_id, seqs.start)
                compares.append(Compare.absent(key))
                puts[key] = encode(_record_of(new, medium, created_ms))
                added.append(new)
                uid = new.end_uid
            puts[NEXT_UID] = encode(Counter(value=uid))
            try:
                return self._store.txn(compares, puts), added
            except TxnConflict as conflict:
                if conflict.compare.key != NEXT_UID:
                    raise

    def shrinking(
        self, before: ShardRange, gone: Sequence[range]
    ) -> tuple[dict[str, Record], list[str]]:
        """What a transaction puts and deletes that removes seqs from a range."""
        key = range_key(before.topic_id, before.first_seq)
        entry = self._store.get(key)
        if entry is None:
            return {}, []
        record = decode(entry, RangeRecord)
        puts: dict[str, Record] = {
            range_key(each.topic_id, each.first_seq): _record_of(
                each, record.medium, record.created_ms
            )
            for each in remaining(before, gone)
        }
        return puts, [] if key in puts else [key]

    def shrink(self, before: ShardRange, gone: Sequence[range]) -> None:
        """The same here, once the transaction is made."""
        self.ranges.shrink(before, gone)
        if self._recorded:
            shift = before.first_uid - before.first_seq
            for seqs in gone:
                self._recorded.difference_update(range(seqs.start + shift, seqs.stop + shift))

    def has_records(self, uid: int) -> bool:
        """Whether a shard may have records of its own."""
        return uid in self._recorded or self.ranges.with_uid(uid) is None

    def recorded(self, shards: ShardRange) -> list[int]:
        """The uids of those shards of a range that may have records."""
        if len(self._recorded) < shards.count:
            return [uid for uid in sorted(self._recorded) if shards.has_uid(uid)]
        return [uid for uid in range(*shards.uids) if uid in self._recorded]

    # As the MetaStore that the records are read from and written to. ------------------------------

    def get(self, key: str) -> Entry | None:
        if key.startswith(SHARDS):
            name = key.removeprefix(SHARDS)
            found = self.ranges.find(name)
            if found is not None:
                is_recorded = found[1] in self._recorded
                entry = self._store.get(key) if is_recorded else None
                return self._shard(name, *found) if entry is None else entry
        elif key.startswith(SEGMENTS) and segment_seq_of(key) == 0:
            name = shard_of_segment(key)
            found = self.ranges.find(name)
            if found is not None and not self._has_record(name, found[1]):
                return self._first_segment(name, found[0])
        return self._store.get(key)

    def range(self, prefix: str) -> Snapshot:
        if prefix.startswith(SEGMENTS):
            name = prefix.removeprefix(SEGMENTS).rstrip("/")
            found = self.ranges.find(name)
            if found is not None and not self._has_record(name, found[1]):
                return Snapshot(revision=0, entries=(self._first_segment(name, found[0]),))
        return self._store.range(prefix)

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
    ) -> int:
        """A transaction that relies on what follows from a range relies on the range, and one
        that makes the record of a shard makes that of its first segment."""
        compares, puts = list(compares), dict(puts or {})
        for compare in tuple(compares):
            if compare.revision or not compare.key.startswith(SHARDS):
                continue
            name = compare.key.removeprefix(SHARDS)
            found = self.ranges.find(name)
            if found is None:
                continue
            compares.append(Compare.unchanged(self._entry_of(found[0])))
            first_key = segment_key(name, 0)
            if compare.key in puts:
                # Before: the outcome may stay unknown.
                self._recorded.add(found[1])
                if first_key not in puts and first_key not in deletes:
                    puts[first_key] = self._first_segment(name, found[0]).value
        return self._store.txn(compares, puts, deletes)

    # ----------------------------------------------------------------------------------------------

    def _has_record(self, name: str, uid: int) -> bool:
        return uid in self._recorded and self._store.get(shard_key(name)) is not None

    def _entry_of(self, each: ShardRange) -> Entry:
        key = range_key(each.topic_id, each.first_seq)
        entry = self._store.get(key)
        # If it was removed since, its compare must fail.
        return entry or Entry(key=key, value=b"", create_revision=-1, mod_revision=-1)

    def _shard(self, name: str, each: ShardRange, uid: int) -> Entry:
        record = ShardRecord(name=name, uid=uid, active=0, topic_id=each.topic_id)
        return _unrecorded(shard_key(name), encode(record))

    def _first_segment(self, name: str, each: ShardRange) -> Entry:
        key = range_key(each.topic_id, each.first_seq)
        entry = self._cache.get(key) or self._store.get(key)
        if entry is None:
            raise ShardNotFound(name, within="the metadata")  # Removed since.
        record = first_segment_of(decode(entry, RangeRecord), self._node.replica)
        return _unrecorded(segment_key(name, 0), encode(record))


def first_segment_of(shards: RangeRecord, replica: Replica) -> SegmentRecord:
    """What would be recorded of the first segment of each shard of a range."""
    return SegmentRecord(
        state=SegmentState.ACTIVE,
        epoch=0,
        leader=replica.node,
        replicas=(replica.node,),
        isr=(replica,),
        start=0,
        created_ms=shards.created_ms,
        medium=shards.medium,
    )


def _record_of(each: ShardRange, medium: Medium, created_ms: int) -> RangeRecord:
    return RangeRecord(
        topic_id=each.topic_id,
        first_seq=each.first_seq,
        first_uid=each.first_uid,
        count=each.count,
        created_ms=created_ms,
        medium=medium,
    )


def _range_of(record: RangeRecord) -> ShardRange:
    return ShardRange(
        topic_id=record.topic_id,
        first_seq=record.first_seq,
        first_uid=record.first_uid,
        count=record.count,
    )


def _unrecorded(key: str, value: bytes) -> Entry:
    return Entry(key=key, value=value, create_revision=0, mod_revision=0)
