"""Memory for large frames, used again and again.

A fresh megabyte costs as much as receiving it: the system gives it out page by page, and takes it
back when it is freed. A user need not give a buffer back: one that only its keeper refers to is
free. Every view of a buffer refers to it, so bytes that are still in use are never overwritten.
"""

from __future__ import annotations

import sys

_SIZE_MIN = 64 * 1024
_KEPT_MAX = 16
"""Buffers of one size; those that are in use for long make room for others."""
_FREE_REFERENCES = 3
"""From the list, from the variable that looks, and from the call that counts."""


class FrameBuffers:
    """Buffers by size class: powers of two up to `size_max`. Owned by the event loop."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kept: dict[int, list[bytearray]] = {}

    def take(self, size: int) -> bytearray:
        """A buffer of exactly this size, with whatever it held before."""
        if not _SIZE_MIN < size <= self._size_max:
            return bytearray(size)
        capacity = 1 << (size - 1).bit_length()
        kept = self._kept.setdefault(capacity, [])
        for buffer in kept:
            if sys.getrefcount(buffer) == _FREE_REFERENCES:
                _resize(buffer, size)
                return buffer
        buffer = bytearray(capacity)
        _resize(buffer, size)
        if len(kept) == _KEPT_MAX:
            del kept[0]
        kept.append(buffer)
        return buffer


def _resize(buffer: bytearray, size: int) -> None:
    """Within the upper half of its capacity, which costs no new memory."""
    if len(buffer) > size:
        del buffer[size:]
    elif len(buffer) < size:
        buffer.extend(bytes(size - len(buffer)))


def resized(buffer: bytearray, size: int) -> bytearray:
    """A copy of another size; the old one may still be lent to the event loop."""
    other = bytearray(size)
    count = min(len(buffer), size)
    other[:count] = memoryview(buffer)[:count]
    return other
