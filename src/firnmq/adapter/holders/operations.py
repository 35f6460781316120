"""What the leader of a shard asks the nodes that hold its sealed segments."""

from __future__ import annotations

from typing import NamedTuple

from firnmq.adapter.forwarding.operations import Operation
from firnmq.engines.catalog.segments import SegmentMeta

READ_BYTES_MAX = 8 * 1024 * 1024
"""Of one answer."""
TAG_HITS_MAX = 256
"""Of one answer."""
ROWS_BYTES_MAX = 4 * 1024 * 1024
"""Of one answer, but for its last row."""
_LOOK_UP_S = 5.0


class HeldName(NamedTuple):
    """A sealed segment with these bytes and no others: compaction gives it other ones."""

    shard: str
    seq: int
    slot: int
    crc: int

    @classmethod
    def of(cls, shard: str, meta: SegmentMeta) -> HeldName:
        return cls(shard, meta.seq, meta.slot, meta.crc)


_At = tuple[int, int]

SEGMENT_READ = Operation("segment_read", tuple[HeldName, int, int], None, 10.0)
"""Segment, position, size; the bytes are the answer's raw bytes."""
SEGMENT_FLOOR_OFFSET = Operation(
    "segment_floor_offset", tuple[HeldName, int], _At | None, _LOOK_UP_S
)
SEGMENT_FLOOR_TIME = Operation("segment_floor_time", tuple[HeldName, int], _At | None, _LOOK_UP_S)
SEGMENT_NEWEST_OF_KEY = Operation(
    "segment_newest_of_key", tuple[HeldName, bytes], _At | None, _LOOK_UP_S
)
SEGMENT_TAGGED = Operation(
    "segment_tagged", tuple[HeldName, bytes, int], list[tuple[int, int, list[int]]], _LOOK_UP_S
)
"""Segment, tag, start offset; at most TAG_HITS_MAX batches with the tag."""
SEGMENT_ROWS = Operation(
    "segment_rows", tuple[HeldName, int, bytes | None], list[tuple[bytes, bytes]], 10.0
)
"""Segment, kind of index, key of the row before the first one; about ROWS_BYTES_MAX at most."""
SEGMENT_SNAPSHOT = Operation("segment_snapshot", tuple[HeldName], None, 30.0)
"""The shard's snapshot at the segment's end, as the answer's raw bytes; none if there is none."""
