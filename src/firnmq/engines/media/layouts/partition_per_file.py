"""Layout partition-per-file: one file per segment, `{shard}/{base_offset:020d}.log`.

A segment in its other slot, after compaction, is `{shard}/{base_offset:020d}-1.log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from firnmq.disk import FileCache, FileRange, remove_tree
from firnmq.disk.files import Buffer
from firnmq.disk.preallocation import SMALL_APPEND_BYTES, Preallocation
from firnmq.engines.catalog.ranges import ShardRange, ShardRanges
from firnmq.engines.catalog.segments import Rows, SegmentGone, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec
from firnmq.index import Point

_BASE_DIGITS = 20


class PartitionPerFile:
    """Gives each segment of each shard a file below one directory."""

    def __init__(self, directory: Path, files: FileCache) -> None:
        self._directory = directory
        self._files = files

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> FileBytes:
        suffix = f"-{meta.slot}" if meta.slot else ""
        name = f"{_base_name(meta)}{suffix}.log"
        return FileBytes(self._files, f"{self._directory}/{spec.name}/{name}")

    def drop_shard(self, spec: ShardSpec) -> None:
        """Removes every file of a shard."""
        paths = self.files_of(spec)
        try:
            remove_tree(self._directory / spec.name)
        finally:  # After the names, as in FileCache.remove.
            for path in paths:
                self._files.forget(str(path))

    def drop_range(self, shards: ShardRange) -> None:
        """Removes whatever is in the directories of the shards of a range. Few have one: only a
        roll makes it."""
        if not self._directory.is_dir():
            return
        ranges = ShardRanges([shards])
        for path in list(self._directory.iterdir()):
            if ranges.find(path.name) is not None:
                inside = list(path.iterdir())
                try:
                    remove_tree(path)
                finally:
                    for each in inside:
                        self._files.forget(str(each))

    def drop_strays(self, spec: ShardSpec, metas: Iterable[SegmentMeta]) -> None:
        """Removes files that belong to none of the shard's segments.

        Nothing is ever written beyond the active one, if there is one: such a file is none of
        ours, and left alone.
        """
        metas = list(metas)
        wanted = {self.open_bytes(spec, meta).where for meta in metas}
        active = [_base_name(meta) for meta in metas if meta.state is SegmentState.ACTIVE]
        for path in self.files_of(spec):
            is_ours = not active or path.name[:_BASE_DIGITS] <= active[0]
            if is_ours and str(path) not in wanted:
                self._files.remove(str(path))

    def files_of(self, spec: ShardSpec) -> list[Path]:
        """Segment files there are, by base offset."""
        return sorted((self._directory / spec.name).glob("*.log"))


def _base_name(meta: SegmentMeta) -> str:
    """What the name of a segment's file begins with; names sort by it."""
    return f"{meta.base_offset:0{_BASE_DIGITS}d}"


class FileBytes:
    """A segment's bytes in a file of its own; made at the first append. A SegmentBytes.

    Space for appends is preallocated. The file is truncated to its content before it is sealed.
    """

    __slots__ = ("_files", "_path", "_preallocation")

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = True

    def __init__(self, files: FileCache, path: str) -> None:
        self._files = files
        self._path = path  # Text, since a Path costs ten times the memory and shards are many.
        self._preallocation = Preallocation(files, path)

    @property
    def where(self) -> str:
        return self._path

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        if position == 0:
            self._files.create(Path(self._path))
        size = sum(map(len, buffers))
        if size > SMALL_APPEND_BYTES:
            self._preallocation.reserve(position, size)
        self._files.write_at(self._path, buffers, position, durable=durable)
        return durable

    def sync(self) -> None:
        self._files.sync(self._path)

    def preallocate(self, position: int) -> bool:
        return self._preallocation.extend(position)

    def syncs_quickly(self, end: int) -> bool:
        return self._preallocation.has_room(end) and self._files.syncs_quickly

    def release_preallocation(self, position: int) -> None:
        self._preallocation.release(position)

    def read(self, position: int, size: int) -> list[Buffer]:
        try:
            return [self._files.read_at(self._path, position, size)]
        except FileNotFoundError:
            raise SegmentGone(self._path, "is not there") from None

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        try:
            return self._files.read_nowait(self._path, position, size)
        except FileNotFoundError:
            raise SegmentGone(self._path, "is not there") from None

    def range_at(self, position: int, size: int) -> FileRange:
        try:
            return self._files.range_at(self._path, position, size)
        except FileNotFoundError:
            raise SegmentGone(self._path, "is not there") from None

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        return self._files.length(self._path) or 0

    def truncate(self, length: int) -> None:
        if self._files.length(self._path) is not None:
            self._files.truncate(self._path, length)
            self._preallocation.forget()

    def drop(self) -> None:
        self._files.remove(self._path)
