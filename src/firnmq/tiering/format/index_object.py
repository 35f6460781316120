"""Writes a segment's indexes as one object, and reads such an object as a whole."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, TypeVar

from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.tiering.api import IndexDump
from firnmq.errors import Corruption
from firnmq.record.deletion import Deletion
from firnmq.tiering.format.index_layout import (
    BLOCK_BYTES,
    BLOCK_BYTES_MAX,
    BLOCKS_PER_SIZE,
    HEAD_BYTES_WANTED,
    HEADER_BYTES,
    I64,
    STORED_TERM_BYTES_MAX,
    U32,
    Header,
    Section,
    SectionKind,
    pack_column,
    pack_filter,
    pack_terms,
    steps_of,
    tag_order,
)
from firnmq.tiering.format.index_sections import (
    KeyBlock,
    TagBlock,
    parse_aborted,
    parse_deletions,
    parse_key_fence,
    parse_points,
    parse_producers,
    parse_tag_fence,
)

_KEY_ENTRY_BYTES = 10
"""About what a key needs beside itself."""
_TAG_ENTRY_BYTES = 12

_KeyRow: TypeAlias = tuple[bytes, int, int]
_TagRow: TypeAlias = tuple[bytes, int, int, Sequence[int]]
_Row = TypeVar("_Row", _KeyRow, _TagRow)

_IN_HEAD = (
    SectionKind.POINTS,
    SectionKind.KEY_FENCE,
    SectionKind.TAG_FENCE,
    SectionKind.TAG_FILTER,
    SectionKind.KEY_FILTER,
)
"""Sections at the beginning, in this order; then come the blocks, then the others."""


class _Blocks(NamedTuple):
    blocks: list[bytes]
    fence: bytes
    """The fence's own part; sizes and CRCs of the blocks go before it."""
    filter: bytes


def write_index(dump: IndexDump, meta: SegmentMeta) -> tuple[bytes, int]:
    """The .idx object of a sealed segment, and the length of its head.

    Entries keep the order of the key-value store. No step holds the interpreter's lock for long,
    so appends continue.
    """
    keys = _keys(dump.keys, meta.base_offset)
    tags = _tags(dump.tags, meta.base_offset)
    contents = {
        SectionKind.POINTS: _points(dump.points, meta.base_offset),
        SectionKind.TAG_FILTER: tags.filter,
        SectionKind.KEY_FILTER: keys.filter,
        SectionKind.ABORTED: _aborted(dump.aborted),
        SectionKind.PRODUCERS: _producers(dump.producers),
        SectionKind.DELETIONS: _deletions(dump.deletions),
    }
    # Where blocks are depends on the fences' lengths, so fences count from the end of the head
    # sections: those lengths do not depend on it.
    contents[SectionKind.KEY_FENCE] = _fence(keys, 0)
    contents[SectionKind.TAG_FENCE] = _fence(tags, sum(map(len, keys.blocks)))
    parts: list[bytes] = []
    sections: dict[SectionKind, Section] = {}
    position = HEADER_BYTES
    head_length = 0

    def add(kind: SectionKind) -> None:
        nonlocal position
        content = contents[kind]
        sections[kind] = Section(position, len(content), crc32c(content))
        parts.append(content)
        position += len(content)

    for kind in _IN_HEAD:
        add(kind)
        if kind is SectionKind.POINTS or position <= HEAD_BYTES_WANTED:
            head_length = position
    for block in (*keys.blocks, *tags.blocks):
        parts.append(block)
        position += len(block)
    add(SectionKind.ABORTED)
    add(SectionKind.PRODUCERS)
    add(SectionKind.DELETIONS)
    header = Header(
        head_length=head_length,
        length=position,
        base_offset=meta.base_offset,
        end_offset=meta.end_offset,
        segment_length=meta.length,
        segment_crc=meta.crc,
        sections=tuple(sections[kind] for kind in SectionKind),
    )
    return b"".join((header.pack(), *parts)), head_length


def read_index(data: Buffer, where: str) -> tuple[Header, IndexDump]:
    """Everything in an .idx object, every CRC checked; raises Corruption naming `where`."""
    header = Header.unpack(data, where)
    view = memoryview(data)
    if header.length != len(view):
        raise Corruption(
            f"has {len(view):,} bytes, its header says {header.length:,}", where=where, position=0
        )

    def content(section: Section) -> memoryview:
        found = view[section.position : section.position + section.length]
        if crc32c(found) != section.crc:
            raise Corruption("a CRC does not match", where=where, position=section.position)
        return found

    contents = {kind: content(header.sections[kind]) for kind in SectionKind}
    points = parse_points(contents[SectionKind.POINTS], header, where)
    key_fence = parse_key_fence(contents[SectionKind.KEY_FENCE], header, where)
    tag_fence = parse_tag_fence(contents[SectionKind.TAG_FENCE], header, where)
    keys: list[_KeyRow] = []
    for section in key_fence.blocks:
        keys += KeyBlock(content(section), header, where, section.position).entries()
    tags: list[_TagRow] = []
    for section in tag_fence.blocks:
        tags += TagBlock(content(section), header, where, section.position).entries()
    return header, IndexDump(
        points=list(zip(points.offsets, points.positions, points.max_before, strict=True)),
        keys=keys,
        tags=tags,
        aborted=tuple(parse_aborted(contents[SectionKind.ABORTED], header, where)),
        producers=tuple(parse_producers(contents[SectionKind.PRODUCERS], header, where)),
        deletions=tuple(parse_deletions(contents[SectionKind.DELETIONS], header, where)),
    )


