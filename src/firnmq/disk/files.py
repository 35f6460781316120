"""Data files: an LRU of open descriptors, gathered writes, positional reads, syncs.

Ten thousand shards must not need ten thousand descriptors, so no caller holds one for longer
than an operation, or than it takes to send a range of the file.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from firnmq.disk import gathered
from firnmq.disk.directory import make_directories, sync_directory
from firnmq.disk.private import PRIVATE_FILE
from firnmq.disk.ranges import FileRange, HeldFile

Buffer: TypeAlias = bytes | bytearray | memoryview

_WRITE_DURABLY: int = getattr(os, "RWF_DSYNC", 0)
"""Makes one write durable, as if fdatasync followed it."""

_WITHOUT_WAITING: int = getattr(os, "RWF_NOWAIT", 0)
"""Makes a read fail that the page cache cannot answer."""

IOV_MAX = 1024
"""Buffers one writev takes on Linux; more are split over several calls."""

_OPEN_MODE = PRIVATE_FILE

_QUICK_SYNC_S = 0.001
_QUICK_SYNCS_MIN = 32
"""A device is quick after so many small durable writes in a row that took no longer than this."""
_SMALL_SYNC_BYTES = 32 * 1024

BLANK_BYTES_MAX = 256 * 1024
_RESERVE_PAUSE_S = 60.0
"""After blocks could not be reserved, which a full disk refuses first, none are for so long."""
_BLANK = memoryview(bytes(BLANK_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatistics:
    open_files: int
    open_count: int
    sync_count: int
    written_bytes: int


class FileCache:
    """Opens files on use and closes the least recently used. Safe with threads."""

    def __init__(self, *, open_max: int = 1000) -> None:
        self._open_max = open_max
        self._lock = threading.Lock()
        self._files: OrderedDict[str, HeldFile] = OrderedDict()
        self._open_count = 0
        self._sync_count = 0
        self._written_bytes = 0
        self._reserve_after_s = 0.0
        self._quick_syncs = 0
        """Small durable writes since the last one that was slow."""

    @property
    def syncs_quickly(self) -> bool:
        """Whether the last small durable writes took little time, all of them."""
        return self._quick_syncs >= _QUICK_SYNCS_MIN

    def create(self, path: Path) -> None:
        """Creates an empty file and its directories, durably. An existing file is unchanged."""
        make_directories(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OPEN_MODE))
        sync_directory(path.parent)

    def write_at(
        self, path: str, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        """Writes all buffers at the position with as few calls as the system allows.

        With `durable` they are on the device when this returns. If possible, write and sync are
        then one call without the interpreter's lock: the thread has to get the lock back once
        instead of twice.
        """
        file = self._open(path)
        began_s = time.monotonic() if durable else 0.0
        if not durable and len(buffers) == 1:  # The most frequent case, kept short.
            written = os.pwritev(file.fd, buffers, position)
            if written != len(buffers[0]):
                rest = memoryview(buffers[0])[written:]
                written += _write_all(file.fd, (rest,), position + written)
        elif durable and gathered.IS_COMPILED and sum(map(len, buffers)) > gathered.PART_BYTES:
            written = gathered.write_durably(file.fd, buffers, position)
        elif durable and _WRITE_DURABLY and len(buffers) <= IOV_MAX:
            written = _write_all(file.fd, buffers, position, _WRITE_DURABLY)
        else:
            written = _write_all(file.fd, buffers, position)
            if durable:
                os.fdatasync(file.fd)
        if durable:
            self._note_sync(time.monotonic() - began_s, written)
            self._require_linked(path, file)
        self._written_bytes += written
        self._sync_count += durable
        return written

    def _note_sync(self, seconds: float, size: int) -> None:
        if seconds > _QUICK_SYNC_S:
            if size <= _SMALL_SYNC_BYTES:
                self._quick_syncs = 0
        elif self._quick_syncs < _QUICK_SYNCS_MIN:
            self._quick_syncs += 1

    def write_ahead(self, path: str, position: int, size: int) -> None:
        """Writes zeros beyond the end, durably. A later durable write there changes only allocated
        blocks: the file system then writes less metadata and waits for the device fewer times."""
        file = self._open(path)
        self._written_bytes += _write_all(file.fd, (_BLANK[:size],), position, _WRITE_DURABLY)
        if not _WRITE_DURABLY:
            os.fdatasync(file.fd)
        self._sync_count += 1

    def reserve(self, path: str, position: int, size: int) -> None:
        """Allocates blocks for later writes; the file's length stays as it is. Best effort."""
        if not gathered.IS_COMPILED or time.monotonic() < self._reserve_after_s:
            return
        try:
            gathered.reserve_blocks(self._open(path).fd, position, size)
        except OSError:  # The write itself reports what is wrong.
            self._reserve_after_s = time.monotonic() + _RESERVE_PAUSE_S

    def read_at(self, path: str, position: int, size: int) -> bytes:
        """Up to `size` bytes from the position; fewer at the end of the file."""
        file = self._open(path)
        data = os.pread(file.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # A short read before the end of the file is legal: continue.
        got = len(data)
        while got < size and (data := os.pread(file.fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_nowait(self, path: str, position: int, size: int) -> bytearray | None:
        """All `size` bytes from the position, or None if they are not in the page cache."""
        if not _WITHOUT_WAITING:
            return None
        file = self._open(path)
        data = bytearray(size)
        try:
            got = os.preadv(file.fd, (data,), position, _WITHOUT_WAITING)
        except OSError:  # Not in memory; or the file system has no such read.
            return None
        return data if got == size else None

    def range_at(self, path: str, position: int, size: int) -> FileRange:
        """A range of the file to be sent unread; it keeps the file open."""
        file = self._open(path)
        return FileRange(fd=file.fd, position=position, size_bytes=size, held=file)

    def sync(self, path: str) -> None:
        """Makes what was written to the file durable."""
        file = self._open(path)
        os.fdatasync(file.fd)
        self._require_linked(path, file)
        self._sync_count += 1

    def truncate(self, path: str, length: int, *, durable: bool = True) -> None:
        """Truncates the file, durably unless the next sync suffices."""
        file = self._open(path)
        os.ftruncate(file.fd, length)
        if durable:
            os.fsync(file.fd)
            self._sync_count += 1

    def length(self, path: str) -> int | None:
        """Bytes in the file, None if there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        """Removes the file durably; a missing file is no error.

        The descriptor is closed after the name is removed: in the other order a reader could reopen
        the file in between, and the unlinked file would keep its blocks.
        """
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
                sync_directory(Path(path).parent)
        finally:
            self.forget(path)

    def forget(self, path: str) -> None:
        """Closes the file's descriptor without syncing; operations in progress finish first."""
        with self._lock:
            self._files.pop(path, None)

    def _require_linked(self, path: str, file: HeldFile) -> None:
        """FileNotFoundError if the file was removed while it was open: its bytes are durable until
        the descriptor is closed, and no longer."""
        if os.fstat(file.fd).st_nlink == 0:
            self.forget(path)
            raise FileNotFoundError(errno.ENOENT, "the file was removed while in use", path)

    def statistics(self) -> FileStatistics:
        return FileStatistics(
            open_files=len(self._files),
            open_count=self._open_count,
            sync_count=self._sync_count,
            written_bytes=self._written_bytes,
        )

    def close(self) -> None:
        """Closes every descriptor; operations in progress finish first."""
        with self._lock:
            self._files.clear()

    def _open(self, path: str) -> HeldFile:
        """The file, opened if necessary. It stays open for as long as the caller refers to it.

        The least recently used file is closed. Unsynced bytes stay in the page cache, and Linux
        reports an earlier write-back error at the first sync after the file is opened again.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = HeldFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                self._open_count += 1
                if len(self._files) > self._open_max:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file


def is_blank(data: Buffer) -> bool:
    """Whether all bytes are zero: preallocated blocks, or blocks that were never written."""
    return not bytes(data).strip(b"\0")


def _write_all(descriptor: int, buffers: Sequence[Buffer], position: int, flags: int = 0) -> int:
    start = position
    for first in range(0, len(buffers), IOV_MAX):
        group = buffers[first : first + IOV_MAX]
        wanted = sum(map(len, group))
        written = os.pwritev(descriptor, group, position, flags)
        position += written
        if written < wanted:  # Rare: a signal or a nearly full disk. Finish with plain writes.
            rest = memoryview(b"".join(group))[written:]
            while rest:
                written = os.pwritev(descriptor, (rest,), position, flags)
                position += written
                rest = rest[written:]
    return position - start
