"""Stored batches for a client that takes them as they are: by file range where there is a file.

Two ways lead to the same page. `nowait` answers from what is known of the bytes (`known.py`)
and never waits for a device, so an event loop may call it; None means that the bytes have to be
read. `checked` reads the batches, checks each one's CRC and that they follow each other, and notes
what it found for the next reader.
"""

from __future__ import annotations

import math

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.api import RawPage, StoredPage
from firnmq.engines.catalog.segments import Segment, SegmentGone
from firnmq.engines.shardlog.reading.records import LogReader, NotPublished
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.view import View, length_of, may_expire, segment_number
from firnmq.errors import Corruption
from firnmq.index import Point
from firnmq.record import BatchEntry

RANGE_BYTES_MIN = 32 * 1024
"""Less is read and copied: that costs less than what a range needs in system calls."""
READ_NOWAIT_BYTES_MAX = 1024 * 1024
"""What is read at once in the event loop's thread, for clients that cannot take ranges."""


class RawReader(LogReader):
    """Reads one log as it is now. Cheap to make; not for sharing between threads."""

    def nowait(
        self, offset: int, max_bytes: int, *, committed: bool, ranges: bool
    ) -> StoredPage | None:
        """What can be given out without waiting for a device; None if that cannot be said.

        With a `max_bytes` of 0 the page has the bounds alone.
        """
        self.check_bounds(offset)
        log, view = self._log, self._view
        end_offset = view.stable_offset if committed else view.end_offset
        if offset >= end_offset or max_bytes <= 0:
            return _page(view, (), offset, offset, committed)
        segment = view.segments[segment_number(view, offset)]
        if self._is_filtered(view, segment):
            return None  # Batches may have to be rewritten.
        try:
            page = self._page_nowait(segment, offset, end_offset, max_bytes, committed, ranges)
        except (SegmentGone, NotPublished, Corruption):
            return None  # Retention or truncation came between, or it is as bad as it looks.
        return page if log.cut_count == self._cut_count else None

    def _page_nowait(
        self,
        segment: Segment,
        offset: int,
        end_offset: int,
        max_bytes: int,
        committed: bool,
        ranges: bool,
    ) -> StoredPage | None:
        if segment.bytes.is_memory:
            return _stored(self._raw(self._view, offset, max_bytes, committed))
        if not segment.bytes.is_file:
            return None
        found = self._known(segment, offset, end_offset, max_bytes, ranges=ranges)
        if found is None:
            return None
        content, next_offset = found
        return _page(self._view, (content,), offset, next_offset, committed)

    def checked(self, offset: int, max_bytes: int, *, committed: bool, ranges: bool) -> StoredPage:
        """Whole batches, the first one holding the offset, read and found to be good.

        Ends with the segment. Where records were deleted the batches are rewritten. With a
        `max_bytes` of 0 the page has the bounds alone.
        """

        def read(view: View) -> StoredPage:
            self.check_bounds(offset)
            end_offset = view.stable_offset if committed else view.end_offset
            if offset >= end_offset or max_bytes <= 0:
                return _page(view, (), offset, offset, committed)
            segment = view.segments[segment_number(view, offset)]
            is_empty = (
                length_of(view, segment) == 0
            )  # Compaction has left nothing, not even a file.
            if is_empty or segment.bytes.is_memory or self._is_filtered(view, segment):
                return _stored(self._raw(view, offset, max_bytes, committed))
            page = self._checked(view, segment, offset, end_offset, max_bytes, committed, ranges)
            if page.contents:
                return page
            # Nothing is left of this segment from there on; what comes next is found this way.
            return _stored(self._raw(view, offset, max_bytes, committed))

        return self._steadily(read)

    def _is_filtered(self, view: View, segment: Segment) -> bool:
        has_dead = self._deletions or self._log.spec.config.ttl_ms
        return bool(has_dead or may_expire(view, segment, self._now_ms))

    def _known(
        self, segment: Segment, offset: int, end_offset: int, max_bytes: int, *, ranges: bool
    ) -> tuple[Buffer | FileRange, int] | None:
        """Bytes from the batch of the offset on, and the offset after them."""
        view, known = self._view, self._log.known
        seq, epoch = segment.meta.seq, segment.meta.epoch
        is_sealed = segment.meta.is_sealed
        end = (
            Point(segment.meta.end_offset, segment.meta.length)
            if is_sealed
            else Point(view.end_offset, view.active_length)
        )
        hint = self._hints.get(offset)
        limit = max_bytes if ranges else min(max_bytes, READ_NOWAIT_BYTES_MAX)
        found = known.find(
            seq,
            offset,
            hint=hint[2] if hint is not None and hint[:2] == (seq, epoch) else None,
            end=end,
            end_offset=end_offset,
            max_bytes=limit,
        )
        if found is None:
            return None
        start, stop = found
        size = stop.position - start.position
        takes_range = ranges and size >= RANGE_BYTES_MIN
        content: Buffer | FileRange | None = None
        if is_sealed or takes_range:
            content = part = segment.bytes.range_at(start.position, size)
            is_changed = is_sealed and part.modified_ns() != known.modified_ns(seq)
            if is_changed or not part.is_cached():
                content = None
        if not takes_range and (content is not None or not is_sealed):
            content = segment.bytes.read_nowait(start.position, size)
        if content is None:
            known.forget(seq)  # What was checked is perhaps not what would be sent.
            return None
        self._note_next(segment, stop)
        return content, stop.offset

    def _checked(
        self,
        view: View,
        segment: Segment,
        offset: int,
        end_offset: int,
        max_bytes: int,
        committed: bool,
        ranges: bool,
    ) -> StoredPage:
        seq = segment.meta.seq
        modified_ns: int | None = None
        is_file = segment.bytes.is_file
        if is_file and segment.meta.is_sealed:
            modified_ns = segment.bytes.range_at(0, 0).modified_ns()
        scan = SegmentScan(
            segment, self._point(segment, offset), length_of(view, segment), verify=True
        )
        gives_range = is_file and ranges
        taken = _Taken(
            offset, end_offset, max_bytes, pieces_max=RANGE_BYTES_MIN if gives_range else math.inf
        )
        size = min(max_bytes, CHUNK_BYTES)
        while not taken.is_full:
            try:
                runs = scan.read(size)
            except Corruption:
                if taken.size:
                    break  # What is good before it can be used; the next read meets it first.
                raise
            if not runs:
                break
            borders = []
            for run in runs:
                entries = run.entries
                borders.append(Point(entries[0].base_offset, run.position + entries[0].position))
                for entry in entries:
                    place = run.position + entry.position
                    borders.append(Point(entry.last_offset + 1, place + entry.size))
                    taken.add(entry, place, run.batch(entry))
            if is_file:
                self._log.known.note_checked(seq, borders, modified_ns)
            size = CHUNK_BYTES
            if taken.size and scan.next_batch_bytes > max_bytes - taken.size:
                break
        contents: tuple[Buffer | FileRange, ...] = tuple(taken.pieces)
        if gives_range and taken.size >= RANGE_BYTES_MIN:
            contents = (segment.bytes.range_at(taken.position, taken.size),)
        if taken.size:
            self._note_next(segment, Point(taken.next_offset, taken.position + taken.size))
        return _page(view, contents, offset, taken.next_offset, committed)

    def _note_next(self, segment: Segment, end: Point) -> None:
        """A client that got everything up to here will go on from here."""
        self.leave_room_for_hint()
        self._hints[end.offset] = (segment.meta.seq, segment.meta.epoch, end)


