"""A segment's indexes in the key-value store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firnmq.disk import Family, KeyValueStore
from firnmq.index.api import KeyHit, Point, TagHit
from firnmq.index.checkpoint import Checkpoint
from firnmq.index.entries import IndexEntries, Row
from firnmq.index.layout import (
    CHECKPOINT,
    KEY,
    OFFSET,
    PREFIX,
    TAG,
    TERM_BYTES_MAX,
    TIME,
    U64,
    aborted_key,
    checkpoint_key,
    deletion_key,
    pack_place,
    producer_key,
    segment_range,
    short_number,
    term,
    time_key,
    unpack_offsets,
)
from firnmq.record import Keys, key_entries, tag_entries

_TAG_ENTRIES_PER_READ = 256
_ENTRIES_PER_READ = 10_000
_LAST = b"\xff" * 8


class RocksIndexEntries:
    """Gathers a turn's entries for one segment; an IndexSink."""

    __slots__ = ("_key", "_offset", "_shard_uid", "_tag", "_time", "checkpoint_key", "entries")

    def __init__(self, shard_uid: int, segment_seq: int) -> None:
        self.entries: list[tuple[bytes, bytes]] = []
        self._shard_uid = shard_uid
        self.checkpoint_key = checkpoint_key(shard_uid, segment_seq)
        self._offset = PREFIX.pack(shard_uid, segment_seq, OFFSET)
        self._time = PREFIX.pack(shard_uid, segment_seq, TIME)
        self._key = PREFIX.pack(shard_uid, segment_seq, KEY)
        self._tag = PREFIX.pack(shard_uid, segment_seq, TAG)

    def add_point(self, offset: int, position: int, max_timestamp_before: int) -> None:
        place = short_number(position)
        self.entries.append((self._offset + U64.pack(offset), place))
        self.entries.append((self._time + time_key(max_timestamp_before, offset), place))

    def add_keys(self, keys: Keys, base_offset: int, position: int) -> None:
        place = short_number(position)
        self.entries += key_entries(self._key, keys, base_offset, place, term, TERM_BYTES_MAX)

    def add_tags(
        self, tags: Mapping[bytes, Sequence[int]], base_offset: int, position: int
    ) -> None:
        place = pack_place(position)
        self.entries += tag_entries(self._tag, tags, base_offset, place, term, TERM_BYTES_MAX)

    def set_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.entries.append((self.checkpoint_key, checkpoint.pack()))

    def set_producer(self, producer_id: int, packed: bytes) -> None:
        self.entries.append((producer_key(self._shard_uid, producer_id), packed))

    def set_aborted(self, last_offset: int, packed: bytes) -> None:
        self.entries.append((aborted_key(self._shard_uid, last_offset), packed))

    def set_deletion(self, offset: int, packed: bytes) -> None:
        self.entries.append((deletion_key(self._shard_uid, offset), packed))


class RocksSegmentIndex(IndexEntries):
    """Answers from the key-value store; a SegmentIndex."""

    __slots__ = ("_kv", "_segment_seq", "_shard_uid")

    def __init__(self, kv: KeyValueStore, shard_uid: int, segment_seq: int) -> None:
        self._kv = kv
        self._shard_uid = shard_uid
        self._segment_seq = segment_seq

    def floor_offset(self, offset: int) -> Point | None:
        prefix = self._prefix(OFFSET)
        found = self._kv.floor(Family.INDEX, prefix, prefix + U64.pack(offset))
        if found is None:
            return None
        key, place = found
        return Point(U64.unpack_from(key, len(prefix))[0], int.from_bytes(place, "big"))

    def floor_time(self, timestamp_ms: int) -> Point | None:
        prefix = self._prefix(TIME)
        upper = prefix + time_key(timestamp_ms - 1, 2**64 - 1)
        found = self._kv.floor(Family.INDEX, prefix, upper)
        if found is None:
            return None
        key, place = found
        return Point(U64.unpack_from(key, len(prefix) + 8)[0], int.from_bytes(place, "big"))

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        entry = self._kv.get(Family.INDEX, self._prefix(KEY) + term(key))
        if entry is None:
            return None
        return KeyHit(U64.unpack_from(entry)[0], int.from_bytes(entry[8:], "big"))

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        word = term(tag)
        prefix = self._prefix(TAG) + len(word).to_bytes(2, "big") + word
        upper = prefix + _LAST
        # The batch that holds start_offset begins at or before it.
        first = self._kv.floor(Family.INDEX, prefix, prefix + U64.pack(start_offset))
        lower = prefix if first is None else first[0]
        while entries := self._kv.items(Family.INDEX, lower, upper, _TAG_ENTRIES_PER_READ):
            for key, entry in entries:
                base_offset: int = U64.unpack_from(key, len(prefix))[0]
                position, offsets = unpack_offsets(entry)
                yield TagHit(base_offset, position, offsets)
            lower = entries[-1][0] + b"\x00"

    def rows(self, kind: int, after: bytes | None) -> list[Row]:
        prefix, upper = self._prefix(kind), self._prefix(kind + 1)
        lower = prefix if after is None else prefix + after + b"\x00"
        found = self._kv.items(Family.INDEX, lower, upper, _ENTRIES_PER_READ)
        size = len(prefix)
        return [(key[size:], value) for key, value in found]

    def checkpoint(self) -> Checkpoint | None:
        entry = self._kv.get(Family.INDEX, self._prefix(CHECKPOINT))
        return None if entry is None else Checkpoint.unpack(entry)

    def clear(self) -> None:
        """Removes every entry of the segment, its checkpoint too, durably."""
        lower, upper = segment_range(self._shard_uid, self._segment_seq)
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, lower, upper)
        self._kv.sync()

    def _prefix(self, kind: int) -> bytes:
        return PREFIX.pack(self._shard_uid, self._segment_seq, kind)
