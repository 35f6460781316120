"""Opening a log: finish what a crash interrupted, truncate a torn tail, index what is not indexed.

Work depends on the tail: it starts at the active segment's checkpoint, which follows the syncs.
Sealed segments are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, Protocol

from firnmq.config import Durability
from firnmq.disk.files import is_blank
from firnmq.disk.preallocation import may_be_preallocated
from firnmq.engines.catalog.segments import Segment, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.deletion.opening import append_unlogged
from firnmq.engines.shardlog.append import first_expiry, terms_of
from firnmq.engines.shardlog.backend import Backend, open_segment
from firnmq.engines.shardlog.changes import trim_deletions
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.producers import ProducerStates
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.snapshot import Snapshot, snapshot_at
from firnmq.engines.shardlog.tail import Tail
from firnmq.errors import Corruption
from firnmq.eventlog import EventLogger
from firnmq.index import Checkpoint, IndexBuilder, Point, RocksSegmentIndex
from firnmq.record import BatchEntry, BatchStream, Reason, crc32c, parse_header
from firnmq.record.deletion import deletion_of
from firnmq.record.selection import OFFSET_END

_ENTRIES_PER_COMMIT = 20_000
_log = EventLogger("engine")


class DurableStorage(Backend, Protocol):
    """A Backend whose segments are there after a restart."""

    def drop_strays(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Removes bytes and index entries that belong to none of these segments, which are all that
        are here."""


class Recovered(NamedTuple):
    """What opening a log found and did."""

    log: ShardLog
    scanned_bytes: int
    cut_bytes: int


def open_log(
    spec: ShardSpec, backend: DurableStorage, state: ShardState, failed: ShardLog | None = None
) -> Recovered:
    """Opens a shard from what is on disk.

    `failed` is the log that was open before a write or sync failed: what it had not shown
    was never acknowledged, and after a failed sync the page cache cannot be trusted to tell what
    the device holds, so it is truncated.
    """
    chain = state.chain(spec.uid)
    active = [meta for meta in chain if meta.state is SegmentState.ACTIVE]
    if not all(
        meta.is_led and meta.leader_epoch <= spec.epoch and len(meta.holders) <= 1
        for meta in active  # With other replicas, only their driver opens it: `replica_recovery`.
    ):
        raise state.not_led(spec.uid)
    start_offset = state.start_offset(spec.uid)
    deleted = [meta for meta in chain if meta.state is SegmentState.DELETED]
    segments = tuple(
        open_segment(backend, spec, meta)
        for meta in chain
        if meta.state is not SegmentState.DELETED
    )
    check_tiling(spec, segments)
    if deleted:  # A crash came between moving the start and removing the bytes.
        for meta in deleted:
            backend.drop_segment(spec, open_segment(backend, spec, meta))
        state.forget_segments(spec.uid, [meta.seq for meta in deleted if meta.tier is None])
    local = [segment.meta for segment in segments if segment.meta.is_local]
    backend.drop_strays(spec, local)
    if backend.snapshots is not None:
        backend.snapshots.drop_strays(spec, [segment.meta for segment in segments])
    producers = backend.load_producers(spec)
    deletions = Deletions(state.deletions.entries(spec.uid))
    before = Before.of(segments, start_offset)
    scan, scanned, cut = _recover_tail(
        spec, backend, segments[-1], failed, producers, deletions, before
    )
    log = ShardLog(
        spec,
        backend,
        segments=segments,
        tail=scan.tail,
        start_offset=start_offset,
        deletions=scan.deletions,
        producers=scan.producers,
    )
    trim_deletions(log)  # A crash may have come after the start moved.
    state.retired_deletions.cut(spec.uid, log.tail.next_offset)
    append_unlogged(log, state.deletions)
    return Recovered(log, scanned, cut)


def empty_log(spec: ShardSpec, backend: Backend, meta: SegmentMeta) -> ShardLog:
    """The log of a shard of which nothing was ever stored, with its first segment."""
    segment = Segment(meta, backend.open_bytes(spec, meta), backend.open_index(spec, meta))
    return ShardLog(
        spec,
        backend,
        segments=(segment,),
        tail=Tail(segment, next_offset=meta.base_offset),
        start_offset=meta.base_offset,
        deletions=Deletions({}),
        producers=ProducerStates([], []),
    )


