"""Reads a segment's batches in order from a point on."""

from __future__ import annotations

from firnmq.engines.catalog.segments import Segment
from firnmq.errors import Corruption
from firnmq.index import Point
from firnmq.record import BatchStream, Reason, Run

CHUNK_BYTES = 1024 * 1024
"""Read at once in a long scan: large enough to forget the call, small enough for the cache."""
CHUNK_BYTES_MIN = 4 * 1024


class SegmentScan:
    """Goes through a segment's batches from a point up to a length."""

    def __init__(
        self, segment: Segment, point: Point, length: int, *, verify: bool = False
    ) -> None:
        self._segment = segment
        self._length = length
        meta = segment.meta
        self._stream = BatchStream(
            position=point.position,
            offset=point.offset,
            end_position=length,
            end_offset=meta.end_offset,
            has_gaps=meta.has_gaps,
            verify=verify,
        )

    @classmethod
    def at_position(cls, segment: Segment, position: int, length: int) -> SegmentScan:
        """A scan from a batch whose offset is not known beforehand."""
        scan = cls(segment, Point(0, position), length)
        scan._stream.offset = segment.meta.base_offset if segment.meta.has_gaps else None
        return scan

    @property
    def position(self) -> int:
        """Where the next run begins."""
        return self._stream.position

    @property
    def next_batch_bytes(self) -> int:
        """Size of the batch that did not fit whole into the last run, 0 where there was none."""
        return self._stream.needed_bytes

    @property
    def is_done(self) -> bool:
        return self._stream.position >= self._length

    def read(self, size: int) -> list[Run]:
        """Whole batches of about `size` bytes, at least one; [] at the end."""
        if self.is_done:
            return []
        stream = self._stream
        runs = self._read(min(max(size, CHUNK_BYTES_MIN), self._length - stream.position))
        stop = stream.stop
        if not runs and stop is not None and stop.reason is Reason.INCOMPLETE:
            runs = self._read(stream.needed_bytes)  # The first batch is larger than what was read.
            stop = stream.stop
        if not runs:
            reason = "a batch goes beyond the end of the segment"
            if stop is not None and stop.reason not in (Reason.INCOMPLETE, Reason.TORN):
                reason = stop.text
            raise Corruption(reason, where=self._segment.bytes.where, position=stream.position)
        return runs

    def _read(self, size: int) -> list[Run]:
        """What is good before a bad batch can be used; the next read meets that batch first."""
        stream = self._stream
        runs: list[Run] = []
        for buffer in self._segment.bytes.read(stream.position, size):
            run = stream.judge(buffer)
            if run is not None:
                runs.append(run)
            if stream.stop is not None or self.is_done:
                break
        return runs
