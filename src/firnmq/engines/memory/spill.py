"""Writes a sealed memory segment to a file with its indexes in the key-value store."""

from __future__ import annotations

from firnmq.disk import Family, KeyValueStore
from firnmq.engines.layouts import PartitionPerFile
from firnmq.engines.segments import Rows, Segment
from firnmq.engines.shardlog.append import terms_of
from firnmq.engines.shardlog.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.state import ShardSpec
from firnmq.index import IndexBuilder, Point, RocksIndexEntries, RocksSegmentIndex


def spill(
    spec: ShardSpec, segment: Segment, *, kv: KeyValueStore, layout: PartitionPerFile
) -> Segment:
    """The same segment on disk, synced; its description still has to be saved.

    What an interrupted attempt left behind is removed first.
    """
    meta = segment.meta.become_spilled()
    content = layout.open_bytes(spec, meta)
    index = RocksSegmentIndex(kv, spec.uid, meta.seq)
    content.drop()
    index.clear()
    builder = IndexBuilder()
    scan = SegmentScan(segment, Point(meta.base_offset, 0), meta.length)
    while runs := scan.read(CHUNK_BYTES):
        entries = RocksIndexEntries(spec.uid, meta.seq)
        for run in runs:
            content.append([run.buffer], run.position, Rows())
            for entry in run.entries:
                builder.add(
                    entries,
                    position=run.position + entry.position,
                    base_offset=entry.base_offset,
                    record_count=entry.record_count,
                    max_timestamp=entry.max_timestamp,
                    terms=terms_of(run.batch(entry), spec.config),
                )
        with kv.batch() as batch:
            batch.put_many(Family.INDEX, entries.entries)
    content.sync()
    return Segment(meta, content, index)
