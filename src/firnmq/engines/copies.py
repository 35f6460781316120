"""A sealed segment on disk while it is written anew: bytes in some layout, indexes in RocksDB."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.engines.segments import Rows, Segment, SegmentBytes, SegmentMeta
from firnmq.engines.state import ShardSpec
from firnmq.index import RocksIndexEntries, RocksSegmentIndex
from firnmq.index.layout import segment_range


def drop_stray_entries(kv: KeyValueStore, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
    """Removes index entries in the other slots of segments, left by an interrupted compaction."""
    for meta in metas:
        drop_entries(kv, spec, meta.other_place)


def drop_entries(kv: KeyValueStore, spec: ShardSpec, place: int) -> None:
    """Removes index entries of one place, if there are any."""
    lower, upper = segment_range(spec.uid, place)
    if kv.items(Family.INDEX, lower, upper, 1):
        with kv.batch() as batch:
            batch.delete_range(Family.INDEX, lower, upper)


class StoredCopy:
    """A SegmentCopy. What an interrupted attempt left in its place is removed first."""

    def __init__(
        self, kv: KeyValueStore, content: SegmentBytes, shard_uid: int, meta: SegmentMeta
    ) -> None:
        self._kv = kv
        self._content = content
        self._uid = shard_uid
        self._place = meta.place
        self._index = RocksSegmentIndex(kv, shard_uid, meta.place)
        self._position = 0
        self.drop()
        self.sink = RocksIndexEntries(shard_uid, meta.place)

    def append(self, batches: list[Buffer]) -> None:
        """Batches in order, with the index entries that were given to the sink meanwhile."""
        rows = Rows()
        if batches:
            self._content.append(batches, self._position, rows, durable=False)
            self._position += sum(map(len, batches))
        with self._kv.batch() as batch:
            batch.put_many(Family.MESSAGES, rows.rows)
            batch.put_many(Family.INDEX, self.sink.entries)
        self.sink = RocksIndexEntries(self._uid, self._place)

    def finish(self, meta: SegmentMeta) -> Segment:
        if self._position:
            self._content.sync()
        self._kv.sync()
        return Segment(meta, self._content, self._index)

    def drop(self) -> None:
        self._content.drop()
        self._index.clear()
