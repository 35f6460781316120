"""Compares a segment's stored index entries with those its data call for, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from firnmq.disk import Family, KeyValueStore
from firnmq.index.layout import (
    CHECKPOINT,
    KEY,
    OFFSET,
    PREFIX,
    TAG,
    TIME,
    TIME_KEY,
    U64,
    segment_range,
    unpack_offsets,
)

ENTRIES_PER_PASS = 1_000_000
"""Entries held at once, some 250 MB with short keys. A segment that calls for more is read again
once per further million, each time for another part of the entries."""
_ENTRIES_PER_READ = 4096
_TIME_BIAS = 2**63
_OFFSETS_SHOWN = 8
_PART_SALT = 1
"""Parts are chosen by a hash that has nothing to do with the one that chose a key's shard."""

Entry = tuple[bytes, bytes]


class Expected:
    """Entries of one part of a segment's index, as its data call for them.

    What the index must have is in `required`, what it may have in `allowed`: a tail beyond the
    indexed end is indexed at the next opening and may be indexed in part.
    """

    __slots__ = ("_part", "_part_count", "allowed", "is_overfull", "produced_count", "required")

    def __init__(self, part: int = 0, part_count: int = 1) -> None:
        self._part = part
        self._part_count = part_count
        self.required: dict[bytes, bytes] = {}
        self.allowed: set[Entry] = set()
        self.produced_count = 0
        self.is_overfull = False
        """More came than are held at once: only the number is right, look part by part."""

    def add(self, entries: list[Entry], *, is_required: bool) -> None:
        self.produced_count += len(entries)
        if self.is_overfull:
            return
        if self._part_count > 1:
            entries = list(self.own(entries))
        if is_required:
            self.required.update(entries)
        else:
            self.allowed.update(entries)
        if self._part_count == 1 and len(self.required) + len(self.allowed) > ENTRIES_PER_PASS:
            self.is_overfull = True
            self.required = {}
            self.allowed = set()

    def own(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Those of the entries that belong to this part."""
        if self._part_count == 1:
            yield from entries
            return
        for entry in entries:
            if crc32(entry[0], _PART_SALT) % self._part_count == self._part:
                yield entry


class Difference(Enum):
    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


class IndexDifference(NamedTuple):
    difference: Difference
    message: str


def stored_entries(kv: KeyValueStore, shard_uid: int, segment_seq: int) -> Iterator[Entry]:
    """Every index entry of a segment but its checkpoint, a page at a time."""
    lower, upper = segment_range(shard_uid, segment_seq)
    while page := kv.items(Family.INDEX, lower, upper, _ENTRIES_PER_READ):
        for entry in page:
            if entry[0][PREFIX.size - 1] != CHECKPOINT:
                yield entry
        lower = page[-1][0] + b"\x00"


def compare(expected: Expected, stored: Iterable[Entry]) -> Iterator[IndexDifference]:
    """What is stored but not called for, called for but not stored, or not the same."""
    required, allowed = expected.required, expected.allowed
    for key, value in expected.own(stored):
        wanted = required.pop(key, None)
        if wanted == value or (key, value) in allowed:
            continue
        if wanted is None:
            text = f"{describe(key)} is in the index, but the data do not call for it"
            yield IndexDifference(Difference.EXTRA, text)
        else:
            text = (
                f"{describe(key)} leads to {describe_value(key, value)}, "
                f"by the data it should be {describe_value(key, wanted)}"
            )
            yield IndexDifference(Difference.DIFFERENT, text)
    for key, value in required.items():
        text = f"{describe(key)}, which leads to {describe_value(key, value)}, is not in the index"
        yield IndexDifference(Difference.MISSING, text)


def describe(key: bytes) -> str:
    """An index entry's key in words; a malformed one as it is."""
    kind = key[PREFIX.size - 1]
    rest = key[PREFIX.size :]
    if kind == OFFSET and len(rest) == U64.size:
        return f"offset point {U64.unpack(rest)[0]}"
    if kind == TIME and len(rest) == TIME_KEY.size:
        biased, offset = TIME_KEY.unpack(rest)
        before = biased - _TIME_BIAS
        since = "the beginning" if before == -_TIME_BIAS else f"time {before} ms"
        return f"time point of offset {offset} after {since}"
    if kind == KEY:
        return f"key {_text(rest)}"
    if kind == TAG and len(rest) == 2 + int.from_bytes(rest[:2], "big") + U64.size:
        return f"tag {_text(rest[2:-8])} of the batch at offset {U64.unpack(rest[-8:])[0]}"
    return f"entry {key.hex()}, which no index has"


def describe_value(key: bytes, value: bytes) -> str:
    kind = key[PREFIX.size - 1]
    if kind in (OFFSET, TIME) and len(value) <= U64.size:
        return f"byte {int.from_bytes(value, 'big'):,}"
    if kind == KEY and U64.size <= len(value) <= 2 * U64.size:
        place = int.from_bytes(value[8:], "big")
        return f"offset {U64.unpack_from(value)[0]} in the batch at byte {place:,}"
    if kind == TAG and (found := _tagged(value)) is not None:
        position, relative_offsets = found
        some = ", ".join(f"+{offset}" for offset in relative_offsets[:_OFFSETS_SHOWN])
        more = ", …" if len(relative_offsets) > _OFFSETS_SHOWN else ""
        return f"offsets {some}{more} in the batch at byte {position:,}"
    return f"entry {value[:64].hex()}"


def _tagged(value: bytes) -> tuple[int, list[int]] | None:
    try:
        return unpack_offsets(value)
    except (IndexError, ValueError):  # Too short, or no such width.
        return None


def _text(term: bytes) -> str:
    return repr(term.decode("utf-8", "backslashreplace"))
