"""Frees the space of shared files: removes files without live frames, and copies live frames out of
files that are mostly dead.

A copy is durable, and its location stored, before the frame in the old file counts as dead. The old
file is removed in a later round, after the rows were synced. So a crash at any step leaves each
live frame in at least one file that its location names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from firnmq.disk import Family, FileCache, KeyValueStore
from firnmq.disk.reserve import free_bytes
from firnmq.engines.catalog.segments import Frame
from firnmq.engines.media.layouts.shared_file.commit_log import CommitLog
from firnmq.engines.media.layouts.shared_file.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FoundFrame,
    parse_file_header,
    scan_frames,
)
from firnmq.engines.media.layouts.shared_file.rows import Location, location_key, unpack_location
from firnmq.engines.media.layouts.shared_file.table import FileTable
from firnmq.eventlog import EventLogger

_log = EventLogger("engine")

COPIED_BYTES_MAX = 64 * 1024 * 1024
"""Copied in one round, so that other upkeep has its turn."""
_GROUP_BYTES = 1024 * 1024
"""Copied in one durable write. Appends of the lane wait for it."""


_DEAD_SHARE = 2
_DEAD_SHARE_FULL = 9
"""Live frames are copied out of a file of which more than this fraction is dead. On a full disk it
is far less: deleting one topic of nine must free space."""


class _Live(NamedTuple):
    frame: Frame
    location: Location
    """Where it was found."""


class Reclaimer:
    """Safe with threads: one works at a time."""

    def __init__(
        self, table: FileTable, files: FileCache, kv: KeyValueStore, lanes: Sequence[CommitLog]
    ) -> None:
        self._table = table
        self._files = files
        self._kv = kv
        self._lanes = lanes
        self._lock = threading.Lock()
        self._damaged: set[int] = set()
        """Files from which nothing is copied: a damaged frame must stay where it is."""

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """One round while there is space."""
        with self._lock:
            self._remove_dead()
            room = COPIED_BYTES_MAX
            for number in self._mostly_dead(_DEAD_SHARE):
                if room <= 0 or is_stopping():
                    return
                room -= self._copy_out(number, is_stopping)

    def has_dead(self) -> bool:
        """Whether `free` would free space."""
        table = self._table
        return any(_is_dead(table, number, _DEAD_SHARE_FULL) for number in list(table.extents))

    def free(self) -> None:
        """Frees what it can on a full disk, the present files' space too. Copies only what the disk
        has space for; each file is removed before the next one is copied."""
        with self._lock:
            for lane in self._lanes:
                number = lane.number
                if lane.unstored or (
                    number is not None and _is_dead(self._table, number, _DEAD_SHARE_FULL)
                ):
                    lane.end_file()
            self._remove_dead()
            for number in self._mostly_dead(_DEAD_SHARE_FULL):
                if self._table.live_bytes(number) * 2 < free_bytes(self._table.directory):
                    self._copy_out(number, lambda: False)
                    self._remove_dead()

    def _ended(self) -> list[int]:
        """Files that nothing is appended to."""
        present = {lane.number for lane in self._lanes}
        present.update(number for lane in self._lanes for number in lane.unstored)
        return sorted(number for number in list(self._table.extents) if number not in present)

    def _remove_dead(self) -> None:
        dead = [number for number in self._ended() if self._table.live_bytes(number) <= 0]
        if not dead:
            return
        self._kv.sync()  # No location that comes back after a crash may name a removed file.
        for number in dead:
            self._files.remove(self._table.path(number))
        self._table.forget(dead)
        _log.info("shared_files_removed", files=len(dead))

    def _mostly_dead(self, share: int) -> list[int]:
        """Files of which more than one in `share` bytes is dead, those with the least to copy
        first."""
        table = self._table
        found = [
            number
            for number in self._ended()
            if table.live_bytes(number) > 0
            and _is_dead(table, number, share)
            and number not in self._damaged
        ]
        return sorted(found, key=table.live_bytes)

    def _copy_out(self, number: int, is_stopping: Callable[[], bool]) -> int:
        """Copies the live frames of a file; returns the bytes copied."""
        path = self._table.path(number)
        read = partial(self._files.read_at, path)
        header = parse_file_header(read(0, FILE_HEADER_BYTES), path)
        end = FILE_HEADER_BYTES
        copied = 0
        group: list[_Live] = []
        group_bytes = 0
        for frame in scan_frames(read, end, 0 if header is None else header.salt):
            live = self._live(number, frame)
            is_damaged = frame.file_position != end + FRAME_HEADER_BYTES
            if is_damaged or (live is not None and not frame.is_whole):
                end = -1
                break
            end = frame.file_end
            if live is None:
                continue
            data = read(live.file_position, live.length)
            moved = Frame(
                frame.shard_uid, frame.place, frame.position, (data,), live.length, is_copy=True
            )
            group.append(_Live(moved, live))
            group_bytes += live.length
            if group_bytes >= _GROUP_BYTES:
                self._move(number, group)
                copied += group_bytes
                group, group_bytes = [], 0
                if is_stopping():
                    return copied
        self._move(number, group)
        if end != self._table.extents[number].written:
            self._damaged.add(number)
            _log.error("shared_file_damaged", path=path, effect="its space is not freed")
        return copied + group_bytes

    def _live(self, number: int, frame: FoundFrame) -> Location | None:
        """Where a segment has the frame, if it is this one."""
        key = location_key(frame.shard_uid, frame.place, frame.position)
        packed = self._kv.get(Family.LOCATIONS, key)
        if packed is None:
            return None
        location = unpack_location(packed)
        found = number, frame.file_position
        return location if (location.file, location.file_position) == found else None

    def _move(self, number: int, group: list[_Live]) -> None:
        """Writes frames to a file that is appended to, and stores their new locations."""
        if not group:
            return
        lane = self._lanes[number % len(self._lanes)]
        frames = [each.frame for each in group]
        with lane.appending(frames, durable=True) as rows, self._table.changing_dead() as change:
            for each, (key, packed) in zip(group, rows, strict=False):
                if self._kv.get(Family.LOCATIONS, key) == each.location.pack():
                    change.batch.put(Family.LOCATIONS, key, packed)
                    change.add_frame(each.location)
                else:  # It was removed in the meantime.
                    change.add_frame(unpack_location(packed))
            for key, packed in rows[len(group) :]:
                change.batch.put(Family.LOCATIONS, key, packed)


def _is_dead(table: FileTable, number: int, share: int) -> bool:
    """Whether more than one in `share` bytes of a file's frames is dead."""
    dead_bytes = table.dead_bytes(number)
    return dead_bytes * (share - 1) > table.live_bytes(number)
