"""What is known of a log's bytes without reading them: batch borders, and what was checked.

Stored batches can be sent from the file to a client as they are if two things are known of the
bytes: that they begin and end at batch borders, and that they are good. A reader that has checked
some batches notes both here, as a stretch from the first border to the last, with a
border now and then in between. What the log itself appends needs no reading: its batches were
checked on the way in, and until the segment is sealed they are what the page cache holds. A sealed
segment is trusted only once it was read, and only for as long as its file is not written to.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from firnmq.index import Point

SPACING_BYTES = 128 * 1024
"""Borders are at least so far apart, so that many small batches make few of them."""
_BORDERS_MAX = 2048
"""Borders of one stretch; when there are more, every other one is forgotten."""
_STRETCHES_MAX = 8
"""Stretches of one segment. Readers in more places than that read and check again."""
_SEGMENTS_MAX = 4
"""Segments of one log of which something is known, so that memory does not grow with the log."""


class _Stretch:
    """Good bytes between two borders, or from a border to wherever the segment ends."""

    __slots__ = ("is_growing", "offsets", "positions", "spacing_bytes")

    def __init__(self, start: Point, *, is_growing: bool = False) -> None:
        self.offsets = array("q", (start.offset,))
        self.positions = array("q", (start.position,))
        self.spacing_bytes = SPACING_BYTES
        self.is_growing = is_growing
        """It goes on beyond the last border, to the end of what the log has appended."""

    def add(self, border: Point) -> None:
        """Adds a border beyond the last one, instead of it if the two before are close."""
        positions = self.positions
        if len(positions) > 1 and border.position - positions[-2] < self.spacing_bytes:
            self.offsets[-1], positions[-1] = border
            return
        self.offsets.append(border.offset)
        positions.append(border.position)
        if len(positions) > _BORDERS_MAX:
            self._thin_out()

    def _thin_out(self) -> None:
        last = Point(self.offsets[-1], self.positions[-1])
        self.offsets, self.positions = self.offsets[:-1:2], self.positions[:-1:2]
        self.spacing_bytes *= 2
        self.add(last)

    def holds(self, offset: int) -> bool:
        return self.offsets[0] <= offset and (self.is_growing or offset < self.offsets[-1])

    def last_border(self, position_max: int, offset_max: int) -> Point:
        """The last border within both limits."""
        at = min(bisect_right(self.positions, position_max), bisect_right(self.offsets, offset_max))
        return Point(self.offsets[at - 1], self.positions[at - 1]) if at else Point(-1, -1)

    def position_of(self, offset: int) -> int | None:
        """Where the batch that begins with the offset is, if that is one of the borders."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 and self.offsets[at] == offset else None


