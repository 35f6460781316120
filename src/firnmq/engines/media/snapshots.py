"""Snapshots as files beside the segments' files: `{shard}/{end_offset:020d}.snap`.

A roll writes one, durably, before the metadata have the segment sealed. Opening a shard reads it
where its active segment has no checkpoint. An uploader reads those of segments that it copies.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from firnmq.disk import FileCache, remove_tree
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.snapshot import SNAPSHOT_BYTES_MAX, Snapshot
from firnmq.errors import Corruption

SNAPSHOT_SUFFIX = ".snap"
_OFFSET_DIGITS = 20


class SnapshotFiles:
    """Of all shards of a data directory. Safe with threads; one writer per shard."""

    def __init__(self, directory: Path, files: FileCache) -> None:
        self._directory = directory
        self._files = files

    def write(self, spec: ShardSpec, snapshot: Snapshot) -> None:
        """Durable when this returns. In place of one that an earlier attempt has left. An empty one
        has no file, unless the shard has moved: then the rows of its next leader may be old."""
        if snapshot.is_empty and spec.epoch == 0:
            self._files.remove(str(self._path(spec, snapshot.end_offset)))
        else:
            self.write_packed(spec, snapshot.end_offset, snapshot.pack(spec.uid))

    def write_packed(self, spec: ShardSpec, end_offset: int, packed: bytes) -> None:
        path = self._path(spec, end_offset)
        self._files.create(path)
        if self._files.length(str(path)):
            self._files.truncate(str(path), 0)
        self._files.write_at(str(path), [packed], 0, durable=True)

    def read(self, spec: ShardSpec, end_offset: int) -> Snapshot | None:
        """The snapshot at an end; None if there is none, Corruption if it is damaged."""
        data = self.read_packed(spec, end_offset)
        try:
            return None if data is None else Snapshot.unpack(data, spec.uid, end_offset)
        except Corruption as error:
            raise Corruption(error.reason, where=str(self._path(spec, end_offset))) from error

    def read_packed(self, spec: ShardSpec, end_offset: int) -> Buffer | None:
        """The same as it is stored, unchecked."""
        path = str(self._path(spec, end_offset))
        length = self._files.length(path)
        if length is None:
            return None
        if length > SNAPSHOT_BYTES_MAX:
            raise Corruption(f"{length:,} bytes are no snapshot", where=path)
        try:
            return self._files.read_at(path, 0, length)
        except FileNotFoundError:
            return None

    def drop_old(self, spec: ShardSpec, metas: Collection[SegmentMeta]) -> None:
        """Removes the snapshots before the active segment's beginning that nothing needs. `metas`
        are all segments of the shard."""
        self._drop(spec, metas, is_opening=False)

    def drop_strays(self, spec: ShardSpec, metas: Collection[SegmentMeta]) -> None:
        """The same, with those that rolls have left which never came to their end."""
        self._drop(spec, metas, is_opening=True)

    def _drop(self, spec: ShardSpec, metas: Collection[SegmentMeta], *, is_opening: bool) -> None:
        base_offset = max((meta.base_offset for meta in metas), default=0)
        wanted = needed_snapshots(spec, metas)
        for end_offset in self.offsets(spec):
            if end_offset not in wanted and (is_opening or end_offset < base_offset):
                self._files.remove(str(self._path(spec, end_offset)))

    def offsets(self, spec: ShardSpec) -> list[int]:
        """The ends of which there are snapshots."""
        found = (self._directory / spec.name).glob(f"*{SNAPSHOT_SUFFIX}")
        return sorted(int(path.stem) for path in found if path.stem.isdigit())

    def drop_shard(self, spec: ShardSpec) -> None:
        """Removes what is in a shard's directory, which may be more than snapshots."""
        paths = [self._path(spec, each) for each in self.offsets(spec)]
        try:
            remove_tree(self._directory / spec.name)
        finally:
            for path in paths:
                self._files.forget(str(path))

    def _path(self, spec: ShardSpec, end_offset: int) -> Path:
        return self._directory / spec.name / f"{end_offset:0{_OFFSET_DIGITS}d}{SNAPSHOT_SUFFIX}"


def needed_snapshots(spec: ShardSpec, metas: Collection[SegmentMeta]) -> set[int]:
    """The ends whose snapshots are still of use: the beginning of the active segment, and the ends
    of segments that are to be copied into the object store."""
    needed = {meta.base_offset for meta in metas if meta.state is SegmentState.ACTIVE}
    if spec.config.is_tiered:
        needed.update(meta.end_offset for meta in metas if meta.state is SegmentState.SEALED)
    return needed
