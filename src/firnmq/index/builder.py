"""Turns a segment's batches, in order, into index entries."""

from __future__ import annotations

from firnmq.index.api import NEVER_MS, TIMESTAMP_MIN, IndexSink, Terms

RECORDS_PER_POINT = 1000
"""A scan from a point reads at most this many records, or one batch, before its target."""


class IndexBuilder:
    """State of an active segment's sparse indexes. Owned by the appending thread."""

    __slots__ = ("first_expiry_ms", "max_timestamp", "records_since_point")

    def __init__(
        self,
        *,
        max_timestamp: int = TIMESTAMP_MIN,
        records_since_point: int = RECORDS_PER_POINT,
        first_expiry_ms: int = NEVER_MS,
    ) -> None:
        self.max_timestamp = max_timestamp
        self.first_expiry_ms = first_expiry_ms
        """No record expires by its own header before this."""
        self.records_since_point = records_since_point  # Starts full: the first batch is a point.

    def add(
        self,
        sink: IndexSink,
        *,
        position: int,
        base_offset: int,
        record_count: int,
        max_timestamp: int,
        terms: Terms | None,
        first_expiry_ms: int,
    ) -> None:
        """Adds one batch; terms are None where the topic keeps neither key nor tag index."""
        if self.records_since_point >= RECORDS_PER_POINT:
            sink.add_point(base_offset, position, self.max_timestamp)
            self.records_since_point = 0
        self.records_since_point += record_count
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        if first_expiry_ms < self.first_expiry_ms:
            self.first_expiry_ms = first_expiry_ms
        if terms is not None:
            if terms.keys:
                sink.add_keys(terms.keys, base_offset, position)
            if terms.tags:
                sink.add_tags(terms.tags, base_offset, position)
