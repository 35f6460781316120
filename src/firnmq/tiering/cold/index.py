"""A cold segment's index: answers from its .idx object and reads as little of it as possible.

The head is read as a whole and cached in parsed form. It answers lookups by offset and time, and
its filters rule out most keys and tags that the segment does not hold. Other lookups by key or tag
read one block.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.errors import Corruption
from firnmq.index import RECORDS_PER_POINT, KeyHit, Point, TagHit
from firnmq.index.layout import term
from firnmq.tiering.format.index_layout import HEADER_BYTES, Filter, Header, Section, SectionKind
from firnmq.tiering.format.index_sections import (
    KeyBlock,
    KeyFence,
    Points,
    TagBlock,
    TagFence,
    parse_aborted,
    parse_filter,
    parse_key_fence,
    parse_points,
    parse_producers,
    parse_tag_fence,
)

_SPAN_BYTES_MAX = 4 * 1024 * 1024
"""The most that is fetched for the first read of a reader."""
_GUESS_MARGIN = 1.5
_GUESS_AFTER_BYTES = 256 * 1024
"""How much more than the estimate is fetched while the index head is not cached."""
_ATTEMPTS = 2
"""Bytes whose CRC does not match are fetched once more before they count as corrupt."""


class IndexSource(Protocol):
    """The bytes of one .idx object, cached or not. Safe with threads."""

    @property
    def where(self) -> str:
        """Names the object in errors."""

    @property
    def length(self) -> int: ...

    @property
    def head_length(self) -> int: ...

    def read(self, position: int, size: int) -> Buffer:
        """Exactly these bytes."""

    def distrust(self) -> None:
        """Drops the object from the cache, so that the next read asks the store."""


class IndexHead:
    """The part of an index that is kept in memory. Its sections are parsed at first use."""

    __slots__ = ("_fences", "_filters", "_head", "_source", "header", "points")

    def __init__(self, source: IndexSource, meta: SegmentMeta) -> None:
        self._source = source
        for attempt in range(_ATTEMPTS):
            try:
                self._head: Buffer = source.read(0, source.head_length)
                self.header = header = _header(self._head, source, meta)
                for section in header.sections:
                    if section.position + section.length <= len(self._head):
                        self._part(section)  # Later the head could not be fetched again.
                data = self._part(header.sections[SectionKind.POINTS])
                self.points: Points = parse_points(data, header, source.where)
                break
            except Corruption:
                if attempt + 1 == _ATTEMPTS:
                    raise
                source.distrust()
        self._fences: dict[SectionKind, KeyFence | TagFence] = {}
        self._filters: dict[SectionKind, Filter] = {}

    @property
    def size_bytes(self) -> int:
        """Estimated memory, with all sections parsed."""
        return 2 * sum(section.length for section in self.header.sections[:5]) + HEADER_BYTES

    def key_fence(self) -> KeyFence:
        kind = SectionKind.KEY_FENCE
        found = self._fences.get(kind)
        if found is None:
            found = parse_key_fence(self.read(self.header.sections[kind]), *self._origin)
            self._fences[kind] = found
        assert isinstance(found, KeyFence)
        return found

    def tag_fence(self) -> TagFence:
        kind = SectionKind.TAG_FENCE
        found = self._fences.get(kind)
        if found is None:
            found = parse_tag_fence(self.read(self.header.sections[kind]), *self._origin)
            self._fences[kind] = found
        assert isinstance(found, TagFence)
        return found

    def filter(self, kind: SectionKind) -> Filter:
        found = self._filters.get(kind)
        if found is None:
            data = self.read(self.header.sections[kind])
            found = parse_filter(data, self.header, kind, self._source.where)
            self._filters[kind] = found
        return found

    def read(self, section: Section) -> Buffer:
        """A section or a block with its CRC checked; fetched once more on a mismatch."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._part(section)
            except Corruption:
                if attempt + 1 == _ATTEMPTS:
                    raise
                self._source.distrust()
        raise AssertionError

    def _part(self, section: Section) -> Buffer:
        if section.position + section.length <= len(self._head):
            data: Buffer = memoryview(self._head)[section.position :][: section.length]
        else:
            data = self._source.read(section.position, section.length)
        if crc32c(data) != section.crc:
            where = self._source.where
            raise Corruption("a CRC does not match", where=where, position=section.position)
        return data

    @property
    def _origin(self) -> tuple[Header, str]:
        return self.header, self._source.where


