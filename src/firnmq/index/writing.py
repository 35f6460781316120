"""Writes a turn's index entries in slices, so that other threads do not wait long.

RocksDB's write holds the interpreter's lock. Many entries are therefore written in slices, and only
the last write says that the turn is indexed. After a crash in between, the next opening detects the
incomplete entries, because the first write announces them:

1. The stored checkpoint, which still says where the synced bytes ended before this turn, with
   `indexed_upto` beyond all entries of the turn; and the rows of producers and deletions, which go
   up to there too.
2. Entries of points, keys and tags, in slices.
3. The engine's rows, and the checkpoint of the turn's end.

Recovery starts at the stored checkpoint's position and indexes the batches after it, which adds the
missing entries. If log bytes were lost, `indexed_upto` is beyond the end of the log: recovery then
clears the segment's index, rebuilds it, and resets the producers with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firnmq.disk import Family, KeyValueStore
from firnmq.index.api import NEVER_MS, TIMESTAMP_MIN
from firnmq.index.builder import RECORDS_PER_POINT
from firnmq.index.checkpoint import Checkpoint
from firnmq.index.layout import ABORTED, CHECKPOINT, DELETION, PREFIX, PRODUCER

SLICE_ENTRIES = 4_096
"""Entries per write: about 3 ms."""

Entries = list[tuple[bytes, bytes]]

_KIND_POSITION = PREFIX.size - 1
_OF_SHARDS = frozenset({PRODUCER, ABORTED, DELETION})


def write_in_slices(
    kv: KeyValueStore,
    rows: Mapping[Family, Entries],
    entries: Entries,
    base_offsets: Mapping[bytes, int],
) -> None:
    """Writes rows and index entries, unsynced. Checkpoints among the entries speak of all of them.

    `base_offsets` says where the segments of the checkpoints begin, by the checkpoints' keys.
    """
    checkpoints: Entries = []
    of_shards: Entries = []
    many: Entries = []
    for entry in entries:
        kind = entry[0][_KIND_POSITION]
        if kind == CHECKPOINT:
            checkpoints.append(entry)
        elif kind in _OF_SHARDS:
            of_shards.append(entry)
        else:
            many.append(entry)
    # A checkpoint must not claim entries that a reopened database has lost.
    opened_count = kv.opened_count
    promises = [(key, _promise(kv, key, packed, base_offsets)) for key, packed in checkpoints]
    with kv.batch(opened_count) as batch:
        batch.put_many(Family.INDEX, promises + of_shards)
    for at in range(0, len(many), SLICE_ENTRIES):
        with kv.batch(opened_count) as batch:
            batch.put_many(Family.INDEX, many[at : at + SLICE_ENTRIES])
    with kv.batch(opened_count) as batch:
        for family, some in rows.items():
            batch.put_many(family, some)
        batch.put_many(Family.INDEX, checkpoints)


def _promise(
    kv: KeyValueStore, key: bytes, packed: bytes, base_offsets: Mapping[bytes, int]
) -> bytes:
    """The segment's checkpoint as it is stored, with `indexed_upto` of the one to come."""
    after = Checkpoint.unpack(packed)
    stored = kv.get(Family.INDEX, key)
    if stored is None:
        before = Checkpoint(
            next_offset=base_offsets[key],
            position=0,
            crc=0,
            max_timestamp=TIMESTAMP_MIN,
            records_since_point=RECORDS_PER_POINT,
            indexed_upto=base_offsets[key],
            first_expiry_ms=NEVER_MS,
        )
    else:
        before = Checkpoint.unpack(stored)
    return replace(before, indexed_upto=max(before.indexed_upto, after.indexed_upto)).pack()
