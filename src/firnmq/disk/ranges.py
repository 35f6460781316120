"""Parts of files that are sent as they are: who keeps them open, and whether they are in memory.

A range has a descriptor of its own, so it outlives the cache of open files and even the file's
name: what was promised to a client can be sent although retention has removed the segment.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

_CACHESTAT = 451
"""The system call's number, the same on every architecture; since Linux 6.5."""
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class HeldFile:
    """A descriptor that is closed when nobody refers to it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor."""
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Bytes of an open file that stand in a frame without having been read.

    Whoever sends the frame copies them from the file to the socket.
    """

    fd: int
    position: int
    size_bytes: int
    held: HeldFile | None = None
    """What keeps the descriptor open, if not whoever made the range."""

    def __len__(self) -> int:
        return self.size_bytes

    @classmethod
    def of(cls, held: HeldFile, position: int, size_bytes: int) -> FileRange:
        return cls(fd=held.fd, position=position, size_bytes=size_bytes, held=held)

    def is_cached(self) -> bool:
        """Whether all its bytes are known to be in memory, so that sending needs no disk."""
        return is_cached(self.fd, self.position, self.size_bytes)

    def modified_ns(self) -> int:
        """When the file was last written to."""
        return os.fstat(self.fd).st_mtime_ns


class _Asked(ctypes.Structure):
    _fields_ = (
        ("position", ctypes.c_uint64),
        ("size_bytes", ctypes.c_uint64),
    )


class _Counted(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),  # Pages, as all that follows.
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


# Keeps the interpreter's lock: the call takes a microsecond, getting the lock back may take more.
_syscall = ctypes.PyDLL(None).syscall if sys.platform == "linux" else None


def is_cached(fd: int, position: int, size_bytes: int) -> bool:
    """Whether the bytes are in the page cache; False also where the system cannot tell."""
    if _syscall is None:
        return False
    counted = _Counted()
    asked = _Asked(position, size_bytes)
    if _syscall(_CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(counted), 0) != 0:
        return False
    pages = (position + size_bytes - 1) // _PAGE_BYTES - position // _PAGE_BYTES + 1
    return bool(counted.cached >= pages)
