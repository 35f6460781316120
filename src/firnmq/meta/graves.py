"""Graves: what is known of copies in the object store whose shards were deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from firnmq.meta.api import Compare
from firnmq.meta.ranged import RangedStore
from firnmq.meta.records import (
    SEGMENTS,
    TIER_GRAVES,
    GraveRecord,
    Record,
    SegmentRecord,
    decode,
    segment_key,
    segment_seq_of,
)

Txn = Callable[[Sequence[Compare], Mapping[str, Record], Sequence[str]], None]


class Graves:
    """A part of the ShardCatalog. Safe with threads."""

    def __init__(self, store: RangedStore, txn: Txn) -> None:
        self._store = store
        self._txn = txn

    def all(self) -> list[GraveRecord]:
        """Copies of deleted shards whose objects may still exist."""
        return [decode(entry, GraveRecord) for entry in self._store.range(TIER_GRAVES).entries]

    def forget(self, graves: Sequence[GraveRecord]) -> None:
        """Removes graves whose objects are gone; ignores missing ones."""
        keys = [grave_key(segment_key(each.shard, each.seq)) for each in graves]
        size = self._store.txn_ops_max
        for at in range(0, len(keys), size):
            self._txn([], {}, keys[at : at + size])


def grave_of(shard: str, key: str, record: SegmentRecord, now_ms: int) -> GraveRecord:
    """The grave of a segment that has a copy; `key` is that of its record."""
    assert record.tier is not None
    return GraveRecord(
        shard=shard,
        seq=segment_seq_of(key),
        tier=record.tier,
        length=record.length,
        buried_ms=now_ms,
    )


def grave_key(key: str) -> str:
    """The key of the grave of a segment's copy, which is kept after the shard is deleted."""
    return TIER_GRAVES + key.removeprefix(SEGMENTS)
