"""A segment's bytes in memory: a list of batches."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Rows
from firnmq.index import Point

_BASE_OFFSET = struct.Struct(">q")  # The first field of a batch.
BATCH_BYTES = 96
"""What Python needs beside a batch's own bytes: an object, its position, a place in two lists."""
_SPARE_DIVISOR = 16
"""A buffer may be larger than its content by this part."""


class MemoryBytes:
    """Batches and where each begins. A SegmentBytes.

    Appending extends both lists, positions last, so that a reader in another thread never finds
    a position without its batch. A truncation makes two new lists: a reader in progress goes on
    in the old ones, and notices the truncation afterwards.
    """

    __slots__ = ("_lists", "_size")

    is_memory: ClassVar[bool] = True
    is_file: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lists: tuple[list[int], list[Buffer]] = ([], [])
        """Positions and batches, taken together by every reader."""
        self._size = 0

    @property
    def where(self) -> str:
        return "memory"

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        positions, batches = self._lists
        for buffer in buffers:
            batches.append(_alone(buffer))
            positions.append(position)
            position += len(buffer)
        self._size = position
        return False

    def sync(self) -> None:
        """Memory promises nothing beyond the process."""

    def preallocate(self, position: int) -> bool:
        return False

    def syncs_quickly(self, end: int) -> bool:
        return False

    def release_preallocation(self, position: int) -> None:
        """There is none."""

    def read(self, position: int, size: int) -> list[Buffer]:
        positions, batches = self._lists
        first = bisect_right(positions, position) - 1
        if first < 0 or positions[first] != position:
            return []
        last = bisect_right(positions, position + size - 1)
        return batches[first : max(last, first + 1)]

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None  # Batches are apart in memory; `read` gives them without waiting.

    def range_at(self, position: int, size: int) -> FileRange:
        raise NotImplementedError(f"{self.where} is no file")

    def nearer(self, point: Point, offset: int) -> Point:
        """The batch that holds the offset: batches of one record would make long scans."""
        positions, batches = self._lists
        at = bisect_right(batches, offset, hi=len(positions), key=_base_offset) - 1
        return Point(_base_offset(batches[at]), positions[at]) if at >= 0 else point

    def length(self) -> int:
        return self._size

    @property
    def held_bytes(self) -> int:
        """What it takes of memory."""
        return self._size + len(self._lists[0]) * BATCH_BYTES

    def truncate(self, length: int) -> None:
        positions, batches = self._lists
        keep = bisect_right(positions, length - 1) if length else 0
        self._lists = positions[:keep], batches[:keep]
        self._size = length

    def drop(self) -> None:
        """A reader that still holds this segment goes on; memory goes with the last one."""


def _base_offset(batch: Buffer) -> int:
    return int(_BASE_OFFSET.unpack_from(batch)[0])


def _alone(batch: Buffer) -> Buffer:
    """The batch in memory of its own: a view keeps all of the buffer that it is a part of, which
    may be much larger and is not counted."""
    whole = batch.obj if type(batch) is memoryview else batch
    size = len(batch)
    if type(whole) is bytes:
        return whole if len(whole) == size else bytes(batch)
    if type(whole) is bytearray and len(whole) == size:
        spare = whole.__alloc__() - size
        if spare <= size // _SPARE_DIVISOR + 1:
            return whole
    return bytes(batch)
