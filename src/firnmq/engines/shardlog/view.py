"""What readers may see of a log at one moment."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from firnmq.engines.catalog.segments import Segment
from firnmq.engines.catalog.transactions import AbortedTransactions


class View(NamedTuple):
    """What readers may see. Segments are in order; the last is active.

    Every field is as of the same point of the log: nothing here depends on what was appended after
    it.
    """

    segments: tuple[Segment, ...]
    start_offset: int
    end_offset: int
    """The high watermark: the end of what is shown and acknowledged."""
    active_length: int
    """Bytes of the active segment below the high watermark."""
    stable_offset: int
    """Everything below it is certain: start_offset <= stable_offset <= end_offset. It is the
    first offset of the earliest open transaction, or the end."""
    aborted: AbortedTransactions
    """What is to be passed over below the stable offset."""
    active_expiry_ms: int
    """No record of the active segment expires by its own header before this."""
    active_max_timestamp: int
    """The greatest timestamp of the active segment's records."""


def segment_number(view: View, offset: int) -> int:
    segments = view.segments
    if offset >= segments[-1].meta.base_offset:  # Most readers are near the end.
        return len(segments) - 1
    found = bisect_right(segments, offset, key=lambda segment: segment.meta.base_offset)
    return max(found - 1, 0)


def length_of(view: View, segment: Segment) -> int:
    """Readable bytes of a segment."""
    if segment.meta.is_sealed:
        return segment.meta.length
    return view.active_length


def may_expire(view: View, segment: Segment, now_ms: int) -> bool:
    """Whether a record of the segment may have expired by its own header."""
    is_sealed = segment.meta.is_sealed
    return (segment.meta.first_expiry_ms if is_sealed else view.active_expiry_ms) <= now_ms
