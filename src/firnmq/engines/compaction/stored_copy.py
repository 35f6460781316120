"""A sealed segment on disk while it is rewritten: bytes in some layout, indexes in RocksDB.

What a crash leaves of one that never became part of its shard is removed when the shard is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Rows, Segment, SegmentBytes, SegmentMeta
from firnmq.index import RocksIndexEntries, RocksSegmentIndex
from firnmq.index.layout import NO_SEGMENT, place_prefix


def drop_strays_of(
    kv: KeyValueStore, family: Family, shard_uid: int, metas: Iterable[SegmentMeta]
) -> None:
    """Removes a shard's rows or index entries in places that none of its segments has.

    An interrupted compaction or spill leaves some, at any number: the segment that was written may
    have been dropped since, or may not be in the catalog yet. Unsynced, since the next opening
    looks again. There is one look per gap between places, and a chain has few.
    """
    for lower, upper in gaps_between(shard_uid, metas):
        if kv.items(family, lower, upper, 1):
            with kv.batch() as batch:
                batch.delete_range(family, lower, upper)


def gaps_between(shard_uid: int, metas: Iterable[SegmentMeta]) -> Iterator[tuple[bytes, bytes]]:
    """Ranges of keys between the places of segments; what is of the shard as a whole is in none."""
    free = 0
    for place in (*sorted(meta.place for meta in metas), NO_SEGMENT):
        if place > free:
            yield place_prefix(shard_uid, free), place_prefix(shard_uid, place)
        free = place + 1


class StoredCopy:
    """A SegmentCopy. What an interrupted attempt left in its place is removed first."""

    def __init__(
        self,
        kv: KeyValueStore,
        content: SegmentBytes,
        shard_uid: int,
        meta: SegmentMeta,
        write: Callable[[Rows, list[tuple[bytes, bytes]]], None],
    ) -> None:
        """`write` stores rows and index entries, unsynced."""
        self._kv = kv
        self._write = write
        self._content = content
        self._uid = shard_uid
        self._place = meta.place
        self._index = RocksSegmentIndex(kv, shard_uid, meta.place)
        self._position = 0
        self.drop()
        self.sink = RocksIndexEntries(shard_uid, meta.place)

    def append(self, batches: list[Buffer]) -> None:
        """Batches in order, with the index entries that the sink got since the last call."""
        rows = Rows()
        if batches:
            self._content.append(batches, self._position, rows, durable=False)
            self._position += sum(map(len, batches))
        self._write(rows, self.sink.entries)
        self.sink = RocksIndexEntries(self._uid, self._place)

    def finish(self, meta: SegmentMeta) -> Segment:
        if self._position:
            self._content.sync()
        self._kv.sync()
        return Segment(meta, self._content, self._index)

    def drop(self) -> None:
        self._content.drop()
        self._index.clear()