class IndexHeads:
    """Parsed heads of the most recently used indexes, up to a limit. Safe with threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, IndexHead] = OrderedDict()
        self._size_bytes = 0

    def get(self, source: IndexSource, meta: SegmentMeta) -> IndexHead:
        with self._lock:
            head = self._heads.get(source.where)
            if head is not None:
                self._heads.move_to_end(source.where)
                return head
        head = IndexHead(source, meta)
        with self._lock:
            known = self._heads.get(source.where)
            if known is not None:
                return known
            self._heads[source.where] = head
            self._size_bytes += head.size_bytes
            while self._size_bytes > self._max_bytes and len(self._heads) > 1:
                _, oldest = self._heads.popitem(last=False)
                self._size_bytes -= oldest.size_bytes
        return head

    def has(self, where: str) -> bool:
        return where in self._heads

    def forget(self, where: str) -> None:
        with self._lock:
            head = self._heads.pop(where, None)
            if head is not None:
                self._size_bytes -= head.size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes


class SegmentFetcher(Protocol):
    """Prefetches bytes of a segment."""

    @property
    def is_index_cached(self) -> bool:
        """Whether the head of the index is cached."""

    def fetch(self, start: int, end: int) -> None: ...


class ColdIndex:
    """A SegmentIndex over an .idx object. Small: heads and blocks are in shared caches."""

    __slots__ = ("_fetcher", "_heads", "_meta", "_source")

    def __init__(
        self,
        source: IndexSource,
        meta: SegmentMeta,
        heads: IndexHeads,
        fetcher: SegmentFetcher | None = None,
    ) -> None:
        """With a `fetcher`, the first record of a read takes one round trip instead of several."""
        self._source = source
        self._meta = meta
        self._heads = heads
        self._fetcher = fetcher

    def floor_offset(self, offset: int) -> Point | None:
        fetcher = self._fetcher
        if fetcher is not None and not self._is_index_cached(fetcher):
            fetcher.fetch(*self._guess(offset))  # In parallel with the fetch of the head.
        points = self._head().points
        point = points.floor_offset(offset)
        if fetcher is not None and point is not None:
            # The record is somewhere before the next point.
            end = points.end_after(offset) or self._meta.length
            fetcher.fetch(point.position, min(end, point.position + _SPAN_BYTES_MAX))
        return point

    def _is_index_cached(self, fetcher: SegmentFetcher) -> bool:
        return self._heads.has(self._source.where) or fetcher.is_index_cached

    def _guess(self, offset: int) -> tuple[int, int]:
        """Estimated range of the record and the point before it, for records of equal size."""
        meta = self._meta
        share = (offset - meta.base_offset) / max(meta.end_offset - meta.base_offset, 1)
        records_before = min(offset - meta.base_offset, RECORDS_PER_POINT)
        record_bytes = meta.length / max(meta.end_offset - meta.base_offset, 1)
        before = min(int(record_bytes * records_before * _GUESS_MARGIN), _SPAN_BYTES_MAX)
        at = int(meta.length * min(max(share, 0.0), 1.0))
        return max(at - before, 0), min(at + _GUESS_AFTER_BYTES, meta.length)

    def floor_time(self, timestamp_ms: int) -> Point | None:
        return self._head().points.floor_time(timestamp_ms)

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        head = self._head()
        word = term(key)
        if not head.filter(SectionKind.KEY_FILTER).may_hold(word):
            return None
        section = head.key_fence().find(word)
        if section is None:
            return None
        data = head.read(section)
        return KeyBlock(data, head.header, self._source.where, section.position).find(word)

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        head = self._head()
        word = term(tag)
        if not head.filter(SectionKind.TAG_FILTER).may_hold(word):
            return
        is_first = True
        for section in head.tag_fence().from_tag(word, start_offset):
            data = head.read(section)
            block = TagBlock(data, head.header, self._source.where, section.position)
            first = block.first_at(word, start_offset) if is_first else 0
            is_first = False
            for number in range(first, len(block)):
                if block.term(number) != word:
                    return
                yield block.hit(number)

    def aborted(self) -> list[AbortedTransaction]:
        """Aborted transactions whose marker is in the segment."""
        head = self._head()
        data = head.read(head.header.sections[SectionKind.ABORTED])
        return parse_aborted(data, head.header, self._source.where)

    def producers(self) -> list[tuple[int, bytes]]:
        """Producers at the end of the segment: id, and state in its stored form."""
        head = self._head()
        data = head.read(head.header.sections[SectionKind.PRODUCERS])
        return parse_producers(data, head.header, self._source.where)

    def _head(self) -> IndexHead:
        return self._heads.get(self._source, self._meta)


def _header(data: Buffer, source: IndexSource, meta: SegmentMeta) -> Header:
    """The header, checked to be that of this segment's index."""
    header = Header.unpack(data, source.where)
    is_its = (
        header.length == source.length
        and header.head_length == source.head_length
        and header.base_offset == meta.base_offset
        and header.end_offset == meta.end_offset
        and header.segment_length == meta.length
        and header.segment_crc == meta.crc
    )
    if not is_its:
        raise Corruption(
            f"is the index of another segment, [{header.base_offset}, {header.end_offset}) with "
            f"{header.segment_length:,} bytes",
            where=source.where,
            position=0,
        )
    return header
