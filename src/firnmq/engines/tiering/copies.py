"""Copies of a log's segments in an object store: how they begin, end and take the place of what is
here, and what an uploader reads. The log's lock is held unless said otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import cast

from firnmq.config import TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Segment, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardState
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.changes import change_copy, take_changes
from firnmq.engines.tiering.api import IndexDump, RemoteIndex, TierCopy
from firnmq.errors import Corruption, InvalidArgument, StaleEpoch


def begin_copy(log: ShardLog, seq: int, copy: TierCopy) -> SegmentMeta:
    """Notes that a copy is under way, in place of an unfinished one; the segment as it was."""
    segment = sealed_segment(log, seq)
    _check_stored(log, segment)
    before = segment.meta
    if before.state is not SegmentState.SEALED:
        raise StaleEpoch(f"{log.spec.name}/{seq}", before.epoch, before.epoch)
    change_copy(log, segment, before.with_copy(dataclasses.replace(copy, is_done=False)))
    return before


def finish_copy(log: ShardLog, seq: int, copy: TierCopy) -> SegmentMeta:
    """Notes that a copy is whole; StaleEpoch unless it is the one that was begun last."""
    segment = sealed_segment(log, seq)
    meta = segment.meta
    if meta.tier is None or meta.tier.upload_id != copy.upload_id:
        raise StaleEpoch(f"{log.spec.name}/{seq}", -1, meta.epoch)
    if meta.state is SegmentState.TIERED:
        return meta  # An answer got lost, not the change.
    return change_copy(log, segment, meta.become_tiered(dataclasses.replace(copy, is_done=True)))


def abandon_copy(log: ShardLog, seq: int, upload_id: str) -> bool:
    """Forgets an unfinished copy, unless another was begun since or it was finished. Returns
    whether it did."""
    try:
        segment = sealed_segment(log, seq)
    except StaleEpoch:
        return False
    meta = segment.meta
    is_same = meta.tier is not None and meta.tier.upload_id == upload_id
    if not is_same or meta.state is not SegmentState.SEALED:
        return False
    change_copy(log, segment, meta.with_copy(None))
    return True


def lose_copy(log: ShardLog, seq: int, upload_id: str) -> TierCopy | None:
    """Makes a segment whose copy is not whole any more a sealed one, to be copied again. Returns
    the copy that it had, None if nothing was changed. Only a local segment can do without."""
    try:
        segment = sealed_segment(log, seq)
    except StaleEpoch:
        return None
    meta = segment.meta
    is_same = meta.tier is not None and meta.tier.upload_id == upload_id
    if not is_same or meta.state is not SegmentState.TIERED or not meta.is_local:
        return None
    change_copy(log, segment, meta.become_untiered())
    return meta.tier


def become_remote(log: ShardLog, seq: int) -> Segment | None:
    """Shows readers the copy in the store instead of what is here, which then can go.

    None if no node has anything of it any more. Other nodes that have it follow the metadata.
    """
    segment = sealed_segment(log, seq)
    if not segment.meta.is_on_nodes:
        return None
    if segment.meta.state is not SegmentState.TIERED:
        raise InvalidArgument(
            "segment", f"{seq} of {log.spec.name} is not in the object store yet, so it stays here"
        )
    if log.backend.cold is None:
        raise InvalidArgument(
            "segment", f"{seq} of {log.spec.name} stays here: no object store is configured"
        )
    change_copy(log, segment, segment.meta.become_remote())
    return segment


def sealed_segment(log: ShardLog, seq: int) -> Segment:
    """A sealed segment as the catalog has it now; StaleEpoch if there is none of this number."""
    take_changes(log, seq)
    for segment in log.segments:
        if segment.meta.seq == seq and segment.meta.is_sealed:
            return segment
    raise StaleEpoch(f"{log.spec.name}/{seq}", -1, -1)


class SegmentSource:
    """A SealedSource over a segment that a node has, this one or another. Needs no lock.

    If the segment is dropped while it is copied, reading raises SegmentGone, or the index has less:
    the copy can then not be finished.
    """

    def __init__(self, log: ShardLog, segment: Segment, state: ShardState) -> None:
        _check_stored(log, segment)
        self._log = log
        self._segment = segment
        self._state = state
        self.meta = segment.meta

    def chunks(self, size: int) -> Iterator[Buffer]:
        """The bytes as they are stored, `size` at a time but for the last."""
        pending = bytearray()
        position, length = 0, self.meta.length
        while position < length:
            buffers = self._segment.bytes.read(position, min(size, length - position))
            got = sum(map(len, buffers))
            if not got:
                where = self._segment.bytes.where
                raise Corruption("ends before its length", where=where, position=position)
            position += got
            if len(buffers) == 1 and not pending and (got == size or position == length):
                yield buffers[0]
                continue
            for buffer in buffers:
                pending += buffer
            while len(pending) >= size:
                yield bytes(memoryview(pending)[:size])
                del pending[:size]
        if pending:
            yield bytes(pending)

    def index(self) -> IndexDump:
        meta, index = self.meta, cast(RemoteIndex, self._segment.index)
        return IndexDump(
            points=index.points(),
            keys=index.keys(),
            tags=index.tags(),
            aborted=tuple(self._log.view.aborted.overlapping(meta.base_offset, meta.end_offset)),
            producers=self._producers(),
            deletions=tuple(self._log.deletions.entries(meta.base_offset, meta.end_offset)),
        )

    def _producers(self) -> tuple[tuple[int, bytes], ...]:
        """From the snapshot at the segment's end; an earlier version kept them in the metadata."""
        log, meta = self._log, self.meta
        snapshots = log.backend.snapshots
        snapshot = None if snapshots is None else snapshots.read(log.spec, meta.end_offset)
        if snapshot is None and not meta.is_local:
            snapshot = cast(RemoteIndex, self._segment.index).snapshot()
        if snapshot is not None:
            return snapshot.producers
        return self._state.producers(log.spec.uid, meta.seq)


def _check_stored(log: ShardLog, segment: Segment) -> None:
    if not segment.meta.is_on_nodes:
        raise StaleEpoch(f"{log.spec.name}/{segment.meta.seq}", -1, segment.meta.epoch)
    if segment.bytes.is_memory:
        raise InvalidArgument(
            "segment",
            f"{segment.meta.seq} of {log.spec.name} is only in memory; with memory.overflow=spill "
            "it can be copied once it is spilled",
        )


def check_change(metas: Iterable[SegmentMeta], config: TopicConfig) -> None:
    """InvalidArgument if a shard with these segments cannot have these options."""
    live = [meta for meta in metas if meta.is_sealed]
    if not config.is_tiered and not all(meta.is_local for meta in live):
        raise InvalidArgument(
            "tiering",
            "cannot be turned off while segments are in the object store alone; "
            "wait until retention has removed them, or lower retention.ms",
        )
    if config.compacts and any(meta.tier is not None for meta in live):
        raise InvalidArgument(
            "cleanup.policy",
            "cannot compact a topic that has segments in the object store, which never change",
        )
