"""Bytes of an .idx object. docs/formats/tiered-objects.md has the same in prose.

Everything is columns of numbers and joined terms, so that both directions run at the speed of
`array` and never make an object per entry.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, islice, pairwise
from sys import byteorder
from typing import NamedTuple

from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.errors import Corruption
from firnmq.index.layout import TERM_BYTES_MAX

MAGIC = b"firn-idx"
VERSION = 2
_SECTIONS_OF = {1: 7, 2: 8}
"""How many sections each version has that can be read."""
HEAD_BYTES_WANTED = 256 * 1024
"""Target for the size of the first read of an .idx object."""
BLOCK_BYTES = 16 * 1024
"""Of keys or tags, found by one read."""
BLOCKS_PER_SIZE = 2048
"""After this many blocks the block size doubles, so that fences stay small."""
BLOCK_BYTES_MAX = 1024 * 1024
"""Of a block of keys, and of one of tags unless a single entry is larger."""
STORED_TERM_BYTES_MAX = TERM_BYTES_MAX + 1

_FIXED = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # version
    "H"  # sections that follow
    "I"  # head_length: the first bytes, which hold at least the points
    "Q"  # length of the object
    "Q"  # base_offset of the segment
    "Q"  # end_offset of the segment
    "Q"  # length of the segment
    "I"  # CRC32C of the segment
)
_SECTION = struct.Struct(
    ">"
    "Q"  # position
    "I"  # length
    "I"  # CRC32C
)
U32 = struct.Struct(">I")
I64 = struct.Struct(">q")
assert _FIXED.size == 52
assert _SECTION.size == 16
assert array("I").itemsize == 4

_WIDTHS = {"B": 1, "H": 2, "I": 4, "Q": 8}
_LIMITS = tuple((1 << 8 * width, letter) for letter, width in _WIDTHS.items())
_FINGERPRINT_BITS = 16
_HASH_BITS = 32
_TERMS_PER_BUCKET = 16
_PART_BITS = 8


class SectionKind(IntEnum):
    """In the order of the header's table."""

    POINTS = 0
    KEY_FENCE = 1
    TAG_FENCE = 2
    TAG_FILTER = 3
    KEY_FILTER = 4
    ABORTED = 5
    PRODUCERS = 6
    DELETIONS = 7


HEADER_BYTES = _FIXED.size + len(SectionKind) * _SECTION.size + U32.size
_NOTHING_CRC = 0
"""CRC32C of no bytes."""


class Section(NamedTuple):
    position: int
    length: int
    crc: int


class Header(NamedTuple):
    head_length: int
    length: int
    base_offset: int
    end_offset: int
    segment_length: int
    segment_crc: int
    sections: tuple[Section, ...]

    def pack(self) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, len(self.sections), *self[:6])
        packed = fixed + b"".join(_SECTION.pack(*section) for section in self.sections)
        return packed + U32.pack(crc32c(packed))

    @classmethod
    def unpack(cls, data: Buffer, where: str) -> Header:
        if len(data) < HEADER_BYTES:
            raise Corruption(f"{len(data)} bytes hold no header", where=where, position=0)
        magic, version, count, *numbers = _FIXED.unpack_from(data)
        if magic != MAGIC:
            raise Corruption("is no .idx object", where=where, position=0)
        if version not in _SECTIONS_OF:
            raise Corruption(
                f"has version {version}, this release reads {VERSION}", where=where, position=8
            )
        known = _SECTIONS_OF[version]
        crc_at = _FIXED.size + known * _SECTION.size
        (crc,) = U32.unpack_from(data, crc_at)
        if count != known or crc != crc32c(memoryview(data)[:crc_at]):
            raise Corruption("the header's CRC does not match", where=where, position=crc_at)
        sections = tuple(
            Section(*_SECTION.unpack_from(data, _FIXED.size + number * _SECTION.size))
            for number in range(count)
        )
        sections += (Section(crc_at, 0, _NOTHING_CRC),) * (len(SectionKind) - count)
        header = cls._make((*numbers, sections))
        if not header.base_offset <= header.end_offset < 2**63:
            raise Corruption("the segment's range is none", where=where, position=24)
        if header.segment_length >= 2**63:
            raise Corruption("the segment's length is none", where=where, position=40)
        for section in header.sections:
            if section.position + section.length > header.length:
                raise Corruption("a section is beyond the end", where=where, position=_FIXED.size)
        points = header.sections[SectionKind.POINTS]
        if not points.position + points.length <= header.head_length <= header.length:
            raise Corruption("the head does not hold the points", where=where, position=12)
        return header


# Columns ------------------------------------------------------------------------------------------


def pack_column(values: Sequence[int]) -> bytes:
    """Numbers of 0 and above, each in as many bytes as the greatest needs."""
    greatest = max(values, default=0)
    letter = next(letter for limit, letter in _LIMITS if greatest < limit)
    return letter.encode() + _big_endian(array(letter, values)).tobytes()


def pack_terms(terms: Sequence[bytes]) -> bytes:
    return pack_column(list(accumulate(map(len, terms)))) + b"".join(terms)


