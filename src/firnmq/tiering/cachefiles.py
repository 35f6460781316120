"""Fetched parts of objects as files, up to a limit; the least recently used ones go.

A file's name says which bytes it holds and their CRC32C. Nothing is synced: what a crash has left
incomplete is found by length or CRC when it is read, and counts as not cached. A disk without room
leaves the cache smaller and is no error to anyone, and those who append to logs on the same disk
are not held up.
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
from firnmq.tiering.courtesy import Courtesy
from firnmq.tiering.extents import Extent, ExtentTable

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
        courtesy: Courtesy,
    ) -> None:
        """`origin` names the store: what was cached from another one is not found."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._origin = origin
        self._courtesy = courtesy
        self._lock = threading.Lock()
        self._table: ExtentTable[int] = ExtentTable(piece_bytes)  # Contents are CRCs.
        self._names: dict[str, str] = {}
        self._last_use = 0
        self._is_direct = hasattr(os, "O_DIRECT")
        self._pages: mmap.mmap | None = None
        """What is written goes through here. Kept: new pages for each file would cost as much of
        the processor as all the rest."""
        self._pages_lock = threading.Lock()
        self.evicted_count = 0
        self.failed_write_count = 0
        self.corrupt_count = 0
        with suppress(OSError):  # A directory that cannot be read caches nothing.
            self._take_stock()

    @property
    def size_bytes(self) -> int:
        return self._table.size_bytes

    def extent_at(self, part: str, piece: int) -> tuple[int, int] | None:
        """Start and size of the extent that holds a piece; None if that is not here."""
        with self._lock:
            extent = self._table.use(self._folder(part), piece)
            return None if extent is None else (extent.start, extent.size)

    def first_held(self, part: str, pieces: range) -> int:
        """The first of these pieces that is here; where they end if none is."""
        with self._lock:
            return self._table.first_held(self._folder(part), pieces)

    def read(self, part: str, start: int, size: int) -> Buffer | None:
        """The extent with exactly these bytes, or None if it is gone or not what was written.

        Extents overlap where some went while others were fetched: another one that holds the first
        piece may have the same size and begin elsewhere.
        """
        with self._lock:
            extent = self._table.use_at(self._folder(part), start)
        if extent is None or extent.size != size:
            return None
        path = self._path(extent)
        with suppress(OSError):
            data, crc = self._read_slices(path, size)
            self._note_use(path)
            if len(data) == size and crc == extent.content:
                return data
        with self._lock:
            was_there = self._table.remove(extent)
            self.corrupt_count += was_there
        if was_there:
            _unlink(path)
        return None

    def _read_slices(self, path: Path, size: int) -> tuple[Buffer, int]:
        """The bytes of a file, if it has that size, and their CRC; a little at a time, so that
        neither the disk nor a processor is taken for long."""
        data, crc, patience_s = bytearray(size), 0, _READ_PATIENCE_S
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != size:
                return b"", 0
            if self._courtesy.is_beside_appends() and hasattr(os, "posix_fadvise"):
                # The system must not read megabytes ahead.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            view = memoryview(data)
            at = 0
            while at < size:
                patience_s -= self._courtesy.give_way(patience_s)
                count = os.preadv(descriptor, (view[at : at + _SLICE_BYTES],), at)
                if count == 0:
                    return b"", 0  # It has become shorter.
                crc = crc32c(view[at : at + count], crc)
                at += count
        finally:
            os.close(descriptor)
        return view.toreadonly(), crc

    def write(
        self, part: str, start: int, data: Buffer, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Keeps an extent and makes room for it; False if that was not possible.

        It is given up as soon as it is not wanted any more.
        """
        size = len(data)
        if size > self._max_bytes or size == 0:
            return False
        folder = self._folder(part)
        unfinished = self._directory / folder / f"{start:012x}{_UNFINISHED}"
        self._courtesy.give_way(_PATIENCE_S)
        try:
            if not self._table.has_part(folder):
                unfinished.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(size, is_wanted, reused_as=unfinished)
            try:
                crc = self._write_all(unfinished, data, is_wanted)
            except FileNotFoundError:  # Somebody has removed its folder.
                unfinished.parent.mkdir(parents=True, exist_ok=True)
                crc = self._write_all(unfinished, data, is_wanted)
            extent = Extent(folder, start, size, crc)
            self._note_use(unfinished)
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
        self._make_room(0, is_wanted)
        return True

    def _write_all(self, path: Path, data: Buffer, is_wanted: Callable[[], bool]) -> int:
        """Writes a file; the CRC of what is in it."""
        with self._pages_lock:
            if self._pages is None:
                self._pages = mmap.mmap(-1, _SLICE_BYTES)
            if self._is_direct:
                try:
                    return self._write_slices(path, data, is_wanted, self._pages, os.O_DIRECT)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._is_direct = False  # The file system has no such writes.
            return self._write_slices(path, data, is_wanted, self._pages)

    def _write_slices(
        self,
        path: Path,
        data: Buffer,
        is_wanted: Callable[[], bool],
        pages: mmap.mmap,
        flags: int = 0,
    ) -> int:
        """Writes a file so that others who need the disk at the same time hardly notice; its CRC.

        Past the page cache, since its write-back comes in bursts for which every sync on the device
        waits; over the blocks that the file has; and a little at a time, through the given pages,
        between two appends and pausing for as long as it took.
        """
        view, size, crc = memoryview(data), len(data), 0
        descriptor = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OPEN_MODE)
        try:
            with memoryview(pages) as aligned:
                for start in range(0, size, _SLICE_BYTES):
                    self._courtesy.give_way(_PATIENCE_S)
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
            self._cut(descriptor, size, is_wanted)
        finally:
            os.close(descriptor)
        return crc

    def _cut(self, descriptor: int, size: int, has_time: Callable[[], bool]) -> None:
        """Makes a file shorter, a little at a time: where a file system tells its device at once
        which blocks are free, every sync waits for that, for megabytes a millisecond or more."""
        length, patience_s = os.fstat(descriptor).st_size, _CUT_PATIENCE_S
        while length > size and has_time():
            patience_s -= self._courtesy.give_way(min(patience_s, _PATIENCE_S))
            length = max(length - _SLICE_BYTES, size)
            os.ftruncate(descriptor, length)
        if length > size:
            os.ftruncate(descriptor, size)

    def _remove(self, path: Path, has_time: Callable[[], bool]) -> None:
        """Removes a file; as slowly, if there is time."""
        if has_time():
            with suppress(OSError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    self._cut(descriptor, 0, has_time)
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

    def _make_room(
        self,
        size: int,
        has_time: Callable[[], bool],
        *,
        reused_as: Path | None = None,
    ) -> None:
        """Removes the oldest extents until there is room for so many bytes more.

        One of them becomes the file `reused_as`, to be written over: that frees no blocks.
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

    def _take_stock(self) -> None:
        """Finds what an earlier process has left, oldest first, and removes what is unfinished."""
        self._directory.mkdir(parents=True, exist_ok=True)
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
        self._make_room(0, has_time=lambda: False)  # Nobody appends yet.

    def _note_use(self, path: Path) -> None:
        """Keeps the order of use for the next start: as time of change, but no time of day, since
        clocks are too coarse and go back."""
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
_PATIENCE_S = 0.005
"""For one slice: where appends never pause, 12 MB/s are still written."""
_CUT_PATIENCE_S = 0.05
"""For a whole file that is made shorter or removed."""
_READ_PATIENCE_S = 0.005
"""For a whole file that is read: somebody waits for it."""
_BLOCK_BYTES = 4096
"""Direct writes are whole blocks, from memory that is aligned to them."""
_OPEN_MODE = 0o640
_NAMES_MAX = 10_000
"""Names of parts whose folders are remembered, so that memory does not grow with the log."""


class _Unwanted(Exception):
    """What is being written was forgotten."""


def _is_renamed(path: Path, target: Path) -> bool:
    try:
        path.rename(target)
    except OSError:
        return False
    return True


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
