"""Layout shared-file: all shards of a lane append to one commit log of files.

RocksDB has where each frame is, by shard, segment and position. A file is removed when no segment
has a frame in it any more; live frames are copied out of one that is mostly dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from firnmq.disk import Family, FileCache, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import Frame, SegmentGone, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.compaction.stored_copy import gaps_between
from firnmq.engines.media.layouts.shared_file.audit import SharedFileFault, audit
from firnmq.engines.media.layouts.shared_file.commit_log import (
    FILE_BYTES,
    CommitLog,
    KvRows,
)
from firnmq.engines.media.layouts.shared_file.content import SharedBytes
from firnmq.engines.media.layouts.shared_file.opening import TailOpening
from firnmq.engines.media.layouts.shared_file.reclaim import Reclaimer
from firnmq.engines.media.layouts.shared_file.rows import (
    ALL_LOCATIONS,
    SHARD_KEY,
    Location,
    location_key,
    place_rows,
    position_of,
    shard_rows,
    unpack_location,
)
from firnmq.engines.media.layouts.shared_file.table import FileTable
from firnmq.errors import FirnError, storage_failure
from firnmq.eventlog import EventLogger

_log = EventLogger("engine")

_RECLAIM_PAUSE_S = 5.0
"""Between two attempts to free space on a full disk; each looks at all files."""
_ROWS_PER_PASS = 4_096
_ROWS_READ_FIRST = 8
_ROWS_READ_MAX = 1_024
_JOINED_GAP_BYTES = 16 * 1024
"""Frames of one segment with no more than this between them are read at once."""
_READ_ATTEMPTS = 3
"""A frame may be copied to another file while it is being read."""


class SharedFile:
    """The shared files of a data directory: a ByteLayout. Safe with threads."""

    def __init__(
        self,
        directory: Path,
        files: FileCache,
        kv: KeyValueStore,
        *,
        lane_count: int,
        shard_uids: Collection[int],
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """`shard_uids` are the shards that there are."""
        self._files = files
        self._kv = kv
        self.table = FileTable(directory, kv)
        self._lanes = [
            CommitLog(lane, files, self.table, file_bytes=file_bytes, on_new_file=kv.sync)
            for lane in range(lane_count)
        ]
        for each in TailOpening(self.table, files, kv, shard_uids).run():
            if each.header.lane < lane_count:  # The last one of a lane is its present file.
                self._lanes[each.header.lane].resume(each.number, each.header.salt, each.extent)

        self._reclaimer = Reclaimer(self.table, files, kv, self._lanes)
        self._reclaim_after_s = 0.0

    def housekeep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Frees space: removes dead files, and empties some that are mostly dead. StorageFailed if
        that fails; the next call goes on."""
        try:
            self._reclaimer.work(is_stopping)
        except (OSError, FirnError) as error:
            _log.warning("shared_files_not_reclaimed", error=str(error))
            raise storage_failure("shared files", error) from error

    @property
    def has_deleted(self) -> bool:
        """Whether `reclaim` may free space, and has not just been tried."""
        return time.monotonic() >= self._reclaim_after_s and self._reclaimer.has_dead()

    def reclaim(self) -> None:
        """Frees the space of deleted frames now, for a full disk. Needs some space for a moment.
        StorageFailed if the disk refuses that; the caller may retry after a pause."""
        self._reclaim_after_s = time.monotonic() + _RECLAIM_PAUSE_S
        try:
            self._reclaimer.free()
        except (OSError, FirnError) as error:
            raise storage_failure("shared files", error) from error

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SharedBytes:
        return SharedBytes(self, spec.uid, meta.place)

    # Writing ------------------------------------------------------------------------------------

    @contextmanager
    def appending(self, frames: Sequence[Frame], *, durable: bool) -> Iterator[KvRows]:
        """Writes frames of shards of one lane; the block stores the rows that this gives."""
        with self._lane(frames[0].shard_uid).appending(frames, durable=durable) as rows:
            yield rows

    def sync(self, shard_uid: int) -> None:
        """Makes durable what was appended to a shard."""
        self._lane(shard_uid).sync()

    def audit(self) -> Iterator[SharedFileFault]:
        """What is wrong with the files and their rows; reads no batches."""
        return audit(self.table, self._files, self._kv)

    def close(self) -> None:
        """Removes what a failed write has left, so that opening does not find it."""
        for lane in self._lanes:
            with suppress(OSError, FirnError):
                lane.repair()

    def _lane(self, shard_uid: int) -> CommitLog:
        return self._lanes[shard_uid % len(self._lanes)]

    # Reading ------------------------------------------------------------------------------------

    def read(
        self, shard_uid: int, place: int, position: int, size: int, where: str
    ) -> list[Buffer]:
        """About `size` bytes from a batch border on."""
        for attempt in range(_READ_ATTEMPTS):
            found = self._locate(shard_uid, place, position, size)
            if not found:
                break
            try:
                return self._read_located(found)
            except FileNotFoundError:
                if attempt == _READ_ATTEMPTS - 1:
                    break
        raise SegmentGone(where, f"has nothing at {position}")

    def _locate(self, shard_uid: int, place: int, position: int, size: int) -> list[Location]:
        """Parts of frames that follow each other in the segment, `size` bytes together; fewer at
        the end."""
        lower, upper = place_rows(shard_uid, place)
        start = location_key(shard_uid, place, position)
        found: list[Location] = []
        got, limit = 0, _ROWS_READ_FIRST
        while got < size:
            rows = self._kv.items(Family.LOCATIONS, start, upper, limit)
            if not found and (not rows or position_of(rows[0][0]) != position):
                within = self._kv.floor(Family.LOCATIONS, lower, start)  # In the middle of a frame.
                rows = [] if within is None else [within, *rows]
            for key, packed in rows:
                first, location = position_of(key), unpack_location(packed)
                skipped = position + got - first
                if not 0 <= skipped < location.length:
                    return found
                length = min(location.length - skipped, size - got)
                found.append(Location(location.file, location.file_position + skipped, length))
                got += length
                if got >= size:
                    return found
            if len(rows) < limit:
                return found
            start, limit = rows[-1][0] + b"\0", min(limit * 8, _ROWS_READ_MAX)
        return found

    def _read_located(self, found: list[Location]) -> list[Buffer]:
        """Neighbours in a file are read together."""
        buffers: list[Buffer] = []
        at = 0
        while at < len(found):
            first = found[at]
            end, upto = at + 1, first.file_position + first.length
            while (
                end < len(found)
                and found[end].file == first.file
                and 0 <= found[end].file_position - upto <= _JOINED_GAP_BYTES
            ):
                upto = found[end].file_position + found[end].length
                end += 1
            path = self.table.path(first.file)
            data = self._files.read_at(path, first.file_position, upto - first.file_position)
            if end == at + 1:
                buffers.append(data)
            else:
                view = memoryview(data)
                for each in found[at:end]:
                    begin = each.file_position - first.file_position
                    buffers.append(view[begin : begin + each.length])
            at = end
        return buffers

    def length(self, shard_uid: int, place: int) -> int:
        """Bytes of a segment. What a failed turn has left is removed first:
        a shard that is reopened without it must not have it after the next restart."""
        self._lane(shard_uid).repair()
        last = self._kv.floor(Family.LOCATIONS, *place_rows(shard_uid, place))
        return 0 if last is None else position_of(last[0]) + unpack_location(last[1]).length

    # Removing -----------------------------------------------------------------------------------

    def truncate(self, shard_uid: int, place: int, length: int) -> None:
        """Removes what is behind the length, durably."""
        lower, upper = place_rows(shard_uid, place)
        border = location_key(shard_uid, place, length)
        self._remove(border, upper)
        with self.table.changing_dead() as change:
            last = self._kv.floor(Family.LOCATIONS, lower, border)
            if last is not None:
                key, location = last[0], unpack_location(last[1])
                excess = position_of(key) + location.length - length
                if excess > 0:
                    shorter = location._replace(length=location.length - excess)
                    change.batch.put(Family.LOCATIONS, key, shorter.pack())
                    change.add(location.file, excess)
        self._kv.sync()

    def drop(self, shard_uid: int, place: int) -> None:
        self._remove(*place_rows(shard_uid, place))

    def drop_shard(self, spec: ShardSpec) -> None:
        self._remove(*shard_rows(spec.uid))

    def drop_range(self, shards: ShardRange) -> None:
        self._remove(shard_rows(shards.first_uid)[0], shard_rows(shards.end_uid)[0])

    def drop_others(self, shard_uids: Collection[int]) -> None:
        """Removes frames of all shards but these."""
        lower, upper = ALL_LOCATIONS
        while found := self._kv.items(Family.LOCATIONS, lower, upper, 1):
            (uid,) = SHARD_KEY.unpack_from(found[0][0])
            if uid not in shard_uids:
                self._remove(*shard_rows(uid))
            lower = SHARD_KEY.pack(uid + 1)

    def drop_strays(self, spec: ShardSpec, metas: Iterable[SegmentMeta]) -> None:
        """Removes frames in places that none of the segments has."""
        for lower, upper in gaps_between(spec.uid, metas):
            self._remove(lower, upper)

    def _remove(self, lower: bytes, upper: bytes) -> None:
        while True:
            rows = self._kv.items(Family.LOCATIONS, lower, upper, _ROWS_PER_PASS)
            if not rows:
                return
            with self.table.changing_dead() as change:
                # Read again: a frame may have been moved to another file since.
                rows = self._kv.items(Family.LOCATIONS, lower, upper, _ROWS_PER_PASS)
                for key, packed in rows:
                    change.remove(key, unpack_location(packed))
            if rows:  # What is deleted would be passed over again in each pass.
                lower = rows[-1][0] + b"\0"
