"""Deletion entries: control batches that say which records of their log are deleted.

An entry names offsets, and keys each with the offset below which its records are deleted. All of
these are below the entry's own offset.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from sys import byteorder
from typing import NamedTuple

from firnmq.errors import Corruption
from firnmq.record.batch import ATTRIBUTE_CONTROL, Buffer, attributes_of
from firnmq.record.control import control_batch, control_record

DELETION_KIND = 0x4644
"""The type of the control record. Kafka's own are small numbers."""
OFFSETS_PER_ENTRY_MAX = 4096
"""An entry stays small: a request for more offsets becomes several entries."""
KEYS_PER_ENTRY_MAX = 1024
KEY_BYTES_PER_ENTRY_MAX = 32 * 1024
"""Likewise for keys; one key alone may be larger."""
_VERSION = 0

_HEADER = struct.Struct(
    ">"
    "h"  # version
    "I"  # number of offsets, 8 bytes each, that follow
    "I"  # number of keys that follow them
)
_KEY = struct.Struct(
    ">"
    "Q"  # Records of the key below this offset are deleted.
    "I"  # length of the key, which follows
)
assert _HEADER.size == 10
assert _KEY.size == 12


class Deletion(NamedTuple):
    """What one entry deletes."""

    offsets: tuple[int, ...] = ()
    """Offsets of deleted records, rising."""
    keys: tuple[tuple[bytes, int], ...] = ()
    """Keys, each with the offset below which its records are deleted."""

    @property
    def reach(self) -> int:
        """It is about no record at or above this offset."""
        last = self.offsets[-1] + 1 if self.offsets else 0
        return max(last, *(below for _, below in self.keys), 0)

    def begins_below(self, start_offset: int) -> bool:
        """Whether some of it is about records below the offset alone."""
        if self.offsets and self.offsets[0] < start_offset:
            return True
        return any(below <= start_offset for _, below in self.keys)

    def above(self, start_offset: int) -> Deletion:
        """What of it is about records at or above the offset."""
        return Deletion(
            tuple(offset for offset in self.offsets if offset >= start_offset),
            tuple(each for each in self.keys if each[1] > start_offset),
        )

    def below(self, start_offset: int) -> Deletion:
        """The rest of it."""
        return Deletion(
            tuple(offset for offset in self.offsets if offset < start_offset),
            tuple(each for each in self.keys if each[1] <= start_offset),
        )

    def without(self, offsets: Iterable[int], keys: dict[bytes, int]) -> Deletion:
        """What of it these offsets and keys do not delete."""
        known = set(offsets)
        return Deletion(
            tuple(offset for offset in self.offsets if offset not in known),
            tuple(each for each in self.keys if each[1] > keys.get(each[0], 0)),
        )

    def parts(self) -> Iterator[Deletion]:
        """The same as deletions that are small enough for one entry each."""
        for first in range(0, len(self.offsets), OFFSETS_PER_ENTRY_MAX):
            yield Deletion(self.offsets[first : first + OFFSETS_PER_ENTRY_MAX])
        part: list[tuple[bytes, int]] = []
        size = 0
        for each in self.keys:
            size += len(each[0])
            if part and (size > KEY_BYTES_PER_ENTRY_MAX or len(part) == KEYS_PER_ENTRY_MAX):
                yield Deletion((), tuple(part))
                part, size = [], len(each[0])
            part.append(each)
        if part:
            yield Deletion((), tuple(part))

    def pack(self) -> bytes:
        parts = [_HEADER.pack(_VERSION, len(self.offsets), len(self.keys)), _packed(self.offsets)]
        for key, below in self.keys:
            parts += (_KEY.pack(below, len(key)), key)
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: Buffer) -> Deletion:
        """The deletion in `data`; Corruption where there is none."""
        if len(data) < _HEADER.size:
            raise Corruption(f"{len(data)} bytes are no deletion")
        version, offset_count, key_count = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise Corruption(f"a deletion has version {version}, this release reads {_VERSION}")
        at = _HEADER.size + 8 * offset_count
        if at + _KEY.size * key_count > len(data):
            raise Corruption(f"{len(data)} bytes are too few for a deletion of {offset_count:,}")
        offsets = _numbers(bytes(data[_HEADER.size : at]))
        keys = []
        for _ in range(key_count):
            if at + _KEY.size > len(data):
                raise Corruption("a deletion ends within a key")
            below, size = _KEY.unpack_from(data, at)
            at += _KEY.size + size
            keys.append((bytes(data[at - size : at]), below))
        if at != len(data):
            raise Corruption(f"a deletion has {len(data):,} bytes, not {at:,}")
        if any(after <= before for before, after in pairwise(offsets)):
            raise Corruption("the offsets of a deletion do not rise")
        return cls(offsets, tuple(keys))


def deletion_batch(deletion: Deletion) -> bytearray:
    """The entry of a deletion, without its offset."""
    return control_batch(DELETION_KIND, deletion.pack())


def deletion_of(batch: Buffer) -> Deletion | None:
    """What a batch deletes; None if it is no entry of a deletion."""
    if not attributes_of(batch) & ATTRIBUTE_CONTROL:
        return None
    record = control_record(batch)
    return Deletion.unpack(record.value) if record.kind == DELETION_KIND else None


def _packed(offsets: tuple[int, ...]) -> bytes:
    numbers = array("Q", offsets)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(data: bytes) -> tuple[int, ...]:
    numbers = array("Q")
    numbers.frombytes(data)
    if byteorder == "little":
        numbers.byteswap()
    return tuple(numbers)
