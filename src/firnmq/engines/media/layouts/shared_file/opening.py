"""Opening shared files: finds where each file ends, and stores the locations that a crash has lost.

Work depends on the tail: a file is scanned from where it was last known to be on the device. Files
that were ended are not read.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from firnmq.disk import Family, FileCache, KeyValueStore
from firnmq.engines.media.layouts.shared_file.frames import (
    FILE_HEADER_BYTES,
    FileHeader,
    FoundFrame,
    parse_file_header,
    scan_frames,
)
from firnmq.engines.media.layouts.shared_file.rows import (
    ALL_LOCATIONS,
    Extent,
    Location,
    due_rows,
    extent_key,
    location_key,
    place_rows,
    position_of,
    unpack_location,
)
from firnmq.engines.media.layouts.shared_file.table import DeadChange, FileTable
from firnmq.eventlog import EventLogger

_log = EventLogger("engine")

_ROWS_PER_PASS = 4_096


class OpenFile(NamedTuple):
    """A file to which frames can be appended."""

    number: int
    header: FileHeader
    extent: Extent


class TailOpening:
    """Opens the files of one table; used once, by one thread."""

    def __init__(
        self, table: FileTable, files: FileCache, kv: KeyValueStore, shard_uids: Collection[int]
    ) -> None:
        """Frames of other shards than `shard_uids` belong to deleted shards."""
        self._table = table
        self._files = files
        self._kv = kv
        self._shard_uids = shard_uids
        self._ends: dict[tuple[int, int], int] = {}
        """Where segments end, as far as the scan has come."""

    def run(self) -> list[OpenFile]:
        """Files that can be continued. The locations of all frames are durable then."""
        table = self._table
        on_disk = table.numbers_on_disk()
        table.forget(set(table.extents) - set(on_disk))
        found = []
        for number in on_disk:
            extent = table.extents.get(number)
            if extent is None or not extent.is_sealed:
                opened = self._open(number, extent or Extent(False, 0, 0))
                found += [] if opened is None else [opened]
        if found:
            self._kv.sync()
        return found

    def _open(self, number: int, stored: Extent) -> OpenFile | None:
        path = self._table.path(number)
        read = partial(self._files.read_at, path)
        header = parse_file_header(read(0, FILE_HEADER_BYTES), path)
        length = self._files.length(path) or 0
        if header is None:
            # A crash came before the first frame was acknowledged, or the header is damaged.
            is_lost = not stored.synced and not any(read(0, min(length, FILE_HEADER_BYTES)))
            if stored.written and not is_lost:
                _log.error("shared_file_damaged", path=path, position=0)
                return None
            if stored.written:
                self._forget_unsynced(number, stored.written)
            self._files.remove(path)
            return None
        start = max(stored.synced, FILE_HEADER_BYTES)
        end = start
        damaged = 0
        new: list[FoundFrame] = []
        for frame in scan_frames(read, start, header.salt):
            damaged += not frame.is_whole
            if frame.file_position >= stored.written:
                new.append(frame)
            end = frame.file_end
        if length > end:
            self._files.truncate(path, end)
        else:
            self._files.sync(path)  # What is in the page cache may not be on the device yet.
        extent = Extent(is_sealed=False, written=end, synced=end)
        self._table.extents[number] = extent
        self._store(number, extent, new)
        if end < stored.written:
            self._remove_beyond(number, end)
        if new or damaged or end < stored.written:
            _log.warning(
                "shared_file_recovered",
                path=path,
                frames=len(new),
                damaged=damaged,
                cut_bytes=max(stored.written, length) - end,
            )
        return OpenFile(number, header, extent)

    def _forget_unsynced(self, number: int, written: int) -> None:
        """Forgets a file of which a power failure has left nothing: only frames that
        durability=os and interval may lose were in it."""
        path = self._table.path(number)
        _log.warning("shared_file_recovered", path=path, frames=0, damaged=0, cut_bytes=written)
        self._remove_beyond(number, 0)
        self._kv.sync()  # No location may name a removed file.
        self._table.forget([number])

    def _store(self, number: int, extent: Extent, frames: list[FoundFrame]) -> None:
        """Stores the locations of frames, and then how far the file is written."""
        for at in range(0, len(frames), _ROWS_PER_PASS):
            with self._table.changing_dead() as change:
                part = frames[at : at + _ROWS_PER_PASS]
                for frame in part:
                    self._take(change, number, frame)
                for uid in {frame.shard_uid for frame in part}:
                    # The row that the append had stored with the locations is lost too.
                    change.batch.put_many(Family.LOCATIONS, due_rows(uid, 0))
        with self._kv.batch() as batch:
            batch.put(Family.LOCATIONS, extent_key(number), extent.pack())

    def _take(self, change: DeadChange, number: int, frame: FoundFrame) -> None:
        key = location_key(frame.shard_uid, frame.place, frame.position)
        packed = self._kv.get(Family.LOCATIONS, key)
        old = None if packed is None else unpack_location(packed)
        new = Location(number, frame.file_position, frame.length)
        place = frame.shard_uid, frame.place
        if frame.is_copy:
            is_live = old is not None and old.length == new.length
        else:
            end = self._ends.get(place)
            end = self._end(*place) if end is None else end
            # Behind a gap nothing can be read: the frame before was damaged beyond recognition.
            is_live = frame.shard_uid in self._shard_uids and frame.position <= end
        if not is_live:
            change.add_frame(new)
            return
        if old is not None and old != new:
            change.add_frame(old)
        if old != new:
            change.batch.put(Family.LOCATIONS, key, new.pack())
        self._ends[place] = max(self._ends.get(place, 0), frame.position + frame.length)

    def _end(self, shard_uid: int, place: int) -> int:
        lower, upper = place_rows(shard_uid, place)
        last = self._kv.floor(Family.LOCATIONS, lower, upper)
        return 0 if last is None else position_of(last[0]) + unpack_location(last[1]).length

    def _remove_beyond(self, number: int, end: int) -> None:
        """Removes locations in a part of the file that is gone: after a power failure the rows may
        know of frames that were not synced, as durability=os and interval allow."""
        lower, upper = ALL_LOCATIONS
        while rows := self._kv.items(Family.LOCATIONS, lower, upper, _ROWS_PER_PASS):
            with self._kv.batch() as batch:
                for key, packed in rows:
                    location = unpack_location(packed)
                    if location.file == number and location.file_position + location.length > end:
                        batch.delete(Family.LOCATIONS, key)
            lower = rows[-1][0] + b"\0"