class _Taken:
    """Batches picked from those that a scan comes by: up to the limits, but at least one.

    Their bytes are kept as long as there are fewer than `pieces_max`.
    """

    __slots__ = (
        "_end_offset",
        "_max_bytes",
        "_pieces_max",
        "is_full",
        "next_offset",
        "pieces",
        "position",
        "size",
    )

    def __init__(self, offset: int, end_offset: int, max_bytes: int, pieces_max: float) -> None:
        self._pieces_max = pieces_max
        self._end_offset = end_offset
        self._max_bytes = max_bytes
        self.next_offset = offset
        self.position = 0
        self.size = 0
        self.pieces: list[memoryview] = []
        self.is_full = False

    def add(self, entry: BatchEntry, position: int, batch: memoryview) -> None:
        if self.is_full or entry.last_offset < self.next_offset:
            return
        if entry.base_offset >= self._end_offset or (
            self.size and self.size + entry.size > self._max_bytes
        ):
            self.is_full = True
            return
        if not self.size:
            self.position = position
        self.size += entry.size
        if self.size < self._pieces_max:
            self.pieces.append(batch)
        else:
            self.pieces.clear()
        self.next_offset = entry.last_offset + 1
        self.is_full = self.size >= self._max_bytes


def _stored(page: RawPage) -> StoredPage:
    return StoredPage(
        contents=page.batches,
        next_offset=page.next_offset,
        start_offset=page.start_offset,
        end_offset=page.end_offset,
        stable_offset=page.stable_offset,
        aborted=page.aborted,
    )


def _page(
    view: View,
    contents: tuple[Buffer | FileRange, ...],
    offset: int,
    next_offset: int,
    committed: bool,
) -> StoredPage:
    has_aborted = committed and next_offset > offset
    return StoredPage(
        contents=contents,
        next_offset=next_offset,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        stable_offset=view.stable_offset,
        aborted=tuple(view.aborted.overlapping(offset, next_offset)) if has_aborted else (),
    )
