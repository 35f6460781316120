"""Ranges of files that are sent unread: their lifetime, and whether they are in the page cache.

A range keeps its file open, so it outlives the file's entry in the cache of open files and even its
name: a range can still be sent to a client after retention has removed the segment.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Self

_CACHESTAT = 451
"""The system call's number, the same on every architecture; since Linux 6.5."""
_ATTEMPTS = 3
"""A page that the kernel is migrating is not counted at that moment."""
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


MAPPINGS_MAX = 256
"""Concurrent mappings. Each holds a descriptor, and slow clients hold theirs for long."""
_KEPT_MAX = 64
"""Files whose mapping is cached for the next range; others are unmapped with their last view."""


class _Mapping(mmap.mmap):
    """A mapping that counts the existing ones. The interpreter's lock guards the count."""

    count = 0
    is_made = False
    """A mapping that the system refused is destroyed too, but was never counted."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        mapping = super().__new__(cls, *args, **options)
        mapping.is_made = True
        _Mapping.count += 1
        return mapping

    def __del__(self) -> None:
        if self.is_made:
            _Mapping.count -= 1


def mappings_left() -> int:
    """How many more ranges may be mapped now; others should be read."""
    return max(MAPPINGS_MAX - _Mapping.count, 0)


class HeldFile:
    """A descriptor that is closed with the last reference to it."""

    __slots__ = ("__weakref__", "_mapping", "fd")

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor."""
        self.fd = fd
        self._mapping: _Mapping | None = None

    def mapped(self, end: int) -> _Mapping:
        """The file as memory, at least up to `end`: the existing mapping if it is long enough,
        otherwise a new one of the whole file. Called in the event loop's thread."""
        mapping = self._mapping
        if mapping is None or len(mapping) < end:
            size = os.fstat(self.fd).st_size
            if size < end:
                raise ValueError(f"the file has {size:,} bytes, not {end:,}")
            mapping = _mapping_of(self.fd, size)
            if self._mapping is None:
                _keep(self)
            self._mapping = mapping
        return mapping

    def forget_mapping(self) -> None:
        """The mapping is removed with the last view of it."""
        self._mapping = None

    def __del__(self) -> None:
        os.close(self.fd)


@dataclass(slots=True, kw_only=True)
class FileRange:
    """Bytes of an open file that are part of a frame without having been read.

    Never changed after construction. It is not frozen because a frozen one takes four times as long
    to construct, and every fetch constructs some.
    """

    fd: int
    position: int
    size_bytes: int
    held: HeldFile | None = None
    """Keeps the descriptor open; None if the caller does."""

    def __len__(self) -> int:
        return self.size_bytes

    def mapped(self) -> memoryview:
        """The bytes as memory, for system calls only: if the file is truncated, an access from
        Python kills the process. The view keeps the mapping and the file open."""
        end = self.position + self.size_bytes
        mapping = _mapping_of(self.fd, end) if self.held is None else self.held.mapped(end)
        return memoryview(mapping)[self.position : end]

    def is_cached(self) -> bool:
        """Whether all its bytes are in the page cache, so that sending needs no disk."""
        return is_cached(self.fd, self.position, self.size_bytes)

    def modified_ns(self) -> int:
        """When the file was last written to."""
        return os.fstat(self.fd).st_mtime_ns


def _mapping_of(fd: int, size: int) -> _Mapping:
    return _Mapping(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


_kept: deque[weakref.ref[HeldFile]] = deque()
"""Files with a mapping, oldest first."""


def _keep(file: HeldFile) -> None:
    _kept.append(weakref.ref(file))
    while len(_kept) > _KEPT_MAX:
        oldest = _kept.popleft()()
        if oldest is not None:
            oldest.forget_mapping()


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
    """Whether the bytes are in the page cache; False also if the system cannot tell."""
    if _syscall is None:
        return False
    counted = _Counted()
    asked = _Asked(position, size_bytes)
    pages = (position + size_bytes - 1) // _PAGE_BYTES - position // _PAGE_BYTES + 1
    for _ in range(_ATTEMPTS):
        if _syscall(_CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(counted), 0) != 0:
            return False
        if counted.cached >= pages:
            return True
    return False
