"""Opening the log of a replica.

What is above the high watermark waits for it again. The last one that this node knows of is as far
as the segment is indexed.
"""

from __future__ import annotations

import dataclasses

from firnmq.disk import Settlement
from firnmq.engines.catalog.segments import Segment, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.shardlog.backend import open_segment
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.recovery import (
    Before,
    DurableStorage,
    TailScan,
    check_synced,
    check_tiling,
    is_preallocated,
)
from firnmq.engines.shardlog.replica import (
    LogReplica,
    Reached,
    ReplicaFailed,
    ReplicaListener,
)
from firnmq.engines.shardlog.watermark import PendingPoint
from firnmq.errors import Corruption, FirnError
from firnmq.eventlog import EventLogger
from firnmq.index import Checkpoint, RocksSegmentIndex

_log = EventLogger("engine")


def open_replica(
    spec: ShardSpec,
    backend: DurableStorage,
    state: ShardState,
    meta: SegmentMeta,
    listener: ReplicaListener,
    refused: FirnError,
    failed: Reached | None,
    *,
    leads: bool,
) -> ShardLog:
    """Opens a log whose tail is a replica of the segment, sealed or not.

    `failed` is what was durable of it before a write or sync failed; the rest is truncated, since
    after a failed sync the page cache cannot be trusted to tell what the device holds.
    """
    chain = [
        each
        for each in state.chain(spec.uid)
        if each.seq < meta.seq and each.state is not SegmentState.DELETED
    ]
    chain.append(as_active(meta))
    segments = tuple(open_segment(backend, spec, each) for each in chain)
    check_tiling(spec, segments)
    backend.drop_strays(spec, [each for each in chain if each.is_local])
    if backend.snapshots is not None:
        backend.snapshots.drop_strays(spec, chain)
    start_offset = state.start_offset(spec.uid)
    before = Before.of(segments, start_offset)
    scan, stored = _scan_tail(spec, backend, state, segments[-1], before, failed)
    tail = scan.tail
    if leads and tail.position:
        raise ReplicaFailed(spec.name, f"has {tail.position:,} bytes, and may not lead")
    shown_end = tail.segment.meta.base_offset if stored is None else stored.next_offset
    log = ShardLog(
        spec,
        backend,
        segments=segments,
        tail=tail,
        start_offset=min(start_offset, shown_end),
        deletions=scan.deletions,
        producers=scan.producers,
    )
    log.replica = log.replication = LogReplica(log, listener, refused, leads=leads)
    _hide_tail(log, scan, stored, shown_end)
    return log


def as_active(meta: SegmentMeta) -> SegmentMeta:
    """The segment as the tail of a log, which does not know where it ends."""
    return dataclasses.replace(
        meta,
        state=SegmentState.ACTIVE,
        end_offset=-1,
        length=0,
        crc=0,
        max_timestamp=-1,
        sealed_ms=-1,
        transactions=(),
        first_expiry_ms=0,
        is_local=True,
    )


def _scan_tail(
    spec: ShardSpec,
    backend: DurableStorage,
    state: ShardState,
    segment: Segment,
    before: Before,
    failed: Reached | None,
) -> tuple[TailScan, Checkpoint | None]:
    """Finds where the replica ends, truncates and syncs it there; with the checkpoint from which
    the scan began."""
    index = index_of(segment)
    checkpoint = index.checkpoint()
    length = segment.bytes.length()
    if checkpoint is not None and length < checkpoint.position:
        raise Corruption(
            f"has {length:,} bytes but {checkpoint.position:,} were synced",
            where=segment.bytes.where,
        )
    is_new = failed is None and segment.bytes.is_file
    if is_new and checkpoint is not None and length > checkpoint.position > 0:
        check_synced(segment, checkpoint)
    limit = length if failed is None else min(failed.facts.length, length)

    def scanned(begin: Checkpoint | None) -> TailScan:
        producers = backend.load_producers(spec)
        deletions = Deletions(state.deletions.entries(spec.uid))
        scan = TailScan(
            spec, backend, segment, begin, producers, deletions, before, has_replicas=True
        )
        scan.run(limit)
        return scan

    scan = scanned(checkpoint)
    tail = scan.tail
    if length > tail.position:
        if failed is not None or not is_preallocated(spec, segment, tail.position, length):
            _log.warning("tail_cut", shard=spec.name, cut_bytes=length - tail.position)
        segment.bytes.truncate(tail.position)
    elif scan.scanned_bytes:
        segment.bytes.sync()  # Bytes found in the page cache may not be on the device yet.
    if checkpoint is not None and checkpoint.indexed_upto > tail.next_offset:
        # Entries for bytes that are gone hide among good ones: rebuild the segment's index.
        index.clear()
        limit, checkpoint = tail.position, None
        scan = scanned(None)
    return scan, checkpoint


def _hide_tail(log: ShardLog, scan: TailScan, stored: Checkpoint | None, end_offset: int) -> None:
    """Shows the log up to the checkpoint; the rest waits for the high watermark."""
    log.stored = stored
    log.deletions.show(end_offset)
    if end_offset == log.tail.next_offset:
        return
    whole = log.view
    log.view = whole._replace(
        end_offset=end_offset,
        active_length=0 if stored is None else stored.position,
        stable_offset=min(whole.stable_offset, end_offset),
    )
    scan.add_states()
    log.stored = log.tail.checkpoint()
    point = PendingPoint(whole, [], list(scan.sink.entries), log.stored)
    log.add_pending(point, Settlement())


def is_complete(segment: Segment) -> bool:
    """Whether a sealed segment's bytes and index entries are all here, as far as the index says."""
    meta, checkpoint = segment.meta, index_of(segment).checkpoint()
    if checkpoint is None:
        return meta.length == 0
    return (checkpoint.indexed_upto, checkpoint.position, checkpoint.crc) == (
        meta.end_offset,
        meta.length,
        meta.crc,
    )


def index_of(segment: Segment) -> RocksSegmentIndex:
    assert isinstance(segment.index, RocksSegmentIndex), "a durable log has its index in RocksDB"
    return segment.index
