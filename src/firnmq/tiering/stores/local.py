"""`file://`: a directory as an object store, for one machine or for a mounted share.

An object is a file. It is written under a name of its own in `.partial/`, synced, and given its
key by link (which fails if there is one) or rename (which replaces it); then the directories are
synced. So it appears whole, durable, and with `if_absent` exactly once.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from firnmq.disk.directory import sync_directory
from firnmq.disk.files import Buffer
from firnmq.errors import (
    ObjectExists,
    ObjectNotFound,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from firnmq.tiering.stores.api import (
    ObjectInfo,
    byte_length,
    check_key,
    check_prefix,
    check_range,
    every_key,
)

PARTIAL = ".partial"
"""No key begins with a dot, so nothing in here is an object."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}

_PLACE_ATTEMPTS_MAX = 100
"""A directory may be removed as empty between its making and its use, by as many as delete."""


class _PartialFile(NamedTuple):
    path: Path
    descriptor: int


class LocalStore:
    """An ObjectStore in a directory, which is created if it is missing and `creates` is set."""

    likes_groups = True

    def __init__(self, root: Path, *, creates: bool = True) -> None:
        self._root = root
        self._partial = root / PARTIAL
        self.url = f"file://{quote(str(root))}"
        # `.partial` is created even without `creates`: a copy of a store may lack the empty folder.
        # An empty directory is no store: it may be the mount point of a share.
        if not creates and not (root.is_dir() and any(root.iterdir())):
            return
        with self._translated(""):
            self._partial.mkdir(parents=True, exist_ok=True)
            for directory in (root, *root.parents):
                if os.access(directory, os.R_OK):
                    sync_directory(directory)

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> ObjectInfo:
        return self._write(key, (data,), byte_length(data), if_absent=if_absent)

    def upload(self, key: str, chunks: Iterable[Buffer], *, size: int) -> ObjectInfo:
        return self._write(key, chunks, size, if_absent=False)

    def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        """Syncs the data of all objects, then links all names, then syncs each directory once: a
        journaling file system then commits a few times instead of twice per object."""
        with ExitStack() as written:
            placed = [
                (written.enter_context(self._partial_file(key, (data,), byte_length(data))), key)
                for key, data in objects
            ]
            for file, key in placed:
                self._sync(file, key)
            directories: set[Path] = set()
            try:
                for file, key in placed:
                    with self._translated(key):
                        directories |= self._place(file.path, key, if_absent=False)
            finally:  # Also after a failure: visible objects must be durable.
                with self._translated(""):
                    self._sync_directories(directories)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        path = self._path(key)
        check_range(start, size)
        with self._translated(key):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read(descriptor, start, size)
                if len(data) < size:
                    found = max(0, os.fstat(descriptor).st_size - start)
                    raise ObjectTruncated(self.url, key, expected=size, found=found)
            finally:
                os.close(descriptor)
        return data

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._translated(key):
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFound(self.url, key)
        return _info(key, status)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        prefix = check_prefix(prefix)
        self.require_root()
        return self._below(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        changed: set[Path] = set()
        for key in keys:
            path = self._path(key)
            with self._translated(key):
                try:
                    os.unlink(path)
                except (FileNotFoundError, NotADirectoryError):
                    self.require_root()
                    continue
            changed.add(path.parent)
        for directory in sorted(changed, reverse=True):
            with self._translated(""):
                self._sync_and_prune(directory)

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        """What is in `.partial/` has no key yet, so the prefix does not matter."""
        check_prefix(prefix)
        count = 0
        with self._translated(""):
            for entry in os.scandir(self._partial):
                try:
                    if entry.stat().st_mtime_ns // 1_000_000 < before_ms:
                        os.unlink(entry.path)
                        count += 1
                except FileNotFoundError:
                    continue  # Its writer has just finished.
        return count

    def close(self) -> None:
        pass

    def _write(
        self, key: str, chunks: Iterable[Buffer], size: int, *, if_absent: bool
    ) -> ObjectInfo:
        with self._partial_file(key, chunks, size) as file:
            status = self._sync(file, key)
            with self._translated(key):
                self._sync_directories(self._place(file.path, key, if_absent=if_absent))
        return _info(key, status)

    @contextmanager
    def _partial_file(
        self, key: str, chunks: Iterable[Buffer], size: int
    ) -> Iterator[_PartialFile]:
        """A file with the bytes, without a key yet; removed at the end unless it was placed."""
        check_key(key)
        path = self._partial / secrets.token_hex(8)
        with self._translated(key):
            descriptor = os.open(path, _CREATE, 0o640)
        try:
            try:
                self._fill(descriptor, key, chunks, size)
                yield _PartialFile(path, descriptor)
            finally:
                os.close(descriptor)
        finally:
            path.unlink(missing_ok=True)

    def _sync(self, file: _PartialFile, key: str) -> os.stat_result:
        with self._translated(key):
            os.fsync(file.descriptor)
            return os.fstat(file.descriptor)

    def _fill(self, descriptor: int, key: str, chunks: Iterable[Buffer], size: int) -> None:
        written = 0
        for chunk in chunks:  # Errors of the caller's own iterator pass as they are.
            view = memoryview(chunk).cast("B")
            with self._translated(key):
                while view:
                    count = os.write(descriptor, view)
                    view = view[count:]
                    written += count
        if written != size:
            raise ObjectTruncated(self.url, key, expected=size, found=written)

    def _place(self, partial: Path, key: str, *, if_absent: bool) -> set[Path]:
        """Gives the file its key; returns the directories to sync."""
        target = self._path(key)
        for _ in range(_PLACE_ATTEMPTS_MAX):
            self.require_root()
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError, NotADirectoryError):
                continue  # The folder was removed after its creation, or an object has its name.
            try:
                if if_absent:
                    os.link(partial, target)
                else:
                    os.replace(partial, target)
                break
            except FileExistsError:
                raise ObjectExists(self.url, key) from None
            except FileNotFoundError:
                continue
        else:
            raise StoreDenied(self.url, "a part of its key is an object already", key=key)
        # All of them, each time: another writer may have created a directory without a sync yet.
        # Syncing an unchanged directory is cheap.
        return {each for each in target.parents if each.is_relative_to(self._root)}

    def _sync_directories(self, directories: Iterable[Path]) -> None:
        """Syncs directories, the deepest first."""
        for directory in sorted(directories, reverse=True):
            sync_directory(directory)

    def _sync_and_prune(self, directory: Path) -> None:
        """Makes removals durable, and removes directories that have become empty."""
        while directory != self._root:
            try:
                sync_directory(directory)
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return
            directory = directory.parent
        sync_directory(directory)

    def _below(self, folder: str) -> Iterator[ObjectInfo]:
        for name, is_folder in self._entries(folder):
            key = f"{folder}/{name}" if folder else name
            if is_folder:
                yield from self._below(key)
                continue
            try:
                yield self.head(key)
            except ObjectNotFound:
                continue  # Deleted since the list.

    def _entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        """Names in a folder. A folder sorts as its name and a slash, as its keys do."""
        try:
            with os.scandir(self._root / folder) as entries:
                found = [(entry.name, entry.is_dir()) for entry in entries if entry.name[0] != "."]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failure(folder, error) from error
        return sorted(found, key=lambda each: f"{each[0]}/" if each[1] else each[0])

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def require_root(self) -> None:
        """An unmounted share must not look like an empty store."""
        if not self._partial.is_dir():
            raise self._gone()

    def _gone(self) -> StoreUnavailable:
        if self._root.is_dir():
            reason = "nothing of FirnMQ is in the directory"
        else:
            reason = "the directory does not exist"
        return StoreUnavailable(
            self.url, f"{reason}; check the URL, and that a share is mounted there"
        )

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(key, error) from error

    def _failure(self, key: str, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        if error.errno in _DENIED:
            return StoreDenied(self.url, reason, key=key)
        if error.errno in _NOT_THERE and not self._partial.is_dir():
            return self._gone()
        if error.errno in _NOT_THERE and key:
            return ObjectNotFound(self.url, key)
        return StoreUnavailable(self.url, reason, key=key)


def _read(descriptor: int, start: int, size: int) -> bytes | bytearray:
    data = os.pread(descriptor, size, start)
    if len(data) == size or not data:
        return data
    whole = bytearray(data)  # One pread returns at most 2 GiB.
    while len(whole) < size:
        more = os.pread(descriptor, size - len(whole), start + len(whole))
        if not more:
            break
        whole += more
    return whole


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    e_tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, e_tag, status.st_mtime_ns // 1_000_000)
