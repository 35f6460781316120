"""Which sealed segments have outlived their topic's limits. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.config import TopicConfig
from firnmq.engines.segments import SegmentMeta


def expired_end(
    segments: Sequence[SegmentMeta], config: TopicConfig, active_bytes: int, now_ms: int
) -> int | None:
    """End offset of the last segment to drop, None if all stay.

    Segments go from the oldest on and without a gap: the first that stays ends the search, even
    if a later one has only older records.
    """
    remaining = active_bytes + sum(meta.length for meta in segments if meta.is_sealed)
    end: int | None = None
    for meta in segments:
        if not meta.is_sealed:
            break
        remaining -= meta.length
        if not (_is_too_old(meta, config, now_ms) or _is_too_much(remaining, config)):
            break
        end = meta.end_offset
    return end


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
