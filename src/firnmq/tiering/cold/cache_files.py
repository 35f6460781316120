"""Fetched parts of objects as files, up to a size limit; the least recently used are evicted.

A file's name says which bytes it holds and their CRC32C. Nothing is synced: a file that a crash
left incomplete is detected by its length or CRC when it is read, and counts as not cached. A full
disk makes the cache smaller and raises no error. Reads and writes go in slices and yield to appends
on the same disk.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.tiering.cold.extents import Extent, ExtentTable
from firnmq.tiering.cold.throttle import ColdThrottle

_NAME = re.compile(r"([0-9a-f]{12})-([0-9a-f]{8})-([0-9a-f]{8})")
_FOLDER = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = ".new"


class CacheFiles:
    """One directory of extents. Safe with threads."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        piece_bytes: int,
        origin: str,
        throttle: ColdThrottle,
    ) -> None:
        """`origin` names the store: files that were cached from another store are not found."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._origin = origin
        self._throttle = throttle
        self._lock = threading.Lock()
        self._table: ExtentTable[int] = ExtentTable(piece_bytes)  # Contents are CRCs.
        self._names: dict[str, str] = {}
        self._last_use = 0
        self._is_direct = hasattr(os, "O_DIRECT")
        self._pages: mmap.mmap | None = None
        """Aligned buffer for direct writes. Reused: new pages for each file would cost as much CPU
        as the rest of the write."""
        self._pages_lock = threading.Lock()
        self.evicted_count = 0
        self.failed_write_count = 0
        self.corrupt_count = 0
        with suppress(OSError):  # An unreadable directory is an empty cache.
            self._load_existing()

    @property
    def size_bytes(self) -> int:
        return self._table.size_bytes

    def extent_at(self, part: str, piece: int) -> tuple[int, int] | None:
        """Start and size of the extent that holds a piece; None if the piece is not cached."""
        with self._lock:
            extent = self._table.use(self._folder(part), piece)
            return None if extent is None else (extent.start, extent.size)

    def first_held(self, part: str, pieces: range) -> int:
        """The first of these pieces that is cached; the end of the range if none is."""
        with self._lock:
            return self._table.first_held(self._folder(part), pieces)

    def read(self, part: str, start: int, size: int) -> Buffer | None:
        """The extent with exactly these bytes; None if it was evicted or is corrupt.

        Extents may overlap, if some were evicted while others were fetched: another extent that
        holds the first piece may have the same size and a different start.
        """
        with self._lock:
            extent = self._table.use_at(self._folder(part), start)
        if extent is None or extent.size != size:
            return None
        path = self._path(extent)
        with suppress(OSError):
            data, crc = self._read_slices(path, size)
            self._record_use(path)
            if len(data) == size and crc == extent.content:
                return data
        with self._lock:
            was_there = self._table.remove(extent)
            self.corrupt_count += was_there
        if was_there:
            _unlink(path)
        return None

    def _read_slices(self, path: Path, size: int) -> tuple[Buffer, int]:
        """The bytes of a file, if it has that size, and their CRC. Read in slices, so that appends
        never wait long for the disk or a processor."""
        data, crc, wait_s_max = bytearray(size), 0, _READ_WAIT_S_MAX
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != size:
                return b"", 0
            if self._throttle.has_recent_appends() and hasattr(os, "posix_fadvise"):
                # No readahead by the kernel: it would read megabytes in one go.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            view = memoryview(data)
            at = 0
            while at < size:
                wait_s_max -= self._throttle.wait_for_appends(wait_s_max)
                count = os.preadv(descriptor, (view[at : at + _SLICE_BYTES],), at)
                if count == 0:
                    return b"", 0  # The file was truncated during the read.
                crc = crc32c(view[at : at + count], crc)
                at += count
        finally:
            os.close(descriptor)
        return view.toreadonly(), crc

    def write(
        self, part: str, start: int, data: Buffer, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Stores an extent and evicts others for it; False if that failed.

        The write is abandoned as soon as `is_wanted` returns False.
        """
        size = len(data)
        if size > self._max_bytes or size == 0:
            return False
        folder = self._folder(part)
        unfinished = self._directory / folder / f"{start:012x}{_UNFINISHED}"
        self._throttle.wait_for_appends(_WAIT_S_MAX)
        try:
            if not self._table.has_part(folder):
                unfinished.parent.mkdir(parents=True, exist_ok=True)
            self._evict(size, is_wanted, reused_as=unfinished)
            try:
                crc = self._write_all(unfinished, data, is_wanted)
            except FileNotFoundError:  # Another thread has removed the empty folder.
                unfinished.parent.mkdir(parents=True, exist_ok=True)
                crc = self._write_all(unfinished, data, is_wanted)
            extent = Extent(folder, start, size, crc)
            self._record_use(unfinished)
            unfinished.rename(self._path(extent))
        except (OSError, _Unwanted) as error:
            _unlink(unfinished)
            with suppress(OSError):
                unfinished.parent.rmdir()  # Only if it has nothing else.
            with self._lock:
                self.failed_write_count += isinstance(error, OSError)
            return False
        with self._lock:
            replaced = self._table.put(extent)
        if replaced is not None and replaced != extent:
            _unlink(self._path(replaced))
        self._evict(0, is_wanted)
        return True

    def _write_all(self, path: Path, data: Buffer, is_wanted: Callable[[], bool]) -> int:
        """Writes a file and returns its CRC."""
        with self._pages_lock:
            if self._pages is None:
                self._pages = mmap.mmap(-1, _SLICE_BYTES)
            if self._is_direct:
                try:
                    return self._write_slices(path, data, is_wanted, self._pages, os.O_DIRECT)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._is_direct = False  # The file system does not support direct writes.
            return self._write_slices(path, data, is_wanted, self._pages)

    def _write_slices(
        self,
        path: Path,
        data: Buffer,
        is_wanted: Callable[[], bool],
        pages: mmap.mmap,
        flags: int = 0,
    ) -> int:
        """Writes a file with little effect on appends to the same disk; returns its CRC.

        Direct I/O bypasses the page cache, whose write-back comes in bursts that delay every fsync
        on the device. The file's old blocks are overwritten, which needs no allocation. The data
        goes in slices through the aligned buffer, between two appends; after each slice the writer
        sleeps for as long as the slice took.
        """
        view, size, crc = memoryview(data), len(data), 0
        descriptor = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OPEN_MODE)
        try:
            with memoryview(pages) as aligned:
                for start in range(0, size, _SLICE_BYTES):
                    self._throttle.wait_for_appends(_WAIT_S_MAX)
                    if not is_wanted():
                        raise _Unwanted
                    before = time.perf_counter()
                    part = view[start : start + _SLICE_BYTES]
                    aligned[: len(part)] = part
                    crc = crc32c(part, crc)
                    padded = -(-len(part) // _BLOCK_BYTES) * _BLOCK_BYTES
                    if os.pwrite(descriptor, aligned[:padded], start) != padded:
                        raise OSError(errno.ENOSPC, "only a part was written")
                    time.sleep(time.perf_counter() - before)
            self._truncate_in_slices(descriptor, size, is_wanted)
        finally:
            os.close(descriptor)
        return crc

    def _truncate_in_slices(self, descriptor: int, size: int, has_time: Callable[[], bool]) -> None:
        """Truncates a file in slices: on a file system that discards freed blocks at once, every
        fsync waits for the discard, a millisecond or more for each megabyte."""
        length, wait_s_max = os.fstat(descriptor).st_size, _TRUNCATE_WAIT_S_MAX
        while length > size and has_time():
            wait_s_max -= self._throttle.wait_for_appends(min(wait_s_max, _WAIT_S_MAX))
            length = max(length - _SLICE_BYTES, size)
            os.ftruncate(descriptor, length)
        if length > size:
            os.ftruncate(descriptor, size)

    def _remove(self, path: Path, has_time: Callable[[], bool]) -> None:
        """Removes a file; truncates it in slices first, if there is time."""
        if has_time():
            with suppress(OSError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    self._truncate_in_slices(descriptor, 0, has_time)
                finally:
                    os.close(descriptor)
        _unlink(path)

    def forget(self, part: str) -> None:
        """Removes all extents of a part."""
        with self._lock:
            removed = self._table.remove_part(self._folder(part))
            self._names.pop(part, None)
        for extent in removed:
            _unlink(self._path(extent))
        if removed:
            with suppress(OSError):
                self._path(removed[0]).parent.rmdir()

    def _evict(
        self,
        size: int,
        has_time: Callable[[], bool],
        *,
        reused_as: Path | None = None,
    ) -> None:
        """Evicts the oldest extents until `size` more bytes fit.

        One of their files is renamed to `reused_as`, to be overwritten: that frees no blocks.
        """
        folder_in_use = None if reused_as is None else reused_as.parent
        while True:
            with self._lock:
                if self._table.size_bytes + size <= self._max_bytes or not len(self._table):
                    return
                oldest = self._table.remove_oldest()
                self.evicted_count += 1
            path = self._path(oldest)
            if reused_as is not None and _is_renamed(path, reused_as):
                reused_as = None
            else:
                self._remove(path, has_time)
            if path.parent != folder_in_use:
                with suppress(OSError):
                    path.parent.rmdir()  # Only if it was the last one there.

    def _load_existing(self) -> None:
        """Loads the files of an earlier process, oldest first, and removes unfinished ones."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[int, Extent[int]]] = []
        for folder in os.scandir(self._directory):
            if _FOLDER.fullmatch(folder.name) is None or not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder.path):
                fields = _NAME.fullmatch(file.name)
                status = file.stat(follow_symlinks=False)
                if fields is None or status.st_size != int(fields[2], 16):
                    if fields is not None or file.name.endswith(_UNFINISHED):
                        _unlink(Path(file.path))
                    continue
                start, size, crc = (int(field, 16) for field in fields.groups())
                found.append((status.st_mtime_ns, Extent(folder.name, start, size, crc)))
        for _, extent in sorted(found):
            replaced = self._table.put(extent)
            if replaced is not None:
                _unlink(self._path(replaced))
        self._last_use = max((use for use, _ in found), default=0)
        self._evict(0, has_time=lambda: False)  # There are no appends yet.

    def _record_use(self, path: Path) -> None:
        """Stores the order of use for the next start in the file's mtime. It is a counter, not the
        time of day, since clocks are too coarse and can be set back."""
        with self._lock:
            self._last_use += 1
            use = self._last_use
        os.utime(path, ns=(use, use))

    def _folder(self, part: str) -> str:
        name = self._names.get(part)
        if name is None:
            text = f"{self._origin}\n{part}".encode()
            name = hashlib.blake2b(text, digest_size=16).hexdigest()
            if len(self._names) >= _NAMES_MAX:
                self._names.clear()
            self._names[part] = name
        return name

    def _path(self, extent: Extent[int]) -> Path:
        name = f"{extent.start:012x}-{extent.size:08x}-{extent.content:08x}"
        return self._directory / extent.part / name


_SLICE_BYTES = 64 * 1024
_WAIT_S_MAX = 0.005
"""For one slice: under continuous appends the cache still writes 12 MB/s."""
_TRUNCATE_WAIT_S_MAX = 0.05
"""For a whole file that is truncated or removed."""
_READ_WAIT_S_MAX = 0.005
"""For a whole file that is read: a reader waits for it."""
_BLOCK_BYTES = 4096
"""Direct writes need whole blocks, from aligned memory."""
_OPEN_MODE = 0o600
_NAMES_MAX = 10_000
"""Parts whose folder names are remembered: bounds memory."""


class _Unwanted(Exception):
    """The extent being written is no longer wanted."""


def _is_renamed(path: Path, target: Path) -> bool:
    try:
        path.rename(target)
    except OSError:
        return False
    return True


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