def truncate_log(
    log: ShardLog, backend: Backend, state: ShardState | None, offset: int, position: int
) -> None:
    """Truncates the active segment at a batch border. The lock is held.

    Readers lose sight of the rest first. The index goes before the bytes, so that a crash
    between the two leaves a segment that is indexed again, not an index without bytes.
    """
    log.cut_count += 1
    try:
        log.show_truncated(offset, position)
        segment = backend.without_index(log.spec, log.tail.segment)
        segment.bytes.truncate(position)
        scan = TailScan(
            log.spec,
            backend,
            segment,
            None,
            log.producers,
            log.deletions,
            Before.of(log.segments, log.view.start_offset),
        )
        scan.run(position)
        scan.finish()
        log.producers, log.deletions = scan.producers, scan.deletions
        log.restart(scan.tail)
        trim_deletions(log)
        if state is not None:
            state.retired_deletions.cut(log.spec.uid, offset)
    finally:
        log.cut_count += 1


def _recover_tail(
    spec: ShardSpec,
    backend: Backend,
    segment: Segment,
    failed: ShardLog | None,
    producers: ProducerStates,
    deletions: Deletions,
    before: Before,
) -> tuple[TailScan, int, int]:
    """Finds where the active segment ends; returns the scan that did, bytes scanned and bytes
    truncated."""
    index = segment.index
    assert isinstance(index, RocksSegmentIndex), "a durable log has its index in RocksDB"
    checkpoint = index.checkpoint()
    length = segment.bytes.length()
    if checkpoint is not None and length < checkpoint.position:
        raise Corruption(
            f"has {length:,} bytes but {checkpoint.position:,} were synced; "
            "restore the file from a backup",
            where=segment.bytes.where,
        )
    is_new = failed is None and segment.bytes.is_file
    if is_new and checkpoint is not None and length > checkpoint.position > 0:
        check_synced(segment, checkpoint)
    limit = length if failed is None else min(_shown_length(failed, segment), length)
    if checkpoint is not None and checkpoint.position > limit:
        # Truncated below the checkpoint: only a full scan knows the state there. The checkpoint
        # goes first, since a crash after the truncation would make it promise bytes that are gone.
        index.clear()
        checkpoint = None
    scan = TailScan(spec, backend, segment, checkpoint, producers, deletions, before)
    scan.run(limit)
    tail = scan.tail
    cut_bytes = 0
    if length > tail.position:
        if failed is not None or not is_preallocated(spec, segment, tail.position, length):
            cut_bytes = length - tail.position
        segment.bytes.truncate(tail.position)
    elif scan.scanned_bytes:
        segment.bytes.sync()  # Bytes found in the page cache may not be on the device yet.
    stored = index.checkpoint()
    if stored is not None and stored.indexed_upto > tail.next_offset:
        # Entries for bytes that are gone hide among good ones: rebuild the segment's index.
        index.clear()
        scan = TailScan(spec, backend, segment, None, scan.producers, scan.deletions, before)
        scan.run(tail.position)
    scan.finish()
    return scan, scan.scanned_bytes, cut_bytes


def is_preallocated(spec: ShardSpec, segment: Segment, position: int, length: int) -> bool:
    """Whether all that follows the last batch was preallocated."""
    size = length - position
    if not segment.bytes.is_file or not (
        spec.config.durability is Durability.FSYNC and may_be_preallocated(position, size)
    ):
        return False
    try:
        return all(map(is_blank, segment.bytes.read(position, size)))
    except OSError:  # It is truncated anyway.
        return False


def check_synced(segment: Segment, checkpoint: Checkpoint) -> None:
    """Raises Corruption where there are zeros instead of what was synced last: a preallocated file
    is long enough whatever it holds. A reader detects anything else that is wrong."""
    last_offset = checkpoint.next_offset - 1
    point = segment.index.floor_offset(last_offset) or Point(segment.meta.base_offset, 0)
    scan = SegmentScan(segment, point, checkpoint.position)
    is_lost = False
    with suppress(OSError):
        with suppress(Corruption):
            while scan.read(CHUNK_BYTES):
                pass
        left = checkpoint.position - scan.position
        is_lost = left > 0 and all(map(is_blank, segment.bytes.read(scan.position, left)))
    if is_lost:
        raise Corruption(
            f"is blank from byte {scan.position:,} on but {checkpoint.position:,} were synced; "
            "restore the file from a backup",
            where=segment.bytes.where,
        )


