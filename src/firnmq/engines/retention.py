"""Which sealed segments have outlived their topic's limits. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.config import TopicConfig
from firnmq.engines.segments import SegmentMeta, SegmentState


def expired_end(
    segments: Sequence[SegmentMeta],
    config: TopicConfig,
    active_bytes: int,
    now_ms: int,
    lake_end: int | None = None,
) -> int | None:
    """End offset of the last segment to drop, None if all stay.

    Segments go from the oldest on and without a gap: the first that stays ends the search, even
    if a later one has only older records. One that ends beyond `lake_end` stays: the lake's table
    does not have it yet.
    """
    remaining = active_bytes + sum(meta.length for meta in segments if meta.is_sealed)
    end: int | None = None
    for meta in segments:
        if not meta.is_sealed:
            break
        remaining -= meta.length
        if not (_is_too_old(meta, config, now_ms) or _is_too_much(remaining, config)):
            break
        if lake_end is not None and meta.end_offset > lake_end:
            break
        end = meta.end_offset
    return end


def to_drop_here(
    segments: Sequence[SegmentMeta], config: TopicConfig, active_bytes: int, now_ms: int
) -> list[SegmentMeta]:
    """Segments that are in the object store and have been here long enough, oldest first.

    One that is not in the store yet stays, and does not keep later ones from going; the first that
    stays by its age and by the limit ends the search.
    """
    limit_ms, limit_bytes = config.local_retention_ms, config.local_retention_bytes
    if limit_ms is None and limit_bytes is None:
        return []
    here = [meta for meta in segments if meta.is_sealed and meta.is_local]
    remaining = active_bytes + sum(meta.length for meta in here)
    chosen = []
    for meta in here:
        if meta.state is not SegmentState.TIERED:
            continue
        newest_ms = meta.max_timestamp if meta.max_timestamp >= 0 else meta.sealed_ms
        is_old = limit_ms is not None and newest_ms + limit_ms <= now_ms
        if not is_old and (limit_bytes is None or remaining - meta.length < limit_bytes):
            break
        chosen.append(meta)
        remaining -= meta.length
    return chosen


def has_expired(newest_ms: int, written_ms: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether a segment with records up to `newest_ms`, written by `written_ms`, is too old.

    Records without a timestamp are as old as they have been here; the time to live, which is
    counted from the timestamp, does not end for them.
    """
    retention_ms = config.retention_ms if config.cleanup_policy.deletes else None
    if newest_ms < 0:
        return retention_ms is not None and written_ms + retention_ms <= now_ms
    limits = [limit for limit in (retention_ms, config.ttl_ms) if limit is not None]
    return bool(limits) and newest_ms + min(limits) <= now_ms


def _is_too_old(meta: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    return has_expired(meta.max_timestamp, meta.sealed_ms, config, now_ms)


def _is_too_much(remaining_bytes: int, config: TopicConfig) -> bool:
    limit = config.retention_bytes if config.cleanup_policy.deletes else None
    return limit is not None and remaining_bytes >= limit
