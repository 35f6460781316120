"""The records of shards and their segments, by the shards' numbers: reads, and guarded changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import ShardNotFound, StaleEpoch
from firnmq.meta.api import Compare, Entry, TxnConflict
from firnmq.meta.cache import MetaCache
from firnmq.meta.nodes import NodeIdentity
from firnmq.meta.ranged import RangedStore
from firnmq.meta.records import (
    Record,
    SegmentRecord,
    ShardRecord,
    decode,
    encode,
    segment_key,
    segments_prefix,
    shard_key,
)


class ShardRecords:
    """Reads go to the store. Every change holds that the node was not registered again."""

    def __init__(self, store: RangedStore, node: NodeIdentity) -> None:
        self._store = store
        self._node = node
        self._names: dict[int, str] = {}
        """Of the shards that are in no range, by number."""

    def _txn(
        self,
        compares: Sequence[Compare],
        puts: Mapping[str, Record],
        deletes: Sequence[str] = (),
    ) -> None:
        try:
            self._store.txn(
                [self._node.guard, *compares],
                {key: encode(record) for key, record in puts.items()},
                deletes,
            )
        except TxnConflict as conflict:
            self._judge(conflict)
            raise StaleEpoch(conflict.compare.key, conflict.compare.revision, conflict.found) from (
                conflict
            )

    def _judge(self, conflict: TxnConflict) -> None:
        if conflict.compare == self._node.guard:
            raise self._node.refusal(self._store.store) from conflict

    def _name(self, uid: int) -> str:
        name = self._names.get(uid)
        if name is None and (found := self._store.ranges.with_uid(uid)) is not None:
            return found.name_of(uid)
        if name is None:
            raise ShardNotFound(f"number {uid}", within="the metadata")
        return name

    def _shard(self, uid: int) -> tuple[Entry, ShardRecord]:
        name = self._name(uid)
        entry = self._store.get(shard_key(name))
        if entry is None:
            raise ShardNotFound(name, within="the metadata")
        return entry, decode(entry, ShardRecord)

    def _segments(self, name: str) -> tuple[Entry, ...]:
        return self._store.range(segments_prefix(name)).entries

    def _segment(self, name: str, seq: int) -> Entry:
        entry = self._store.get(segment_key(name, seq))
        if entry is None:
            raise StaleEpoch(f"{name}/{seq}", -1, -1)
        return entry

    def _held(
        self, name: str, seq: int, epoch: int, *states: SegmentState
    ) -> tuple[Entry, SegmentRecord]:
        """A segment's record, which must have the caller's epoch and one of the given states."""
        entry = self._store.get(segment_key(name, seq))
        if entry is None:
            raise StaleEpoch(f"{name}/{seq}", epoch, -1)
        segment = decode(entry, SegmentRecord)
        if segment.epoch != epoch or segment.state not in states:
            raise StaleEpoch(f"{name}/{seq}", epoch, segment.epoch)
        return entry, segment


def leads_alone(cache: MetaCache, record: ShardRecord, node: int) -> bool:
    """Whether the node leads the shard and no other node has its active segment. Shards with more
    replicas get their roles from the replication."""
    if record.leader != node:
        return False
    entry = cache.get(segment_key(record.name, record.active))
    return entry is None or len(decode(entry, SegmentRecord).replicas) <= 1
