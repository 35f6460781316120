"""Disk space that is reserved for the case that the disk is full.

A file occupies it. Shrinking the file lets the databases open, reads continue and topics be deleted
although the disk is full.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from firnmq.disk.directory import sync_directory

RESERVE_NAME = "RESERVE"
_SHARE = 8
"""At most this fraction of a small disk is reserved."""
_MODE = 0o600


class Reserve:
    """The file of one data directory. Not safe with threads."""

    def __init__(self, directory: Path, size_bytes_max: int) -> None:
        self._path = directory / RESERVE_NAME
        self._directory = directory
        self.full_bytes = min(size_bytes_max, disk_bytes(directory) // _SHARE)
        """The target size of the file."""

    @property
    def held_bytes(self) -> int:
        """The present size of the file."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def free_bytes(self) -> int:
        """Free space beside the reserve."""
        return free_bytes(self._directory)

    def hold(self, size_bytes: int) -> bool:
        """Resizes the file; False if the disk refuses, and then the file is unchanged."""
        held_bytes = self.held_bytes
        if size_bytes == held_bytes:
            return True
        if size_bytes <= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                sync_directory(self._directory)
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError:
            return False
        try:
            os.ftruncate(descriptor, min(size_bytes, held_bytes))
            if size_bytes > held_bytes:
                os.posix_fallocate(descriptor, held_bytes, size_bytes - held_bytes)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, min(size_bytes, held_bytes))
            return False
        finally:
            os.close(descriptor)
        return True


def free_bytes(path: Path) -> int:
    """Free space of the path's file system for this process."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def disk_bytes(path: Path) -> int:
    """The size of the path's file system."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
