"""Reads a segment's batches in order from a point on."""

from __future__ import annotations

from typing import NamedTuple

from firnmq.disk.files import Buffer
from firnmq.engines.segments import Segment
from firnmq.errors import Corruption
from firnmq.index import Point
from firnmq.record import BatchEntry, Walk, walk

CHUNK_BYTES = 1024 * 1024
"""Read at once in a long scan: large enough to forget the call, small enough for the cache."""
CHUNK_BYTES_MIN = 4 * 1024


class Run(NamedTuple):
    """Some batches that stand one after the other in one buffer."""

    buffer: Buffer
    entries: list[BatchEntry]
    """Positions are within the buffer."""
    position: int
    """Where the buffer begins in the segment."""

    def batch(self, entry: BatchEntry) -> memoryview:
        return memoryview(self.buffer)[entry.position : entry.position + entry.size]


class SegmentScan:
    """Goes through a segment's batches from a point up to a length.

    Batches must follow each other without a gap in offsets: the header's first bytes are not
    covered by the batch's CRC, and this is what finds a wrong one. Where compaction has
    left gaps, offsets must still rise and stay within the segment's bounds.
    """

    def __init__(
        self, segment: Segment, point: Point, length: int, *, verify: bool = False
    ) -> None:
        self._segment = segment
        self._length = length
        self._verify = verify
        self._has_gaps = segment.meta.has_gaps
        self.next_batch_bytes = 0
        """Size of the batch at which the last run was cut off, 0 where there was none."""
        self.position = point.position
        """Where the next run begins."""
        self.offset: int | None = point.offset
        """Offset of the next batch, or the least it can be where there are gaps; None where it
        is not known."""

    @classmethod
    def at_position(cls, segment: Segment, position: int, length: int) -> SegmentScan:
        """A scan from a batch whose offset is not known beforehand."""
        scan = cls(segment, Point(0, position), length)
        scan.offset = None
        return scan

    @property
    def is_done(self) -> bool:
        return self.position >= self._length

    def read(self, size: int) -> list[Run]:
        """Whole batches of about `size` bytes, at least one; [] at the end."""
        if self.is_done:
            return []
        size = min(max(size, CHUNK_BYTES_MIN), self._length - self.position)
        runs = self._read(size)
        needed_bytes = self.next_batch_bytes
        if not runs and 0 < needed_bytes <= self._length - self.position:
            runs = self._read(needed_bytes)  # The first batch is larger than what was read.
        if not runs:
            raise self._corrupt("a batch goes beyond the end of the segment")
        return runs

    def _read(self, size: int) -> list[Run]:
        runs: list[Run] = []
        self.next_batch_bytes = 0
        for buffer in self._segment.bytes.read(self.position, size):
            limit = min(len(buffer), self._length - self.position)
            if limit <= 0:
                break
            expected = None if self._has_gaps else self.offset
            found: Walk = walk(buffer, 0, limit, expected_offset=expected, verify=self._verify)
            if self._has_gaps:
                self._check_order(found.headers)
            if found.headers:
                runs.append(Run(buffer, found.headers, self.position))
                self.position += found.valid_end
                self.offset = found.headers[-1].last_offset + 1
            if found.reason == TRUNCATED:
                self.next_batch_bytes = found.needed_bytes
                break
            if found.reason is not None:
                if runs:  # What is good before it can be used; the next read meets it first.
                    break
                raise self._corrupt(found.reason)
        return runs

    def _check_order(self, entries: list[BatchEntry]) -> None:
        meta = self._segment.meta
        misplaced = first_misplaced(
            entries, meta.base_offset if self.offset is None else self.offset, meta.end_offset
        )
        if misplaced is not None:
            position = self.position + entries[misplaced].position
            where = self._segment.bytes.where
            raise Corruption("offset out of order", where=where, position=position)

    def _corrupt(self, reason: str) -> Corruption:
        return Corruption(reason, where=self._segment.bytes.where, position=self.position)


def first_misplaced(entries: list[BatchEntry], start_offset: int, end_offset: int) -> int | None:
    """Index of the first batch that does not rise within [start, end); None if all do."""
    for number, entry in enumerate(entries):
        if entry.base_offset < start_offset or entry.last_offset >= end_offset:
            return number
        start_offset = entry.last_offset + 1
    return None


TRUNCATED = "truncated"
"""What `walk` says of a batch that ends beyond the bytes it was given."""
