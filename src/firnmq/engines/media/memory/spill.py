"""Writes a sealed memory segment to a file with its indexes in the key-value store."""

from __future__ import annotations

from firnmq.disk import Family, KeyValueStore
from firnmq.engines.catalog.segments import Rows, Segment, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.catalog.transactions import AbortedTransaction, AbortedTransactions
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.deletion.rows import DeletionRows
from firnmq.engines.media.layouts import PartitionPerFile
from firnmq.engines.shardlog.append import first_expiry, terms_of
from firnmq.engines.shardlog.producers import ProducerStates, pack_aborted, unpack_aborted
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.index import IndexBuilder, Point, RocksIndexEntries, RocksSegmentIndex
from firnmq.index.layout import aborted_key, aborted_range, last_offset_of, lost_key


def spill(
    spec: ShardSpec, segment: Segment, *, kv: KeyValueStore, layout: PartitionPerFile
) -> Segment:
    """The same segment on disk, synced; its description still has to be saved.

    What an interrupted attempt left behind is removed first.
    """
    meta = segment.meta.become_spilled()
    content = layout.open_bytes(spec, meta)
    index = RocksSegmentIndex(kv, spec.uid, meta.place)
    content.drop()
    index.clear()
    builder = IndexBuilder()
    scan = SegmentScan(segment, Point(meta.base_offset, 0), meta.length)
    while runs := scan.read(CHUNK_BYTES):
        entries = RocksIndexEntries(spec.uid, meta.place)
        for run in runs:
            content.append([run.buffer], run.position, Rows(), durable=False)
            for entry in run.entries:
                builder.add(
                    entries,
                    position=run.position + entry.position,
                    base_offset=entry.base_offset,
                    record_count=entry.record_count,
                    max_timestamp=entry.max_timestamp,
                    terms=terms_of(run.batch(entry), spec.config),
                    first_expiry_ms=first_expiry(run.batch(entry), spec.config),
                )
        with kv.batch() as batch:
            batch.put_many(Family.INDEX, entries.entries)
    if meta.length:
        content.sync()
    return Segment(meta, content, index)


def save_aborted(
    spec: ShardSpec, meta: SegmentMeta, aborted: AbortedTransactions, kv: KeyValueStore
) -> None:
    """Keeps what a reader of the spilled segment has to pass over; unsynced."""
    found = aborted.overlapping(meta.base_offset, meta.end_offset)
    if found:
        with kv.batch() as batch:
            for each in found:
                key = aborted_key(spec.uid, each.last_offset)
                batch.put(Family.INDEX, key, pack_aborted(each))


def recall_deletions(spec: ShardSpec, chain: list[SegmentMeta], rows: DeletionRows) -> Deletions:
    """What entries in the spilled segments delete."""
    end = chain[-1].end_offset if chain else 0
    entries = rows.entries(spec.uid)
    if any(offset >= end for offset in entries):  # A spill did not come to its end.
        rows.forget_entries(spec.uid, end)
    return Deletions({offset: each for offset, each in entries.items() if offset < end})


def recall_producers(
    spec: ShardSpec, chain: list[SegmentMeta], kv: KeyValueStore
) -> ProducerStates:
    """What is known of producers when only the spilled segments have come back.

    Transactions that were open at their end have lost their rest and count as aborted from now on,
    whatever became of them. That they end here is kept, since the offsets after it are given out
    again: they must not hide what is stored there, and must not come back once more is spilled.
    """
    end = chain[-1].end_offset if chain else 0
    kept: list[AbortedTransaction] = []
    cut: list[AbortedTransaction] = []
    for key, packed in kv.items(Family.INDEX, *aborted_range(spec.uid)):
        each = unpack_aborted(last_offset_of(key), packed)
        (kept if each.last_offset < end else cut).append(each)
    ended = {(each.producer_id, each.first_offset) for each in kept}
    opened = {(each[0], each[2]) for each in (chain[-1].transactions if chain else ())}
    opened.update((each.producer_id, each.first_offset) for each in cut if each.first_offset < end)
    first = min((first_offset for _, first_offset in opened), default=end)
    lost = [
        AbortedTransaction(producer_id, first_offset, end - 1, first)
        for producer_id, first_offset in sorted(opened - ended)
    ]
    if cut or lost:
        with kv.batch() as batch:
            batch.delete_range(Family.INDEX, *aborted_range(spec.uid, end))
            for each in lost:
                key = lost_key(spec.uid, each.last_offset, each.producer_id)
                batch.put(Family.INDEX, key, pack_aborted(each))
    return ProducerStates(aborted=[*kept, *lost])
