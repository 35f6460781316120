"""A segment's bytes as rows of the key-value store: one row per batch, by position."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar

from firnmq.disk import Family, FileRange, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Rows, SegmentGone
from firnmq.index import Point

_SEGMENT = struct.Struct(
    ">"
    "I"  # shard_uid
    "I"  # segment_seq
)
_POSITION = struct.Struct(">Q")


class RowBytes:
    """A SegmentBytes in the MESSAGES family. Rows are written with the turn's index entries."""

    __slots__ = ("_kv", "_prefix", "_upper")

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = False

    def __init__(self, kv: KeyValueStore, shard_uid: int, segment_seq: int) -> None:
        self._kv = kv
        self._prefix = _SEGMENT.pack(shard_uid, segment_seq)
        self._upper = _SEGMENT.pack(shard_uid, segment_seq) + b"\xff" * 9

    @property
    def where(self) -> str:
        shard_uid, segment_seq = _SEGMENT.unpack(self._prefix)
        return f"rows of shard {shard_uid} segment {segment_seq}"

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        for buffer in buffers:
            rows.rows.append((self._prefix + _POSITION.pack(position), bytes(buffer)))
            position += len(buffer)
        return False

    def sync(self) -> None:
        """Nothing to do: the end of the turn writes and syncs all its rows together, once."""

    def preallocate(self, position: int) -> bool:
        return False

    def syncs_quickly(self, end: int) -> bool:
        return False

    def release_preallocation(self, position: int) -> None:
        """There is none."""

    def read(self, position: int, size: int) -> list[Buffer]:
        lower = self._prefix + _POSITION.pack(position)
        rows = self._kv.items(Family.MESSAGES, lower, self._upper, max_bytes=size)
        if not rows or rows[0][0] != lower:
            raise SegmentGone(self.where, f"has nothing at {position}")
        return [value for _, value in rows]

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None  # RocksDB does not tell what it has in memory.

    def range_at(self, position: int, size: int) -> FileRange:
        raise NotImplementedError(f"{self.where} is no file")

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        last = self._kv.floor(Family.MESSAGES, self._prefix, self._upper)
        if last is None:
            return 0
        return int(_POSITION.unpack_from(last[0], len(self._prefix))[0]) + len(last[1])

    def truncate(self, length: int) -> None:
        with self._kv.batch() as batch:
            lower = self._prefix + _POSITION.pack(length)
            batch.delete_range(Family.MESSAGES, lower, self._upper)
        self._kv.sync()

    def drop(self) -> None:
        with self._kv.batch() as batch:
            batch.delete_range(Family.MESSAGES, self._prefix, self._upper)


def rows_of_shard(shard_uid: int) -> tuple[bytes, bytes]:
    """Every row of a shard is in [first, second)."""
    return _SEGMENT.pack(shard_uid, 0), _SEGMENT.pack(shard_uid + 1, 0)