class Before(NamedTuple):
    """What the metadata know of a log before its active segment."""

    start_offset: int
    transactions: tuple[OpenTransaction, ...]
    """Those that were open where the active segment begins."""
    has_moved: bool
    """Whether another node may have led what comes before: rows here may be older."""

    @classmethod
    def of(cls, segments: tuple[Segment, ...], start_offset: int) -> Before:
        active = segments[-1].meta
        last = segments[-2].meta if len(segments) > 1 else None
        # The holders of a segment are known in a cluster alone.
        is_ours = not active.holders or active.leader_epoch == 0 or active.base_offset == 0
        if last is not None:
            is_ours = is_ours or last.is_led
        return cls(start_offset, () if last is None else last.transactions, not is_ours)


def _shown_length(log: ShardLog, segment: Segment) -> int:
    """What the failed log had shown of the segment; nothing if that was begun by a roll of which
    the log did not learn."""
    view = log.view
    is_same = view.segments[-1].meta.seq == segment.meta.seq
    return view.active_length if is_same else 0


class TailScan:
    """Walks an active segment from its checkpoint, checking and indexing every batch.

    What is kept of producers and deletions goes up to where the segment is indexed. Without a
    checkpoint it may speak of what is gone. Then the snapshot at the segment's beginning replaces
    it, or it is taken back to there if there is none, and the scan adds the rest.
    """

    def __init__(
        self,
        spec: ShardSpec,
        backend: Backend,
        segment: Segment,
        checkpoint: Checkpoint | None,
        producers: ProducerStates,
        deletions: Deletions,
        before: Before,
        *,
        has_replicas: bool = False,
    ) -> None:
        """With replicas, `sink` keeps what the scan adds: it waits for the high watermark."""
        self._has_replicas = has_replicas
        self.producers = producers
        self.deletions = deletions
        self._now_ms = backend.clock.now_ms()
        self._known_upto = segment.meta.base_offset
        if checkpoint is not None:
            self._known_upto = checkpoint.indexed_upto
        elif not self._restore(spec, backend, before):
            if producers.rewind(self._known_upto, before.transactions, self._now_ms):
                backend.forget_aborted(spec, self._known_upto, OFFSET_END)
            if any(deletions.entries(self._known_upto, OFFSET_END)):
                self.deletions = deletions.rewound(self._known_upto)
                backend.state.forget_deletions(spec.uid, self._known_upto)
        self._spec = spec
        self._backend = backend
        self._segment = segment
        self.sink = backend.turn_index(spec, segment)
        self.scanned_bytes = 0
        self.tail = _tail_at(segment, checkpoint)
        if self.tail.position:
            self.tail.first_append_ms = segment.meta.created_ms

    def _restore(self, spec: ShardSpec, backend: Backend, before: Before) -> bool:
        """Begins with the snapshot at the segment's beginning; False if there is none."""
        snapshot = _read_snapshot(spec, backend, self._known_upto, has_moved=before.has_moved)
        if snapshot is None:
            return False
        snapshot = snapshot.from_offset(before.start_offset)
        if snapshot != snapshot_at(self._known_upto, self.producers, self.deletions):
            backend.restore(spec, snapshot)
        self.producers = snapshot.producer_states()
        self.deletions = Deletions(dict(snapshot.deletions))
        return True

    def run(self, limit: int) -> None:
        """Takes batches up to the limit or the first that is torn or corrupt."""
        start = position = self.tail.position
        stream = BatchStream(
            position=start, offset=self.tail.next_offset, end_position=limit, verify=True
        )
        while stream.position < limit:
            size = min(max(CHUNK_BYTES, stream.needed_bytes), limit - stream.position)
            for buffer in self._segment.bytes.read(stream.position, size):
                run = stream.judge(buffer)
                if run is not None:
                    for entry in run.entries:
                        if self._is_of_earlier_segment(entry):
                            self.scanned_bytes += self.tail.position - start
                            return
                        self._take(run.batch(entry), entry)
                if stream.stop is not None:
                    break
            stop = stream.stop
            has_progress = stream.position > position or size < stream.needed_bytes
            if not has_progress or (stop is not None and stop.reason is not Reason.INCOMPLETE):
                break
            position = stream.position
        self.scanned_bytes += stream.position - start

    def _is_of_earlier_segment(self, entry: BatchEntry) -> bool:
        """A replica of a segment that was sealed where it began may still have bytes here, in the
        place of the segment that begins there now. That has another leader epoch."""
        return self._has_replicas and entry.leader_epoch != self._segment.meta.leader_epoch

    def finish(self) -> None:
        """Commits what is left, with a checkpoint at the end."""
        if self.scanned_bytes:
            self.sink.set_checkpoint(self.tail.checkpoint())
            self.add_states()
            self._commit()
        self.deletions.show(self.tail.next_offset)

    def add_states(self) -> None:
        """Adds to the sink what is known of producers and deletions at the end. It is stored with
        the checkpoint, as the next recovery begins at that and does not look back."""
        self.producers.store_changes(self.sink)
        self.deletions.store_changes(self.sink)

    def _take(self, batch: memoryview, entry: BatchEntry) -> None:
        tail = self.tail
        tail.builder.add(
            self.sink,
            position=tail.position,
            base_offset=entry.base_offset,
            record_count=entry.record_count,
            max_timestamp=entry.max_timestamp,
            terms=terms_of(batch, self._spec.config),
            first_expiry_ms=first_expiry(batch, self._spec.config),
        )
        tail.crc = crc32c(batch, tail.crc)
        tail.position += entry.size
        tail.next_offset = entry.last_offset + 1
        if entry.base_offset >= self._known_upto:
            if entry.producer_id >= 0:
                self.producers.note(parse_header(batch, 0), entry.base_offset, batch, self._now_ms)
            elif (deletion := deletion_of(batch)) is not None:
                self.deletions.note(entry.base_offset, deletion)
        if tail.first_append_ms is None:
            tail.first_append_ms = self._segment.meta.created_ms
        if len(self.sink.entries) >= _ENTRIES_PER_COMMIT and not self._has_replicas:
            self._commit()

    def _commit(self) -> None:
        self._backend.commit_entries(self.sink.entries)
        self.sink = self._backend.turn_index(self._spec, self._segment)


