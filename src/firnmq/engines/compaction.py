"""Which segments compaction may and should work on. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from firnmq.config import TopicConfig
from firnmq.engines.segments import SegmentMeta, SegmentState


def cleanable(
    segments: Sequence[SegmentMeta], config: TopicConfig, stable_offset: int, now_ms: int
) -> list[SegmentMeta]:
    """Sealed segments, from the oldest on without a gap, that may be compacted now.

    What is at or beyond the stable offset is of transactions that have not ended, and what is
    younger than `min.compaction.lag.ms` must stay as it is.
    """

    def may_be(meta: SegmentMeta) -> bool:
        is_plain = meta.state is SegmentState.SEALED and meta.tier is None
        if not is_plain or meta.end_offset > stable_offset:
            return False
        lag_ms = config.min_compaction_lag_ms
        newest_ms = meta.max_timestamp if meta.max_timestamp >= 0 else meta.sealed_ms
        return meta.is_compacted or lag_ms == 0 or newest_ms + lag_ms <= now_ms

    return list(takewhile(may_be, segments))


def is_due(segments: Sequence[SegmentMeta], config: TopicConfig, now_ms: int) -> bool:
    """Whether there is enough to do in segments that may be compacted."""
    dirty = [meta for meta in segments if not meta.is_compacted]
    if dirty:
        limit = config.max_compaction_lag_ms
        if limit is not None and dirty[0].created_ms + limit <= now_ms:
            return True
        dirty_bytes, all_bytes = (sum(meta.length for meta in each) for each in (dirty, segments))
        if dirty_bytes >= config.min_cleanable_dirty_ratio * all_bytes:
            return True
    return any(are_tombstones_due(meta, config, now_ms) for meta in segments)


def are_tombstones_due(meta: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    """Whether a segment has tombstones that have been there long enough."""
    return meta.tombstone_count > 0 and may_drop_tombstones(meta, config, now_ms)


def may_drop_tombstones(meta: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    """Whether tombstones of a segment are of no more use.

    Everything older of their keys went before the segment counted as compacted.
    """
    return meta.is_compacted and meta.compacted_ms + config.delete_retention_ms <= now_ms


def may_join(before: SegmentMeta, after: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    """Whether two neighbours may become one segment.

    One with tombstones that have to stay is left alone, since in a new segment their time would
    begin anew.
    """
    if before.tier is not None or after.tier is not None:
        return False
    return before.medium is after.medium and not any(
        meta.is_compacted
        and meta.tombstone_count > 0
        and not may_drop_tombstones(meta, config, now_ms)
        for meta in (before, after)
    )
