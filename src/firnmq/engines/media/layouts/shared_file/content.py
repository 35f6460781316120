"""A segment's bytes in frames of shared files. A SegmentBytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Frame, Rows
from firnmq.index import Point

if TYPE_CHECKING:
    from firnmq.engines.media.layouts.shared_file.layout import SharedFile


class SharedBytes:
    """Frames are written, and synced, with those of all other shards at the end of the turn."""

    __slots__ = ("_layout", "_place", "_uid")

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = False

    def __init__(self, layout: SharedFile, shard_uid: int, place: int) -> None:
        self._layout = layout
        self._uid = shard_uid
        self._place = place

    @property
    def where(self) -> str:
        return f"shared files, shard {self._uid} segment {self._place}"

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        length = sum(map(len, buffers))
        rows.frames.append(Frame(self._uid, self._place, position, tuple(buffers), length))
        return False

    def sync(self) -> None:
        """For what earlier turns have written: the end of a turn syncs its own frames."""
        self._layout.sync(self._uid)

    def preallocate(self, position: int) -> bool:
        return False

    def syncs_quickly(self, end: int) -> bool:
        return False

    def release_preallocation(self, position: int) -> None:
        """There is none."""

    def read(self, position: int, size: int) -> list[Buffer]:
        return self._layout.read(self._uid, self._place, position, size, self.where)

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None  # Where the bytes are is in RocksDB, which may have to read.

    def range_at(self, position: int, size: int) -> FileRange:
        raise NotImplementedError(f"{self.where} is in many places")

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        return self._layout.length(self._uid, self._place)

    def truncate(self, length: int) -> None:
        self._layout.truncate(self._uid, self._place, length)

    def drop(self) -> None:
        self._layout.drop(self._uid, self._place)
