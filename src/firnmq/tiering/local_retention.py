"""Which segments that are in the store need not be here any more. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.config import TopicConfig
from firnmq.meta.records import SegmentRecord


def local_expired(
    tiered: Sequence[tuple[int, SegmentRecord]],
    config: TopicConfig,
    *,
    other_bytes: int,
    now_ms: int,
) -> list[int]:
    """Numbers of the segments to drop here, oldest first.

    `tiered` are a shard's segments that are here and in the store, in order; `other_bytes` is what
    else of it is here. They go from the oldest on: the first that stays ends the search.
    """
    remaining = other_bytes + sum(record.length for _, record in tiered)
    dropped = []
    for seq, record in tiered:
        remaining -= record.length
        is_old = _is_too_old(record, config.local_retention_ms, now_ms)
        limit = config.local_retention_bytes
        if not (is_old or (limit is not None and remaining >= limit)):
            break
        dropped.append(seq)
    return dropped


def _is_too_old(record: SegmentRecord, limit_ms: int | None, now_ms: int) -> bool:
    if limit_ms is None:
        return False
    # A client's timestamp may lie in the future; nothing here is younger than its sealing.
    newest_ms = record.sealed_ms
    if record.max_timestamp >= 0:
        newest_ms = min(newest_ms, record.max_timestamp)
    return newest_ms + limit_ms <= now_ms