class KnownBytes:
    """Of one log. Safe with threads."""

    __slots__ = ("_lock", "_modified_ns", "_segments", "_tail", "_tail_seq", "next_border_position")

    def __init__(self, seq: int, end: Point) -> None:
        """A log that appends to this segment from this end on."""
        self._lock = threading.Lock()
        self._segments: dict[int, list[_Stretch]] = {}
        self._modified_ns: dict[int, int] = {}
        """When the files of sealed segments were last written to, before they were checked."""
        self._tail: _Stretch | None = None
        """What the log is adding to."""
        self.begin(seq, end)

    def begin(self, seq: int, end: Point) -> None:
        """The log goes on in this segment from this end on."""
        with self._lock:
            for older in [number for number in self._segments if number >= seq]:
                del self._segments[older]
            for stretches in self._segments.values():  # Sealed by now, so it must be read once.
                stretches[:] = [each for each in stretches if not each.is_growing]
            self._tail_seq = seq
            self._start_tail(end)

    def note_appended(self, end: Point) -> None:
        """A batch that the log appended ends here. Needed from `next_border_position` on."""
        with self._lock:
            if self._tail is None:
                self._start_tail(end)
            else:
                self._tail.add(end)
                self.next_border_position = end.position + self._tail.spacing_bytes

    def note_checked(self, seq: int, borders: Sequence[Point], modified_ns: int | None) -> None:
        """The bytes between the first border and the last, which follow each other, are good.

        For a sealed segment, `modified_ns` is when its file was last written to before that.
        """
        with self._lock:
            if modified_ns is not None and self._modified_ns.get(seq) != modified_ns:
                self._segments.pop(seq, None)
                self._modified_ns[seq] = modified_ns
            stretches = self._segments.setdefault(seq, [])
            _merge(stretches, borders)
            while len(stretches) > _STRETCHES_MAX:
                stretches.pop(0 if stretches[0].offsets[0] != borders[0].offset else 1)
            if len(self._segments) > _SEGMENTS_MAX:
                oldest = min(number for number in self._segments if number != seq)
                del self._segments[oldest]
                self._modified_ns.pop(oldest, None)

    def find(
        self,
        seq: int,
        offset: int,
        *,
        hint: Point | None,
        end: Point,
        end_offset: int,
        max_bytes: int,
    ) -> tuple[Point, Point] | None:
        """Good bytes from the batch of the offset on, as two borders; None if none are known.

        `hint` is where that batch is, if the reader happens to know; `end` is where the segment
        ends for this reader, who wants no batch at or above `end_offset`.
        """
        with self._lock:
            for stretch in self._segments.get(seq, ()):
                if not stretch.holds(offset):
                    continue
                position = hint.position if hint is not None else stretch.position_of(offset)
                if position is None or position < stretch.positions[0]:
                    return None
                limit = position + max_bytes
                last = stretch.last_border(min(limit, end.position), end_offset)
                reaches_end = stretch.is_growing or stretch.positions[-1] >= end.position
                if reaches_end and end.position <= limit and end.offset <= end_offset:
                    last = end
                if last.position <= position:
                    return None
                return Point(hint.offset if hint is not None else offset, position), last
        return None

    def modified_ns(self, seq: int) -> int | None:
        """When a sealed segment's file was last written to, as far as is known."""
        return self._modified_ns.get(seq)

    def forget(self, seq: int) -> None:
        """Nothing is known of the segment any more: it has to be read again."""
        with self._lock:
            self._segments.pop(seq, None)
            self._modified_ns.pop(seq, None)
            if seq == self._tail_seq:
                self._tail = None
                self.next_border_position = 0

    def _start_tail(self, end: Point) -> None:
        self._tail = tail = _Stretch(end, is_growing=True)
        self._segments.setdefault(self._tail_seq, []).append(tail)
        self.next_border_position = end.position + SPACING_BYTES


def _merge(stretches: list[_Stretch], borders: Sequence[Point]) -> None:
    """Adds a stretch to those of a segment, which are in order and do not touch each other."""
    first = borders[0]
    at = bisect_right(stretches, first.offset, key=lambda each: each.offsets[0]) - 1
    if at >= 0 and stretches[at].is_growing:
        return
    if at < 0 or stretches[at].offsets[-1] < first.offset:
        at += 1
        stretches.insert(at, _Stretch(first))
    grown = stretches[at]
    _extend(grown, borders)
    while at + 1 < len(stretches) and stretches[at + 1].offsets[0] <= grown.offsets[-1]:
        following = stretches.pop(at + 1)
        if following.is_growing:
            # The growing one is fed by the log, so it stays and takes what is before it.
            _put_before(grown, following)
            stretches[at] = following
            return
        _extend(grown, map(Point, following.offsets, following.positions))


def _extend(stretch: _Stretch, borders: Sequence[Point] | map[Point]) -> None:
    for border in borders:
        if border.offset > stretch.offsets[-1]:
            stretch.add(border)


def _put_before(earlier: _Stretch, growing: _Stretch) -> None:
    keep = bisect_right(earlier.offsets, growing.offsets[0] - 1)
    growing.offsets = earlier.offsets[:keep] + growing.offsets
    growing.positions = earlier.positions[:keep] + growing.positions
