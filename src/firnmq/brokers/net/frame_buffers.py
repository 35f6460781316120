"""Memory for large frames, used again and again.

A fresh megabyte costs as much as receiving it: the system gives it out page by page, and takes it
back when it is freed. A user need not give a buffer back: one that only its keeper refers to is
free. Every view of a buffer refers to it, so bytes that are still in use are never overwritten.
"""

from __future__ import annotations

import sys

_SIZE_MIN = 64 * 1024
KEPT_BYTES_MAX = 96 * 1024 * 1024
"""Kept while requests come: more than a worker's queue holds, so that a client that sends faster
than the disk writes still gets buffers that were used before."""
IDLE_BYTES_MAX = 16 * 1024 * 1024
"""Kept when requests have become fewer."""
_FREE_REFERENCES = 3
"""From the list, from the variable that looks, and from the call that counts."""


class FrameBuffers:
    """Buffers by size class: powers of two up to `size_max`. Owned by the event loop."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kept: dict[int, list[bytearray]] = {}
        self.kept_bytes = 0

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
        while self.kept_bytes + capacity > KEPT_BYTES_MAX:
            self._forget_oldest()
        buffer = bytearray(capacity)
        _resize(buffer, size)
        kept.append(buffer)
        self.kept_bytes += capacity
        return buffer

    def release_idle(self) -> None:
        """Gives free buffers back to the system, as far as there are more than a few. Called every
        few seconds."""
        for capacity in sorted(self._kept, reverse=True):
            kept = self._kept[capacity]
            at = len(kept)
            while at and self.kept_bytes > IDLE_BYTES_MAX:
                at -= 1
                buffer = kept[at]
                if sys.getrefcount(buffer) == _FREE_REFERENCES:
                    del kept[at]
                    self.kept_bytes -= capacity
                del buffer

    def _forget_oldest(self) -> None:
        """Keeps one buffer less, of the class that has most: one that is in use for long makes
        room for others, and is freed when its user is done with it."""
        capacity = max(self._kept, key=lambda each: each * len(self._kept[each]))
        del self._kept[capacity][0]
        self.kept_bytes -= capacity


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
