"""Which segments compaction may and should work on. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from firnmq.clock import Age
from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState


def cleanable(
    segments: Sequence[SegmentMeta], config: TopicConfig, stable_offset: int, age_ms: Age
) -> list[SegmentMeta]:
    """Sealed segments, from the oldest on without a gap, that may be compacted now.

    What is at or beyond the stable offset is of transactions that have not ended, and what is
    younger than `min.compaction.lag.ms` must stay as it is.
    """

    def is_plain(meta: SegmentMeta) -> bool:
        is_sealed = meta.state is SegmentState.SEALED and meta.tier is None
        return is_sealed and meta.is_on_nodes and meta.end_offset <= stable_offset

    lag_ms = config.min_compaction_lag_ms
    plain = list(takewhile(is_plain, segments))
    # Of all first: the age of a segment may count from when the clock first saw its time.
    are_old = [
        meta.is_compacted or lag_ms == 0 or age_ms(meta.newest_ms) >= lag_ms for meta in plain
    ]
    return plain[: are_old.index(False) if False in are_old else len(plain)]


def is_due(segments: Sequence[SegmentMeta], config: TopicConfig, age_ms: Age) -> bool:
    """Whether there is enough to do in segments that may be compacted."""
    dirty = [meta for meta in segments if not meta.is_compacted]
    if dirty:
        limit = config.max_compaction_lag_ms
        if limit is not None and age_ms(dirty[0].created_ms) >= limit:
            return True
        dirty_bytes, all_bytes = (sum(meta.length for meta in each) for each in (dirty, segments))
        if dirty_bytes >= config.min_cleanable_dirty_ratio * all_bytes:
            return True
    return any(are_tombstones_due(meta, config, age_ms) for meta in segments)


def are_tombstones_due(meta: SegmentMeta, config: TopicConfig, age_ms: Age) -> bool:
    """Whether a segment has tombstones that have been there long enough."""
    return meta.tombstone_count > 0 and may_drop_tombstones(meta, config, age_ms)


def may_drop_tombstones(meta: SegmentMeta, config: TopicConfig, age_ms: Age) -> bool:
    """Whether tombstones of a segment are of no more use.

    Everything older of their keys went before the segment counted as compacted.
    """
    return meta.is_compacted and age_ms(meta.compacted_ms) >= config.delete_retention_ms


def may_join(before: SegmentMeta, after: SegmentMeta, config: TopicConfig, age_ms: Age) -> bool:
    """Whether two neighbours may become one segment.

    One with tombstones that have to stay is left alone, since in a new segment their retention
    time would start again.
    """
    if before.tier is not None or after.tier is not None:
        return False
    if before.leader_epoch != after.leader_epoch:
        return False  # Clients are told where the records of each epoch end.
    return before.medium is after.medium and not any(
        meta.is_compacted
        and meta.tombstone_count > 0
        and not may_drop_tombstones(meta, config, age_ms)
        for meta in (before, after)
    )
