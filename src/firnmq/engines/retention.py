"""Which sealed segments have outlived their topic's limits. No disk, and time by a Clock."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.clock import Clock
from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState


def expired_end(
    segments: Sequence[SegmentMeta],
    config: TopicConfig,
    active_bytes: int,
    clock: Clock,
    lake_end: int | None = None,
) -> int | None:
    """End offset of the last segment to drop, None if all stay.

    Segments go from the oldest on and without a gap: the first that stays ends the search, even
    if a later one has only older records. One that ends beyond `lake_end` stays: the lake's table
    does not have it yet.
    """
    sealed = [meta for meta in segments if meta.is_sealed]
    # Of all first: the age of a segment may count from when the clock first saw its time.
    are_old = [has_expired(meta.max_timestamp, meta.sealed_ms, config, clock) for meta in sealed]
    remaining = active_bytes + sum(meta.length for meta in sealed)
    end: int | None = None
    for meta, is_old in zip(sealed, are_old, strict=True):
        remaining -= meta.length
        if not (is_old or _is_too_much(remaining, config)):
            break
        if lake_end is not None and meta.end_offset > lake_end:
            break
        end = meta.end_offset
    return end


def to_drop_here(
    segments: Sequence[SegmentMeta], config: TopicConfig, active_bytes: int, clock: Clock
) -> list[SegmentMeta]:
    """Segments that are in the object store and have been on nodes long enough, oldest first.

    One that is not in the store yet stays, and does not keep later ones from going; the first that
    stays by its age and by the limit ends the search.
    """
    limit_ms, limit_bytes = config.local_retention_ms, config.local_retention_bytes
    if limit_ms is None and limit_bytes is None:
        return []
    here = [meta for meta in segments if meta.is_sealed and meta.is_on_nodes]
    ages_ms = [clock.age_ms(meta.newest_ms) for meta in here]
    remaining = active_bytes + sum(meta.length for meta in here)
    chosen = []
    for meta, age_ms in zip(here, ages_ms, strict=True):
        if meta.state is not SegmentState.TIERED:
            continue
        is_old = limit_ms is not None and age_ms >= limit_ms
        if not is_old and (limit_bytes is None or remaining - meta.length < limit_bytes):
            break
        chosen.append(meta)
        remaining -= meta.length
    return chosen


def has_expired(newest_ms: int, written_ms: int, config: TopicConfig, clock: Clock) -> bool:
    """Whether a segment with records up to `newest_ms`, written by `written_ms`, is too old.

    Records without a timestamp are as old as they have been here; the time to live, which is
    counted from the timestamp, does not end for them. What has a time to live goes when readers
    no longer see it: both compare the timestamp with the wall clock.
    """
    retention_ms = config.retention_ms if config.cleanup_policy.deletes else None
    if newest_ms < 0:
        return retention_ms is not None and clock.age_ms(written_ms) >= retention_ms
    if config.ttl_ms is not None and newest_ms + config.ttl_ms <= clock.now_ms():
        return True
    return retention_ms is not None and clock.age_ms(newest_ms) >= retention_ms


def _is_too_much(remaining_bytes: int, config: TopicConfig) -> bool:
    limit = config.retention_bytes if config.cleanup_policy.deletes else None
    return limit is not None and remaining_bytes >= limit