def _points(points: Iterable[tuple[int, int, int]], base_offset: int) -> bytes:
    rows = sorted(points)
    offsets = [row[0] - base_offset for row in rows]
    positions = [row[1] for row in rows]
    times = [row[2] for row in rows]
    # Before the first batch the greatest timestamp is the least number there is, so the second
    # is the first that others can be counted from.
    firsts = b"".join(I64.pack(time) for time in times[:2])
    return (
        U32.pack(len(rows))
        + pack_column(steps_of(offsets))
        + pack_column(steps_of(positions))
        + firsts
        + pack_column(steps_of(times[1:])[1:])
    )


def _keys(entries: Iterable[_KeyRow], base_offset: int) -> _Blocks:
    blocks: list[bytes] = []
    separators: list[bytes] = []
    hashes = array("I")
    last = b""
    for group in _groups(entries, _key_bytes, _key_order):
        terms = [row[0] for row in group]
        blocks.append(
            U32.pack(len(group))
            + pack_column([row[1] - base_offset for row in group])
            + pack_column([row[2] for row in group])
            + pack_terms(terms)
        )
        separators.append(_separator(last, terms[0]) if separators else b"")
        last = terms[-1]
        hashes.extend(map(crc32c, terms))
    return _Blocks(blocks, pack_terms(separators), pack_filter(hashes))


def _tags(entries: Iterable[_TagRow], base_offset: int) -> _Blocks:
    blocks: list[bytes] = []
    firsts: list[tuple[bytes, int]] = []
    hashes = array("I")
    for group in _groups(entries, _tag_bytes, _tag_order):
        blocks.append(_tag_block(group, base_offset))
        firsts.append((group[0][0], group[0][1] - base_offset))
        hashes.extend({crc32c(row[0]) for row in group})
    fence = pack_column([base for _, base in firsts]) + pack_terms([term for term, _ in firsts])
    return _Blocks(blocks, fence, pack_filter(hashes))


def _tag_block(rows: Sequence[_TagRow], base_offset: int) -> bytes:
    numbers: dict[bytes, int] = {}
    steps: list[int] = []
    for row in rows:
        numbers.setdefault(row[0], len(numbers))
        steps += steps_of(row[3])
    return b"".join(
        (
            U32.pack(len(numbers)),
            pack_terms(list(numbers)),
            U32.pack(len(rows)),
            pack_column([numbers[row[0]] for row in rows]),
            pack_column([row[1] - base_offset for row in rows]),
            pack_column([row[2] for row in rows]),
            pack_column(list(accumulate(len(row[3]) for row in rows))),
            pack_column(steps),
        )
    )


def _fence(blocks: _Blocks, start: int) -> bytes:
    """Where blocks are, counted from the first block of all, their CRCs, and what they hold."""
    ends = list(accumulate(map(len, blocks.blocks), initial=start))
    return (
        U32.pack(len(blocks.blocks))
        + pack_column(ends)
        + pack_column([crc32c(block) for block in blocks.blocks])
        + blocks.fence
    )


def _aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    rows = sorted(entries, key=lambda each: each.last_offset)
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * 4
    return U32.pack(len(rows)) + b"".join(pack_column(column) for column in columns)


def _producers(entries: Iterable[tuple[int, bytes]]) -> bytes:
    rows = sorted(entries)
    packed = pack_terms([state for _, state in rows])
    return U32.pack(len(rows)) + pack_column([producer for producer, _ in rows]) + packed


def _deletions(entries: Iterable[tuple[int, Deletion]]) -> bytes:
    """Nothing at all where there are none, as in most segments: no reader has to look there."""
    rows = sorted(entries)
    if not rows:
        return b""
    packed = pack_terms([deletion.pack() for _, deletion in rows])
    return U32.pack(len(rows)) + pack_column([offset for offset, _ in rows]) + packed


def _groups(
    rows: Iterable[_Row], size_of: Callable[[_Row], int], order_of: Callable[[_Row], Any]
) -> Iterator[list[_Row]]:
    """Rows in groups, each about as large as a block should be."""
    block_bytes = BLOCK_BYTES
    group: list[_Row] = []
    size = group_count = 0
    before = None
    for row in rows:
        order = order_of(row)
        if before is not None and order <= before:
            raise ValueError(f"{row[0]!r} is not where it belongs among the index's entries")
        before = order
        row_bytes = size_of(row)
        if group and size + row_bytes > block_bytes:
            yield group
            group, size = [], 0
            group_count += 1
            if group_count % BLOCKS_PER_SIZE == 0:
                block_bytes = min(2 * block_bytes, BLOCK_BYTES_MAX)
        group.append(row)
        size += row_bytes
    if group:
        yield group


def _key_bytes(row: _KeyRow) -> int:
    return _checked_length(row[0]) + _KEY_ENTRY_BYTES


def _key_order(row: _KeyRow) -> bytes:
    return row[0]


def _tag_bytes(row: _TagRow) -> int:
    return _checked_length(row[0]) + len(row[3]) + _TAG_ENTRY_BYTES


def _tag_order(row: _TagRow) -> tuple[int, bytes, int]:
    return tag_order(row[0], row[1])


def _separator(before: bytes, after: bytes) -> bytes:
    """The shortest beginning of `after` that is still greater than `before`."""
    for size in range(1, len(after)):
        if after[:size] > before:
            return after[:size]
    return after


def _checked_length(term: bytes) -> int:
    if len(term) > STORED_TERM_BYTES_MAX:
        raise ValueError(f"a term of {len(term)} bytes is not as the index has it")
    return len(term)