def steps_of(values: Sequence[int]) -> list[int]:
    """The first of rising numbers, and how far each other is from the one before."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]


def _big_endian(numbers: array[int]) -> array[int]:
    if byteorder == "little":
        numbers.byteswap()
    return numbers


class Cursor:
    """Reads parts of an object one after the other, never beyond the bytes that it has."""

    __slots__ = ("_at", "_data", "_position", "_where")

    def __init__(self, data: Buffer, where: str, position: int) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._where = where
        self._position = position

    def take(self, size: int) -> memoryview:
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) < size:
            raise self.refusal(f"{size:,} bytes are announced, {len(part):,} are left")
        self._at += size
        return part

    def count(self) -> int:
        """A number of entries, each of at least one byte."""
        found: int = U32.unpack(self.take(U32.size))[0]
        if found > len(self._data) - self._at:
            raise self.refusal(f"{found:,} entries are announced, more than bytes are left")
        return found

    def signed(self) -> int:
        return int(I64.unpack(self.take(I64.size))[0])

    def column(self, count: int) -> array[int]:
        letter = chr(self.take(1)[0])
        if letter not in _WIDTHS:
            raise self.refusal(f"{letter!r} is no width of numbers")
        numbers = array(letter)
        numbers.frombytes(self.take(count * _WIDTHS[letter]))
        return _big_endian(numbers)

    def rising(self, count: int, start: int = 0) -> array[int]:
        """Numbers from their steps."""
        try:
            return array("q", accumulate(self.column(count), initial=start))[1:]
        except OverflowError:
            raise self.refusal("numbers are out of range") from None

    def terms(self, count: int) -> JoinedTerms:
        ends = self.column(count)
        if any(before > after for before, after in pairwise(ends)):
            raise self.refusal("terms overlap")
        return JoinedTerms(ends, bytes(self.take(ends[-1] if count else 0)))

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self.refusal("there is more than announced")

    def refusal(self, reason: str) -> Corruption:
        return Corruption(reason, where=self._where, position=self._position + self._at)


class JoinedTerms(Sequence[bytes]):
    """Terms that stand one after the other in one buffer."""

    __slots__ = ("_ends", "_joined")

    def __init__(self, ends: array[int], joined: bytes) -> None:
        self._ends = ends
        self._joined = joined

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        ends = self._ends
        return self._joined[ends[index - 1] if index else 0 : ends[index]]


# Filters ------------------------------------------------------------------------------------------


def pack_filter(hashes: Sequence[int]) -> bytes:
    """Of terms by their CRC32C: its last 16 bits in a bucket named by its first bits."""
    bits = min((len(hashes) // _TERMS_PER_BUCKET).bit_length(), _HASH_BITS - 1)
    shift = _HASH_BITS - bits
    mask = (1 << _FINGERPRINT_BITS) - 1
    # Sorted in many small parts: one large sort would block every other thread.
    part_bits = min(bits, _PART_BITS)
    parts: list[set[int]] = [set() for _ in range(1 << part_bits)]
    for value in hashes:
        place = value >> shift << _FINGERPRINT_BITS | value & mask
        parts[value >> _HASH_BITS - part_bits].add(place)
    starts: list[int] = []
    fingerprints = array("H")
    buckets = iter(range(1 << bits))
    for part in parts:
        places = sorted(part)
        start = len(fingerprints)
        for bucket in islice(buckets, 1 << bits - part_bits):
            starts.append(start + bisect_left(places, bucket << _FINGERPRINT_BITS))
        fingerprints.extend([place & mask for place in places])
    starts.append(len(fingerprints))
    return (
        bytes((bits,))
        + U32.pack(len(fingerprints))
        + pack_column(starts)
        + _big_endian(fingerprints).tobytes()
    )


def tag_order(term: bytes, offset: int) -> tuple[int, bytes, int]:
    """Entries of tags stand in this order, which is that of the key-value store."""
    return len(term), term, offset


class Filter:
    """A membership filter: says that a term may be among the packed ones, or that it is not."""

    __slots__ = ("_fingerprints", "_shift", "_starts")

    def __init__(self, cursor: Cursor) -> None:
        bits = cursor.take(1)[0]
        (count,) = U32.unpack(cursor.take(U32.size))
        if bits >= _HASH_BITS:
            raise cursor.refusal(f"{bits} bits cannot name a bucket")
        self._shift = _HASH_BITS - bits
        self._starts = cursor.column((1 << bits) + 1)
        self._fingerprints = array("H")
        self._fingerprints.frombytes(cursor.take(count * self._fingerprints.itemsize))
        _big_endian(self._fingerprints)
        cursor.finish()
        starts = self._starts
        is_rising = all(before <= after for before, after in pairwise(starts))
        if starts[0] != 0 or starts[-1] != count or not is_rising:
            raise cursor.refusal("buckets overlap")

    def may_hold(self, term: bytes) -> bool:
        value = crc32c(term)
        bucket = value >> self._shift
        fingerprint = value & (1 << _FINGERPRINT_BITS) - 1
        end = self._starts[bucket + 1]
        at = bisect_left(self._fingerprints, fingerprint, self._starts[bucket], end)
        return at < end and self._fingerprints[at] == fingerprint
