"""The commit log of one lane: what a turn appends to all its segments is one write in one file.

A turn writes its frames, then stores their locations with the end of the file in one write of the
key-value store. So after a crash the rows say exactly which frames they know of, and opening looks
at the rest of the file alone.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from firnmq.disk import FileCache
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Frame
from firnmq.engines.media.layouts.shared_file.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    frame_header,
    scan_frames,
)
from firnmq.engines.media.layouts.shared_file.rows import (
    Extent,
    Location,
    extent_key,
    location_key,
)
from firnmq.engines.media.layouts.shared_file.table import FileTable
from firnmq.eventlog import EventLogger

_log = EventLogger("engine")

FILE_BYTES = 64 * 1024 * 1024
"""A file that would grow beyond this is followed by the next one; a larger turn has its own."""
_JOINED_BUFFERS_MIN = 64
"""So many buffers are copied into one: the system takes at most 1,024 in one call, and each costs
more there than its bytes do."""

KvRows = list[tuple[bytes, bytes]]


class CommitLog:
    """Appends frames, one write at a time. Safe with threads; the lock is held during a write and
    until its locations are stored."""

    def __init__(
        self,
        lane: int,
        files: FileCache,
        table: FileTable,
        *,
        file_bytes: int = FILE_BYTES,
        on_new_file: Callable[[], None],
    ) -> None:
        """`on_new_file` is called before another file is begun: it bounds what opening scans."""
        self._lane = lane
        self._files = files
        self._table = table
        self._file_bytes = file_bytes
        self._on_new_file = on_new_file
        self._lock = threading.Lock()
        self._number: int | None = None
        self._salt = 0
        self._written = 0
        """End of the frames whose locations are stored."""
        self._synced = 0
        self._must_repair = False
        """A write, a sync or the storing of locations has failed: behind `_written` is what belongs
        to no segment, and what the device has behind `_synced` is unknown."""
        self._ended: dict[int, Extent] = {}
        """Files that were ended, of which that is not stored yet."""

    @property
    def number(self) -> int | None:
        """Of the file that is written now."""
        return self._number

    @property
    def unstored(self) -> list[int]:
        """Files that were ended, of which that is not stored yet: they must not be removed."""
        return list(self._ended)

    def resume(self, number: int, salt: int, extent: Extent) -> None:
        """Goes on in a file that opening has found whole."""
        self._number, self._salt = number, salt
        self._written, self._synced = extent.written, extent.synced

    @contextmanager
    def appending(self, frames: Sequence[Frame], *, durable: bool) -> Iterator[KvRows]:
        """Writes frames; gives the rows that the block has to store, in one write or in its last
        one. If the block fails, nothing was appended."""
        with self._lock:
            self._repair()
            self._must_repair = True
            extent, rows = self._write(frames, durable=durable)
            assert self._number is not None
            ended = dict(self._ended)
            for number, each in (*ended.items(), (self._number, extent)):
                rows.append((extent_key(number), each.pack()))
            yield rows
            self._table.extents.update(ended)
            self._table.extents[self._number] = extent
            for number in ended:
                del self._ended[number]
            self._written, self._synced = extent.written, extent.synced
            self._must_repair = False

    def repair(self) -> None:
        """Removes what a failed write has left, if one has."""
        if self._must_repair:
            with self._lock:
                self._repair()

    def sync(self) -> None:
        """Makes durable what was appended before. Costs nothing where all of it is."""
        with self._lock:
            self._repair()
            if self._synced < self._written:
                assert self._number is not None
                self._must_repair = True
                self._files.sync(self._table.path(self._number))
                self._must_repair = False
                self._synced = self._written

    def end_file(self) -> None:
        """Ends the present file, so that its space can be freed; the next append begins another."""
        with self._lock:
            self._repair()
            if self._number is not None and self._written:
                self._must_repair = True
                self._sync_present()
                self._must_repair = False
                self._note_ended(self._number)
                self._number, self._written, self._synced = None, 0, 0
            if self._ended:
                self._table.store_extents(self._ended)
                self._ended = {}

    def _write(self, frames: Sequence[Frame], *, durable: bool) -> tuple[Extent, KvRows]:
        size = sum(FRAME_HEADER_BYTES + frame.length for frame in frames)
        is_full = self._written > FILE_HEADER_BYTES and self._written + size > self._file_bytes
        if self._number is None or is_full:
            self._begin_file()
        assert self._number is not None
        buffers: list[Buffer] = []
        rows: KvRows = []
        position = start = self._written
        if start == 0:
            buffers.append(FileHeader(self._lane, self._number, self._salt).pack())
            position += FILE_HEADER_BYTES
        for frame in frames:
            buffers.append(frame_header(frame, self._salt))
            buffers += frame.buffers
            position += FRAME_HEADER_BYTES
            location = Location(self._number, position, frame.length)
            key = location_key(frame.shard_uid, frame.place, frame.position)
            rows.append((key, location.pack()))
            position += frame.length
        if len(buffers) >= _JOINED_BUFFERS_MIN:
            buffers = [b"".join(buffers)]
        # A durable write covers its own bytes alone.
        covers_all = durable and self._synced == start
        path = self._table.path(self._number)
        self._files.write_at(path, buffers, start, durable=covers_all)
        if durable and not covers_all:
            self._files.sync(path)
        synced = position if durable else self._synced
        return Extent(is_sealed=False, written=position, synced=synced), rows

    def _begin_file(self) -> None:
        """Ends the present file, which is durable then, and makes the next one."""
        if self._number is not None:
            self._sync_present()
        number, salt = self._table.new_number(), secrets.randbits(64)
        self._files.create(Path(self._table.path(number)))
        self._table.extents[number] = Extent(is_sealed=False, written=0, synced=0)
        if self._number is not None:
            self._note_ended(self._number)
        self._number, self._salt, self._written, self._synced = number, salt, 0, 0

    def _sync_present(self) -> None:
        """Makes the present file and the rows that name it durable."""
        assert self._number is not None
        if self._synced < self._written:
            self._files.sync(self._table.path(self._number))
            self._synced = self._written
        self._on_new_file()

    def _note_ended(self, number: int) -> None:
        """Nothing is appended to the present file any more."""
        self._ended[number] = Extent(is_sealed=True, written=self._written, synced=self._written)

    def _repair(self) -> None:
        """After a failure: truncates what belongs to no segment, and writes again what the device
        may not have. A second sync alone would report success for pages that are lost."""
        if not self._must_repair:
            return
        if self._number is not None:
            path = self._table.path(self._number)
            stored = self._table.stored_extent(self._number)
            if stored is not None and stored.written > self._written:
                # The rows were stored after all, which only the reopened database can tell.
                self._written = stored.written
                self._table.extents[self._number] = stored
            self._files.truncate(path, self._written)
            if self._synced < self._written:
                data = self._files.read_at(path, self._synced, self._written - self._synced)
                if not self._is_whole(data):
                    _log.error(
                        "shared_file_damaged",
                        path=path,
                        position=self._synced,
                        effect="records that were not synced yet are lost; reading them fails",
                    )
                self._files.write_at(path, [data], self._synced, durable=True)
                self._synced = self._written
        self._must_repair = False

    def _is_whole(self, data: bytes) -> bool:
        """Whether the bytes between what is synced and what is written are frames, all of them
        good. After a failed write-back a file system may give what the device has."""
        position = max(FILE_HEADER_BYTES - self._synced, 0)

        def read(at: int, size: int) -> bytes:
            return data[at : at + size]

        for frame in scan_frames(read, position, self._salt):
            if not frame.is_whole or frame.file_position != position + FRAME_HEADER_BYTES:
                return False
            position = frame.file_end
        return position == self._written - self._synced
