"""A segment's indexes in memory: sink and index in one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from firnmq.index.api import IndexSink, KeyHit, Point, TagHit
from firnmq.record import Keys

POINT_BYTES = 120
TERM_BYTES = 160
"""Rough cost of a dictionary entry with its tuple, counted against the memory limit."""


class MemorySegmentIndex:
    """Points in sorted lists, keys and tags in dictionaries.

    The appender adds while readers read: every change is one list append or one dictionary store,
    which is atomic for readers.
    """

    __slots__ = ("_keys", "_max_before", "_offsets", "_positions", "_tags", "size_bytes")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._max_before: list[int] = []
        self._keys: dict[bytes, KeyHit] = {}
        self._tags: dict[bytes, list[TagHit]] = {}
        self.size_bytes = 0

    def add_point(self, offset: int, position: int, max_timestamp_before: int) -> None:
        self._max_before.append(max_timestamp_before)
        self._positions.append(position)
        self._offsets.append(offset)  # Last: readers take this list's length.
        self.size_bytes += POINT_BYTES

    def add_keys(self, keys: Keys, base_offset: int, position: int) -> None:
        before = len(self._keys)
        for key, relative_offset in keys.items():
            self._keys[key] = KeyHit(base_offset + relative_offset, position)
        self.size_bytes += (len(self._keys) - before) * TERM_BYTES

    def add_tags(
        self, tags: Mapping[bytes, Sequence[int]], base_offset: int, position: int
    ) -> None:
        for tag, offsets in tags.items():
            self._tags.setdefault(tag, []).append(TagHit(base_offset, position, offsets))
            self.size_bytes += TERM_BYTES + 8 * len(offsets)

    def replay(self, sink: IndexSink) -> None:
        """Gives every entry to a sink, so that it can be compared with another index."""
        for point in zip(self._offsets, self._positions, self._max_before, strict=True):
            sink.add_point(*point)
        for key, hit in self._keys.items():
            sink.add_keys({key: 0}, hit.offset, hit.position)
        for tag, hits in self._tags.items():
            for tagged in hits:
                sink.add_tags({tag: tagged.relative_offsets}, tagged.base_offset, tagged.position)

    def floor_offset(self, offset: int) -> Point | None:
        at = bisect_right(self._offsets, offset) - 1
        return None if at < 0 else Point(self._offsets[at], self._positions[at])

    def floor_time(self, timestamp_ms: int) -> Point | None:
        count = len(self._offsets)
        at = max(bisect_left(self._max_before, timestamp_ms, hi=count) - 1, 0)
        return None if count == 0 else Point(self._offsets[at], self._positions[at])

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        return self._keys.get(key)

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        hits = self._tags.get(tag, ())
        first = max(bisect_right(hits, start_offset, key=lambda hit: hit.base_offset) - 1, 0)
        for at in range(first, len(hits)):
            yield hits[at]