def _read_snapshot(
    spec: ShardSpec, backend: Backend, end_offset: int, *, has_moved: bool
) -> Snapshot | None:
    """The snapshot at an offset. A damaged one is as good as none, because the rows go at least as
    far. If the shard has moved, they may not: then there must be a snapshot."""
    if backend.snapshots is None:
        return None
    try:
        snapshot = backend.snapshots.read(spec, end_offset)
        if snapshot is None and has_moved:
            raise Corruption(f"the snapshot at offset {end_offset:,} is missing", where=spec.name)
        return snapshot
    except Corruption as error:
        if has_moved:
            raise
        _log.warning("snapshot_damaged", shard=spec.name, error=str(error))
        return None


def _tail_at(segment: Segment, checkpoint: Checkpoint | None) -> Tail:
    if checkpoint is None:
        return Tail(segment, next_offset=segment.meta.base_offset)
    builder = IndexBuilder(
        max_timestamp=checkpoint.max_timestamp,
        records_since_point=checkpoint.records_since_point,
        first_expiry_ms=checkpoint.first_expiry_ms,
    )
    return Tail(
        segment,
        next_offset=checkpoint.next_offset,
        position=checkpoint.position,
        crc=checkpoint.crc,
        builder=builder,
    )


def check_tiling(spec: ShardSpec, segments: tuple[Segment, ...]) -> None:
    """Segments must follow each other without gap or overlap, and the last must be active."""
    active = [segment for segment in segments if segment.meta.state is SegmentState.ACTIVE]
    if len(active) != 1 or segments[-1] is not active[0]:
        raise Corruption("the chain does not end in one active segment", where=spec.name)
    for before, after in pairwise(segments):
        if before.meta.end_offset != after.meta.base_offset:
            raise Corruption(
                f"segment {before.meta.seq} ends at {before.meta.end_offset}, "
                f"segment {after.meta.seq} begins at {after.meta.base_offset}",
                where=spec.name,
            )
