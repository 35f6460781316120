"""Reads the sections of an .idx object, each from bytes whose CRC was checked.

All values are still checked against the segment's bounds, so that no position leads outside it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.errors import Corruption
from firnmq.index import KeyHit, Point, TagHit
from firnmq.record.deletion import Deletion
from firnmq.tiering.format.index_layout import (
    Cursor,
    Filter,
    Header,
    JoinedTerms,
    Section,
    SectionKind,
    tag_order,
)

INT64_MAX = 2**63 - 1


class Points(NamedTuple):
    """Offset and time points, in offset order."""

    offsets: array[int]
    positions: array[int]
    max_before: array[int]

    def floor_offset(self, offset: int) -> Point | None:
        at = bisect_right(self.offsets, offset) - 1
        return None if at < 0 else Point(self.offsets[at], self.positions[at])

    def end_after(self, offset: int) -> int | None:
        """Position of the first point beyond the offset."""
        at = bisect_right(self.offsets, offset)
        return self.positions[at] if at < len(self.positions) else None

    def floor_time(self, timestamp_ms: int) -> Point | None:
        if not self.offsets:
            return None
        at = max(bisect_left(self.max_before, timestamp_ms) - 1, 0)
        return Point(self.offsets[at], self.positions[at])


class KeyFence(NamedTuple):
    """Blocks of keys, and a term before each that is greater than all of the block before."""

    blocks: tuple[Section, ...]
    separators: JoinedTerms

    def find(self, term: bytes) -> Section | None:
        """The only block that may hold the term."""
        at = bisect_right(self.separators, term) - 1
        return self.blocks[at] if at >= 0 else None


class TagFence(NamedTuple):
    """Blocks of tags, and the first entry of each."""

    blocks: tuple[Section, ...]
    firsts: tuple[tuple[bytes, int], ...]
    """Tag and first offset of the batch."""

    def from_tag(self, term: bytes, start_offset: int) -> Iterator[Section]:
        """Blocks that may hold entries of the tag from the last one at or before the offset on."""
        first = bisect_right(self.firsts, tag_order(term, start_offset), key=_order_of_first) - 1
        for number in range(max(first, 0), len(self.blocks)):
            if tag_order(self.firsts[number][0], 0) > tag_order(term, 0):
                return
            yield self.blocks[number]


class KeyBlock:
    """Some keys in order."""

    __slots__ = ("_offsets", "_positions", "_terms")

    def __init__(self, data: Buffer, header: Header, where: str, position: int) -> None:
        cursor = Cursor(data, where, position)
        count = cursor.count()
        self._offsets = _offsets(cursor.column(count), header, cursor)
        self._positions = _positions(cursor.column(count), header, cursor)
        self._terms = cursor.terms(count)
        cursor.finish()

    def find(self, term: bytes) -> KeyHit | None:
        at = bisect_left(self._terms, term)
        if at == len(self._terms) or self._terms[at] != term:
            return None
        return KeyHit(self._offsets[at], self._positions[at])

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        return zip(self._terms, self._offsets, self._positions, strict=True)


class TagBlock:
    """Some batches of some tags, in order."""

    __slots__ = ("_bases", "_ends", "_numbers", "_positions", "_steps", "_terms")

    def __init__(self, data: Buffer, header: Header, where: str, position: int) -> None:
        cursor = Cursor(data, where, position)
        self._terms = cursor.terms(cursor.count())
        count = cursor.count()
        self._numbers = cursor.column(count)
        self._bases = _offsets(cursor.column(count), header, cursor)
        self._positions = _positions(cursor.column(count), header, cursor)
        self._ends = cursor.column(count)
        self._steps = cursor.column(self._ends[-1] if count else 0)
        cursor.finish()
        if count and max(self._numbers) >= len(self._terms):
            raise cursor.refusal("an entry names a tag that is not there")
        lengths = (end - start for start, end in pairwise((0, *self._ends)))
        if any(length <= 0 for length in lengths):
            raise cursor.refusal("an entry has no offsets")
        parts = zip(self._bases, pairwise((0, *self._ends)), strict=True)
        if any(base + sum(self._steps[at:end]) > INT64_MAX for base, (at, end) in parts):
            raise cursor.refusal("an offset is out of range")

    def __len__(self) -> int:
        return len(self._bases)

    def first_at(self, term: bytes, start_offset: int) -> int:
        """Number of the tag's last entry at or before the offset; without one, of its first entry,
        or of the place where that would be inserted."""
        at = bisect_right(range(len(self)), tag_order(term, start_offset), key=self._order) - 1
        return at if at >= 0 and self.term(at) == term else at + 1

    def term(self, number: int) -> bytes:
        return self._terms[self._numbers[number]]

    def hit(self, number: int) -> TagHit:
        start = self._ends[number - 1] if number else 0
        steps = self._steps[start : self._ends[number]]
        return TagHit(self._bases[number], self._positions[number], list(accumulate(steps)))

    def entries(self) -> Iterator[tuple[bytes, int, int, Sequence[int]]]:
        for number in range(len(self)):
            yield self.term(number), *self.hit(number)

    def _order(self, number: int) -> tuple[int, bytes, int]:
        return tag_order(self.term(number), self._bases[number])


def _order_of_first(first: tuple[bytes, int]) -> tuple[int, bytes, int]:
    return tag_order(*first)


def parse_points(data: Buffer, header: Header, where: str) -> Points:
    cursor = _cursor(data, header, SectionKind.POINTS, where)
    count = cursor.count()
    offsets = cursor.rising(count, header.base_offset)
    positions = cursor.rising(count)
    times = array("q", (cursor.signed() for _ in range(min(count, 2))))
    times += cursor.rising(max(count - 2, 0), times[-1] if times else 0)
    cursor.finish()
    if count and (offsets[-1] >= header.end_offset or positions[-1] >= header.segment_length):
        raise cursor.refusal("a point is beyond the end of the segment")
    if any(before > after for before, after in pairwise(times[:2])):
        raise cursor.refusal("times do not rise")
    return Points(offsets, positions, times)


def parse_key_fence(data: Buffer, header: Header, where: str) -> KeyFence:
    cursor = _cursor(data, header, SectionKind.KEY_FENCE, where)
    blocks = _blocks(cursor, header)
    separators = cursor.terms(len(blocks))
    cursor.finish()
    return KeyFence(blocks, separators)


def parse_tag_fence(data: Buffer, header: Header, where: str) -> TagFence:
    cursor = _cursor(data, header, SectionKind.TAG_FENCE, where)
    blocks = _blocks(cursor, header)
    bases = _offsets(cursor.column(len(blocks)), header, cursor)
    firsts = tuple(zip(cursor.terms(len(blocks)), bases, strict=True))
    cursor.finish()
    return TagFence(blocks, firsts)


def parse_filter(data: Buffer, header: Header, kind: SectionKind, where: str) -> Filter:
    return Filter(_cursor(data, header, kind, where))


def parse_aborted(data: Buffer, header: Header, where: str) -> list[AbortedTransaction]:
    cursor = _cursor(data, header, SectionKind.ABORTED, where)
    count = cursor.count()
    columns = [cursor.column(count) for _ in range(4)]
    cursor.finish()
    rows = [AbortedTransaction(*row) for row in zip(*columns, strict=True)]
    for row in rows:
        if row.first_offset > row.last_offset or max(row) > INT64_MAX:
            raise cursor.refusal("an aborted transaction has no range")
    return rows


def parse_producers(data: Buffer, header: Header, where: str) -> list[tuple[int, bytes]]:
    cursor = _cursor(data, header, SectionKind.PRODUCERS, where)
    count = cursor.count()
    numbers = cursor.column(count)
    states = cursor.terms(count)
    cursor.finish()
    if count and max(numbers) >= INT64_MAX:
        raise cursor.refusal("a producer's id is out of range")
    return list(zip(numbers, states, strict=True))


def parse_deletions(data: Buffer, header: Header, where: str) -> list[tuple[int, Deletion]]:
    """Deletions with the offsets of their entries. An object of version 1 has none."""
    if not len(data):
        return []
    cursor = _cursor(data, header, SectionKind.DELETIONS, where)
    count = cursor.count()
    offsets = cursor.column(count)
    packed = cursor.terms(count)
    cursor.finish()
    found = []
    for offset, term in zip(offsets, packed, strict=True):
        try:
            deletion = Deletion.unpack(term)
        except Corruption as error:
            raise cursor.refusal(error.reason) from error
        is_inside = header.base_offset <= offset < header.end_offset
        if not is_inside or deletion.reach > offset:
            raise cursor.refusal("a deletion is out of range")
        found.append((offset, deletion))
    return found


def _cursor(data: Buffer, header: Header, kind: SectionKind, where: str) -> Cursor:
    return Cursor(data, where, header.sections[kind].position)


def _blocks(cursor: Cursor, header: Header) -> tuple[Section, ...]:
    """Where a fence's blocks are, and their CRCs."""
    count = cursor.count()
    ends = cursor.column(count + 1)
    crcs = cursor.column(count)
    last_in_front = header.sections[SectionKind.KEY_FILTER]
    start = last_in_front.position + last_in_front.length
    if any(before > after for before, after in pairwise(ends)) or (
        start + ends[-1] > header.length
    ):
        raise cursor.refusal("a block is beyond the end")
    return tuple(
        Section(start + first, end - first, crc)
        for (first, end), crc in zip(pairwise(ends), crcs, strict=True)
    )


def _offsets(relative: array[int], header: Header, cursor: Cursor) -> array[int]:
    if relative and max(relative) >= header.end_offset - header.base_offset:
        raise cursor.refusal("an offset is beyond the end of the segment")
    return array("q", (header.base_offset + each for each in relative))


def _positions(positions: array[int], header: Header, cursor: Cursor) -> array[int]:
    if positions and max(positions) >= header.segment_length:
        raise cursor.refusal("a position is beyond the end of the segment")
    return positions
