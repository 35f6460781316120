"""What changes the role, the end or the segment of a replica's log. The lock is held."""

from __future__ import annotations

from firnmq.disk import Settlement
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.shardlog.changes import Leftovers, drops_of
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.recovery import Before, TailScan, truncate_log
from firnmq.engines.shardlog.replica import Reached, ReplicaFailed, reached_by
from firnmq.engines.shardlog.replica_recovery import index_of
from firnmq.engines.shardlog.rolling import RollMachine, steps
from firnmq.errors import AppendTimedOut
from firnmq.index import Point


def stop_leading(log: ShardLog) -> Reached:
    """Ends what the log does as a leader: appends that wait have an unknown outcome, those that
    are parked were not stored, and a roll under way finds that it is not wanted any more."""
    replica = log.replica
    assert replica is not None
    unknown = AppendTimedOut(is_unknown=True)
    log.fail_requests(unknown)
    replica.drop_waiting(unknown)
    log.wants_roll = False
    log.rolling = RollMachine()
    log.change_ended.notify_all()
    log.parked.fail(replica.refused)
    settlement = Settlement()
    log.watchers.wake(settlement)
    settlement.deliver()
    return reached_by(log)


def truncate_replica(log: ShardLog, state: ShardState, end_offset: int) -> Reached:
    """Truncates the log's tail to where its segment was sealed; all that is left counts, so it is
    indexed and shown. The lock is held."""
    tail = log.tail
    if tail.next_offset <= end_offset:
        return reached_by(log)
    backend = log.backend
    position = _border_at(log, end_offset)
    checkpoint = index_of(tail.segment).checkpoint()
    replica = log.replica
    assert replica is not None
    if checkpoint is not None and checkpoint.indexed_upto > end_offset:
        # The seal has lost what was shown: only a full scan undoes that.
        truncate_log(log, backend, state, end_offset, position)
        replica.truncated(log)
        return reached_by(log)
    log.cut_count += 1
    try:
        view = log.view
        if end_offset < view.end_offset:
            log.show_truncated(end_offset, position)
        else:
            log.show_truncated(view.end_offset, view.active_length)
        tail.segment.bytes.truncate(position)
        scan = TailScan(
            log.spec,
            backend,
            tail.segment,
            checkpoint,
            backend.load_producers(log.spec),
            Deletions(state.deletions.entries(log.spec.uid)),
            Before.of(log.segments, log.view.start_offset),
        )
        scan.run(position)
        scan.finish()
        log.producers, log.deletions = scan.producers, scan.deletions
        log.restart(scan.tail)
    finally:
        log.cut_count += 1
    replica.truncated(log)
    return reached_by(log)


def _border_at(log: ShardLog, offset: int) -> int:
    """Where the offset's batch begins."""
    replica, segment = log.replica, log.tail.segment
    assert replica is not None
    found = replica.border(offset)
    if found is not None:
        return found
    point = segment.index.floor_offset(offset) or Point(segment.meta.base_offset, 0)
    scan = SegmentScan(segment, point, log.tail.position)
    while runs := scan.read(CHUNK_BYTES):
        for run in runs:
            for entry in run.entries:
                if entry.base_offset == offset:
                    return run.position + int(entry.position)
    raise ReplicaFailed(log.spec.name, f"has no batch that begins at {offset}")


def install(
    log: ShardLog,
    sealed: SegmentMeta,
    active: SegmentMeta,
    spec: ShardSpec,
    start_offset: int,
    *,
    leads: bool,
) -> Reached:
    """Goes on with the next segment, as the metadata have it."""
    replica = log.replica
    assert replica is not None
    if replica.leads:
        raise ReplicaFailed(log.spec.name, "leads, and is not to be told of the next segment")
    finish_sealed(log, sealed, spec)
    if replica.fence:
        log.backend.forget_fence(replica.id)
    if not sealed.length:
        index_of(log.tail.segment).clear()  # The metadata forget an empty segment.
    log.spec = spec
    steps.install(log, steps.Seal(sealed, active))
    follow_start(log, start_offset)
    steps.drop_old_snapshots(log)
    replica.leads = leads
    return reached_by(log)


def follow_start(log: ShardLog, start_offset: int) -> None:
    """Shows that the shard starts later, as its leader has had it written to the metadata. What is
    here of segments below that becomes a leftover, which `clean_up` removes."""
    start_offset = min(start_offset, log.view.end_offset)
    if start_offset <= log.view.start_offset:
        return
    gone = [
        segment
        for segment in log.segments
        if segment.meta.is_sealed and segment.meta.end_offset <= start_offset
    ]
    log.segments = log.segments[len(gone) :]
    if log.producers.forget_below(start_offset):
        log.leftovers.has_old_aborted = True
    log.show_start(start_offset)
    log.leftovers.has_old_rows = True
    log.leftovers.add(Leftovers(drops_of(log, gone)))


def finish_sealed(log: ShardLog, sealed: SegmentMeta, spec: ShardSpec) -> None:
    """Shows, indexes and syncs all of a segment that is sealed where its replica here ends, and
    keeps what the log knows there. `spec` is that of the next segment."""
    tail, backend = log.tail, log.backend
    found = (tail.segment.meta.seq, tail.next_offset, tail.position, tail.crc)
    wanted = (sealed.seq, sealed.end_offset, sealed.length, sealed.crc)
    if found != wanted:
        raise ReplicaFailed(
            log.spec.name,
            f"ends in segment {found[0]} at {found[1]} with {found[2]:,} bytes of CRC "
            f"{found[3]:08x}, the sealed one is {wanted[0]} up to {wanted[1]} with "
            f"{wanted[2]:,} bytes of CRC {wanted[3]:08x}",
        )
    log.show_all_pending()
    if tail.position:  # Else there may be no file.
        log.release_preallocation()
        tail.segment.bytes.sync()
    steps.commit(log)
    if backend.snapshots is not None:
        backend.snapshots.write(spec, steps.snapshot_of(log))
    backend.sync_index()
