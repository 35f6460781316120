"""Directories: durable changes to them, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from firnmq.errors import DirectoryInUse

LOCK_NAME = "LOCK"


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Makes a directory and those above it, durably; one that is there is left as it is."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory with all in it; one that is not there is no error."""
    if path.exists():
        shutil.rmtree(path)
        sync_directory(path.parent)


class DirectoryLock:
    """Holds a data directory for this process until released or the process ends."""

    def __init__(self, directory: Path) -> None:
        make_directories(directory)
        self._path = directory / LOCK_NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise DirectoryInUse(str(directory), holder or "another process") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
